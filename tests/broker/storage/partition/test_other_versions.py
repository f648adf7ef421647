"""Another version of a sealed epoch, filled beside the log's: it takes that one's place whole, or not at all."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from tests.broker.storage.build import read_all
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.partition.keyed import all_records, compact, keyed_epochs
from tests.broker.storage.sim_disk import PowerCutError, SimDisk

from tidelog_broker.storage.partition.compaction_pass import FinishedVersion, Terms
from tidelog_broker.storage.partition.partition_log import PartitionLog

DECIDED = 99


def same(sim: SimDisk) -> PartitionLog:
    log = open_partition(sim)
    keyed_epochs(log, Random(4), epochs=3)
    return log


@pytest.fixture(name="newer")
def _newer() -> tuple[PartitionLog, FinishedVersion]:
    """A log that is compacted, and how its first epoch ends now."""
    log = same(new_disk())
    (first, *_) = compact(log, Terms(log.epochs[-1].start_offset, 3, 0), decided=DECIDED)
    assert first.epoch == 0
    return log, first


def fetch(log: PartitionLog, newer: tuple[PartitionLog, FinishedVersion], *, parts: int | None = None) -> None:
    source, made = newer
    log.copies.begin_copy(0, 0, *made.end)
    batches = source.reader.read(0, 1 << 20, limit_offset=made.end.offset).batches
    if log.copies.copy_position(0) != made.end:
        log.copies.append_copy(0, batches[:parts])


def test_older_version_is_read_until_the_newer_is_complete(newer: tuple[PartitionLog, FinishedVersion]) -> None:
    sim = new_disk()
    log = same(sim)
    before = read_all(log)
    fetch(log, newer, parts=0)
    assert (read_all(log), log.copies.partial_epochs) == (before, (0,))
    fetch(log, newer)
    assert log.copies.finish_copy(0, DECIDED)
    assert (log.epochs[0].end_digest, log.copies.partial_epochs) == (newer[1].end.digest, ())
    assert log.epochs[0].directory.name == f"epoch-00000000.c{DECIDED:08d}"
    assert all_records(log)[0].offset == all_records(newer[0])[0].offset
    assert [one.epoch for one in log.epochs] == [0, 1, 2]
    assert not sim.exists(log.directory / "epoch-00000000"), "the older one takes space still"


def test_crash_at_any_step_leaves_one_of_the_versions(newer: tuple[PartitionLog, FinishedVersion]) -> None:
    number = 0
    for number in range(10_000):
        sim = new_disk()
        log = same(sim)
        ends = {log.epochs[0].end_digest, newer[1].end.digest}
        sim.cut_at = sim.steps + number
        with suppress(PowerCutError):
            fetch(log, newer)
            assert log.copies.finish_copy(0, DECIDED)
            break
        again = open_partition(sim.power_cut(Random(number)))
        assert again.limbo is None
        assert again.epochs[0].end_digest in ends
        assert [one.epoch for one in again.epochs] == [0, 1, 2]
        fetch(again, newer)
        assert again.copies.finish_copy(0, DECIDED)
        assert again.epochs[0].end_digest == newer[1].end.digest
    assert number > 15


def test_partial_copy_is_removed_when_the_older_version_leaves_the_log(
    newer: tuple[PartitionLog, FinishedVersion],
) -> None:
    """The older one is whole, and all there is."""
    log = same(new_disk())
    end = log.epochs[0].end_digest
    fetch(log, newer, parts=0)
    log.copies.demote(1)
    log.copies.begin_copy(0, 0, newer[1].end.offset, newer[1].end.digest, or_digests=[end])
    assert log.copies.copy_position(0) == (newer[1].end.offset, end)
    assert log.copies.finish_copy(0)
    assert log.epochs[0].end_digest == end


def test_version_compacted_here_meanwhile_is_not_swapped_in_twice(newer: tuple[PartitionLog, FinishedVersion]) -> None:
    log = same(new_disk())
    fetch(log, newer)
    compact(log, Terms(log.epochs[-1].start_offset, 3, 0), decided=DECIDED)
    assert log.copies.finish_copy(0, DECIDED)
    assert (log.epochs[0].end_digest, log.copies.partial_epochs) == (newer[1].end.digest, ())


def test_version_fetched_meanwhile_is_not_compacted_again(newer: tuple[PartitionLog, FinishedVersion]) -> None:
    log = same(new_disk())
    fetch(log, newer)
    assert log.copies.finish_copy(0, DECIDED)
    compact(log, Terms(log.epochs[-1].start_offset, 3, 0), decided=DECIDED)
    assert log.epochs[0].directory.name == f"epoch-00000000.c{DECIDED:08d}"


def test_damaged_older_version_is_set_aside_and_the_copy_continues(newer: tuple[PartitionLog, FinishedVersion]) -> None:
    log = same(new_disk())
    fetch(log, newer, parts=0)
    assert log.copies.set_aside(0, "it has rotted").name == "epoch-00000000.bad-1"
    fetch(log, newer)
    assert log.copies.finish_copy(0)
    assert log.epochs[0].end_digest == newer[1].end.digest


def test_version_with_a_later_start_removes_older_epochs_from_the_log(
    newer: tuple[PartitionLog, FinishedVersion],
) -> None:
    """The log's version of epoch 1 begins with the epoch, the other version after that, because of retention."""
    log, source = newer[0], same(new_disk()).epochs[1]
    batches = source.reader.read(source.start_offset, 1, limit_offset=source.end_offset)
    middle, end_offset = batches.next_offset, source.end_offset
    log.copies.begin_copy(1, middle, end_offset, source.end_digest, start_digest=source.reader.digest_at(middle))
    log.copies.append_copy(1, source.reader.read(middle, 1 << 20, limit_offset=end_offset).batches)
    assert log.start_offset == 0
    assert log.copies.finish_copy(1, DECIDED + 1)
    assert (log.start_offset, [one.epoch for one in log.epochs]) == (middle, [1, 2])


def test_discarding_a_partial_copy_keeps_a_complete_older_version(newer: tuple[PartitionLog, FinishedVersion]) -> None:
    log = same(new_disk())
    fetch(log, newer, parts=0)
    log.copies.begin_anew(0, newer[1].end.offset)
    assert (log.epochs[0].epoch, log.copies.partial_epochs) == (0, ())
    newest = log.epochs[-1]
    log.copies.begin_anew(newest.epoch, newest.end_offset)
    assert log.epochs[-1] is newest
    log.copies.begin_anew(newest.epoch, newest.end_offset + 1)
    assert log.epochs[-1].epoch < newest.epoch, "the shorter version is removed"
