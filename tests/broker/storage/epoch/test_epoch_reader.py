"""Digests at batch boundaries, and syncs ahead; reading itself is tested with the log that is read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.broker.storage.build import append, batch, read_all
from tests.broker.storage.logs import EPOCH, create, create_log, delete_before, new_disk, reopen

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DamagedError, StorageFailedError
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.batch.header import unpack_header


def filled(log: EpochLog) -> list[bytes]:
    batches: list[bytes] = []
    for number in range(20):
        batches += append(log, [batch(bytes([number]) * 50 * number, records=3), batch(b"x", records=number % 2 + 1)])
        log.sync()
    return batches


def test_digest_is_known_only_at_batch_boundaries() -> None:
    sim = new_disk()
    log = create(sim, start_offset=100)
    batches = filled(log)
    assert log.segment_count > 3
    expected = {unpack_header(one).end_offset: unpack_header(one).digest for one in batches} | {100: 0}
    for view in (log, reopen(sim.restart())):
        for offset in range(98, view.end_offset + 3):
            assert view.reader.digest_at(offset) == expected.get(offset)


def test_batch_start_returns_the_base_offset_of_the_batch() -> None:
    log = create(new_disk())
    headers = [unpack_header(one) for one in filled(log)]
    delete_before(log, 60)
    start, end = log.start_offset, log.end_offset
    assert start > 0
    for header in (one for one in headers if one.base_offset >= start):
        for offset in range(header.base_offset, header.end_offset):
            assert log.reader.batch_start(offset) == header.base_offset
    assert log.reader.batch_start(start - 1) is None
    assert log.reader.batch_start(end) is None


def test_after_retention_the_digest_at_the_new_start_is_still_known() -> None:
    log = create(new_disk())
    batches = filled(log)
    delete_before(log, 60)
    assert log.start_offset > 0
    before = next(one for one in batches if unpack_header(one).end_offset == log.start_offset)
    assert log.reader.digest_at(log.start_offset) == unpack_header(before).digest
    assert log.reader.digest_at(0) is None


def test_copy_may_begin_after_the_start_of_its_epoch() -> None:
    log = create_log(Disk(fs=new_disk()), EPOCH, start_offset=7, start_digest=123, segment_bytes=4096)
    assert log.reader.digest_at(7) == 123
    batches = append(log, [batch(b"x")])
    assert read_all(log) == batches


def test_corrupt_header_is_damage() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a"), batch(b"b"), batch(b"c")])
    path = sim.files(EPOCH, ".seg")[0]
    sim.node(path).current[bytes(sim.node(path).current).find(batches[0][:128]) + 121] ^= 1
    with pytest.raises(DamagedError):
        log.reader.digest_at(1)
    assert log.reader.digest_at(2) == unpack_header(batches[1]).digest


def test_sync_ahead_syncs_unsynced_bytes_of_the_newest_segments() -> None:
    sim = new_disk()
    log = create(sim)
    while log.segment_count < 3:
        append(log, [batch(b"x" * 500)])
    synced: list[str] = []

    def note(operation: str, path: Path) -> OSError | None:
        if operation == "sync":
            synced.append(path.name)
        return None

    sim.fail = note
    log.reader.sync_ahead(4096)
    assert synced == [], "so little may be left"
    log.reader.sync_ahead(0)
    assert len(set(synced)) == 3
    log.reader.sync_ahead(0)
    assert len(synced) == 3
    append(log, [batch(b"x")])
    log.reader.sync_ahead(0)
    assert synced[3:] == [synced[2]], "only the newest has grown"
    assert log.synced_offset < log.end_offset, "a sync ahead does not move the synced offset"
    log.sync()
    assert log.synced_offset == log.end_offset


def test_synced_closed_or_truncated_log_has_nothing_to_sync_ahead() -> None:
    sim = new_disk()
    log = create(sim)
    filled(log)
    operations: list[str] = []
    sim.fail = lambda operation, _path: operations.append(operation)
    log.reader.sync_ahead(0)
    assert operations == [], "it was synced"
    log.truncate(3)
    operations.clear()
    log.reader.sync_ahead(0)
    assert operations == [], "a cut is synced by itself"
    append(log, [batch(b"x")])
    log.reader.sync_ahead(0)
    assert operations.count("sync") == 1, "appended records are not synced"
    append(log, [batch(b"x")])
    log.close(sync=False)
    operations.clear()
    log.reader.sync_ahead(0)
    assert operations == [], "it is closed"


def test_failed_sync_ahead_fails_later_syncs() -> None:
    sim = new_disk()
    log = create(sim)
    append(log, [batch(b"x")])
    sim.fail = lambda operation, _path: OSError(errno.EIO, "no sync") if operation == "sync" else None
    with pytest.raises(StorageFailedError, match="no sync"):
        log.reader.sync_ahead(0)
    sim.fail = lambda _operation, _path: None
    with pytest.raises(StorageFailedError, match="no sync"):
        log.sync()
