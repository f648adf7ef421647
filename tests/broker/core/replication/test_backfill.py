"""Catch-up: what is missing comes from who has it, is checked before it is written, and stops at a higher promise.

How sealed epochs are filled is in test_history_fills.
"""

from __future__ import annotations

import pytest
from tests.broker.core.bench import ballot, descriptor, end_of, run_of
from tests.broker.core.history_bench import HistoryBench, Past

from tidelog_broker.core.replication.acceptor import Opening
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import ReadLog, RebuildProducers, Send
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_proto import broker_pb2 as pb

OPEN = run_of(descriptor(), 2, 3, 1)
FORKED = run_of(descriptor(), 2, 3, 1, fill=b"other")
ZERO = Position(0, 0)


def opening(*holders: str, round_: int = 1) -> Opening:
    return Opening("c", pb.OpenEpoch(ballot=ballot(round_), holders=holders))


# --- the open epoch ------------------------------------------------------------------------------------


def test_what_a_follower_lacks_it_asks_of_the_owner_from_where_it_is_and_once() -> None:
    trial = HistoryBench(held=OPEN[:1])
    trial.history.fetch_tail(0)
    trial.history.fetch_tail(0)
    to, ask = trial.asked()
    assert (to, ask.epoch, ask.from_offset, ask.from_digest, ask.end_offset) == ("a", 0, *end_of(OPEN[:1]), 0)
    assert trial.history.deadline_ms is not None


def test_it_asks_on_until_it_has_what_the_owner_had_and_acknowledges_what_is_durable() -> None:
    trial = HistoryBench()
    trial.history.fetch_tail(0)
    trial.take()
    trial.reply(OPEN[:2], commit=2)
    assert trial.acknowledged == [], "nothing is acknowledged before it is durable"
    trial.wrote()
    assert trial.acknowledged == [5]
    assert trial.high_watermark == 2
    assert trial.asked()[1].from_offset == 5
    trial.reply(OPEN[2:], commit=2)
    trial.wrote()
    assert trial.tail.durable == end_of(OPEN)
    assert trial.history.deadline_ms is None


def test_an_empty_answer_ends_it() -> None:
    trial = HistoryBench(held=OPEN)
    trial.history.fetch_tail(0)
    trial.reply([], base=end_of(OPEN))
    assert trial.history.deadline_ms is None
    assert trial.acknowledged == [6], "the owner may have missed how far this copy is"


def test_nothing_is_fetched_after_a_promise() -> None:
    trial = HistoryBench()
    trial.promise(ballot(1))
    trial.history.fetch_tail(0)
    assert trial.history.deadline_ms is None
    assert trial.peek() == []


def test_a_promise_meanwhile_keeps_what_comes_out_of_the_log() -> None:
    trial = HistoryBench()
    trial.history.fetch_tail(0)
    trial.promise(ballot(1))
    trial.reply(OPEN, commit=6)
    assert (trial.tail.queued.offset, trial.writes, trial.acknowledged) == (0, 0, [])
    assert trial.history.deadline_ms is None


@pytest.mark.parametrize(
    "batches",
    [FORKED[1:2], OPEN[2:], run_of(descriptor(incarnation=8), 2), run_of(descriptor(1), 2)],
    ids=["another history", "a hole", "another start of the owner", "another epoch"],
)
def test_what_does_not_continue_the_log_is_not_written(batches: list[Batch]) -> None:
    trial = HistoryBench(held=OPEN[:1])
    trial.history.fetch_tail(0)
    trial.reply(batches)
    assert trial.writes == 0
    assert trial.history.deadline_ms == trial.timing.resend_ms, "it asks again"


def test_an_answer_that_nobody_asked_for_is_not_taken() -> None:
    trial = HistoryBench()
    trial.reply(OPEN)
    trial.history.fetch_tail(0)
    trial.reply(OPEN, sender="c")
    trial.reply(OPEN, base=Position(2, 0))
    assert trial.writes == 0


def test_an_owner_that_refuses_is_asked_again_later() -> None:
    trial = HistoryBench()
    trial.history.fetch_tail(0)
    trial.take()
    trial.reply([], status=pb.IN_LIMBO, now_ms=10)
    assert trial.history.deadline_ms == 110
    trial.history.tick(109)
    assert trial.peek() == []
    trial.history.tick(110)
    assert trial.asked()[0] == "a"


