"""How indexes come to be: on a thread, of what is rolled, appended, opened or switched on; and what harms them."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.broker.storage.build import append
from tests.broker.storage.keyed import ByHand, keyed, newest_matching, read_matching
from tests.broker.storage.logs import epoch_logs, new_disk
from tests.broker.storage.partition.test_matching import BOTH, fill, index_files, opened

from tidelog_broker.storage.epoch import record_indexes
from tidelog_broker.storage.epoch.record_indexes import RecordIndexes
from tidelog_broker.storage.partition.matching import RecordFilter
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.segment.disk import Disk, OpenSegments
from tidelog_broker.storage.segment.hash_memory import HashMemory
from tidelog_broker.storage.segment.layout import hash_path

SEGMENTS = 6


def rolled(log: PartitionLog, segments: int = SEGMENTS) -> None:
    """Append until there are so many segments more."""
    wanted = sum(len(epoch.segments) for epoch in log.epochs) + segments
    number = 0
    while sum(len(epoch.segments) for epoch in log.epochs) < wanted:
        fill(log, [keyed([b"key-%d" % (number % 5)] * 30, ["tag"] * 30)])
        number += 1


def covered(log: PartitionLog) -> int:
    """How much of the growing segment is in its index."""
    newest = epoch_logs(log)[-1]
    with newest.segment_reader.lease(newest.segments[-1]) as open_segment:
        return open_segment.hashes.covered("key")


def found(log: PartitionLog, key: bytes) -> list[int]:
    bounds = {"limit_offset": log.end_offset, "work_bytes": 1 << 30}
    return [
        one.offset
        for one in read_matching(log, RecordFilter(key), offset=log.start_offset, max_bytes=1 << 20, **bounds)
    ]


def test_rolled_segments_get_index_files_and_the_active_one_an_index() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread))
    rolled(log)
    assert index_files(sim, log) == []
    thread.run()
    sealed = [segment.path for segment in log.epochs[0].segments[:-1]]
    assert len(index_files(sim, log)) == 2 * len(sealed) == 2 * SEGMENTS - 2
    assert covered(log) > 0


def test_a_topic_without_an_index_has_no_files_and_no_memory() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread), frozenset())
    rolled(log)
    assert (thread.works, index_files(sim, log), log.indexes.size_bytes) == ([], [], 0)


def test_only_configured_columns_are_indexed() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread), frozenset({"tag"}))
    rolled(log)
    thread.run()
    assert {Path(name).suffix for name in index_files(sim, log)} == {".tag"}
    log.indexes.switch(BOTH)
    thread.run()
    assert len(index_files(sim, log)) == 2 * SEGMENTS - 2


def test_index_follows_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_indexes, "BEHIND_BYTES_MAX", 1000)
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread), segment_bytes=1 << 20)
    for _ in range(20):
        fill(log, [keyed([b"a"] * 10)])
        thread.run()
    assert covered(log) >= 15
    assert log.indexes.size_bytes == 8 * covered(log)


def test_lookup_indexes_small_missing_parts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread), segment_bytes=1 << 20)
    thread.works.clear()
    fill(log, [keyed([b"a"] * 10) for _ in range(20)])
    assert len(found(log, b"a")) == 200
    assert covered(log) == 20
    monkeypatch.setattr(record_indexes, "CATCH_UP_BATCHES_MAX", 5)
    thread.run()
    fill(log, [keyed([b"a"] * 10) for _ in range(20)])
    thread.works.clear()
    assert isinstance(log.indexes, RecordIndexes)
    log.indexes._is_requested = False
    assert len(found(log, b"a")) == 400
    assert covered(log) == 20
    assert thread.works, "the thread is to read it"


def test_missing_or_corrupt_index_file_is_rebuilt() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread))
    rolled(log)
    thread.run()
    before = found(log, b"key-2")
    log.close()
    sealed = [segment.path for segment in log.epochs[0].segments[:-1]]
    sim.unlink(hash_path(sealed[0], "key"))
    sim.node(hash_path(sealed[1], "key")).current[10] ^= 1
    del sim.node(hash_path(sealed[2], "key")).current[100:]
    sim.node(hash_path(sealed[3], "key")).current[4] = 2
    log = opened(Disk(fs=sim, indexer=thread))
    assert found(log, b"key-2") == before
    thread.run()
    assert found(log, b"key-2") == before
    for epoch in epoch_logs(log):
        for segment in epoch.segments[:-1]:
            with epoch.segment_reader.lease(segment) as open_segment:
                assert open_segment.hashes.has_file("key"), segment.path


def test_full_disk_delays_the_index_file_to_the_next_roll() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread))
    rolled(log)

    def full(operation: str, path: Path) -> OSError | None:
        is_index = path.name.endswith((".key.new", ".tag.new"))
        return OSError(errno.ENOSPC, "full") if operation == "write" and is_index else None

    sim.fail = full
    thread.run()
    assert index_files(sim, log) == []
    assert [name for name in sim.list_dir(log.epochs[0].directory) if name.endswith(".new")] == []
    before = found(log, b"key-1")
    thread.run()
    assert index_files(sim, log) == [], "it is not tried all the time"
    sim.fail = lambda operation, path: None
    assert found(log, b"key-1") == before
    rolled(log, 1)
    thread.run()
    assert len(index_files(sim, log)) == 2 * SEGMENTS


def test_deleted_or_closed_segment_gets_no_index_file() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread))
    rolled(log)
    log.delete_before(log.epochs[0].segments[3].base_offset)
    thread.run(3)
    log.delete()
    thread.run()
    assert not sim.exists(log.directory)


def test_index_files_are_deleted_with_their_segments() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread))
    rolled(log)
    thread.run()
    cut = log.epochs[0].segments[2]
    log.truncate_epoch(0, cut.end_offset - 30)
    assert len(index_files(sim, log)) == 2 * 2, "that of the segment that goes on must not come back"
    log.delete_before(cut.base_offset)
    assert index_files(sim, log) == []
    assert newest_matching(log, RecordFilter(b"nobody"), limit_offset=log.end_offset, work_bytes=1) is None


def test_index_files_are_closed_with_their_segments() -> None:
    sim, thread = new_disk(), ByHand()
    disk = Disk(fs=sim, indexer=thread, open_segments=OpenSegments(capacity=2))
    log = opened(disk)
    rolled(log)
    thread.run()
    found(log, b"key-1")
    log.sync()
    found(log, b"key-1")
    assert sim.open_files <= 2 * 3, "a segment and two indexes each"
    log.close()
    assert sim.open_files == 0


def test_indexing_continues_after_a_truncation() -> None:
    sim, thread = new_disk(), ByHand()
    log = opened(Disk(fs=sim, indexer=thread), segment_bytes=1 << 20)
    log.start_epoch(0, 0)
    for key in (b"a", b"b", b"c"):
        append(log, [keyed([key])])
    assert found(log, b"c") == [2]
    log.truncate_epoch(0, 1)
    append(log, [keyed([b"d"])])
    assert (found(log, b"a"), found(log, b"b"), found(log, b"c"), found(log, b"d")) == ([0], [], [], [1])


def test_indexes_beyond_the_memory_budget_wait_for_the_roll() -> None:
    sim, thread = new_disk(), ByHand()
    disk = Disk(fs=sim, indexer=thread, hash_memory=HashMemory(400))
    log = opened(disk, segment_bytes=1 << 20)
    fill(log, [keyed([b"a-%d" % number for number in range(100)])])
    log.indexes.request()
    thread.run()
    held = disk.hash_memory.size_bytes
    assert held >= 400
    assert log.indexes.missing_bytes == 0
    fill(log, [keyed([b"b-%d" % number for number in range(100)])])
    log.indexes.request()
    thread.run()
    assert disk.hash_memory.size_bytes == held
    assert log.indexes.missing_bytes > 1000
    assert found(log, b"b-7") == [107], "it is looked through"
    assert disk.hash_memory.size_bytes == held, "and not taken into the index for that"
    log.roll()
    fill(log, [keyed([b"c"])])
    thread.run()
    assert log.indexes.missing_bytes == 0
    assert disk.hash_memory.size_bytes < 400
    assert found(log, b"b-7") == [107]


def test_closed_log_releases_its_index_memory() -> None:
    sim, thread = new_disk(), ByHand()
    disk = Disk(fs=sim, indexer=thread)
    log = opened(disk, segment_bytes=1 << 20)
    fill(log, [keyed([b"a-%d" % number for number in range(100)])])
    log.indexes.request()
    thread.run()
    assert disk.hash_memory.size_bytes > 0
    log.close()
    assert disk.hash_memory.size_bytes == 0
