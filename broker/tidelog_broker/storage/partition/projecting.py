"""Reads of some columns, or of a time range, that skip the bodies of unneeded batches.

A batch header lists the columns and the first timestamp of its records. So the header is read first, and the body only
if it is needed. A body that is reduced is read as a whole, because its CRC must be checked first.

If all of the first batch is needed, the following batches are assumed to be needed, too, and the log is read in the
usual way, from a mapping if that pays. Batches that are small on average are read together and sent unchanged:
examining a header takes as long as sending some kilobytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final, NamedTuple

from tidelog_broker.storage.engine.reading import Extent, FoundBatches
from tidelog_broker.storage.partition.extents import checking, readable_extents
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.matching import ReadResult
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader, check_offset, retry_if_replaced
from tidelog_proto.batch.header import Buffer, unpack_header
from tidelog_proto.batch.projection import Projection, head_alone, needs_body, project
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.batch.typed_projection import project_rows
from tidelog_proto.limits import FETCH_BYTES_MAX, KIB

LOOK_BYTES: Final = 8 * KIB
"""The cost of examining a header, charged to the byte budget of a read."""
SMALL_BATCH_BYTES: Final = 4 * KIB
"""Average batch size below which batches are read together and sent with all of their columns."""
_TOGETHER: Final = 256
"""Maximum number of batches that are examined and read together."""


class _Examined(NamedTuple):
    """Result of examining the batches up to a slot: the batches to send, and the cost."""

    stop: int
    batches: list[memoryview]
    cost_bytes: int


class _Reducer(NamedTuple):
    """Reduces batches to the requested columns and fields.

    Attributes:
        layouts: of the batches of a typed topic, see `HeldEpochs`.
    """

    projection: Projection
    layouts: Layouts | None

    def reduced(self, batch: Buffer) -> Buffer:
        """Return the projection of a batch, or the batch unchanged.

        Typed batches are sent whole to readers that name no fields, such as older clients.

        Raises:
            ProtocolError: CORRUPT_BATCH; EPOCH_CHANGING if this node does not know the schema.
        """
        columns, fields = self.projection.columns, self.projection.fields
        number = 0 if fields is None or self.layouts is None else unpack_header(batch, typed=True).schema_id
        if fields is None or self.layouts is None or not number:
            return project(batch, columns)
        return project_rows(batch, self.layouts[number], columns=columns, fields=fields)


class ProjectingReader:
    """Reads only some columns, or only the records of a time range, of a partition's log. Thread-safe."""

    def __init__(self, held: HeldEpochs, reader: PartitionLogReader) -> None:
        self._held = held
        self._reader = reader

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, projection: Projection, to_send: bool = False
    ) -> ReadResult:
        """Read from the batch that holds `offset` on, in whole batches that end at or below `limit_offset`.

        Reads about `max_bytes` of the log, at least one batch; examining a header costs `LOOK_BYTES`. With `to_send`
        the batches may be slices of a mapping, which only system calls may read.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE below the start of the log.
            NotHeldError: `offset` is before this node's copy of the log, but was not deleted by retention.
            DamagedError: a batch is corrupt.
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """
        return retry_if_replaced(
            self._held, lambda: self._found(offset, max_bytes, limit_offset, projection, to_send=to_send)
        )

    def _found(
        self, offset: int, max_bytes: int, limit_offset: int, projection: Projection, *, to_send: bool
    ) -> ReadResult:
        if self._is_all_wanted(offset, limit_offset, projection):
            found = self._reader.read(offset, max_bytes, limit_offset=limit_offset, to_send=to_send)
            return _below(found, projection.end_offset)
        reducer = _Reducer(projection, self._held.layouts)
        return self._read(offset, min(max_bytes, FETCH_BYTES_MAX), limit_offset, reducer)

    def _is_all_wanted(self, offset: int, limit_offset: int, projection: Projection) -> bool:
        check_offset(self._held, offset)
        with closing(readable_extents(self._held, offset, limit_offset)) as extents:
            for extent in extents:
                head = extent.head(extent.first)
                with checking(extent, extent.first, head):
                    return projection.keeps(unpack_header(head, typed=True))
        return True

    def _read(self, offset: int, left_bytes: int, limit_offset: int, reducer: _Reducer) -> ReadResult:
        found: list[memoryview] = []
        position = offset
        with closing(readable_extents(self._held, offset, limit_offset)) as extents:
            for extent in extents:
                for examined in _look_through(extent, left_bytes, reducer, at_least_one=position == offset):
                    found += examined.batches
                    left_bytes -= examined.cost_bytes
                    position = extent.offset_of(examined.stop)
                if left_bytes <= 0 or position < extent.end_offset:
                    return ReadResult(found, position)
        if position == offset < limit_offset and self._held.limbo is not None:
            raise self._held.unreadable_error(position)
        return ReadResult(found, position)


