"""Catch-up: missing records come from their holders, are verified before writing, and stop at a higher promise.

Filling of sealed epochs is in test_backfill.
"""

from __future__ import annotations

import pytest
from tests.broker.core.bench import ballot, descriptor, end_of, run_of
from tests.broker.core.fetching_bench import FetchingBench

from tidelog_broker.core.replication.acceptor import Opening
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.source import UNKNOWN_END
from tidelog_proto import broker_pb2 as pb

OPEN = run_of(descriptor(), 2, 3, 1)
FORKED = run_of(descriptor(), 2, 3, 1, fill=b"other")
ZERO = Position(0, 0)


def opening(*holders: str, round_: int = 1) -> Opening:
    return Opening("c", pb.OpenEpoch(ballot=ballot(round_), holders=holders))


# --- the open epoch ------------------------------------------------------------------------------------


def test_follower_requests_missing_records_once_from_its_end() -> None:
    trial = FetchingBench(held=OPEN[:1])
    trial.catch_up.begin(0)
    trial.catch_up.begin(0)
    to, ask = trial.asked()
    assert (to, ask.epoch, ask.from_offset, ask.from_digest, ask.end_offset) == ("a", 0, *end_of(OPEN[:1]), 0)
    assert trial.catch_up.deadline_ms is not None


def test_catch_up_continues_to_the_owners_end_and_acknowledges_durable_records() -> None:
    trial = FetchingBench()
    trial.catch_up.begin(0)
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
    assert trial.catch_up.deadline_ms is None


def test_empty_answer_ends_the_catch_up() -> None:
    trial = FetchingBench(held=OPEN)
    trial.catch_up.begin(0)
    trial.reply([], base=end_of(OPEN))
    assert trial.catch_up.deadline_ms is None
    assert trial.acknowledged == [6], "the owner may have missed how far this copy is"


def test_nothing_is_fetched_after_a_promise() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.begin(0)
    assert trial.catch_up.deadline_ms is None
    assert trial.peek() == []


def test_answer_after_a_promise_is_not_written() -> None:
    trial = FetchingBench()
    trial.catch_up.begin(0)
    trial.promise(ballot(1))
    trial.reply(OPEN, commit=6)
    assert (trial.tail.queued.offset, trial.writes, trial.acknowledged) == (0, 0, [])
    assert trial.catch_up.deadline_ms is None


@pytest.mark.parametrize(
    "batches",
    [FORKED[1:2], OPEN[2:], run_of(descriptor(incarnation=8), 2), run_of(descriptor(1), 2)],
    ids=["another history", "a hole", "another start of the owner", "another epoch"],
)
def test_answer_that_does_not_continue_the_log_is_not_written(batches: list[Batch]) -> None:
    trial = FetchingBench(held=OPEN[:1])
    trial.catch_up.begin(0)
    trial.reply(batches)
    assert trial.writes == 0
    assert trial.catch_up.deadline_ms == trial.timing.resend_ms, "it asks again"


def test_unexpected_answer_is_ignored() -> None:
    trial = FetchingBench()
    trial.reply(OPEN)
    trial.catch_up.begin(0)
    trial.reply(OPEN, sender="c")
    trial.reply(OPEN, base=Position(2, 0))
    assert trial.writes == 0


def test_refusing_owner_is_asked_again_later() -> None:
    trial = FetchingBench()
    trial.catch_up.begin(0)
    trial.take()
    trial.reply([], status=pb.IN_LIMBO, now_ms=10)
    assert trial.catch_up.deadline_ms == 110
    trial.catch_up.tick(109)
    assert trial.peek() == []
    trial.catch_up.tick(110)
    assert trial.asked()[0] == "a"


def test_resumed_push_ends_the_catch_up_unless_the_copy_is_in_doubt() -> None:
    trial = FetchingBench()
    trial.catch_up.begin(0)
    trial.catch_up.pushed()
    assert trial.catch_up.deadline_ms is None
    trial = FetchingBench(doubt="short")
    trial.catch_up.begin(0)
    trial.catch_up.pushed()
    assert trial.catch_up.deadline_ms is not None, "only the owner's answer has its log end"


