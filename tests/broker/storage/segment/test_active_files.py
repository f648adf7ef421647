from __future__ import annotations

import errno
import resource
import threading
from pathlib import Path
from random import Random

import pytest
from tests.broker.storage.build import HOME, SEGMENT_BYTES, batch, stamp
from tests.broker.storage.logs import create_log, new_disk
from tests.broker.storage.sim_disk import SimDisk

from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DiskFullError, NoDescriptorError, StorageFailedError
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.segment.active_files import (
    ACTIVE_FILES_MAX,
    ACTIVE_FILES_MIN,
    ActiveFiles,
    active_files_max,
)
from tidelog_broker.storage.segment.active_segment import ActiveSegment
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.errors import ProtocolError


def log_of(disk: Disk, number: int, *, segment_bytes: int = SEGMENT_BYTES, parent: Path = HOME) -> EpochLog:
    return create_log(disk, parent / f"epoch-{number:08d}", partition=number, segment_bytes=segment_bytes)


def append(log: EpochLog, body: bytes = b"x") -> None:
    (one,) = stamp([batch(body)], offset=log.end_offset, digest=log.end_digest)
    log.ensure_space(padded(len(one)))
    log.append([one])


def active_of(log: EpochLog) -> ActiveSegment:
    newest = log.segments[-1]
    assert isinstance(newest, ActiveSegment)
    return newest


def parked(logs: list[EpochLog]) -> int:
    return sum(active_of(log).is_parked for log in logs)


def test_most_recently_used_files_stay_open() -> None:
    disk = Disk(fs=new_disk(), active_files=ActiveFiles(2))
    logs = [log_of(disk, number) for number in range(5)]
    for _ in range(3):
        for log in logs:
            append(log)
            log.sync()
            assert not active_of(log).is_parked
            assert len(disk.active_files) <= 2
    assert parked(logs) == 3
    for log in logs:
        found = log.reader.read(0, 1 << 20, limit_offset=3)
        assert found.next_offset == 3
        assert log.reader.digest_at(1) is not None
        log.seal()
    assert len(disk.active_files) == 0


def test_unsynced_file_is_synced_before_it_is_parked() -> None:
    sim = new_disk()
    disk = Disk(fs=sim, active_files=ActiveFiles(1))
    first, second = log_of(disk, 0), log_of(disk, 1)
    append(first)
    append(second)
    append(second)
    assert active_of(first).is_parked
    assert active_of(first).opened.synced_bytes == active_of(first).end.position
    after = EpochLog.open(Disk(fs=sim.power_cut(Random(3))), first.directory, segment_bytes=SEGMENT_BYTES)
    assert after.end_offset == 1, "the log lost what it let go of"


def test_failed_sync_keeps_the_file_open_and_fails_the_next_sync() -> None:
    sim = new_disk()
    disk = Disk(fs=sim, active_files=ActiveFiles(1))
    first, second = log_of(disk, 0), log_of(disk, 1)
    append(first)
    held = active_of(first).path
    sim.fail = lambda operation, path: OSError(5, "lost") if (operation, path) == ("sync", held) else None
    append(second)
    append(second)
    sim.fail = lambda _operation, _path: None
    assert not active_of(first).is_parked
    with pytest.raises(StorageFailedError):
        first.sync()


def test_parked_log_can_be_rolled_truncated_and_closed() -> None:
    sim = new_disk()
    disk = Disk(fs=sim, active_files=ActiveFiles(1))
    first, second = log_of(disk, 0, segment_bytes=1024), log_of(disk, 1)
    for _ in range(2):
        append(first, b"a" * 300)
        append(first, b"b" * 300)
        first.sync_names()
        append(second)
        append(second)
        assert active_of(first).is_parked
        append(first, b"c" * 800)
    assert first.segment_count > 2
    first.sync_names()
    append(second)
    append(second)
    assert active_of(first).is_parked
    first.truncate(first.segments[-1].base_offset)
    append(second)
    append(second)
    first.close()
    second.close()
    assert len(disk.active_files) == 0
    assert EpochLog.open(Disk(fs=sim), first.directory, segment_bytes=1024).state == "active"


