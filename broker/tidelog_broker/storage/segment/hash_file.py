"""The `.key` and `.tag` files: the index of keys or tags of a sealed segment, written once and never changed.

| at | size | field of the file's header |
| --- | --- | --- |
| 0 | 4 | magic `TLHX` |
| 4 | 4 | version |
| 8 | 8 | nonce of the segment |
| 16 | 4 | column: 1 key, 2 tag |
| 20 | 4 | number of open batches |
| 24 | 8 | number of entries |
| 32 | 8 | number of batches of the segment |
| 40 | 8 | end offset of the segment |
| 48 | 4 | end digest of the segment |
| 52 | 4 | CRC32C of the directory |
| 56 | 4 | reserved, zero |
| 60 | 4 | CRC32C of bytes 0..59 |

The header is followed by the directory: the first entry of each block (u64), the CRC32C of each block (u32), the slots
of the open batches (u32). The blocks begin at the next multiple of 4096: 512 entries each (see `hash_entries`), sorted,
the last block shorter. All numbers are little-endian.

The directory (some 50 KB for two million keys) is read when the file is opened and stays in memory while the segment is
open; it gives the block of each entry, so that a lookup reads one page, whose CRC it checks. A file that is missing,
short, damaged, or of another version, segment or end is invalid and rebuilt, so files are never synced.

Files are read with `pread` rather than mapped: `pread` releases the GIL while it waits for a page, and a truncated file
cannot kill the process. Rejected: a Bloom filter of 10 bits per key, of which a lookup would read a page unless the
filter is kept in memory, where it takes 20 times as much as the directory.
"""

from __future__ import annotations

import struct
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tidelog_broker.storage.io.errors import LayoutError
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.hash_entries import (
    ENTRY_BYTES,
    SLOT_MASK,
    bounds_of,
    newest_or_oldest,
)
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import FORMAT_VERSION
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import Buffer

HASH_HEADER_BYTES: Final = 64
HASH_MAGIC: Final = int.from_bytes(b"TLHX", "little")
BLOCK_BYTES: Final = 4096
_BLOCK_ENTRIES: Final = BLOCK_BYTES // ENTRY_BYTES
_COLUMNS: Final[dict[TextColumn, int]] = {"key": 1, "tag": 2}
_HEADER: Final = struct.Struct("<IIQIIQQQII4xI")
_U32: Final = struct.Struct("<I")

assert _HEADER.size == HASH_HEADER_BYTES