def test_doubt_ends_when_the_owners_records_are_durable_here() -> None:
    trial = FetchingBench(doubt="short")
    trial.catch_up.begin(0)
    trial.reply(OPEN[:2])
    trial.wrote()
    assert trial.doubt == "short"
    trial.reply(OPEN[2:])
    assert trial.doubt == "short"
    trial.wrote()
    assert not trial.doubt


def test_doubt_stays_when_the_answer_comes_of_a_restarted_owner() -> None:
    trial = FetchingBench(doubt="short")
    trial.catch_up.begin(0)
    trial.reply(OPEN[:2], source_end=UNKNOWN_END)
    trial.wrote()
    trial.reply([], base=end_of(OPEN[:2]), source_end=UNKNOWN_END)
    assert trial.catch_up.deadline_ms is None, "it has what that node has"
    assert trial.doubt == "short"
    trial.queue(OPEN[2:])
    trial.wrote()
    assert trial.doubt == "short"


# --- for an OPEN_EPOCH ---------------------------------------------------------------------------------


def test_records_for_an_open_are_fetched_from_holders_up_to_its_end() -> None:
    trial = FetchingBench(held=OPEN[:1])
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("b", "c"), end_of(OPEN[:2]), 0)
    to, ask = trial.asked()
    assert (to, ask.from_offset, ask.end_offset) == ("c", 2, 5)
    trial.reply(OPEN[1:], sender="c")  # more than it needs
    assert trial.reopened == []
    trial.wrote()
    assert trial.tail.durable == end_of(OPEN[:2]), "not a batch past the proposed end"
    assert [one.message.ballot for one in trial.reopened] == [ballot(1)]
    assert trial.acknowledged == [], "after a promise no acknowledgement leaves"
    assert trial.catch_up.deadline_ms is None


def test_higher_promise_stops_the_fetch() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.promise(ballot(2, "a"))
    trial.reply(OPEN, sender="c")
    assert (trial.writes, trial.tail.queued.offset, trial.reopened) == (0, 0, [])


def test_write_pending_at_a_higher_promise_is_not_reopened() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.reply(OPEN, sender="c")
    trial.catch_up.stop()
    trial.wrote()
    assert trial.reopened == []


def test_higher_open_replaces_a_lower_one_and_a_repeated_one_does_not_restart() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.take()
    trial.catch_up.fetch_for(opening("c"), end_of(OPEN), 0)
    assert trial.peek() == []
    trial.promise(ballot(2))
    trial.catch_up.fetch_for(opening("a", round_=2), end_of(OPEN), 0)
    assert trial.asked()[0] == "a"
    trial.reply(OPEN)
    trial.wrote()
    assert [one.message.ballot.round for one in trial.reopened] == [2]


def test_holder_without_the_records_is_skipped() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("c", "a"), end_of(OPEN), 0)
    trial.take()
    trial.reply([], sender="c", now_ms=5)
    trial.catch_up.tick(5)
    assert trial.asked()[0] == "a"


def test_open_without_other_holders_is_not_fetched() -> None:
    trial = FetchingBench()
    trial.catch_up.fetch_for(opening("b"), end_of(OPEN), 0)
    assert trial.catch_up.deadline_ms is None


def test_nothing_is_fetched_for_a_second_after_an_append_without_disk_space() -> None:
    trial = FetchingBench()
    trial.catch_up.no_space(10)
    retry_ms = 10 + trial.timing.peer_fetch_ms
    trial.catch_up.begin(retry_ms - 1)
    trial.catch_up.fetch_for(opening("a"), end_of(OPEN), retry_ms - 1)
    assert (trial.peek(), trial.catch_up.deadline_ms) == ([], None)
    trial.catch_up.fetch_for(opening("a"), end_of(OPEN), retry_ms)
    assert trial.asked()[0] == "a"
