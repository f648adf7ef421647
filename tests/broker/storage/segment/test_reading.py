from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.broker.storage.build import append, batch
from tests.broker.storage.logs import EPOCH, create, create_log, new_disk

from tidelog_broker.storage.engine.reading import FoundBatches
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.io.errors import DamagedError, StorageFailedError
from tidelog_broker.storage.io.filesystem import RealFile
from tidelog_broker.storage.io.mapping import RealMapping, can_populate
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import segment_path
from tidelog_broker.storage.segment.reading import MAPPED_BYTES_MIN
from tidelog_broker.storage.segment.spare import SPARE_NAME
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.limits import HEADER_BYTES

PATH = segment_path(EPOCH, 0)


def test_padding_and_marks_are_not_returned() -> None:
    log = create(new_disk())
    batches = append(log, [batch(b"a"), batch(b"b" * 63)])
    log.sync()
    batches += append(log, [batch(b"c" * 65)])
    result = log.reader.read(0, 100_000, limit_offset=3)
    assert [bytes(one) for one in result.batches] == batches


def test_a_read_costs_one_pread_and_returns_a_copy() -> None:
    sim = new_disk()
    log = create(sim)
    batches = append(log, [batch(b"a" * 10), batch(b"b" * 10)])
    result = log.reader.read(0, 100_000, limit_offset=2)
    assert result.batches[0].obj is result.batches[1].obj
    sim.node(PATH).current[:] = bytes(len(sim.node(PATH).current))
    assert [bytes(one) for one in result.batches] == batches


def test_batch_that_contradicts_the_index_is_damage() -> None:
    sim = new_disk()
    log = create(sim)
    append(log, [batch(b"a"), batch(b"b")])
    sim.node(PATH).current[128] ^= 1
    with pytest.raises(DamagedError):
        log.reader.read(0, 100, limit_offset=2)
    with pytest.raises(DamagedError):
        list(log.reader.scan_headers(0))
    assert [header.base_offset for header in log.reader.scan_headers(1)] == [1]
    del sim.node(PATH).current[400:]
    with pytest.raises(DamagedError):
        log.reader.read(1, 100, limit_offset=2)


def mapped_log(path: Path) -> EpochLog:
    """A log on real files of a full segment with large batches, and an empty one."""
    disk = Disk(maps_reads=True)
    log = create_log(disk, path, segment_bytes=SEGMENT_BYTES)
    for number in range(BATCHES + 1):
        append(log, [batch(bytes([number]) * BODY_BYTES, records=2)])
    assert log.segment_count == 2
    return log


SEGMENT_BYTES = 1 << 20
BODY_BYTES = 100_000
BATCHES = 10
needs_populate = pytest.mark.skipif(not can_populate(), reason="needs Linux 5.14")


def is_mapped(found: FoundBatches) -> bool:
    return isinstance(found.batches[0].obj, mmap.mmap)


@needs_populate
def test_sealed_segment_is_sent_from_its_mapping(tmp_path: Path) -> None:
    log = mapped_log(tmp_path / "log")
    read = log.reader.read
    found = read(2, 400_000, limit_offset=99, to_send=True)
    copied = read(2, 400_000, limit_offset=99)
    assert is_mapped(found)
    assert not is_mapped(copied)
    assert found.batches == copied.batches
    assert [bytes(head) for head in found.heads] == [bytes(one[:HEADER_BYTES]) for one in copied.batches]
    assert not is_mapped(read(20, 400_000, limit_offset=99, to_send=True)), "of the segment that grows"
    assert BODY_BYTES >= MAPPED_BYTES_MIN
    log.close()


@needs_populate
@given(offset=st.integers(0, 2 * BATCHES + 2), max_bytes=st.integers(1, 2 * SEGMENT_BYTES), limit=st.integers(0, 30))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_slices_and_copies_are_equal(shared_log: EpochLog, offset: int, max_bytes: int, limit: int) -> None:
    sent = shared_log.reader.read(offset, max_bytes, limit_offset=limit, to_send=True)
    copied = shared_log.reader.read(offset, max_bytes, limit_offset=limit)
    assert sent.batches == copied.batches
    assert sent.next_offset == copied.next_offset
    assert [unpack_header(head) for head in sent.heads] == [unpack_header(one) for one in copied.batches]


@pytest.fixture(scope="module")
def shared_log(tmp_path_factory: pytest.TempPathFactory) -> EpochLog:
    return mapped_log(tmp_path_factory.mktemp("shared") / "log")


@needs_populate
def test_slice_outlives_its_deleted_segment(tmp_path: Path) -> None:
    log = mapped_log(tmp_path / "log")
    found = log.reader.read(0, 400_000, limit_offset=99, to_send=True)
    before = [bytes(one) for one in found.batches]
    log.delete_oldest_segment()
    assert not (tmp_path / "log" / SPARE_NAME).exists()
    for number in range(BATCHES + 1):
        append(log, [batch(bytes([100 + number]) * BODY_BYTES)])
    assert [bytes(one) for one in found.batches] == before
    found.batches.clear()
    log.delete_oldest_segment()
    assert (tmp_path / "log" / SPARE_NAME).exists(), "no reader holds this file"
    assert log._disk.open_segments.mappings.held_bytes == 0
    log.close()


@needs_populate
@pytest.mark.parametrize("is_mapped_before", [False, True])
def test_truncated_file_is_damage_instead_of_sigbus(tmp_path: Path, *, is_mapped_before: bool) -> None:
    log = mapped_log(tmp_path / "log")
    if is_mapped_before:
        log.reader.read(0, SEGMENT_BYTES, limit_offset=99, to_send=True)
    os.truncate(log.segments[0].path, 250_000)
    assert is_mapped(log.reader.read(0, 2 * BODY_BYTES + 300, limit_offset=99, to_send=True))
    with pytest.raises(DamagedError):
        log.reader.read(0, SEGMENT_BYTES, limit_offset=99, to_send=True)
    assert len(log.reader.read(2 * BATCHES, 1, limit_offset=99, to_send=True).batches) == 1
    log.close()


@needs_populate
def test_unreadable_file_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = mapped_log(tmp_path / "log")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the sector is gone")

    monkeypatch.setattr(RealMapping, "populate", fail)
    assert not is_mapped(log.reader.read(0, 400_000, limit_offset=99, to_send=True)), "it is read instead"
    monkeypatch.setattr(RealFile, "pread", fail)
    with pytest.raises(StorageFailedError, match="the sector is gone"):
        log.reader.read(0, 400_000, limit_offset=99, to_send=True)
    log.close()


def test_small_batches_are_copied(tmp_path: Path) -> None:
    disk = Disk(maps_reads=True)
    log = create_log(disk, tmp_path / "log", segment_bytes=SEGMENT_BYTES)
    while log.segment_count < 2:
        append(log, [batch(b"small" * 100) for _ in range(100)])
    assert not is_mapped(log.reader.read(0, SEGMENT_BYTES, limit_offset=10**6, to_send=True))
    log.close()
