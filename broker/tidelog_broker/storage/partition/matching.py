"""Reads of the records that match a key or tag, by an index if there is one, else by a scan.

A read returns batches reduced to the matching records, and the offset up to which the log was examined. It examines a
bounded number of bytes, so a result may be empty and still have advanced; the caller continues from there. Batches that
an index lists because of a hash collision count towards the bound, so that clients cannot make reads expensive by
colliding keys.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog_broker.storage.engine.reading import Extent, Indexes
from tidelog_broker.storage.partition.extents import (
    checking,
    readable_extents,
    readable_extents_reversed,
)
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.partition_reader import check_offset, retry_if_replaced
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.derived_batch import filter_batch, kept_rows, matching_rows
from tidelog_proto.batch.header import Buffer, Flags, unpack_header
from tidelog_proto.batch.key_hash import hash_one
from tidelog_proto.batch.newest_row import newest_row, record_alone
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.filters.expression_messages import BoundFilter
from tidelog_proto.filters.filtered_batch import check_filter, filter_rows
from tidelog_proto.limits import FETCH_BYTES_MAX, HEADER_BYTES, KIB, MIB

WORK_BYTES: Final = 8 * MIB
"""Maximum stored bytes of the log that one read examines; the last batch may exceed it."""
PROBE_BYTES: Final = 16 * KIB
"""Cost of a lookup in one segment's index, in bytes of the read's budget."""
RECENT_MAX: Final = 16
"""Maximum number of batches whose matching records a partition keeps after a search for the newest record."""
RECENT_BYTES_MAX: Final = 4 * KIB
"""Maximum size (as columns) of a batch's matching records; larger ones are not kept."""
_NAMED_MAX: Final = 256
"""Maximum number of batches that one index lookup returns."""


class ReadResult(NamedTuple):
    """Batches reduced to the wanted records or columns, and the offset up to which the log was examined."""

    batches: list[memoryview]
    next_offset: int


class RecordFilter(NamedTuple):
    """A filter for records: every field that is not None must match."""

    key: bytes | None = None
    tag: str | None = None
    where: BoundFilter | None = None

    def check(self, layouts: Layouts | None) -> None:
        """Check that the filter fits the topic.

        Raises:
            ProtocolError: INVALID_REQUEST; EPOCH_CHANGING if this node does not know the schema of `where`.
        """
        if self.where is not None:
            check_filter(self.where, layouts)

    def filtered(self, batch: memoryview, layouts: Layouts | None) -> Buffer | None:
        """Return a batch with the matching records, and with `where` perhaps others; None if no record matches.

        Raises:
            ProtocolError: CORRUPT_BATCH; EPOCH_CHANGING if this node does not know the schema of the batch.
        """
        if self.where is None:
            return filter_batch(batch, key=self.key, tag=self.tag, layouts=layouts)
        assert layouts is not None, "check refuses the filter in an untyped topic"
        return filter_rows(batch, self.where, key=self.key, tag=self.tag, layouts=layouts)

    def column(self, columns: frozenset[TextColumn]) -> TextColumn | None:
        """Return the column of `columns` whose index a lookup with this filter uses; None if no index helps."""
        if self.key is not None and "key" in columns:
            return "key"
        return "tag" if self.tag is not None and "tag" in columns else None

    def hash_of(self, column: TextColumn | None) -> int:
        """Return the hash to look up in a column's index; 0 without a column."""
        if column is None:
            return 0
        return hash_one((self.key or b"") if column == "key" else (self.tag or "").encode())


_RecentKey = tuple[int, RecordFilter]
"""The base offset of a batch, and a filter."""


class NewestMatch(NamedTuple):
    """The newest matching record, or the offset down to which the log was searched.

    Attributes:
        offset: the record's offset; None before a match is found.
        timestamp_us: the record's timestamp.
        from_offset: the log was examined from here on.
        alone: a batch that has the record and no other, if the search was to return it.
    """

    offset: int | None
    timestamp_us: int
    from_offset: int
    alone: Buffer | None = None


class _Lookup(NamedTuple):
    """The column whose index a read uses, None without an index, and the hash to look up in it."""

    column: TextColumn | None
    key_hash: int