def test_what_is_pushed_again_need_not_be_pulled_unless_the_copy_is_in_doubt() -> None:
    trial = HistoryBench()
    trial.history.fetch_tail(0)
    trial.history.pushed()
    assert trial.history.deadline_ms is None
    trial = HistoryBench(doubt="short")
    trial.history.fetch_tail(0)
    trial.history.pushed()
    assert trial.history.deadline_ms is not None, "only the owner's answer says where its log ended"


def test_a_doubt_is_over_when_all_that_the_owner_had_is_durable_here() -> None:
    trial = HistoryBench(doubt="short")
    trial.history.fetch_tail(0)
    trial.reply(OPEN[:2])
    trial.wrote()
    assert trial.doubt == "short"
    trial.reply(OPEN[2:])
    assert trial.doubt == "short"
    trial.wrote()
    assert not trial.doubt


# --- for an OPEN_EPOCH ---------------------------------------------------------------------------------


def test_what_an_open_needs_comes_from_its_holders_up_to_its_end_and_then_it_is_asked_again() -> None:
    trial = HistoryBench(held=OPEN[:1])
    trial.promise(ballot(1))
    trial.history.fetch_for(opening("b", "c"), end_of(OPEN[:2]), 0)
    to, ask = trial.asked()
    assert (to, ask.from_offset, ask.end_offset) == ("c", 2, 5)
    trial.reply(OPEN[1:], sender="c")  # more than it needs
    assert trial.reopened == []
    trial.wrote()
    assert trial.tail.durable == end_of(OPEN[:2]), "not a batch past the proposed end"
    assert [one.message.ballot for one in trial.reopened] == [ballot(1)]
    assert trial.acknowledged == [], "after a promise no acknowledgement leaves"
    assert trial.history.deadline_ms is None


def test_a_fetch_stops_at_a_higher_promise() -> None:
    trial = HistoryBench()
    trial.promise(ballot(1))
    trial.history.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.promise(ballot(2, "a"))
    trial.reply(OPEN, sender="c")
    assert (trial.writes, trial.tail.queued.offset, trial.reopened) == (0, 0, [])


def test_what_was_being_written_when_a_higher_promise_came_is_not_reopened() -> None:
    trial = HistoryBench()
    trial.promise(ballot(1))
    trial.history.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.reply(OPEN, sender="c")
    trial.history.forget_tail()
    trial.wrote()
    assert trial.reopened == []


def test_a_higher_open_takes_the_place_of_a_lower_one_and_the_same_one_does_not_begin_anew() -> None:
    trial = HistoryBench()
    trial.promise(ballot(1))
    trial.history.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.take()
    trial.history.fetch_for(opening("c"), end_of(OPEN), 0)
    assert trial.peek() == []
    trial.promise(ballot(2))
    trial.history.fetch_for(opening("a", round_=2), end_of(OPEN), 0)
    assert trial.asked()[0] == "a"
    trial.reply(OPEN)
    trial.wrote()
    assert [one.message.ballot.round for one in trial.reopened] == [2]


def test_a_holder_that_has_nothing_for_an_open_is_left_for_the_next() -> None:
    trial = HistoryBench()
    trial.promise(ballot(1))
    trial.history.fetch_for(opening("c", "a"), end_of(OPEN), 0)
    trial.take()
    trial.reply([], sender="c", now_ms=5)
    trial.history.tick(5)
    assert trial.asked()[0] == "a"


def test_an_open_that_nobody_else_holds_is_not_fetched() -> None:
    trial = HistoryBench()
    trial.history.fetch_for(opening("b"), end_of(OPEN), 0)
    assert trial.history.deadline_ms is None


# --- serving -------------------------------------------------------------------------------------------


def serve(trial: HistoryBench, *, epoch: int = 0, at: Position = ZERO, end: int = 0, size: int = 1000) -> bool:
    ask = pb.Backfill(epoch=epoch, from_offset=at.offset, from_digest=at.digest, end_offset=end, max_bytes=size)
    return trial.history.on_backfill("c", ask, 0)


def test_what_is_durable_is_served_and_never_more_than_was_asked_for() -> None:
    trial = HistoryBench(held=OPEN[:2])
    trial.queue(OPEN[2:])
    serve(trial)
    assert trial.take(ReadLog) == [ReadLog("c", 0, 0, 5, 1000)]
    serve(trial, at=end_of(OPEN[:1]), end=3, size=10**9)
    assert trial.take(ReadLog) == [ReadLog("c", 0, 2, 3, trial.timing.tail_bytes)]


