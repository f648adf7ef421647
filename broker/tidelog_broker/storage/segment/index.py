"""The dense index of a segment: one 24-byte entry per batch, searched by offset and by time.

An entry is three little-endian 64-bit numbers: base offset; place, which is the batch's position / 64 in the upper and
its length in the lower 32 bits; and the *running* maximum timestamp (µs), so that binary search by time is exact
although timestamps may go back. With the length in the entry, a read is planned without touching the segment.

While a segment grows its index is held in three arrays; when it is sealed they are interleaved into the `.idx` file,
which is read as a whole when the segment is opened: a mapping would kill the process if the file were truncated. The
file is never synced: if its CRC does not match, it is rebuilt from the segment. Rejected: sparse entries, which make
every read begin with a scan.

| at | size | field of the file's header |
| --- | --- | --- |
| 0 | 4 | magic `TLIX` |
| 4 | 4 | version |
| 8 | 8 | nonce of the segment |
| 16 | 8 | number of entries |
| 24 | 8 | end offset of the segment |
| 32 | 8 | end position of the segment (bytes) |
| 40 | 4 | end digest of the segment |
| 44 | 12 | reserved, zero |
| 56 | 4 | CRC32C of the entries |
| 60 | 4 | CRC32C of bytes 0..59 |
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.layout import FORMAT_VERSION
from tidelog_proto.batch.header import Buffer
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES

INDEX_HEADER_BYTES: Final = 64
ENTRY_BYTES: Final = 24
INDEX_MAGIC: Final = int.from_bytes(b"TLIX", "little")

_HEADER: Final = struct.Struct("<IIQQQQI12xII")
_U32: Final = struct.Struct("<I")
_LENGTH_BITS: Final = 32
_LENGTH_MASK: Final = (1 << _LENGTH_BITS) - 1

assert _HEADER.size == INDEX_HEADER_BYTES


class Place(NamedTuple):
    """The position and length of a batch in its segment, in bytes."""

    position: int
    length: int


class SegmentEnd(NamedTuple):
    """The current or final end of a segment. A named tuple, for speed: every append creates one."""

    offset: int
    position: int
    digest: int


class Index:
    """The entries of a segment's batches, by slot 0..n-1.

    One writer may append during lookups: an entry's offset is appended last, so readers see only complete entries.
    """

    def __init__(
        self,
        offsets: array[int] | memoryview[int] | None = None,
        places: array[int] | memoryview[int] | None = None,
        times_us: array[int] | memoryview[int] | None = None,
    ) -> None:
        self.offsets = array("q") if offsets is None else offsets
        self.places = array("q") if places is None else places
        self.times_us = array("q") if times_us is None else times_us

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size_bytes(self) -> int:
        """The memory that the entries take."""
        return len(self.offsets) * ENTRY_BYTES

    def append(self, base_offset: int, position: int, length_bytes: int, max_timestamp_us: int) -> None:
        """Append a batch (only to an index that is held in arrays)."""
        assert isinstance(self.offsets, array)
        assert isinstance(self.places, array)
        assert isinstance(self.times_us, array)
        assert position % BATCH_ALIGNMENT_BYTES == 0
        if self.times_us and self.times_us[-1] > max_timestamp_us:
            max_timestamp_us = self.times_us[-1]
        self.places.append((position // BATCH_ALIGNMENT_BYTES) << _LENGTH_BITS | length_bytes)
        self.times_us.append(max_timestamp_us)
        self.offsets.append(base_offset)

    def first(self, count: int) -> Index:
        """Return a copy of the first entries, held in arrays; readers of this index are not affected."""
        return Index(
            array("q", self.offsets[:count]), array("q", self.places[:count]), array("q", self.times_us[:count])
        )

    def place(self, slot: int) -> Place:
        """Return the position and length of the batch in a slot."""
        packed = self.places[slot]
        return Place((packed >> _LENGTH_BITS) * BATCH_ALIGNMENT_BYTES, packed & _LENGTH_MASK)

    def slot_of(self, offset: int) -> int:
        """Return the slot of the batch that holds `offset`; -1 if it is before the first."""
        return bisect_right(self.offsets, offset) - 1

    def slots_below(self, offset: int) -> int:
        """Return how many batches begin below `offset`."""
        return bisect_left(self.offsets, offset)

    def slots_before_position(self, position: int, lo: int, hi: int) -> int:
        """Return the first slot of lo..hi whose batch begins at or after `position`."""
        return bisect_left(self.places, (position // BATCH_ALIGNMENT_BYTES) << _LENGTH_BITS, lo, hi)

    def slot_of_time(self, timestamp_us: int) -> int | None:
        """Return the first slot whose batch has a record of at least this timestamp; None if no batch has one."""
        slot = bisect_left(self.times_us, timestamp_us, 0, len(self.offsets))
        return slot if slot < len(self.offsets) else None


def pack_index(index: Index, *, nonce: int, end: SegmentEnd) -> bytes:
    """Return the bytes of an index file."""
    count = len(index)
    entries = array("q", bytes(ENTRY_BYTES * count))
    # Copied by slices, because a loaded index is a strided view, which array() would copy element by element.
    entries[0::3] = array("q", index.offsets)
    entries[1::3] = array("q", index.places)
    entries[2::3] = array("q", index.times_us)
    body = entries.tobytes()
    head = bytearray(
        _HEADER.pack(INDEX_MAGIC, FORMAT_VERSION, nonce, count, end.offset, end.position, end.digest, crc32c(body), 0)
    )
    _U32.pack_into(head, INDEX_HEADER_BYTES - 4, crc32c(memoryview(head)[:-4]))
    return bytes(head) + body


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header of an index file."""

    count: int
    end: SegmentEnd
    entries_crc: int


def parse_index_header(data: Buffer, *, nonce: int) -> IndexHeader:
    """Parse the header of an index file.

    Raises:
        LayoutError: the file is short, damaged, or of another segment or version.
    """
    if len(data) < INDEX_HEADER_BYTES:
        raise LayoutError(f"the index has {len(data)} bytes, fewer than its header of {INDEX_HEADER_BYTES}")
    magic, version, found_nonce, count, offset, position, digest, entries_crc, crc = _HEADER.unpack_from(data)
    if magic != INDEX_MAGIC or crc != crc32c(memoryview(data)[: INDEX_HEADER_BYTES - 4]):
        raise LayoutError("the index header has a bad magic or checksum")
    if version != FORMAT_VERSION:
        raise LayoutError(f"the index header has version {version}, expected {FORMAT_VERSION}")
    if found_nonce != nonce:
        raise LayoutError("the index belongs to another segment")
    return IndexHeader(count, SegmentEnd(offset, position, digest), entries_crc)


def load_index(file: File, *, nonce: int) -> tuple[Index, SegmentEnd]:
    """Read and check an index file.

    Raises:
        LayoutError: the file is short, damaged, or of another segment or version, and must be rebuilt.
    """
    header = parse_index_header(file.pread(INDEX_HEADER_BYTES, 0), nonce=nonce)
    body = memoryview(file.pread(max(0, file.size() - INDEX_HEADER_BYTES), INDEX_HEADER_BYTES))
    if len(body) != header.count * ENTRY_BYTES:
        raise LayoutError(f"the index entries have {len(body)} bytes, expected {header.count * ENTRY_BYTES}")
    if crc32c(body) != header.entries_crc:
        raise LayoutError("the index entries have a wrong checksum")
    entries = body.cast("q")
    return Index(entries[0::3], entries[1::3], entries[2::3]), header.end
