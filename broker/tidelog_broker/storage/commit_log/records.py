"""The layout of the commit log: files of records, each record for one store. See docs/formats.md. No I/O.

A position is that of a byte in the sequence of all files; a file is named by its first position. Records begin at
multiples of 64 bytes. The CRC of a record's header covers the record's position, so that equal bytes elsewhere are no
record, and the payload of every kind except batches, which have their own CRCs, and fillers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.engine.store import EpochStart
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_proto.batch.header import Buffer
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES

FILE_SUFFIX: Final = ".clog"
FILE_HEADER_BYTES: Final = 64
RECORD_HEADER_BYTES: Final = 32
LOG_FORMAT_VERSION: Final = 1
RECORD_MAGIC: Final = b"TLCR"
_FILE_MAGIC: Final = b"TLCL"

_FILE: Final = struct.Struct("<4sIQQQ28xI")
_HEADER: Final = struct.Struct("<4sB3xQQII")
_POSITION: Final = struct.Struct("<Q")
_POSITIONED: Final = struct.Struct("<Q4sB3xQQI")
"""The bytes that the CRC of a batch's record covers: the position, then the header up to the CRC."""
_U32: Final = struct.Struct("<I")
_BOUNDARY: Final = struct.Struct("<QI4x")
_STATE: Final = struct.Struct("<QqI4xQ16s")
_CRC_AT: Final = RECORD_HEADER_BYTES - 4

STATE_BYTES: Final = _STATE.size
"""The length of the payload of a `STATE`, `CUT` or `COPY_BEGIN`."""

assert _FILE.size == FILE_HEADER_BYTES
assert _HEADER.size == RECORD_HEADER_BYTES
assert _POSITIONED.size == _POSITION.size + _CRC_AT


class Kind(IntEnum):
    """The kinds of records."""

    BATCH = 1
    """A batch that continues the tail of its store."""
    COPIED = 2
    """A batch of a copy of a tail, between `COPY_BEGIN` and `COPY_END`."""
    MARK = 3
    """The position up to which the log was synced, and the synced ends of stores."""
    STATE = 4
    """The store's tail is empty and begins here: it is new, or the records before are in segments, durably."""
    CUT = 5
    """The store ends here; records above were removed."""
    FORGET = 6
    """The store has no records in the log any more, and never will."""
    COPY_BEGIN = 7
    """A copy of the store's whole tail begins."""
    COPY_END = 8
    """The copy is complete and replaces the tail."""
    FILLER = 9
    """Bytes without meaning."""


_BATCHES: Final = frozenset({Kind.BATCH, Kind.COPIED})
_PAYLOAD_UNCHECKED: Final = frozenset({Kind.BATCH, Kind.COPIED, Kind.FILLER})
_KINDS: Final = frozenset(int(kind) for kind in Kind)
_PADDING: Final = [bytes(length) for length in range(BATCH_ALIGNMENT_BYTES)]


class FileHeader(NamedTuple):
    """The header of a file.

    Attributes:
        nonce: random, one for the whole log; records repeat it.
        base: the position of the file's first byte.
        synced: the position up to which the log was synced when the file was begun.
    """

    nonce: int
    base: int
    synced: int


class Boundary(NamedTuple):
    """An offset between two batches of a store, and the running digest there."""

    offset: int
    digest: int


class RecordHeader(NamedTuple):
    """A valid record header."""

    kind: int
    store: int
    length: int


class Mark(NamedTuple):
    """The contents of a mark.

    Attributes:
        synced: everything before this position was on the disk when the mark was written.
        stores: ids of the stores that were appended to between the mark before and `synced`.
        ends: for each of them, the offset at which its synced part ended.
    """

    synced: int
    stores: array[int]
    ends: array[int]


def file_path(directory: Path, base: int) -> Path:
    """Return the path of the file that begins at a position."""
    return directory / f"{base:020d}{FILE_SUFFIX}"


