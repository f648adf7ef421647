"""An extent of a segment: readable batches, while the segment is leased."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol, cast

from tidelog_broker.storage.engine.reading import CandidateBatches, Extent, Indexes
from tidelog_broker.storage.epoch.held_segments import Segment
from tidelog_broker.storage.io.errors import unreadable
from tidelog_broker.storage.segment.disk import OpenSegment
from tidelog_broker.storage.segment.hash_entries import window_stop
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.limits import HEADER_BYTES

_ALL_WINDOWS: Final = 1 << 20


class _SegmentIndexes(Protocol):
    """The method of `RecordIndexes` that `SegmentExtent` calls; importing that class would be circular."""

    def prepare(self, segment: Segment, opened: OpenSegment, column: TextColumn, stop: int) -> None:
        """Extend a segment's index towards slot `stop` before a lookup; see `RecordIndexes.prepare`."""
        ...


class SegmentExtent(Extent):
    """The readable batches `first` to `stop - 1` of a segment."""

    __slots__ = ("_opened", "_segment", "end_offset", "first", "stop")

    def __init__(self, segment: Segment, opened: OpenSegment, first: int, stop: int, end_offset: int) -> None:
        self._segment = segment
        self._opened = opened
        self.first = first
        self.stop = stop
        self.end_offset = end_offset

    def offset_of(self, slot: int) -> int:
        """Return the base offset of the batch in a slot; for `stop`, the end offset of the last batch."""
        return self._opened.index.offsets[slot] if slot < self.stop else self.end_offset

    def slots_below(self, offset: int) -> int:
        """Return the first slot whose batch begins at or after `offset`."""
        return self._opened.index.slots_below(offset)

    def length_of(self, slot: int) -> int:
        """Return the size of a batch in bytes."""
        return self._opened.index.place(slot).length

    def span_bytes(self, first: int, stop: int) -> int:
        """Return the size of the file range that has the batches `first` to `stop - 1`."""
        index = self._opened.index
        last = index.place(stop - 1)
        return last.position + last.length - index.place(first).position

    def window_stop(self, first: int, stop: int) -> int:
        """Return the slot before which to end a read of about `WINDOW_BYTES`; see `Extent.window_stop`."""
        return window_stop(self._opened.index, first, stop)

    def read(self, first: int, stop: int) -> list[memoryview]:
        """Read the batches `first` to `stop - 1` with one `pread`."""
        index = self._opened.index
        start = index.place(first).position
        data = self._pread(self.span_bytes(first, stop), start)
        places = [index.place(slot) for slot in range(first, stop)]
        return [data[place.position - start : place.position - start + place.length] for place in places]

    def head(self, slot: int) -> memoryview:
        """Read the header of a batch."""
        return self._pread(HEADER_BYTES, self._opened.index.place(slot).position)

    def place_of(self, slot: int) -> tuple[Path, int]:
        """Return the path of the segment, and the position of a batch in it."""
        return self._segment.path, self._opened.index.place(slot).position

    def prepare(self, column: TextColumn, indexes: Indexes | None) -> None:
        """Extend the index of a column towards `stop`; see `RecordIndexes.prepare`."""
        try:
            if indexes is None:
                self._opened.hashes.catch_up([column], self.stop, windows_max=_ALL_WINDOWS)
            else:
                cast("_SegmentIndexes", indexes).prepare(self._segment, self._opened, column, self.stop)
        except OSError as error:
            raise unreadable(f"{self._segment.path} or its index of {column}s cannot be read", error) from error

    def find(
        self, column: TextColumn | None, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> CandidateBatches:
        """Return batches that may match; see `Extent.find`."""
        try:
            return self._opened.hashes.find(column, key_hash, first, stop, count_max, newest=newest)
        except OSError as error:
            raise unreadable(f"the index of {column}s of {self._segment.path} cannot be read", error) from error

    def _pread(self, length_bytes: int, position: int) -> memoryview:
        try:
            return memoryview(self._opened.file.pread(length_bytes, position))
        except OSError as error:
            raise unreadable(f"{self._segment.path} cannot be read", error) from error


def extent_of(
    segment: Segment, opened: OpenSegment, offset: int, limit_offset: int, end_offset: int
) -> SegmentExtent | None:
    """Return the extent of a segment from the batch that holds `offset` on, below both limits; None if it is empty."""
    index = opened.index
    first, readable = max(0, index.slot_of(offset)), index.slots_below(end_offset)
    # A batch ends where the next one begins, so batches before the one that holds the limit end at or below the limit.
    stop = min(readable, max(0, index.slot_of(limit_offset))) if limit_offset < end_offset else readable
    if first >= stop:
        return None
    return SegmentExtent(segment, opened, first, stop, index.offsets[stop] if stop < readable else end_offset)