def test_concurrent_appends_while_files_are_parked(tmp_path: Path) -> None:
    preallocator = IoWorkers(1, name="preallocate")
    disk = Disk(active_files=ActiveFiles(3), preallocator=preallocator)
    logs = [log_of(disk, number, segment_bytes=1 << 20, parent=tmp_path) for number in range(12)]
    faults: list[BaseException] = []

    def work(mine: list[EpochLog]) -> None:
        try:
            for turn in range(60):
                for log in mine:
                    append(log, b"y" * 1000)
                    if turn % 3 == 0:
                        log.sync()
                    log.reader.read(max(0, log.end_offset - 2), 4096, limit_offset=log.end_offset)
        except ProtocolError as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(logs[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    preallocator.close()
    assert [str(fault) for fault in faults] == []
    # Files in use stay open, so the number of parked files is random while threads append, but not afterwards.
    again = next(log for log in logs if parked([log]))
    append(again, b"z")
    assert parked(logs) >= 8
    for log in logs:
        log.close()
        end_offset = EpochLog.open(Disk(), log.directory, segment_bytes=1 << 20).end_offset
        assert end_offset == (61 if log is again else 60)


def test_bound_follows_the_descriptor_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, expected in ((1024, 256), (16, ACTIVE_FILES_MIN), (1 << 20, ACTIVE_FILES_MAX), (-1, ACTIVE_FILES_MAX)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert active_files_max() == expected


def test_disk_bounds_active_files_by_default() -> None:
    assert Disk(fs=SimDisk()).active_files._capacity == active_files_max()


@pytest.mark.parametrize("is_synced", [False, True])
def test_roll_does_not_park_the_old_segment(monkeypatch: pytest.MonkeyPatch, *, is_synced: bool) -> None:
    """Only so many files may be open that the new segment has the old one's descriptor taken, and none is left."""
    sim = new_disk()
    disk = Disk(fs=sim, active_files=ActiveFiles(1))
    log = log_of(disk, 0, segment_bytes=1024)
    append(log, b"a" * 300)
    append(log, b"b" * 300)
    if is_synced:
        log.sync()
    log.sync_names()
    old = active_of(log)
    old.was_used = False
    with_descriptors = sim.open

    def without(path: Path, *, create: bool = False) -> File:
        if not create:
            raise OSError(errno.EMFILE, "Too many open files")
        return with_descriptors(path, create=True)

    monkeypatch.setattr(sim, "open", without)
    count = log.segment_count
    append(log, b"c" * 800)
    assert log.segment_count == count + 1
    log.sync()
    monkeypatch.undo()
    assert log.state == "active"
    after = EpochLog.open(Disk(fs=sim.power_cut(Random(3))), log.directory, segment_bytes=1024)
    assert after.end_offset == 3, "the rolled segment was not synced"


@pytest.mark.parametrize("end", ["seal", "close"])
def test_sealing_a_parked_log_closes_unused_segments(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    sim = new_disk()
    disk = Disk(fs=sim, active_files=ActiveFiles(1))
    first, second = log_of(disk, 0), log_of(disk, 1)
    append(first)
    append(second)
    append(second)
    assert active_of(first).is_parked
    with_descriptors, closed = sim.open, [0]

    def without(path: Path, *, create: bool = False) -> File:
        if not closed[0]:
            raise OSError(errno.EMFILE, "Too many open files")
        return with_descriptors(path, create=create)

    def close_unused() -> None:
        closed[0] += 1

    monkeypatch.setattr(sim, "open", without)
    monkeypatch.setattr(disk.open_segments, "close_unused", close_unused)
    getattr(first, end)()
    assert closed == [1]
    monkeypatch.undo()
    assert EpochLog.open(Disk(fs=sim), first.directory, segment_bytes=SEGMENT_BYTES).end_offset == 1


def test_failed_roll_allows_parking_again() -> None:
    sim = new_disk()
    disk = Disk(fs=sim, active_files=ActiveFiles(1))
    first, second = log_of(disk, 0, segment_bytes=1024), log_of(disk, 1)
    append(first, b"a" * 300)
    append(first, b"b" * 300)
    first.sync_names()
    sim.fail = lambda operation, _path: OSError(errno.EMFILE, "Too many open files") if operation == "create" else None
    with pytest.raises(NoDescriptorError):
        first.ensure_space(800)
    with pytest.raises(NoDescriptorError):
        first.roll()
    assert not disk.was_full, "retention counts on free space, which is not what was missing"
    sim.fail = lambda _operation, _path: None
    append(second)
    append(second)
    assert active_of(first).is_parked
    append(first, b"c" * 800)
    first.sync()
    assert first.end_offset == 3
    sim.free_bytes = 0
    with pytest.raises(DiskFullError):
        first.ensure_space(800)
    assert disk.was_full
