"""The layout of a segment file: a header, then groups of record batches with sync marks between them.

| at | size | field of the segment header |
| --- | --- | --- |
| 0 | 4 | magic `TLSG` |
| 4 | 4 | version |
| 8 | 8 | nonce: random, new for every file; sync marks and the index repeat it |
| 16 | 16 | topic id |
| 32 | 4 | partition |
| 36 | 4 | reserved, zero |
| 40 | 8 | epoch |
| 48 | 8 | base offset: of the first batch |
| 56 | 4 | start digest: the epoch's running digest before the first batch |
| 60 | 4 | reserved, zero |
| 64 | 8 | synced offset: how far the epoch was synced when the file was created |
| 72 | 52 | reserved, zero |
| 124 | 4 | CRC32C of bytes 0..123 |

| at | size | field of a sync mark |
| --- | --- | --- |
| 0 | 4 | magic `TLMK` |
| 4 | 4 | version |
| 8 | 8 | nonce of the file |
| 16 | 8 | position of the mark itself in the file |
| 24 | 8 | synced offset: everything of the epoch below it was on the disk when the mark was written |
| 32 | 28 | reserved, zero |
| 60 | 4 | CRC32C of bytes 0..59 |

Batches and marks start at multiples of 64 bytes; a block that begins with a zero magic ends the file's content.

A mark is written before the group that follows a sync, in the same `pwritev`. Recovery looks for marks *after* a bad
block: one that covers it proves that the block was on the disk and is damaged. The nonce and the position inside the
mark prevent a producer from forging one in a body, and invalidate an old file's marks. Rejected: a slot in the first
page of the file, which makes every sync write two places; and a separate file, which makes it two syncs.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.directory.names import SEGMENT_SUFFIX
from tidelog_broker.storage.io.errors import LayoutError
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import Buffer
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES, TOPIC_ID_BYTES

SEGMENT_HEADER_BYTES: Final = 128
MARK_BYTES: Final = 64
INDEX_SUFFIX: Final = ".idx"
HASH_SUFFIXES: Final[dict[TextColumn, str]] = {"key": ".key", "tag": ".tag"}
"""Suffixes of the indexes of keys and tags."""
BEGUN_SUFFIX: Final = ".beg"
"""Suffix of a segment whose header may not be durable yet; see `epoch.deferred_syncs`."""

FORMAT_VERSION: Final = 1
SEGMENT_MAGIC: Final = int.from_bytes(b"TLSG", "little")
MARK_MAGIC_BYTES: Final = b"TLMK"
_MARK_MAGIC: Final = int.from_bytes(MARK_MAGIC_BYTES, "little")

_HEADER: Final = struct.Struct("<IIQ16sI4xQQI4xQ52xI")
_MARK: Final = struct.Struct("<IIQQQ28xI")
_U32: Final = struct.Struct("<I")

assert _HEADER.size == SEGMENT_HEADER_BYTES
assert _MARK.size == MARK_BYTES
assert SEGMENT_HEADER_BYTES % BATCH_ALIGNMENT_BYTES == 0
assert MARK_BYTES % BATCH_ALIGNMENT_BYTES == 0


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The fields of a segment header; see the table in the module's docstring."""

    nonce: int
    topic_id: bytes
    partition: int
    epoch: int
    base_offset: int
    start_digest: int
    synced_offset: int

    def pack(self) -> bytes:
        """Return the 128 bytes of the header."""
        assert len(self.topic_id) == TOPIC_ID_BYTES
        raw = bytearray(
            _HEADER.pack(
                SEGMENT_MAGIC,
                FORMAT_VERSION,
                self.nonce,
                self.topic_id,
                self.partition,
                self.epoch,
                self.base_offset,
                self.start_digest,
                self.synced_offset,
                0,
            )
        )
        _U32.pack_into(raw, SEGMENT_HEADER_BYTES - 4, crc32c(memoryview(raw)[:-4]))
        return bytes(raw)

    @classmethod
    def unpack(cls, data: Buffer) -> SegmentHeader:
        """Parse a header.

        Raises:
            LayoutError: the data is too short, or has another magic, a wrong CRC or another version.
        """
        if len(data) < SEGMENT_HEADER_BYTES:
            raise LayoutError(f"a segment header must have {SEGMENT_HEADER_BYTES} bytes, got {len(data)}")
        magic, version, *fields, crc = _HEADER.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            raise LayoutError(f"the segment's magic is {magic:#010x}, not {SEGMENT_MAGIC:#010x}")
        if crc != (found_crc := crc32c(memoryview(data)[: SEGMENT_HEADER_BYTES - 4])):
            raise LayoutError(f"the segment header declares CRC32C {crc:#010x}, its bytes have {found_crc:#010x}")
        if version != FORMAT_VERSION:
            raise LayoutError(
                f"the segment has format version {version}, this build reads {FORMAT_VERSION}; use the build that "
                "wrote it"
            )
        return cls(*fields)


def pack_mark(*, nonce: int, position: int, synced_offset: int) -> bytes:
    """Return the 64 bytes of a sync mark for `position` in the file with `nonce`."""
    raw = bytearray(_MARK.pack(_MARK_MAGIC, FORMAT_VERSION, nonce, position, synced_offset, 0))
    _U32.pack_into(raw, MARK_BYTES - 4, crc32c(memoryview(raw)[:-4]))
    return bytes(raw)


def parse_mark(data: Buffer, at: int, *, nonce: int, position: int) -> int | None:
    """Return the synced offset of the mark at `at` in `data`; None if it is not a mark of this file and position."""
    if len(data) - at < MARK_BYTES:
        return None
    magic, version, found_nonce, found_position, synced_offset, crc = _MARK.unpack_from(data, at)
    if (magic, version, found_nonce, found_position) != (_MARK_MAGIC, FORMAT_VERSION, nonce, position):
        return None
    return int(synced_offset) if crc == crc32c(memoryview(data)[at : at + MARK_BYTES - 4]) else None


def segment_path(directory: Path, base_offset: int) -> Path:
    """Return the path of the segment that begins at an offset."""
    return directory / f"{base_offset:020d}{SEGMENT_SUFFIX}"


def begun_path(segment: Path) -> Path:
    """Return the path of a segment until its header is durable."""
    return segment.with_suffix(BEGUN_SUFFIX)


def index_path(segment: Path) -> Path:
    """Return the path of a segment's index."""
    return segment.with_suffix(INDEX_SUFFIX)


def hash_path(segment: Path, column: TextColumn) -> Path:
    """Return the path of a segment's index of keys or tags."""
    return segment.with_suffix(HASH_SUFFIXES[column])


def made_paths(segment: Path) -> list[Path]:
    """Return the paths of all files derived from a segment, which are deleted with it."""
    return [index_path(segment), *(segment.with_suffix(suffix) for suffix in HASH_SUFFIXES.values())]
