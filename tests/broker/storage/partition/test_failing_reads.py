"""Every kind of read of a disk that fails gives the same error: STORAGE_FAILED with the file and the remedy."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest
from tests.broker.storage.build import HOME, PARTITION, TOPIC_ID, append
from tests.broker.storage.logs import new_disk
from tests.broker.storage.sim_disk import SimFile

from tidelog_broker.storage.io.errors import NoDescriptorError, StorageFailedError
from tidelog_broker.storage.partition.matching import RecordFilter
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_broker.storage.partition.projecting import SMALL_BATCH_BYTES
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.projection import Projection
from tidelog_proto.batch.record_batch import columns_of, encode_batch

KEY = RecordFilter(b"a")
PLENTY = 1 << 20

Read = Callable[[PartitionLog], object]

READS: dict[str, Read] = {
    "plain": lambda log: log.reader.read(0, PLENTY, limit_offset=log.end_offset),
    "filtered": lambda log: log.matching.read(0, PLENTY, limit_offset=log.end_offset, record_filter=KEY),
    "newest": lambda log: log.matching.newest(limit_offset=log.end_offset, record_filter=KEY),
    "columns": lambda log: log.projecting.read(
        0, PLENTY, limit_offset=log.end_offset, projection=Projection(Flags.KEY)
    ),
    "no column": lambda log: log.projecting.read(0, PLENTY, limit_offset=log.end_offset, projection=Projection(0)),
    "times": lambda log: log.projecting.read(
        0, PLENTY, limit_offset=log.end_offset, projection=Projection(from_us=2, until_us=9)
    ),
    "headers": lambda log: list(log.reader.scan_headers(0)),
    "digest": lambda log: log.reader.digest_at(0, log.epochs[0].segments[0].end_offset - 1),
    "time": lambda log: log.reader.find_by_time(1 << 40, 1),
}


def filled(columns: frozenset[TextColumn], *, segment_bytes: int) -> PartitionLog:
    log = PartitionLog.open(
        Disk(fs=new_disk()),
        HOME,
        topic="events",
        topic_id=TOPIC_ID,
        partition=PARTITION,
        segment_bytes=segment_bytes,
    )
    log.indexes.switch(columns)
    log.start_epoch(0, 0)
    for _ in range(4):
        append(log, [large(b"a")])
    return log


def large(key: bytes) -> bytearray:
    value = Random(1).randbytes(3 * SMALL_BATCH_BYTES)
    return bytearray(encode_batch(columns_of([value], keys=[key], tags=["red"]), now_us=5).to_bytes())


def fail_reads(monkeypatch: pytest.MonkeyPatch, suffix: str, number: int = errno.EIO, *, bytes_min: int = 0) -> None:
    """Let reads of at least `bytes_min` bytes of files with a suffix fail."""
    pread = SimFile.pread

    def failing(file: SimFile, length_bytes: int, at: int) -> bytes:
        if file.path.suffix == suffix and length_bytes >= bytes_min:
            raise OSError(number, "broken")
        return pread(file, length_bytes, at)

    monkeypatch.setattr(SimFile, "pread", failing)


@pytest.mark.parametrize("columns", [frozenset[TextColumn](), frozenset[TextColumn]({"key"})])
@pytest.mark.parametrize("name", READS)
def test_read_error_is_storage_failed(
    monkeypatch: pytest.MonkeyPatch, name: str, columns: frozenset[TextColumn]
) -> None:
    log = filled(columns, segment_bytes=1 << 20)
    fail_reads(monkeypatch, ".seg")
    with pytest.raises(StorageFailedError, match=r"\.seg.* cannot be read: .*broken; check the disk") as failed:
        READS[name](log)
    assert failed.value.code == pb.STORAGE_FAILED


@pytest.mark.parametrize("name", READS)
def test_read_without_free_descriptors_does_not_name_the_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    log = filled(frozenset(), segment_bytes=1 << 20)
    fail_reads(monkeypatch, ".seg", errno.EMFILE)
    with pytest.raises(NoDescriptorError):
        READS[name](log)


def test_read_error_of_a_body_is_not_reported_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(frozenset(), segment_bytes=1 << 20)
    fail_reads(monkeypatch, ".seg", bytes_min=1 << 12)
    with pytest.raises(StorageFailedError, match="check the disk"):
        READS["columns"](log)


@pytest.mark.parametrize("name", ["filtered", "newest"])
def test_read_error_of_an_index_of_keys_is_storage_failed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    log = filled(frozenset({"key"}), segment_bytes=1 << 14)
    append(log, [large(b"b")])
    assert log.epochs[0].segment_count == 5
    READS["filtered"](log)  # Creates the index files of the full segments.
    fail_reads(monkeypatch, ".key")
    with pytest.raises(StorageFailedError, match=r"\.seg.* cannot be read: .*broken; check the disk"):
        READS[name](log)
    READS["plain"](log)