def record_bytes(payload_bytes: int) -> int:
    """Return the space that a record with a payload of this length takes."""
    return -(-(RECORD_HEADER_BYTES + payload_bytes) // BATCH_ALIGNMENT_BYTES) * BATCH_ALIGNMENT_BYTES


def padding_of(payload_bytes: int) -> bytes:
    """Return the zeros after a payload of this length."""
    return _PADDING[-(RECORD_HEADER_BYTES + payload_bytes) % BATCH_ALIGNMENT_BYTES]


def pack_file_header(header: FileHeader) -> bytes:
    """Return the 64 bytes of a file's header."""
    raw = bytearray(_FILE.pack(_FILE_MAGIC, LOG_FORMAT_VERSION, *header, 0))
    _U32.pack_into(raw, FILE_HEADER_BYTES - 4, crc32c(memoryview(raw)[:-4]))
    return bytes(raw)


def unpack_file_header(data: Buffer) -> FileHeader:
    """Parse a file's header.

    Raises:
        LayoutError: it is short or damaged, or of another version.
    """
    if len(data) < FILE_HEADER_BYTES:
        raise LayoutError(f"the file has {len(data)} bytes, fewer than its header of {FILE_HEADER_BYTES}")
    magic, version, nonce, base, synced, crc = _FILE.unpack_from(data)
    if magic != _FILE_MAGIC or crc != crc32c(memoryview(data)[: FILE_HEADER_BYTES - 4]):
        raise LayoutError("the file header has a bad magic or checksum")
    if version != LOG_FORMAT_VERSION:
        raise LayoutError(f"the file has format version {version}, this build reads {LOG_FORMAT_VERSION}")
    return FileHeader(nonce, base, synced)


def pack_header(kind: Kind, store: int, length: int, *, nonce: int, position: int, payload: Buffer = b"") -> bytes:
    """Return the 32 bytes before a payload; `payload` is given if the CRC covers it."""
    raw = _POSITIONED.pack(position, RECORD_MAGIC, kind, nonce, store, length)
    crc = crc32c(raw)
    return raw[_POSITION.size :] + _U32.pack(crc32c(payload, crc) if payload else crc)


def pack_record(kind: Kind, store: int, payload: bytes, *, nonce: int, position: int) -> bytes:
    """Return a record that is not a batch, with its padding."""
    header = pack_header(kind, store, len(payload), nonce=nonce, position=position, payload=payload)
    return header + payload + padding_of(len(payload))


def pack_filler(size_bytes: int, *, nonce: int, position: int) -> bytes:
    """Return the header of a filler that takes `size_bytes` in all."""
    assert size_bytes % BATCH_ALIGNMENT_BYTES == 0
    return pack_header(Kind.FILLER, 0, size_bytes - RECORD_HEADER_BYTES, nonce=nonce, position=position)


def parse_header(data: Buffer, at: int, *, nonce: int, position: int) -> RecordHeader | None:
    """Return the header at `at`, which is the byte `position` of the log; None if no valid record begins there.

    A record whose end is after that of `data` is not valid, unless it is a batch or a filler.
    """
    if len(data) - at < RECORD_HEADER_BYTES:
        return None
    magic, kind, found_nonce, store, length, crc = _HEADER.unpack_from(data, at)
    if magic != RECORD_MAGIC or found_nonce != nonce or kind not in _KINDS:
        return None
    payload: Buffer = b""
    if kind not in _PAYLOAD_UNCHECKED:
        if length > len(data) - at - RECORD_HEADER_BYTES:
            return None
        payload = payload_of(data, at, length)
    if crc != _crc(memoryview(data)[at : at + RECORD_HEADER_BYTES], position, payload):
        return None
    return RecordHeader(kind, store, length)


def payload_of(data: Buffer, at: int, length: int) -> memoryview:
    """Return the payload of the record at `at`; shorter if `data` ends before."""
    return memoryview(data)[at + RECORD_HEADER_BYTES : at + RECORD_HEADER_BYTES + length]


def is_batch(kind: int) -> bool:
    """Return whether records of a kind have a batch as payload."""
    return kind in _BATCHES


def next_record(data: Buffer, at: int, *, nonce: int, base: int) -> int:
    """Return the next place at or after `at` where a valid record begins; the length of `data` after the last one.

    Args:
        base: the position of the first byte of `data`, a multiple of 64.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    found = raw.find(RECORD_MAGIC, at)
    while found >= 0:
        if found % BATCH_ALIGNMENT_BYTES == 0 and parse_header(raw, found, nonce=nonce, position=base + found):
            return found
        found = raw.find(RECORD_MAGIC, found + 1)
    return len(raw)


def nonce_in(data: Buffer, *, base: int) -> int | None:
    """Return the nonce of the first valid record of a file; None if no record is valid."""
    raw = bytes(data)
    found = raw.find(RECORD_MAGIC)
    while found >= 0:
        if found % BATCH_ALIGNMENT_BYTES == 0 and len(raw) - found >= RECORD_HEADER_BYTES:
            nonce = int(_HEADER.unpack_from(raw, found)[2])
            if parse_header(raw, found, nonce=nonce, position=base + found) is not None:
                return nonce
        found = raw.find(RECORD_MAGIC, found + 1)
    return None


def pack_boundary(boundary: Boundary) -> bytes:
    """Return the payload of a `COPY_END`."""
    return _BOUNDARY.pack(*boundary)


def unpack_boundary(payload: Buffer) -> Boundary:
    """Parse the payload of a `COPY_END`."""
    return Boundary(*_BOUNDARY.unpack_from(payload))


def pack_state(start: EpochStart) -> bytes:
    """Return the payload of a `STATE`, `CUT` or `COPY_BEGIN`: the identity of the store, an offset and its digest.

    The digest is -1 if it is unknown.
    """
    return _STATE.pack(start.offset, start.digest, start.partition, start.epoch, start.topic_id)


def unpack_state(payload: Buffer) -> EpochStart:
    """Parse the payload of a `STATE`, `CUT` or `COPY_BEGIN`."""
    offset, digest, partition, epoch, topic_id = _STATE.unpack_from(payload)
    return EpochStart(topic_id, partition, epoch, offset, digest)


def pack_mark(mark: Mark) -> bytes:
    """Return the payload of a `MARK`."""
    pairs = array("Q", bytes(16 * len(mark.stores)))
    pairs[0::2], pairs[1::2] = mark.stores, mark.ends
    return _POSITION.pack(mark.synced) + pairs.tobytes()


def unpack_mark(payload: Buffer) -> Mark:
    """Parse the payload of a `MARK`."""
    pairs = array("Q", bytes(memoryview(payload)[_POSITION.size :]))
    return Mark(_POSITION.unpack_from(payload)[0], pairs[0::2], pairs[1::2])


def mark_bytes(stores: int) -> int:
    """Return the space that a mark for this many stores takes."""
    return record_bytes(_POSITION.size + 16 * stores)


class FoundRecord(NamedTuple):
    """A record in a file, or a range without a valid record (`kind` is 0).

    Attributes:
        at: where it begins in the file.
        size_bytes: the space that it takes.
    """

    kind: int
    store: int
    at: int
    length: int
    size_bytes: int


def records_in(data: Buffer, start: int, *, nonce: int, base: int) -> Iterator[FoundRecord]:
    """Yield the records of a file from `start` on, and the ranges between them without a valid record.

    A range at the end that is zero is not yielded.
    """
    at = start
    while at < len(data):
        header = parse_header(data, at, nonce=nonce, position=base + at)
        if header is not None and at + RECORD_HEADER_BYTES + header.length <= len(data):
            size_bytes = record_bytes(header.length)
            yield FoundRecord(*header[:2], at, header.length, size_bytes)
            at += size_bytes
            continue
        following = next_record(data, at + BATCH_ALIGNMENT_BYTES, nonce=nonce, base=base)
        if following < len(data) or any(memoryview(data)[at:].tobytes().strip(b"\0")):
            yield FoundRecord(0, 0, at, 0, following - at)
        at = following


def _crc(header: Buffer, position: int, payload: Buffer) -> int:
    crc = crc32c(memoryview(header)[:_CRC_AT], crc32c(_POSITION.pack(position)))
    return crc32c(payload, crc) if len(payload) else crc
