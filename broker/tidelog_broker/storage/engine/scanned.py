"""A reader for engines that only find batches by offset: everything else is found by reading."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final

from tidelog_broker.storage.engine.reading import CandidateBatches, EpochReading, Extent, Part
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import BatchHeader, unpack_header
from tidelog_proto.limits import HEADER_BYTES, MIB

SCANNED_BYTES: Final = MIB
"""Maximum bytes of one read; a larger batch is read alone."""


class ScannedReading(EpochReading):
    """Implements all other reads of a store by means of `read`. Correct for every engine, and slow for lookups."""

    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """Return the parts of the store, oldest first; see `EpochStore.segments`."""

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the current end."""
        for extent in self.extents(from_offset, self.parts()[-1].end_offset):
            yield from (unpack_header(extent.head(slot), typed=True) for slot in range(extent.first, extent.stop))

    def extents(self, offset: int, limit_offset: int) -> Generator[Extent]:
        """Yield the batches from the one that holds `offset` on, a window at a time."""
        for part in self.parts():
            if part.end_offset > offset:
                yield from self._windows(part, max(offset, part.base_offset), limit_offset)

    def extents_reversed(self, limit_offset: int) -> Generator[Extent]:
        """Yield the batches below `limit_offset`, newest part first; a part is read as a whole."""
        for part in reversed(self.parts()):
            batches = [
                batch
                for window in self._windows(part, part.base_offset, limit_offset)
                for batch in window.read(window.first, window.stop)
            ]
            if batches:
                yield BatchesExtent(part.path, batches)

    def _windows(self, part: Part, offset: int, limit_offset: int) -> Generator[Extent]:
        limit = min(limit_offset, part.end_offset)
        while offset < limit:
            found = self.read(offset, SCANNED_BYTES, limit_offset=limit)
            if not found.batches:
                return
            yield BatchesExtent(part.path, found.batches)
            offset = found.next_offset


class BatchesExtent(Extent):
    """An extent of batches in memory, without an index. In messages the position of a batch is its slot."""

    def __init__(self, path: Path, batches: Sequence[memoryview]) -> None:
        self._path = path
        self._batches = list(batches)
        self._offsets = [unpack_header(batch, typed=True).base_offset for batch in batches]
        self.first = 0
        self.stop = len(self._batches)
        self.end_offset = unpack_header(self._batches[-1], typed=True).end_offset

    def offset_of(self, slot: int) -> int:
        """Return the base offset of the batch in a slot; for `stop`, the end offset of the last batch."""
        return self._offsets[slot] if slot < self.stop else self.end_offset

    def slots_below(self, offset: int) -> int:
        """Return the first slot whose batch begins at or after `offset`."""
        return sum(1 for base_offset in self._offsets if base_offset < offset)

    def length_of(self, slot: int) -> int:
        """Return the size of a batch in bytes."""
        return len(self._batches[slot])

    def span_bytes(self, first: int, stop: int) -> int:
        """Return the size of the batches `first` to `stop - 1` in bytes."""
        return sum(map(len, self._batches[first:stop]))

    def window_stop(self, first: int, stop: int) -> int:
        """Return `stop`: all batches are in memory, so one read may return all of them."""
        del first
        return stop

    def read(self, first: int, stop: int) -> list[memoryview]:
        """Return the batches `first` to `stop - 1`."""
        return self._batches[first:stop]

    def head(self, slot: int) -> memoryview:
        """Return the header of a batch."""
        return self._batches[slot][:HEADER_BYTES]

    def place_of(self, slot: int) -> tuple[Path, int]:
        """Return the part's path and the batch's slot, for messages."""
        return self._path, slot

    def find(
        self, column: TextColumn | None, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> CandidateBatches:
        """Return the oldest `count_max` batches of the range, or the `newest`: without an index every one may match."""
        del column, key_hash
        if newest:
            first = max(first, stop - count_max)
        else:
            stop = min(stop, first + count_max)
        return CandidateBatches(list(range(first, stop)), first, stop)