def _below(found: FoundBatches, end_offset: int) -> ReadResult:
    """Drop batches after the first one that begin at or after an offset."""
    batches, next_offset = found.batches, found.next_offset
    for number, head in enumerate(found.heads[1:], 1):
        base_offset = unpack_header(head, typed=True).base_offset
        if base_offset >= end_offset:
            return ReadResult(batches[:number], base_offset)
    return ReadResult(batches, next_offset)


def _look_through(extent: Extent, left_bytes: int, reducer: _Reducer, *, at_least_one: bool) -> Iterator[_Examined]:
    """Yield the examined batches of an extent while the byte budget lasts, perhaps not to its end."""
    first = extent.first
    end = min(extent.stop, extent.slots_below(reducer.projection.end_offset))
    while first < end and (left_bytes > 0 or at_least_one):
        stop = min(first + _TOGETHER, end)
        span_bytes = extent.span_bytes(first, stop)
        if span_bytes < (stop - first) * SMALL_BATCH_BYTES and (span_bytes <= left_bytes or stop - first == 1):
            examined: _Examined | None = _all_of(extent, first, stop)
        else:
            examined = _one_of(extent, first, reducer, left_bytes, at_least_one=at_least_one)
        if examined is None:
            return
        yield examined
        first, left_bytes, at_least_one = examined.stop, left_bytes - examined.cost_bytes, False


def _all_of(extent: Extent, first: int, stop: int) -> _Examined:
    """Read batches together, unchanged."""
    batches = extent.read(first, stop)
    with checking(extent, first, batches[0]):
        return _Examined(stop, batches, extent.span_bytes(first, stop))


def _one_of(extent: Extent, slot: int, reducer: _Reducer, left_bytes: int, *, at_least_one: bool) -> _Examined | None:
    """Read the needed part of a batch; None if the batch exceeds `left_bytes`, unless `at_least_one`."""
    head = extent.head(slot)
    with checking(extent, slot, head):
        header = unpack_header(head, typed=True)
        if reducer.projection.skips(header):
            return _Examined(slot + 1, [], LOOK_BYTES)
        if not needs_body(header, reducer.projection.columns):
            return _Examined(slot + 1, [memoryview(head_alone(header) if header.record_count else head)], LOOK_BYTES)
        length_bytes = extent.length_of(slot)
        if length_bytes > left_bytes and not at_least_one:
            return None
        (batch,) = extent.read(slot, slot + 1)
        return _Examined(slot + 1, [memoryview(reducer.reduced(batch))], max(LOOK_BYTES, length_bytes))


def project_all(batches: list[memoryview], projection: Projection, layouts: Layouts | None = None) -> list[memoryview]:
    """Return the needed parts of batches in memory.

    Args:
        layouts: of the batches of a typed topic, see `HeldEpochs`.

    Raises:
        ProtocolError: CORRUPT_BATCH; EPOCH_CHANGING as `layouts` if a batch has a schema that this node does not know.
    """
    reducer = _Reducer(projection, layouts)
    return [
        memoryview(reducer.reduced(batch))
        for batch in batches
        if not projection.skips(unpack_header(batch, typed=True))
    ]
