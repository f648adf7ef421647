"""The readable extents of a log, one segment at a time, leased while they are read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tidelog_broker.storage.epoch.epoch_reader import Segment
from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.segment.disk import OpenSegment
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


class OpenExtent(NamedTuple):
    """The readable batches `first` to `stop - 1` of a segment."""

    segment: Segment
    opened: OpenSegment
    first: int
    stop: int
    end_offset: int
    """End offset of the last batch."""

    def offset_of(self, slot: int) -> int:
        """Return where the batch of a slot begins; for `stop`, where the last batch ends."""
        return self.opened.index.offsets[slot] if slot < self.stop else self.end_offset


def readable_extents(held: HeldEpochs, offset: int, limit_offset: int) -> Generator[OpenExtent]:
    """Yield the readable extents, oldest first, while they are contiguous."""
    position = offset
    for epoch in held.epochs:
        if epoch.end_offset <= position:
            continue
        end_offset, segments = epoch.end_offset, epoch.segments
        if position < segments[0].base_offset:
            return
        at = bisect_right(segments, position, key=lambda segment: segment.base_offset) - 1
        for segment in segments[at:]:
            if position >= limit_offset:
                return
            with epoch.reader.lease(segment) as opened:
                extent = _extent(segment, opened, position, limit_offset, min(end_offset, segment.end_offset))
                if extent is not None:
                    yield extent
                    position = extent.end_offset
        if position < end_offset:
            return


def readable_extents_reversed(held: HeldEpochs, limit_offset: int) -> Generator[OpenExtent]:
    """Yield the readable extents, newest first."""
    for epoch in reversed(held.epochs):
        end_offset = epoch.end_offset
        for segment in reversed(epoch.segments):
            if segment.base_offset >= limit_offset:
                continue
            with epoch.reader.lease(segment) as opened:
                extent = _extent(segment, opened, 0, limit_offset, min(end_offset, segment.end_offset))
                if extent is not None:
                    yield extent


def _extent(
    segment: Segment, opened: OpenSegment, offset: int, limit_offset: int, end_offset: int
) -> OpenExtent | None:
    """Return the extent of a segment from the batch that holds `offset` on, below both limits; None if it is empty."""
    index = opened.index
    first, readable = max(0, index.slot_of(offset)), index.slots_below(end_offset)
    # The last readable batch: the one after it begins at or below the limit.
    stop = min(readable, max(0, index.slot_of(limit_offset))) if limit_offset < end_offset else readable
    if first >= stop:
        return None
    return OpenExtent(segment, opened, first, stop, index.offsets[stop] if stop < readable else end_offset)


@contextmanager
def checking(extent: OpenExtent, slot: int, batch: memoryview) -> Iterator[None]:
    """Add the file position to errors about a batch that is corrupt or not the one that the index lists.

    Raises:
        DamagedError: the batch is corrupt.
    """
    position = extent.opened.index.place(slot).position
    try:
        if unpack_header(batch).base_offset != extent.opened.index.offsets[slot]:
            raise DamagedError.at(extent.segment.path, position, "the batch that the index lists is missing")
        yield
    except DamagedError:
        raise
    except ProtocolError as error:
        raise DamagedError.at(extent.segment.path, position, error.message) from error