def test_who_has_everything_is_told_where_it_ends_and_what_is_committed() -> None:
    trial = HistoryBench(held=OPEN[:2])
    trial.queue(OPEN[2:])
    trial.note_commit(4)
    serve(trial, at=end_of(OPEN[:2]))
    reply = trial.answer(pb.BackfillReply)
    assert (reply.status, reply.base_offset, reply.length, reply.commit_offset) == (pb.HELD, 5, 0, 4)
    assert reply.source_end_offset == 6, "offsets that are given out and not written yet are missing, too"


def test_what_is_pushed_again_is_not_served_as_well() -> None:
    trial = HistoryBench(held=OPEN)
    trial.pushes_from = 2
    assert serve(trial, at=end_of(OPEN[:1]))
    reply = trial.answer(pb.BackfillReply)
    assert (reply.status, reply.base_offset, reply.end_offset, reply.length) == (pb.HELD, 2, 2, 0)
    assert not serve(trial)
    assert len(trial.take(ReadLog)) == 1


def test_a_sealed_epoch_is_served_to_its_decided_end() -> None:
    past = Past()
    trial = past.lacking(held=(0, 1, 2))
    trial.pushes_from = 0
    serve(trial, epoch=1, at=Position(4, 0))
    assert trial.take(ReadLog) == [ReadLog("c", 1, 4, 8, 1000)]
    assert trial.resumed == [], "nothing but the open epoch is ever pushed"
    trial.note_commit(13)
    trial.history.reply(ReadLog("c", 1, 4, 8, 1000), (), Position(4, 0), Position(4, 0), pb.HELD)
    reply = trial.answer(pb.BackfillReply)
    assert (reply.commit_offset, reply.source_end_offset) == (0, 8), "a commit is never told of another epoch"


@pytest.mark.parametrize(
    ("epoch", "at", "status"),
    [
        (4, Position(12, 0), pb.BEHIND),
        (2, Position(8, 0), pb.NOT_HELD),
        (1, Position(7, 0), pb.NOT_HELD),
        (1, Position(5, 1), pb.DIVERGED),
    ],
    ids=["of an epoch to come", "of a copy that is not whole", "not at a boundary", "of another history"],
)
def test_what_is_not_held_as_asked_is_refused(epoch: int, at: Position, status: pb.ReplicaStatus) -> None:
    trial = Past().lacking(2, held=(0, 1))
    trial.take()
    serve(trial, epoch=epoch, at=at)
    assert trial.answer(pb.BackfillReply).status == status
    assert trial.take(ReadLog) == []


def test_who_does_not_store_the_open_epoch_does_not_serve_it() -> None:
    trial = HistoryBench(chain=EpochChain(descriptor(placement=("a", "c"))))
    serve(trial)
    assert trial.answer(pb.BackfillReply).status == pb.NOT_HELD


def test_a_halted_replica_serves_nothing() -> None:
    trial = HistoryBench(held=OPEN)
    trial.halt("rot")
    serve(trial)
    assert trial.answer(pb.BackfillReply).status == pb.IN_LIMBO


def test_who_does_not_know_the_digest_is_not_refused_for_it() -> None:
    trial = Past().lacking(held=(0, 1, 2))
    ask = pb.Backfill(epoch=1, from_offset=5, digest_unknown=True, max_bytes=1000)
    trial.history.on_backfill("c", ask, 0)
    assert trial.take(ReadLog) == [ReadLog("c", 1, 5, 8, 1000)]


def test_producers_are_rebuilt_for_who_asks_only_from_a_log_that_is_whole() -> None:
    past = Past()
    ask = pb.Backfill(epoch=2, from_offset=12, producers=True)
    trial = past.lacking(held=(0, 1, 2))
    trial.history.on_backfill("c", ask, 0)
    assert trial.take(RebuildProducers) == [RebuildProducers(2, 12, "c")]
    trial = past.lacking(2, held=(0, 1))
    trial.take()
    trial.history.on_backfill("c", ask, 0)
    assert trial.take(RebuildProducers) == []


def test_what_was_read_is_sent_with_both_ends() -> None:
    trial = HistoryBench(held=OPEN)
    base, end = end_of(OPEN[:1]), end_of(OPEN[:2])
    trial.history.reply(ReadLog("c", 0, 2, 6, 1000), [OPEN[1].data], base, end, pb.HELD)
    [send] = trial.take(Send)
    reply = send.message
    assert isinstance(reply, pb.BackfillReply)
    assert (reply.base_offset, reply.previous_digest) == base
    assert (reply.end_offset, reply.end_digest) == end
    assert (reply.length, reply.source_end_offset) == (len(OPEN[1].data), 6)
    assert [bytes(data) for data in send.batches] == [bytes(OPEN[1].data)]
