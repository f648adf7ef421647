"""Record batches and logs for the storage's tests: bodies are plain bytes, which is all that the storage sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from crc32c import crc32c

from tidelog_broker.storage.engine.store import padded
from tidelog_proto.batch.header import BatchHeader, Flags, stamp_owner, unpack_header
from tidelog_proto.limits import FETCH_BYTES_MAX

TOPIC_ID = bytes(range(16))
PARTITION = 3
HOME = Path("/home")
SEGMENT_BYTES = 4096


class Appendable(Protocol):
    @property
    def end_offset(self) -> int: ...
    @property
    def end_digest(self) -> int: ...
    def ensure_space(self, needed_bytes: int) -> None: ...
    def append(self, batches: Sequence[bytes | bytearray | memoryview]) -> object: ...


class Readable(Protocol):
    @property
    def start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def reader(self) -> Reader: ...


class Reader(Protocol):
    def read(self, offset: int, max_bytes: int, *, limit_offset: int) -> Read: ...


class Read(Protocol):
    @property
    def batches(self) -> list[memoryview]: ...
    @property
    def next_offset(self) -> int: ...


def batch(body: bytes = b"body", *, records: int = 1, timestamp_us: int = 1) -> bytearray:
    """Return a batch as a producer sends it."""
    header = BatchHeader(
        flags=int(Flags.VALUE),
        body_length=len(body),
        uncompressed_length=len(body),
        record_count=records,
        body_crc=crc32c(body),
        last_offset_delta=records - 1,
        base_timestamp_us=timestamp_us,
        max_timestamp_us=timestamp_us,
    )
    return bytearray(header.pack() + body)


def stamp(batches: Sequence[bytearray], *, offset: int, digest: int, epoch: int = 0) -> list[bytearray]:
    """Stamp a group in place, as the owner does, and return it."""
    for one in batches:
        digest = stamp_owner(
            one, base_offset=offset, append_timestamp_us=7, epoch=epoch, owner_incarnation=9, previous_digest=digest
        )
        offset = unpack_header(one).end_offset
    return list(batches)


def needed(batches: Sequence[bytearray]) -> int:
    """Return what `ensure_space` is asked for."""
    return sum(padded(len(one)) for one in batches)


def append(log: Appendable, batches: Sequence[bytearray], *, epoch: int = 0) -> list[bytes]:
    """Reserve, stamp and append a group; return its bytes."""
    log.ensure_space(needed(batches))
    log.append(stamp(batches, offset=log.end_offset, digest=log.end_digest, epoch=epoch))
    return [bytes(one) for one in batches]


def read_all(log: Readable, *, max_bytes: int = FETCH_BYTES_MAX) -> list[bytes]:
    """Return every batch of a log, read with this bound."""
    found: list[bytes] = []
    offset = log.start_offset
    while offset < log.end_offset:
        result = log.reader.read(offset, max_bytes, limit_offset=log.end_offset)
        assert result.batches, f"nothing at {offset}"
        assert result.next_offset > offset
        found += [bytes(one) for one in result.batches]
        offset = result.next_offset
    return found