class _Work:
    """The remaining budget of a read; at least one batch, or one segment without matches, is always examined."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self._has_got_on = False

    def spend(self, size_bytes: int) -> None:
        """Charge examined bytes; the read has advanced."""
        self._left_bytes -= size_bytes
        self._has_got_on = True

    @property
    def is_done(self) -> bool:
        """Whether the budget is used up."""
        return self._left_bytes <= 0 and self._has_got_on


class MatchingReader:
    """Reads matching records of a partition. Thread-safe."""

    def __init__(self, held: HeldEpochs, indexes: Indexes) -> None:
        self._held = held
        self._indexes = indexes
        self._recent = _RecentMatches()

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        limit_offset: int,
        record_filter: RecordFilter,
        work_bytes: int = WORK_BYTES,
    ) -> ReadResult:
        """Read matching records from `offset` on, in whole batches that end at or below `limit_offset`.

        Returns about `max_bytes`; a single batch may be larger. The first batch may have records before `offset`.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE below the start of the log; as `RecordFilter.check`.
            NotHeldError: `offset` is before this node's copy of the log, but was not deleted by retention.
            DamagedError: a batch is corrupt.
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """
        record_filter.check(self._held.layouts)
        return retry_if_replaced(
            self._held, lambda: self._read(offset, max_bytes, limit_offset, record_filter, work_bytes)
        )

    def newest(
        self,
        *,
        limit_offset: int,
        record_filter: RecordFilter,
        work_bytes: int = WORK_BYTES,
        with_record: bool = False,
    ) -> NewestMatch:
        """Search for the newest matching record in whole batches that end at or below `limit_offset`.

        Args:
            with_record: whether to return the record. Otherwise the matching records of its batch are kept for the
                fetch that follows.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE: the examined part was deleted.
            DamagedError: a batch is corrupt.
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """
        return retry_if_replaced(
            self._held, lambda: self._newest(limit_offset, record_filter, work_bytes, with_record=with_record)
        )

    # --------------------------------------------------------------------------------- internals

    def _read(
        self, offset: int, max_bytes: int, limit_offset: int, record_filter: RecordFilter, work_bytes: int
    ) -> ReadResult:
        check_offset(self._held, offset)
        found: list[memoryview] = []
        lookup = self._lookup_of(record_filter)
        left_bytes, position, work = min(max_bytes, FETCH_BYTES_MAX), offset, _Work(work_bytes)
        with closing(readable_extents(self._held, offset, limit_offset)) as extents:
            for extent in extents:
                recent = self._recent.get(extent, record_filter) if not found and record_filter.where is None else None
                if recent is not None and len(recent) >= left_bytes:
                    return ReadResult([recent], extent.offset_of(extent.first + 1))
                for slot, batch in self._batches(extent, lookup, newest=False):
                    position = extent.offset_of(slot)
                    if work.is_done:
                        return ReadResult(found, position)
                    work.spend(len(batch))
                    matching = _filtered(extent, slot, batch, record_filter, self._held.layouts)
                    if matching is not None:
                        if found and len(matching) > left_bytes:
                            return ReadResult(found, position)
                        found.append(memoryview(matching))
                        left_bytes -= len(matching)
                    position = extent.offset_of(slot + 1)
                    if left_bytes <= 0:
                        return ReadResult(found, position)
                position = extent.end_offset
                work.spend(PROBE_BYTES)
                if work.is_done:
                    break
        if not found and position < limit_offset and position == offset and self._held.limbo is not None:
            raise self._held.unreadable_error(position)
        return ReadResult(found, position)

    def _newest(
        self, limit_offset: int, record_filter: RecordFilter, work_bytes: int, *, with_record: bool
    ) -> NewestMatch:
        work, lookup, layouts = _Work(work_bytes), self._lookup_of(record_filter), self._held.layouts
        with closing(readable_extents_reversed(self._held, limit_offset)) as extents:
            for extent in extents:
                for slot, batch in self._batches(extent, lookup, newest=True):
                    if work.is_done:
                        return NewestMatch(None, 0, extent.offset_of(slot + 1))
                    work.spend(len(batch))
                    if with_record:
                        newest = _newest_record_in(extent, slot, batch, record_filter, layouts)
                    else:
                        newest = _newest_in(extent, slot, batch, record_filter, self._recent, layouts=layouts)
                    if newest is not None:
                        return newest
                work.spend(PROBE_BYTES)
                if work.is_done:
                    return NewestMatch(None, 0, extent.offset_of(extent.first))
        return NewestMatch(None, 0, self._held.start_offset)

    def _lookup_of(self, record_filter: RecordFilter) -> _Lookup:
        column = record_filter.column(self._indexes.columns)
        return _Lookup(column, record_filter.hash_of(column))

    def _batches(self, extent: Extent, lookup: _Lookup, *, newest: bool) -> Iterator[tuple[int, memoryview]]:
        """Yield the batches that may match, with their slots, oldest or newest first.

        Raises:
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """
        first, stop, column = extent.first, extent.stop, lookup.column
        if column is not None:
            extent.prepare(column, self._indexes)
        while first < stop:
            named = extent.find(column, lookup.key_hash, first, stop, _NAMED_MAX, newest=newest)
            for run in _runs(extent, named.slots, newest=newest):
                yield from _read_run(extent, run, newest=newest)
            first, stop = (first, named.first) if newest else (named.stop, stop)


class _RecentMatches:
    """Cache of the matching records that the last searches for the newest match found: callers read them next.

    An entry is valid while the batch at its offset has the same stored header, which has the CRC of the body and the
    running digest. Thread-safe.
    """

    def __init__(self) -> None:
        self._entries: OrderedDict[_RecentKey, tuple[bytes, memoryview]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, batch: RecordBatch, head: memoryview, record_filter: RecordFilter, matching: Buffer | None) -> None:
        """Add the matching records of a batch whose CRC was checked."""
        if matching is None:
            return
        with self._lock:
            self._entries[batch.base_offset, record_filter] = bytes(head), memoryview(bytes(matching))
            while len(self._entries) > RECENT_MAX:
                self._entries.popitem(last=False)

    def get(self, extent: Extent, record_filter: RecordFilter) -> memoryview | None:
        """Return the matching records of an extent's first batch; None if they are not kept here.

        Raises:
            StorageFailedError, NoDescriptorError: the disk cannot be read.
        """
        found = self._entries.get((extent.offset_of(extent.first), record_filter))
        if found is None:
            return None
        head, matching = found
        return matching if extent.head(extent.first) == head else None


def _runs(extent: Extent, slots: list[int], *, newest: bool) -> list[tuple[int, int]]:
    """Split ascending slots into runs (first, stop) that are read at once, in the requested order."""
    runs: list[tuple[int, int]] = []
    at = 0
    while at < len(slots):
        end = at + 1
        while end < len(slots) and slots[end] == slots[end - 1] + 1:
            end += 1
        first, stop = slots[at], slots[end - 1] + 1
        while first < stop:
            runs.append((first, extent.window_stop(first, stop)))
            first = runs[-1][1]
        at = end
    return runs[::-1] if newest else runs


def _read_run(extent: Extent, run: tuple[int, int], *, newest: bool) -> Iterator[tuple[int, memoryview]]:
    first, stop = run
    found = list(enumerate(extent.read(first, stop), first))
    yield from reversed(found) if newest else found


def _filtered(
    extent: Extent, slot: int, batch: memoryview, record_filter: RecordFilter, layouts: Layouts | None
) -> Buffer | None:
    """Return the matching records of a batch; None if no record matches.

    Raises:
        DamagedError: the batch is not the one that the index lists.
    """
    with checking(extent, slot, batch):
        return record_filter.filtered(batch, layouts)


def filter_all(
    batches: Sequence[memoryview], max_bytes: int, record_filter: RecordFilter, layouts: Layouts | None = None
) -> ReadResult:
    """Return about `max_bytes` of matching records of batches in memory, and the end offset of the examined batches.

    Args:
        layouts: of the batches of a typed topic, see `HeldEpochs`.

    Raises:
        ProtocolError: CORRUPT_BATCH; as `RecordFilter.check` and `RecordFilter.filtered`.
    """
    record_filter.check(layouts)
    found: list[memoryview] = []
    left_bytes, position = max_bytes, 0
    for batch in batches:
        matching = record_filter.filtered(batch, layouts)
        if matching is not None:
            if found and len(matching) > left_bytes:
                break
            found.append(memoryview(matching))
            left_bytes -= len(matching)
        position = unpack_header(batch, typed=True).end_offset
        if left_bytes <= 0:
            break
    return ReadResult(found, position)


def _newest_in(
    extent: Extent,
    slot: int,
    view: memoryview,
    record_filter: RecordFilter,
    recent: _RecentMatches,
    *,
    layouts: Layouts | None,
) -> NewestMatch | None:
    """Return the last matching record of a batch, None if no record matches.

    If only a part of the batch matches and is small, its matching records are added to `recent`.

    Raises:
        DamagedError: the batch is not the one that the index lists.
    """
    with checking(extent, slot, view):
        batch = RecordBatch.parse(view, layouts)
        rows = matching_rows(batch, key=record_filter.key, tag=record_filter.tag)
        if rows is None:
            return None
        if not rows.all() and batch.columns().filter(pa.array(rows)).nbytes <= RECENT_BYTES_MAX:
            recent.add(batch, view[:HEADER_BYTES], record_filter, kept_rows(batch, rows))
        return _match_of(batch, int(np.flatnonzero(rows)[-1]))


def _newest_record_in(
    extent: Extent, slot: int, view: memoryview, record_filter: RecordFilter, layouts: Layouts | None
) -> NewestMatch | None:
    """Return the last matching record of a batch, alone in a batch; None if no record matches.

    Raises:
        DamagedError: the batch is not the one that the index lists.
    """
    with checking(extent, slot, view):
        batch = RecordBatch.parse(view, layouts)
        row = newest_row(batch, key=record_filter.key, tag=record_filter.tag)
        if row is None:
            return None
        return _match_of(batch, row, view if batch.header.record_count == 1 else record_alone(batch, row))


def _match_of(batch: RecordBatch, row: int, alone: Buffer | None = None) -> NewestMatch:
    """Return the record at index `row` of a batch."""
    timestamp_us = batch.header.base_timestamp_us
    if batch.header.flags & Flags.TIMESTAMP:
        stamps: Any = batch.columns().column("timestamp").view(pa.int64())
        timestamp_us = stamps[row].as_py()
    offset = batch.offset_list()[row]
    return NewestMatch(offset, timestamp_us, offset, alone)
