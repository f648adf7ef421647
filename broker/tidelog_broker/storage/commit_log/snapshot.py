"""Snapshots of all tails, as a replay of the log up to a position finds them. See docs/formats.md. No I/O."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.commit_log.records import LOG_FORMAT_VERSION, Boundary
from tidelog_broker.storage.commit_log.tail import ENTRY_BYTES, Tail, TailEntries
from tidelog_broker.storage.engine.store import EpochStart
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_proto.batch.header import Buffer

SNAPSHOT_SUFFIX: Final = ".tails"
SNAPSHOT_HEADER_BYTES: Final = 64
_MAGIC: Final = b"TLCS"
_HEADER: Final = struct.Struct("<4sIQQQQI16xI")
_TAIL: Final = struct.Struct("<Q16sI4xQQqQqQqQQII")
_U32: Final = struct.Struct("<I")
_BROKEN: Final = 1
_CUT: Final = 2
_DOUBTFUL: Final = 4

assert _HEADER.size == SNAPSHOT_HEADER_BYTES


class Snapshot(NamedTuple):
    """The tails after the replay of everything before a position."""

    nonce: int
    position: int
    tails: list[Tail]


def snapshot_path(directory: Path, position: int) -> Path:
    """Return the path of the snapshot at a position."""
    return directory / f"{position:020d}{SNAPSHOT_SUFFIX}"


def pack_tails(tails: Iterable[Tail]) -> tuple[int, bytes]:
    """Return the number of tails, and their bytes in a snapshot."""
    count, heads, arrays = 0, list[bytes](), list[bytes]()
    for tail in tails:
        entries, start = tail.entries, tail.start
        flags = (
            (_BROKEN if tail.is_broken else 0) | (_CUT if tail.is_cut else 0) | (_DOUBTFUL if tail.is_doubtful else 0)
        )
        size = len(entries)
        # A snapshot counts once everything before its position is durable.
        marked_offset = tail.marked_offset if tail.is_damaged else tail.end.offset
        heads.append(
            _TAIL.pack(
                *(tail.store, start.topic_id, start.partition, start.epoch, start.offset, start.digest),
                *(*entries.base, *tail.end, marked_offset, tail.position, flags, size),
            )
        )
        arrays += [
            part[:size].tobytes() for part in (entries.offsets, entries.positions, entries.times_us, entries.lengths)
        ]
        count += 1
    return count, b"".join(heads + arrays)


def pack_snapshot(nonce: int, position: int, count: int, tails: bytes) -> bytes:
    """Return the header of a snapshot whose tails `pack_tails` has packed."""
    raw = bytearray(_HEADER.pack(_MAGIC, LOG_FORMAT_VERSION, nonce, position, count, len(tails), crc32c(tails), 0))
    _U32.pack_into(raw, SNAPSHOT_HEADER_BYTES - 4, crc32c(memoryview(raw)[:-4]))
    return bytes(raw)


def unpack_snapshot(data: Buffer) -> Snapshot:
    """Parse a snapshot.

    Raises:
        LayoutError: it is short or damaged, or of another version.
    """
    if len(data) < SNAPSHOT_HEADER_BYTES:
        raise LayoutError(f"the snapshot has {len(data)} bytes, fewer than its header of {SNAPSHOT_HEADER_BYTES}")
    magic, version, nonce, position, count, length, tails_crc, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC or crc != crc32c(memoryview(data)[: SNAPSHOT_HEADER_BYTES - 4]):
        raise LayoutError("the snapshot's header has a bad magic or checksum")
    if version != LOG_FORMAT_VERSION:
        raise LayoutError(f"the snapshot has format version {version}, this build reads {LOG_FORMAT_VERSION}")
    body = memoryview(data)[SNAPSHOT_HEADER_BYTES : SNAPSHOT_HEADER_BYTES + length]
    if len(body) < length or crc32c(body) != tails_crc:
        raise LayoutError("the snapshot's tails have a wrong length or checksum")
    at, tails = _TAIL.size * count, list[Tail]()
    for number in range(count):
        tail, size = _unpack_tail(body, number * _TAIL.size)
        tail.entries = _entries(tail.entries.base, body[at : at + ENTRY_BYTES * size], size)
        tail.size_bytes = tail.entries.log_bytes
        tails.append(tail)
        at += ENTRY_BYTES * size
    return Snapshot(nonce, position, tails)


def _unpack_tail(body: memoryview, at: int) -> tuple[Tail, int]:
    fields = _TAIL.unpack_from(body, at)
    store, topic_id, partition, epoch, offset, digest, *rest = fields
    base_offset, base_digest, end_offset, end_digest, marked_offset, position, flags, size = rest
    tail = Tail(store, EpochStart(topic_id, partition, epoch, offset, digest), position)
    tail.entries = TailEntries(Boundary(base_offset, base_digest))
    tail.end = Boundary(end_offset, end_digest)
    tail.marked_offset = marked_offset
    tail.is_broken, tail.is_cut = bool(flags & _BROKEN), bool(flags & _CUT)
    tail.is_doubtful = bool(flags & _DOUBTFUL)
    return tail, size


def _entries(base: Boundary, data: memoryview, size: int) -> TailEntries:
    offsets, positions, times_us = (array("q", bytes(data[8 * size * k : 8 * size * (k + 1)])) for k in range(3))
    return TailEntries(base, offsets, positions, array("I", bytes(data[24 * size :])), times_us)
