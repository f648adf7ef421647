"""The entries of an index of keys or tags: sorted 64-bit numbers of a hash and a batch slot.

The upper 39 bits of an entry are those of the hash of a key (`tidelog_proto.batch.key_hash`), the lower 25 the slot, in
the segment's index, of a batch that has a record with that key. Sorting the numbers sorts by hash, then by slot, and
both "the batches with this key from here on" and "the last one" are a binary search for two numbers. An entry means
that the batch may have the key: the reader compares the keys themselves. With ten million keys in a segment, one in
55,000 lookups of a missing key reads a batch without a match.

A key has one entry per batch, however many records have it. A batch that would need more entries than it has bytes (a
few compressed bytes per record) has none and is *open*: every lookup returns it. So is a corrupt batch. Thus an index
is never larger than its segment.

Rejected: the offset of each record, which needs 16 bytes an entry and one for every repetition; entries of 12 bytes
with the whole hash, which cannot be sorted as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tidelog_broker.storage.engine.store import padded
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.segment.index import Index
from tidelog_broker.storage.segment.scan import WINDOW_BYTES
from tidelog_proto.batch.column_slices import TextColumn, column_slices
from tidelog_proto.batch.header import BatchHeader, Flags, unpack_header
from tidelog_proto.batch.key_hash import Slices, hash_slices
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import HEADER_BYTES, SEGMENT_BYTES_MAX

Entries = npt.NDArray[np.uint64]
"""Entries of an index of keys or tags, sorted and unique."""

_Bytes = npt.NDArray[np.uint8]

ENTRY_BYTES: Final = 8
_SLOT_BITS: Final = 25
SLOT_MASK: Final = (1 << _SLOT_BITS) - 1
_HASH_MASK: Final = ~np.uint64(SLOT_MASK)
_ENTRY_MAX: Final = (1 << 64) - 1
NO_ENTRIES: Final = np.empty(0, np.uint64)

assert HEADER_BYTES << _SLOT_BITS >= SEGMENT_BYTES_MAX, "the largest segment of empty batches needs more slots"


class BatchEntries(NamedTuple):
    """The entries of some batches.

    Attributes:
        entries: the entries of all batches that are not open.
        open_slots: the slots of the open batches, which have no entries, so that every lookup returns them; ascending.
    """

    entries: Entries
    open_slots: list[int]


def bounds_of(key_hash: int, first: int, stop: int) -> tuple[int, int]:
    """Return the range of numbers, end excluded, of a hash's entries for slots first..stop-1."""
    base = key_hash & int(_HASH_MASK)
    return base + first, min(base + stop, _ENTRY_MAX)


def slots_of(entries: Entries) -> npt.NDArray[np.int64]:
    """Return the slots of entries."""
    return (entries & np.uint64(SLOT_MASK)).astype(np.int64)


def window_stop(index: Index, first: int, stop: int) -> int:
    """Return the slot before which to end a read from `first` on: about `WINDOW_BYTES`, at least one batch."""
    fitting = index.slots_before_position(index.place(first).position + WINDOW_BYTES, first, stop)
    return max(first + 1, fitting)


def collect(
    file: File, index: Index, columns: Sequence[TextColumn], first: int, stop: int
) -> dict[TextColumn, BatchEntries]:
    """Read batches first..stop-1 of a segment, which fit into one window, and return their entries of each column.

    Raises:
        OSError: the disk cannot be read.
    """
    start, last = index.place(first).position, index.place(stop - 1)
    window = np.frombuffer(file.pread(last.position + last.length - start, start), np.uint8)
    found: dict[TextColumn, _Gathered] = {column: _Gathered(window) for column in columns}
    open_slots: list[int] = []
    for slot in range(first, stop):
        position, length = index.place(slot)
        try:
            _take(window, position - start, length, slot, found)
        except (ProtocolError, ValueError):  # The batch is damaged, which its reader reports.
            open_slots.append(slot)
    collected: dict[TextColumn, BatchEntries] = {
        column: _without_dense(index, BatchEntries(gathered.entries(), open_slots), first, stop)
        for column, gathered in found.items()
    }
    return collected


def _take(window: _Bytes, at: int, length: int, slot: int, found: dict[TextColumn, _Gathered]) -> None:
    """Add the keys of a batch to `found`: those of all columns, or none if the batch is corrupt.

    Raises:
        ProtocolError, ValueError: the batch is corrupt.
    """
    header: BatchHeader = unpack_header(window.data, at, typed=True)
    if header.length != length:
        raise ValueError(f"the batch has {header.length} bytes, the index lists {length}")
    if crc32c(window.data[at + HEADER_BYTES : at + length]) != header.body_crc:
        raise ValueError("the body of the batch has a wrong checksum")
    if header.flags & Flags.CONTROL:
        return
    slices: dict[TextColumn, Slices] = {column: column_slices(window, at, header, column) for column in found}
    for column, mine in slices.items():
        found[column].add(slot, mine)


class _Gathered:
    """The keys of some batches in one column."""

    def __init__(self, window: _Bytes) -> None:
        self._window = window
        self._parts: list[Entries] = []
        self._slots: list[int] = []
        self._starts: list[npt.NDArray[np.int64]] = []
        self._lengths: list[npt.NDArray[np.int64]] = []

    def add(self, slot: int, slices: Slices) -> None:
        """Add the keys of a batch."""
        if slices.data is not self._window:
            self._parts.append(_sorted_once((hash_slices(slices) & _HASH_MASK) | np.uint64(slot)))
        elif len(slices.starts):
            self._slots.append(slot)
            self._starts.append(slices.starts)
            self._lengths.append(slices.lengths)

    def entries(self) -> Entries:
        """Return the entries; keys inside the window are hashed in one call."""
        if self._slots:
            flat = Slices(self._window, np.concatenate(self._starts), np.concatenate(self._lengths))
            slots = np.repeat(np.array(self._slots, np.uint64), [len(starts) for starts in self._starts])
            self._parts.append((hash_slices(flat) & _HASH_MASK) | slots)
        return _sorted_once(np.concatenate([NO_ENTRIES, *self._parts]))


def _sorted_once(entries: Entries) -> Entries:
    """Sort entries in place and deduplicate them; faster than `np.unique`, because most differ."""
    entries.sort()
    differs = np.ones(len(entries), np.bool_)
    np.not_equal(entries[1:], entries[:-1], out=differs[1:])
    return entries if differs.all() else entries[differs]


def _without_dense(index: Index, found: BatchEntries, first: int, stop: int) -> BatchEntries:
    """Remove the entries of batches whose entries take more bytes than the batch, and list these batches as open."""
    counts = np.bincount(slots_of(found.entries) - first, minlength=stop - first)
    lengths = np.array([padded(index.place(slot).length) for slot in range(first, stop)], np.int64)
    dense = np.flatnonzero(counts * ENTRY_BYTES > lengths)
    if not len(dense):
        return found
    kept = found.entries[~np.isin(slots_of(found.entries) - first, dense)]
    return BatchEntries(kept, sorted({*found.open_slots, *(int(slot) + first for slot in dense)}))


def newest_or_oldest(slots: Iterable[npt.NDArray[np.int64]], count_max: int, *, newest: bool) -> list[int]:
    """Merge and deduplicate slots from several sources; return the lowest `count_max`, or with `newest` the highest."""
    ordered = np.unique(np.concatenate([np.empty(0, np.int64), *slots]))
    return [int(slot) for slot in (ordered[-count_max:] if newest else ordered[:count_max])]
