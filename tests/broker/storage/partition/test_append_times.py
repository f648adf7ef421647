from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.broker.storage.build import batch, needed
from tests.broker.storage.logs import new_disk, open_partition
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.epoch.epoch_reader import EpochReader
from tidelog_broker.storage.partition.append_times import Ages
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto.batch.header import BatchHeader, stamp_owner


def append_at(log: PartitionLog, *stamps_us: int, epoch: int = 0, records: int = 1) -> None:
    """Append a batch for each stamp; the records' own times are others."""
    for stamp_us in stamps_us:
        one = batch(records=records, timestamp_us=1_000_000)
        log.ensure_space(needed([one]))
        stamp_owner(
            one,
            base_offset=log.end_offset,
            append_timestamp_us=stamp_us,
            epoch=epoch,
            owner_incarnation=9,
            previous_digest=log.end_digest,
        )
        log.append([one])


def three_segments(sim: SimDisk) -> PartitionLog:
    """Offsets 0 and 1, then 2, then 3 and 4 where it is appended."""
    log = open_partition(sim)
    log.start_epoch(0, 0)
    append_at(log, 10, 20)
    assert log.roll()
    append_at(log, 30)
    assert log.roll()
    append_at(log, 40, 50)
    log.sync()
    return log


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets at which headers are looked for."""
    asked: list[int] = []
    scan_headers = EpochReader.scan_headers

    def noted(self: EpochReader, offset: int) -> Iterator[BatchHeader]:
        asked.append(offset)
        return scan_headers(self, offset)

    monkeypatch.setattr(EpochReader, "scan_headers", noted)
    return asked


def test_a_log_without_records_has_no_ages() -> None:
    log = open_partition(new_disk())
    assert log.times.look(99) == Ages()
    log.start_epoch(0, 0)
    assert log.times.look(99) == log.times.look(None) == Ages()
    assert log.times.at(0) == 0


def test_nothing_is_expired_without_a_time() -> None:
    log = three_segments(new_disk())
    oldest_bytes = log.epochs[0].segments[0].size_bytes
    assert log.times.look(None) == Ages(0, 2, oldest_bytes, 20, is_rolled=True, newest_first_us=40, newest_us=50)


@pytest.mark.parametrize(
    ("before_us", "expired_below", "oldest_end", "oldest_last_us", "is_rolled"),
    [
        (0, 0, 2, 20, True),
        (19, 0, 2, 20, True),
        (20, 2, 3, 30, True),
        (30, 3, 5, 50, False),
        (49, 3, 5, 50, False),
        (50, 5, 0, 0, False),
    ],
)
def test_segment_expires_with_its_newest_batch(
    before_us: int, expired_below: int, oldest_end: int, oldest_last_us: int, is_rolled: bool
) -> None:
    found = three_segments(new_disk()).times.look(before_us)
    assert (found.expired_below, found.oldest_end, found.oldest_last_us) == (expired_below, oldest_end, oldest_last_us)
    assert (found.is_rolled, found.oldest_bytes > 0) == (is_rolled, oldest_end > 0)
    assert (found.newest_first_us, found.newest_us) == (40, 50)


def test_ages_go_across_epochs_and_restarts() -> None:
    sim = new_disk()
    log = three_segments(sim)
    log.start_epoch(1, 5)
    found = log.times.look(30)
    assert (found.oldest_end, found.is_rolled) == (5, True)
    assert (found.newest_first_us, found.newest_us) == (0, 50), "the active segment has no batch yet"
    append_at(log, 60, epoch=1)
    log.sync()
    for view in (log, open_partition(sim.restart())):
        found = view.times.look(50)
        assert (found.expired_below, found.oldest_end, found.newest_first_us, found.newest_us) == (5, 6, 60, 60)


def test_growing_segment_is_not_expired() -> None:
    log = three_segments(new_disk())
    assert log.times.look(50).expired_below == 5
    append_at(log, 60)
    found = log.times.look(50)
    assert (found.expired_below, found.oldest_last_us) == (3, 60)
    assert (found.newest_first_us, found.newest_us) == (40, 60)


def test_known_times_are_not_read_again(reads: list[int]) -> None:
    log = three_segments(new_disk())
    reads.clear()
    log.times.look(None)
    assert 2 not in reads, "segments after the first young one were read"
    log.times.look(30)
    reads.clear()
    log.times.look(30)
    assert reads == [], "an unchanged log was read twice"
    append_at(log, 60)
    reads.clear()
    log.times.look(30)
    assert reads == [5], "one header is enough for the new batches"


def test_deleted_segments_are_not_read() -> None:
    log = three_segments(new_disk())
    log.times.look(20)
    log.delete_before(2)
    found = log.times.look(20)
    assert (found.expired_below, found.oldest_end, found.oldest_last_us) == (0, 3, 30)
    assert log.times.at(0) == 30, "the time of the next batch"


def test_record_has_the_append_time_of_its_batch() -> None:
    log = open_partition(new_disk())
    log.start_epoch(0, 0)
    append_at(log, 10, 20, records=3)
    log.start_epoch(1, 6)
    append_at(log, 30, epoch=1)
    assert [log.times.at(offset) for offset in range(8)] == [10, 10, 10, 20, 20, 20, 30, 0]
