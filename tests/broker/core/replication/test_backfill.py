"""Sealed epochs: filled newest first, joined to the log only when complete, and never below the log start."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import Bench, decision, descriptor, end_of, run_of
from tests.broker.core.fetching_bench import FetchingBench, Past

from tidelog_broker.core.replication.backfill import MissingHistory
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import AppendPartialCopy, FinishPartialCopy, Send, SetAside
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.core.replication.ports import Position, Timing
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb


def test_sealed_epochs_are_fetched_newest_first_one_at_a_time() -> None:
    past = Past()
    trial = past.lacking(0, 1, 2)
    for epoch in (2, 1, 0):
        to, ask = trial.asked()
        start = epoch * 4
        assert (to, ask.epoch, ask.from_offset, ask.from_digest, ask.end_offset) == ("a", epoch, start, 0, start + 4)
        trial.reply(past.batches[epoch], epoch=epoch, base=Position(start, 0))
        [fill] = [effect for effect in trial.peek() if isinstance(effect, AppendPartialCopy)]
        assert (fill.epoch, fill.start_offset, fill.base_offset, fill.end_offset) == (epoch, start, start, start + 4)
        assert Position(fill.epoch_end_offset, fill.epoch_end_digest) == end_of(past.batches[epoch])
        assert fill.start_digest == 0
        trial.wrote()
        assert [type(effect) for effect in trial.peek()] == [FinishPartialCopy]
        assert epoch in trial.backfill.incomplete, "a copy counts only once it is part of the log"
        assert trial.times_whole == 0
        trial.wrote()
        assert epoch not in trial.backfill.incomplete
    assert trial.times_whole == 1, "waiting callers are notified once, when the log is complete"
    assert trial.peek() == []
    assert trial.backfill.deadline_ms is None


def test_partial_copy_is_continued() -> None:
    past = Past()
    trial = past.lacking(2)
    trial.asked()
    trial.reply(past.batches[2][:1], epoch=2, base=Position(8, 0))
    trial.wrote()
    ask = trial.asked()[1]
    assert (ask.from_offset, ask.from_digest) == end_of(past.batches[2][:1])
    again = FetchingBench(chain=past.chain, incomplete=(2,))
    again.disk.fills[2] = trial.disk.fills[2]
    again.backfill.go_on(0)
    assert again.asked()[1].from_offset == 9, "and so it does after a restart"


def test_each_range_of_a_sealed_epoch_waits_for_the_budget() -> None:
    past = Past()
    trial = FetchingBench(chain=past.chain, incomplete=(2,))
    trial.hints.backfill_waits_ms = [30, 0, 50]
    trial.backfill.go_on(100)
    assert trial.peek() == []
    assert trial.backfill.deadline_ms == 130
    trial.backfill.tick(129)
    assert trial.peek() == []
    trial.backfill.tick(130)
    assert trial.asked()[1].from_offset == 8
    assert trial.hints.backfilled_bytes == [trial.timing.backfill_bytes], (
        "a caller that has waited is not counted again"
    )
    trial.reply(past.batches[2][:1], epoch=2, base=Position(8, 0), now_ms=140)
    trial.wrote()
    assert trial.asked()[1].from_offset == 9, "nothing to wait for"
    assert trial.hints.backfilled_bytes == [trial.timing.backfill_bytes, 2 * trial.timing.backfill_bytes]
    assert trial.backfill.missing() is not None


def test_excess_bytes_are_counted_on_arrival() -> None:
    past = Past()
    trial = FetchingBench(chain=past.chain, incomplete=(2,))
    trial.timing = Timing(backfill_bytes=10)
    trial.backfill.go_on(0)
    trial.asked()
    first = past.batches[2][:1]
    trial.reply(first, epoch=2, base=Position(8, 0))
    trial.wrote()
    trial.asked()
    assert trial.hints.backfilled_bytes == [10, len(first[0].data) - 10, 20]


@pytest.mark.parametrize(
    ("epoch", "front", "is_open", "waits"),
    [(2, 1, True, False), (2, 0, True, True), (1, 1, True, True), (1, 0, False, False)],
    ids=["the end of the previous epoch", "a whole epoch", "older history", "an owner that cannot open without it"],
)
def test_urgent_fetch_is_not_delayed(epoch: int, front: int, *, is_open: bool, waits: bool) -> None:
    past = Past(owner="b")
    trial = FetchingBench(chain=past.chain, incomplete=(epoch,))
    trial.store(past.batches[epoch][:front])
    trial.owner = OffsetAssigner(trial.active, producers=ProducerTable()) if is_open else None
    trial.hints.backfill_waits_ms = [30, 40]
    trial.backfill.go_on(100)
    assert (trial.backfill.deadline_ms == 130) == waits
    assert trial.hints.backfilled_bytes == [trial.timing.backfill_bytes], "it is counted"
    trial.backfill.tick(130)
    [ask] = [message for _, message in trial.sent(pb.Backfill)]
    base = Position(ask.from_offset, ask.from_digest)
    trial.reply(past.batches[epoch][front : front + 1], epoch=epoch, base=base, sender="a")
    trial.wrote(140)
    assert bool(trial.sent(pb.Backfill)) != waits, "nor is what follows; a copy that was begun here is no other"


def test_source_is_not_blamed_for_a_delayed_range() -> None:
    past = Past()
    trial = FetchingBench(chain=past.chain, incomplete=(2,))
    trial.hints.backfill_waits_ms = [5000]
    trial.backfill.go_on(0)
    trial.backfill.tick(5000)
    assert trial.asked()[0] == "a", "the first source, and not the next one"
    missing = trial.backfill.missing()
    assert missing is not None
    assert not missing.is_unavailable


def test_partial_copy_shorter_than_expected_is_continued_from_its_end() -> None:
    past = Past()
    trial = past.lacking(2)
    trial.asked()
    trial.reply(past.batches[2][:1], epoch=2, base=Position(8, 0))
    trial.wrote()
    assert trial.asked()[1].from_offset == 9
    trial.disk.fills.clear()
    trial.backfill.tick(trial.timing.peer_fetch_ms)
    assert trial.asked()[1].from_offset == 8


def test_partial_copy_without_disk_space_is_requested_again_from_its_end() -> None:
    past = Past()
    trial = past.lacking(2)
    trial.asked()
    trial.reply(past.batches[2], epoch=2, base=Position(8, 0))
    trial.wrote(5, ok=False)
    trial.backfill.tick(2000)
    assert trial.asked()[1].from_offset == 8


@pytest.mark.parametrize("is_writing", [False, True])
def test_newly_sealed_epoch_preempts_older_ones_which_continue_later(*, is_writing: bool) -> None:
    past = Past()
    trial = past.lacking(0, held=(1,))
    trial.asked()
    trial.reply(past.batches[0][:1], epoch=0, base=Position(0, 0))
    if not is_writing:
        trial.wrote()
        assert trial.asked()[1].epoch == 0
    trial.backfill.incomplete.add(2)
    trial.backfill.go_on(50)
    if is_writing:
        assert [type(effect) for effect in trial.peek()] == [AppendPartialCopy], "received batches are kept"
        trial.wrote(60)
    assert trial.asked()[1].epoch == 2
    trial.reply(past.batches[0][1:2], epoch=0, base=end_of(past.batches[0][:1]))
    assert trial.peek() == [], "it would be asked for again"
    trial.reply(past.batches[2], epoch=2, base=Position(8, 0))
    trial.wrote(70)
    trial.wrote(80)
    assert trial.backfill.incomplete == {0}
    ask = trial.asked()[1]
    assert (ask.epoch, ask.from_offset, ask.from_digest) == (0, *end_of(past.batches[0][:1]))


@pytest.mark.parametrize("comes", [False, True])
def test_partial_copy_of_a_moved_partition_stops_and_continues_later(*, comes: bool) -> None:
    past = Past()
    trial = past.lacking(2)
    trial.asked()
    end = trial.active.start_offset
    trial.extend_chain(decision(trial.chain, Position(end, 0), owner="a", placement=("a", "c")))
    trial.fence = None
    if comes:
        trial.reply(past.batches[2][:1], epoch=2, base=Position(8, 0))
        trial.wrote()
    else:
        trial.backfill.tick(trial.timing.peer_fetch_ms)
    assert (trial.peek(), trial.backfill.deadline_ms) == ([], None)
    assert trial.hints.backfilled_bytes == [trial.timing.backfill_bytes], "it does not take the budget of later fetches"
    trial.extend_chain(decision(trial.chain, Position(end, 0), owner="a"))
    trial.backfill.go_on(5000)
    assert trial.asked()[1].from_offset == (9 if comes else 8)


def test_each_failed_store_uses_the_budget() -> None:
    """With a full disk the same range is fetched repeatedly, which has to use the budget like other fetches."""
    past = Past()
    trial = past.lacking(2)
    trial.asked()
    trial.hints.backfill_waits_ms = [700]
    trial.reply(past.batches[2], epoch=2, base=Position(8, 0))
    trial.wrote(5, ok=False)
    assert trial.peek() == []
    assert trial.backfill.deadline_ms == 705
    trial.backfill.tick(705)
    assert trial.asked()[1].max_bytes == trial.timing.backfill_bytes
    assert trial.hints.backfilled_bytes == [trial.timing.backfill_bytes] * 2


def test_only_the_decided_range_is_fetched() -> None:
    """A source may not have truncated its tail yet."""
    past = Past()
    longer = run_of(descriptor(2, start=8), 1, 1, 2, 5)
    assert end_of(longer[:3]) == end_of(past.batches[2])
    trial = past.lacking(2)
    trial.reply(longer, epoch=2, base=Position(8, 0))
    [fill] = trial.take(AppendPartialCopy)
    assert fill.end_offset == 12


def test_complete_copy_with_a_wrong_digest_is_restarted_at_another_source() -> None:
    past = Past()
    wrong = run_of(descriptor(2, start=8), 1, 3, fill=b"other")
    trial = past.lacking(2)
    assert trial.asked()[0] == "a"
    trial.reply(wrong, epoch=2, base=Position(8, 0))
    trial.wrote()
    [aside] = [effect for effect in trial.peek() if not isinstance(effect, Send)]
    assert isinstance(aside, SetAside), "it is never made part of the log"
    trial.wrote()
    assert trial.backfill.incomplete == {2}
    to, ask = trial.asked()
    assert (to, ask.from_offset, ask.from_digest) == ("c", 8, 0)


@pytest.mark.parametrize("how", ["diverged", "broken"])
def test_partial_copy_that_its_source_does_not_continue_is_restarted(how: str) -> None:
    past = Past()
    trial = FetchingBench(chain=past.chain, incomplete=(2,))
    trial.disk.fills[2] = [(one.header, one.data) for one in run_of(descriptor(2, start=8), 1, fill=b"other")]
    trial.backfill.go_on(0)
    trial.take()
    at = Position(9, 0)
    if how == "diverged":
        trial.reply([], epoch=2, base=at, status=pb.DIVERGED)
    else:
        trial.reply(past.batches[2][1:], epoch=2, base=at)
    assert [type(effect) for effect in trial.peek()] == [SetAside]
    trial.wrote()
    assert trial.asked()[1].from_offset == 8


def test_source_without_the_epoch_is_skipped() -> None:
    trial = Past().lacking(2)
    trial.take()
    trial.reply([], epoch=2, base=Position(8, 0), status=pb.NOT_HELD, now_ms=5)
    trial.backfill.tick(5)
    assert trial.asked()[0] == "c"


def test_one_epoch_is_fetched_at_a_time() -> None:
    trial = Past().lacking(1, 2)
    trial.asked()
    trial.backfill.go_on(0)
    assert trial.peek() == []


def test_complete_log_needs_no_backfill() -> None:
    past = Past()
    trial = past.lacking(1, 2, held=(1, 2))
    assert trial.backfill.incomplete == set()
    assert trial.peek() == []


def test_copy_that_joined_the_log_with_another_is_not_fetched_again() -> None:
    past = Past()
    trial = past.lacking(0, 1, 2)
    trial.asked()
    trial.reply(past.batches[2], epoch=2, base=Position(8, 0))
    trial.store(past.batches[1])
    trial.wrote()
    trial.wrote()
    assert trial.backfill.incomplete == {0}
    assert trial.asked()[1].epoch == 0


def test_copy_that_failed_to_join_the_log_with_another_is_fetched_again() -> None:
    """It was complete, waited for the next epoch to be filled, and then could not be opened."""
    past = Past()
    trial = past.lacking(2, held=(0, 1))
    trial.asked()
    trial.reply(past.batches[2], epoch=2, base=Position(8, 0))
    del trial.disk.epochs[0]
    trial.wrote()
    trial.wrote()
    assert trial.backfill.incomplete == {0}
    assert trial.times_whole == 0, "no caller is notified of a complete log"
    assert trial.asked()[1].epoch == 0


def test_node_outside_the_placement_fetches_nothing() -> None:
    trial = Past(placement=("a", "c")).lacking(2)
    assert trial.peek() == []


def test_hole_without_another_source_halts_the_replica() -> None:
    chain = EpochChain(descriptor(owner="b", placement=("b",), quorum=1))
    chain.extend(decision(chain, Position(5, 1), placement=("b",), quorum=1))
    trial = FetchingBench(chain=chain, incomplete=(0,))
    trial.backfill.go_on(0)
    assert "epoch 0" in (trial.halted or "")


# --- retention -----------------------------------------------------------------------------------------


def test_deleted_records_are_not_fetched() -> None:
    past = Past()
    trial = past.lacking(0, 1, 2)
    trial.take()
    trial.backfill.raise_log_start(8, 0)
    assert (trial.backfill.incomplete, trial.log_start) == ({2}, 8)
    trial.backfill.raise_log_start(4, 0)
    assert trial.log_start == 8, "it never goes back"
    assert trial.peek() == [], "the running fill continues"
    assert trial.times_whole == 0
    trial.backfill.raise_log_start(12, 0)
    assert trial.backfill.incomplete == set()
    assert trial.times_whole == 1, "nothing is missing any more, although nothing came"
    assert trial.backfill.deadline_ms is None


def test_epoch_with_a_deleted_front_is_fetched_from_the_log_start() -> None:
    """The digest at the start is taken on trust; the one at the end verifies the rest."""
    past = Past()
    trial = past.lacking(2)
    trial.take()
    trial.backfill.raise_log_start(9, 0)
    ask = trial.asked()[1]
    assert (ask.from_offset, ask.digest_unknown) == (9, True)
    base = end_of(past.batches[2][:1])
    trial.reply(past.batches[2][1:], epoch=2, base=base)
    [fill] = [effect for effect in trial.peek() if isinstance(effect, AppendPartialCopy)]
    assert (fill.start_offset, fill.start_digest, fill.base_offset, fill.end_offset) == (*base, 9, 12)
    trial.wrote()
    assert [type(effect) for effect in trial.peek()] == [FinishPartialCopy]


def test_wrong_digest_at_the_start_is_detected_at_the_end() -> None:
    past = Past()
    other = run_of(descriptor(2, start=8), 1, 3, fill=b"other")
    trial = past.lacking(2)
    trial.take()
    trial.backfill.raise_log_start(9, 0)
    trial.asked()
    trial.reply(other[1:], epoch=2, base=end_of(other[:1]))
    trial.wrote()
    assert [type(effect) for effect in trial.peek()] == [SetAside]


def test_ranges_after_a_deleted_front_are_contiguous() -> None:
    past = Past()
    trial = past.lacking(2)
    trial.take()
    trial.backfill.raise_log_start(9, 0)
    trial.asked()
    trial.reply(past.batches[2][1:2], epoch=2, base=end_of(past.batches[2][:1]))
    trial.wrote()
    ask = trial.asked()[1]
    assert (ask.digest_unknown, ask.from_offset, ask.from_digest) == (False, *end_of(past.batches[2][:2]))


def test_answer_below_a_raised_log_start_is_not_written() -> None:
    past = Past()
    trial = past.lacking(2)
    trial.asked()
    trial.reply(past.batches[2], epoch=2, base=Position(8, 0), log_start=9)
    assert trial.writes == 0
    assert trial.asked()[1].from_offset == 9


def test_nothing_below_the_log_start_is_fetched_after_a_restart() -> None:
    trial = FetchingBench(chain=Past().chain, incomplete=(0, 1))
    trial.log_start = 8
    trial.backfill.go_on(0)
    assert trial.peek() == []


def test_source_reports_its_log_start() -> None:
    past = Past()
    trial = past.lacking(1, 2)
    trial.take()
    trial.reply([], epoch=2, base=Position(8, 0), status=pb.NOT_HELD, log_start=9)
    assert (trial.log_start, trial.backfill.incomplete) == (9, {2})
    assert trial.asked()[1].from_offset == 9


# --- damaged copies --------------------------------------------------------------------------------------


def test_missing_history_shrinks_with_each_batch_to_none() -> None:
    past = Past()
    trial = past.lacking(1, held=(0, 2))
    assert trial.backfill.missing() == MissingHistory(1, 4, 1, "a", is_unavailable=False)
    trial.asked()
    trial.reply(past.batches[1][:2], epoch=1, base=Position(4, 0))
    trial.wrote()
    missing = trial.backfill.missing()
    assert missing is not None
    assert missing.records == 2
    trial.asked()
    trial.reply(past.batches[1][2:], epoch=1, base=end_of(past.batches[1][:2]))
    trial.wrote()
    trial.wrote()
    assert trial.backfill.missing() is None


def test_history_is_unavailable_after_all_refusals_until_a_source_has_it() -> None:
    past = Past(placement=("a", "b", "c"))
    trial = past.lacking(2, held=(0, 1))

    def is_nowhere() -> bool:
        missing = trial.backfill.missing()
        assert missing is not None
        return missing.is_unavailable

    for sender in ("a", "c"):
        assert not is_nowhere()
        trial.reply([], sender=sender, epoch=2, base=Position(8, 0), status=pb.NOT_HELD)
        trial.backfill.tick(1000)
    assert is_nowhere()
    trial.reply(past.batches[2][:1], sender="a", epoch=2, base=Position(8, 0))
    assert not is_nowhere()


def test_node_outside_the_placement_lacks_nothing() -> None:
    trial = Past(placement=("a", "c")).lacking(0, 1, 2)
    assert trial.backfill.missing() is None


def test_damaged_copy_is_set_aside_once_its_replacement_is_complete() -> None:
    past = Past()
    trial = past.lacking(held=(0, 1, 2))
    backfill = trial.backfill
    assert backfill.refetch(1, "it has rotted", 0)
    to, ask = trial.asked()
    assert (to, ask.epoch, ask.from_offset) == ("a", 1, 4)
    assert (backfill.incomplete, backfill.complete_from) == (set(), 0), "the intact part can be read"
    trial.reply([], epoch=1, base=Position(4, 0), status=pb.NOT_HELD)
    assert trial.peek() == [], "no other node has a copy yet"
    backfill.tick(backfill.deadline_ms or 0)
    assert trial.asked()[0] == "c"
    trial.reply(past.batches[1], sender="c", epoch=1, base=Position(4, 0))
    assert [type(effect) for effect in trial.peek()] == [AppendPartialCopy], "the received copy may also be damaged"
    trial.wrote()
    assert [type(effect) for effect in trial.peek()] == [SetAside, FinishPartialCopy]
    assert backfill.incomplete == {1}
    trial.effects.pop(0)  # the bench's disk knows only one copy of an epoch
    Bench.wrote(trial, 0, ok=True)
    trial.wrote()
    assert (backfill.incomplete, trial.peek()) == (set(), [])


def test_deleted_damaged_copy_is_not_fetched() -> None:
    past = Past()
    trial = past.lacking(held=(0, 1, 2))
    assert trial.backfill.refetch(0, "it has rotted", 0)
    trial.asked()
    trial.backfill.raise_log_start(4, 0)
    assert (trial.peek(), trial.backfill.deadline_ms) == ([], None)


def test_damaged_copy_is_kept_after_the_partition_moved() -> None:
    past = Past(placement=("a", "c"))
    trial = past.lacking(held=(0, 1, 2))
    assert not trial.backfill.refetch(1, "it has rotted", 0)
    assert trial.peek() == []


def without_front(epoch: int = 0) -> tuple[Past, FetchingBench]:
    """Return a replica whose copy of an epoch lacks its first batch, and whose request for it is pending."""
    past = Past()
    trial = past.lacking()
    for number, batches in enumerate(past.batches):
        trial.store(batches[1:] if number == epoch else batches)
    trial.backfill.fronts.look(epoch, 0)
    return past, trial


def test_epoch_whose_first_records_are_lost_is_fetched_again_and_missing_until_then() -> None:
    past, trial = without_front()
    backfill = trial.backfill
    to, ask = trial.asked()
    assert (to, ask.epoch, ask.from_offset) == ("a", 0, 0)
    assert (backfill.incomplete, backfill.lacks_any, backfill.complete_from, backfill.awaited_below) == (
        set(),
        True,
        4,
        4,
    )
    assert backfill.missing() == MissingHistory(1, 4, 0, "a", is_unavailable=False)
    assert backfill.is_lacking
    trial.reply(past.batches[0], epoch=0, base=Position(0, 0))
    trial.wrote()
    assert [type(effect) for effect in trial.peek()] == [SetAside, FinishPartialCopy]
    trial.effects.pop(0)  # the bench's disk knows only one copy of an epoch
    Bench.wrote(trial, 0, ok=True)
    trial.wrote()
    assert (backfill.lacks_any, backfill.missing(), trial.peek()) == (False, None, [])
    assert trial.times_whole == 1


@pytest.mark.parametrize("deleted", ["log start", "delete offset"])
def test_first_records_that_turn_out_to_be_deleted_are_not_missing(deleted: str) -> None:
    _, trial = without_front()
    trial.asked()
    if deleted == "log start":
        trial.backfill.raise_log_start(1, 0)
        assert trial.times_whole == 1
        assert trial.backfill.deadline_ms is None
    else:
        trial.deleted_below = 1
    assert not trial.backfill.lacks_any
    assert trial.backfill.missing() is None


def test_whole_and_deleted_fronts_are_not_fetched() -> None:
    past = Past()
    trial = past.lacking(held=(0, 1, 2))
    trial.disk.cut_front(0, 1)
    trial.deleted_below = 1
    for epoch in range(3):
        trial.backfill.fronts.look(epoch, 0)
    assert (trial.peek(), trial.backfill.lacks_any) == ([], False)


def test_only_copy_that_lacks_its_first_records_is_halted() -> None:
    chain = EpochChain(descriptor(placement=("b",), owner="b", quorum=1))
    batches = run_of(chain.active, 1, 2)
    chain.extend(decision(chain, end_of(batches), owner="b", placement=("b",), quorum=1))
    trial = FetchingBench(chain=chain)
    trial.store(batches[1:])
    trial.backfill.fronts.look(0, 0)
    assert trial.halted_permanently
    assert "begins at offset 1, but the records from offset 0 were not deleted" in (trial.halted or "")
    assert trial.backfill.missing() is not None


def test_copy_lost_on_completion_is_still_missing() -> None:
    past = Past()
    trial = past.lacking(1, held=(0, 2))
    trial.reply(past.batches[1], epoch=1, base=Position(4, 0))
    trial.wrote()
    trial.wrote()
    assert trial.backfill.incomplete == set()
    trial = past.lacking(1, held=(0, 2))
    trial.reply(past.batches[1], epoch=1, base=Position(4, 0))
    trial.wrote()
    trial.disk.fills.clear()
    trial.effects = [effect for effect in trial.effects if not isinstance(effect, FinishPartialCopy)]
    Bench.wrote(trial, 0, ok=True)
    assert trial.backfill.incomplete == {1}


@pytest.mark.parametrize("epoch", [3, 7, 1])
def test_open_or_missing_epoch_is_not_fetched_again(epoch: int) -> None:
    past = Past()
    trial = past.lacking(held=(0, 2))
    assert not trial.backfill.refetch(epoch, "it has rotted", 0)
    assert trial.peek() == []


def test_only_copy_is_kept_when_damaged() -> None:
    chain = EpochChain(descriptor(placement=("b",), owner="b", quorum=1))
    batches = run_of(chain.active, 1, 2)
    chain.extend(decision(chain, end_of(batches), owner="b", placement=("b",), quorum=1))
    trial = FetchingBench(chain=chain)
    trial.store(batches)
    assert not trial.backfill.refetch(0, "it has rotted", 0)
    assert trial.peek() == []
