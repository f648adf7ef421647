"""Catch-up: what is missing comes from who has it, is checked before it is written, and stops at a higher promise.

How sealed epochs are filled is in test_backfill.
"""

from __future__ import annotations

import pytest
from tests.broker.core.bench import ballot, descriptor, end_of, run_of
from tests.broker.core.fetching_bench import FetchingBench

from tidelog_broker.core.replication.acceptor import Opening
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_proto import broker_pb2 as pb

OPEN = run_of(descriptor(), 2, 3, 1)
FORKED = run_of(descriptor(), 2, 3, 1, fill=b"other")
ZERO = Position(0, 0)


def opening(*holders: str, round_: int = 1) -> Opening:
    return Opening("c", pb.OpenEpoch(ballot=ballot(round_), holders=holders))


# --- the open epoch ------------------------------------------------------------------------------------


def test_what_a_follower_lacks_it_asks_of_the_owner_from_where_it_is_and_once() -> None:
    trial = FetchingBench(held=OPEN[:1])
    trial.catch_up.begin(0)
    trial.catch_up.begin(0)
    to, ask = trial.asked()
    assert (to, ask.epoch, ask.from_offset, ask.from_digest, ask.end_offset) == ("a", 0, *end_of(OPEN[:1]), 0)
    assert trial.catch_up.deadline_ms is not None


def test_it_asks_on_until_it_has_what_the_owner_had_and_acknowledges_what_is_durable() -> None:
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


def test_an_empty_answer_ends_it() -> None:
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


def test_a_promise_meanwhile_keeps_what_comes_out_of_the_log() -> None:
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
def test_what_does_not_continue_the_log_is_not_written(batches: list[Batch]) -> None:
    trial = FetchingBench(held=OPEN[:1])
    trial.catch_up.begin(0)
    trial.reply(batches)
    assert trial.writes == 0
    assert trial.catch_up.deadline_ms == trial.timing.resend_ms, "it asks again"


def test_an_answer_that_nobody_asked_for_is_not_taken() -> None:
    trial = FetchingBench()
    trial.reply(OPEN)
    trial.catch_up.begin(0)
    trial.reply(OPEN, sender="c")
    trial.reply(OPEN, base=Position(2, 0))
    assert trial.writes == 0


def test_an_owner_that_refuses_is_asked_again_later() -> None:
    trial = FetchingBench()
    trial.catch_up.begin(0)
    trial.take()
    trial.reply([], status=pb.IN_LIMBO, now_ms=10)
    assert trial.catch_up.deadline_ms == 110
    trial.catch_up.tick(109)
    assert trial.peek() == []
    trial.catch_up.tick(110)
    assert trial.asked()[0] == "a"


def test_what_is_pushed_again_need_not_be_pulled_unless_the_copy_is_in_doubt() -> None:
    trial = FetchingBench()
    trial.catch_up.begin(0)
    trial.catch_up.pushed()
    assert trial.catch_up.deadline_ms is None
    trial = FetchingBench(doubt="short")
    trial.catch_up.begin(0)
    trial.catch_up.pushed()
    assert trial.catch_up.deadline_ms is not None, "only the owner's answer says where its log ended"


def test_a_doubt_is_over_when_all_that_the_owner_had_is_durable_here() -> None:
    trial = FetchingBench(doubt="short")
    trial.catch_up.begin(0)
    trial.reply(OPEN[:2])
    trial.wrote()
    assert trial.doubt == "short"
    trial.reply(OPEN[2:])
    assert trial.doubt == "short"
    trial.wrote()
    assert not trial.doubt


# --- for an OPEN_EPOCH ---------------------------------------------------------------------------------


def test_what_an_open_needs_comes_from_its_holders_up_to_its_end_and_then_it_is_asked_again() -> None:
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


def test_a_fetch_stops_at_a_higher_promise() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.promise(ballot(2, "a"))
    trial.reply(OPEN, sender="c")
    assert (trial.writes, trial.tail.queued.offset, trial.reopened) == (0, 0, [])


def test_what_was_being_written_when_a_higher_promise_came_is_not_reopened() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("c"), end_of(OPEN), 0)
    trial.reply(OPEN, sender="c")
    trial.catch_up.stop()
    trial.wrote()
    assert trial.reopened == []


def test_a_higher_open_takes_the_place_of_a_lower_one_and_the_same_one_does_not_begin_anew() -> None:
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


def test_a_holder_that_has_nothing_for_an_open_is_left_for_the_next() -> None:
    trial = FetchingBench()
    trial.promise(ballot(1))
    trial.catch_up.fetch_for(opening("c", "a"), end_of(OPEN), 0)
    trial.take()
    trial.reply([], sender="c", now_ms=5)
    trial.catch_up.tick(5)
    assert trial.asked()[0] == "a"


def test_an_open_that_nobody_else_holds_is_not_fetched() -> None:
    trial = FetchingBench()
    trial.catch_up.fetch_for(opening("b"), end_of(OPEN), 0)
    assert trial.catch_up.deadline_ms is None