class _Header(NamedTuple):
    """The header's fields after magic and version."""

    nonce: int
    column: int
    open_count: int
    entry_count: int
    slots: int
    end_offset: int
    end_digest: int
    directory_crc: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.entry_count // _BLOCK_ENTRIES)

    @property
    def directory_bytes(self) -> int:
        """The size of the directory."""
        return self.blocks * (ENTRY_BYTES + _U32.size) + self.open_count * _U32.size

    @property
    def blocks_at(self) -> int:
        """The position of the first block."""
        return -(-(HASH_HEADER_BYTES + self.directory_bytes) // BLOCK_BYTES) * BLOCK_BYTES


def pack_hashes(runs: HashRuns, column: TextColumn, *, nonce: int, end: SegmentEnd) -> list[Buffer]:
    """Return the index file of a segment as a list of buffers; `runs` must contain all of its batches."""
    entries = runs.entries().astype("<u8", copy=False)
    body = entries.view(np.uint8).data
    crcs = [crc32c(body[at : at + BLOCK_BYTES]) for at in range(0, len(body), BLOCK_BYTES)]
    directory = b"".join(
        (
            entries[::_BLOCK_ENTRIES].tobytes(),
            np.array(crcs, "<u4").tobytes(),
            np.array(runs.open_slots, "<u4").tobytes(),
        )
    )
    header = _Header(
        nonce,
        _COLUMNS[column],
        len(runs.open_slots),
        len(entries),
        runs.covered,
        end.offset,
        end.digest,
        crc32c(directory),
    )
    head = bytearray(_HEADER.pack(HASH_MAGIC, FORMAT_VERSION, *header, 0))
    _U32.pack_into(head, HASH_HEADER_BYTES - _U32.size, crc32c(memoryview(head)[: -_U32.size]))
    gap = bytes(header.blocks_at - HASH_HEADER_BYTES - len(directory))
    return [bytes(head), directory, gap, body]


class HashFile:
    """An open `.key` or `.tag` file: finds the batches of its segment that may have a key or tag. Thread-safe."""

    def __init__(self, file: File, header: _Header, directory: bytes) -> None:
        self._file = file
        self._header = header
        blocks = header.blocks
        self._firsts = _numbers_of(directory[: blocks * ENTRY_BYTES])
        self._crcs = np.frombuffer(directory, "<u4", blocks, blocks * ENTRY_BYTES)
        self._open_slots = np.frombuffer(directory, "<u4", header.open_count, blocks * (ENTRY_BYTES + _U32.size))

    @classmethod
    def load(cls, file: File, column: TextColumn, *, nonce: int, slots: int, end: SegmentEnd) -> HashFile:
        """Read header and directory; the returned object closes the file.

        Args:
            file: the index file that has the name of the segment.
            column: the expected column.
            slots: the number of the segment's batches.

        Raises:
            LayoutError: the index file is invalid and must be rebuilt.
            OSError: the disk cannot be read.
        """
        raw = file.pread(HASH_HEADER_BYTES, 0)
        if len(raw) < HASH_HEADER_BYTES:
            raise LayoutError(f"the index has {len(raw)} bytes, fewer than its header of {HASH_HEADER_BYTES}")
        magic, version, *fields, crc = _HEADER.unpack(raw)
        if magic != HASH_MAGIC or crc != crc32c(raw[: -_U32.size]):
            raise LayoutError("the index header has a bad magic or checksum")
        if version != FORMAT_VERSION:
            raise LayoutError(f"the index header has version {version}, expected {FORMAT_VERSION}")
        header = _Header(*fields)
        if (header.nonce, header.column) != (nonce, _COLUMNS[column]):
            raise LayoutError("the index belongs to another segment or column")
        if (header.slots, header.end_offset, header.end_digest) != (slots, end.offset, end.digest):
            raise LayoutError(
                f"the index lists {header.slots} batches up to offset {header.end_offset} (digest "
                f"{header.end_digest:#010x}); the segment has {slots} up to {end.offset} (digest {end.digest:#010x})"
            )
        if file.size() != header.blocks_at + header.entry_count * ENTRY_BYTES:
            raise LayoutError(
                f"the index has {file.size()} bytes; its header declares "
                f"{header.blocks_at + header.entry_count * ENTRY_BYTES}"
            )
        directory = file.pread(header.directory_bytes, HASH_HEADER_BYTES)
        if crc32c(directory) != header.directory_crc:
            raise LayoutError("the directory of the index's blocks has a wrong checksum")
        return cls(file, header, directory)

    @property
    def slots(self) -> int:
        """The number of batches in the index."""
        return self._header.slots

    def find(self, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool) -> list[int]:
        """Find batches; see `HashRuns.find`.

        Raises:
            LayoutError: a block is damaged.
            OSError: the disk cannot be read.
        """
        low, high = bounds_of(key_hash, first, stop)
        found: list[npt.NDArray[np.int64]] = []
        if len(self._open_slots):
            at, end = np.searchsorted(self._open_slots, np.array([first, stop], np.uint32)).tolist()
            opens = self._open_slots[at:end]
            found.append((opens[-count_max:] if newest else opens[:count_max]).astype(np.int64))
        slots: list[int] = []
        for entries in self._blocks(low, high, newest=newest):
            at = bisect_left(entries, low)
            stop_at = bisect_left(entries, high, at)
            inside = [entry & SLOT_MASK for entry in entries[at:stop_at]]
            slots = [*inside, *slots] if newest else [*slots, *inside]
            if len(slots) >= count_max:
                break
        if not found:  # The blocks are in ascending order, and a batch has one entry of a hash.
            return slots[-count_max:] if newest else slots[:count_max]
        found.append(np.array(slots, np.int64))
        return newest_or_oldest(found, count_max, newest=newest)

    def check(self) -> None:
        """Read and check all blocks.

        Raises:
            LayoutError: a block is damaged.
            OSError: the disk cannot be read.
        """
        for number in range(self._header.blocks):
            self._block(number)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _blocks(self, low: int, high: int, *, newest: bool) -> Iterator[memoryview]:
        """Yield the blocks that may have entries from `low` to below `high`, in the order of the search."""
        if not len(self._firsts):
            return
        first = max(0, bisect_right(self._firsts, low) - 1)
        last = bisect_left(self._firsts, high)
        for number in range(last - 1, first - 1, -1) if newest else range(first, last):
            yield self._block(number)

    def _block(self, number: int) -> memoryview:
        count = min(_BLOCK_ENTRIES, self._header.entry_count - number * _BLOCK_ENTRIES)
        raw = self._file.pread(count * ENTRY_BYTES, self._header.blocks_at + number * BLOCK_BYTES)
        if len(raw) != count * ENTRY_BYTES:
            raise LayoutError(f"block {number} of the index has {len(raw)} bytes, expected {count * ENTRY_BYTES}")
        if crc32c(raw) != int(self._crcs[number]):
            raise LayoutError(f"block {number} of the index has a wrong checksum")
        return _numbers_of(raw)


def _numbers_of(raw: bytes) -> memoryview:
    """Return little-endian 64-bit numbers as a sequence of ints.

    `bisect` finds a single number in it several times as fast as NumPy's `searchsorted`.
    """
    if sys.byteorder == "little":
        return memoryview(raw).cast("Q")
    return np.frombuffer(raw, "<u8").astype(np.uint64).data
