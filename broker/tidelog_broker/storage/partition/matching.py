"""Reading the records of a partition that match a filter: found by an index where there is one, else one after another.

What comes back are batches cut down to the records that match, and up to where everything was looked at. A read looks
at so many bytes of batches and no more, so an answer may be empty and yet have got on; whoever asks goes on from there.
Batches that the index names in vain count as well: nobody can make a read expensive by keys that meet in their hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.partition_reader import again_where_replaced, check_offset
from tidelog_broker.storage.partition.record_indexes import RecordIndexes
from tidelog_broker.storage.partition.stretches import (
    OpenStretch,
    checking,
    readable_stretches,
    readable_stretches_back,
)
from tidelog_broker.storage.segment.disk import OpenSegment
from tidelog_broker.storage.segment.hash_entries import window_stop
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.derived_batch import filter_batch, matching_rows
from tidelog_proto.batch.header import Buffer, Flags, unpack_header
from tidelog_proto.batch.key_hash import hash_one
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.limits import FETCH_BYTES_MAX, KIB, MIB

WORK_BYTES: Final = 8 * MIB
"""How much of the log one read looks at, as stored; one batch more at most."""
PROBE_BYTES: Final = 16 * KIB
"""What the look into one segment's index counts as."""
_NAMED_MAX: Final = 256
"""How many batches are named at a time."""


class ReadResult(NamedTuple):
    """Batches of records that match, and the offset up to which everything was looked at."""

    batches: list[memoryview]
    next_offset: int


class Wanted(NamedTuple):
    """Which records are wanted: what is not None must match."""

    key: bytes | None = None
    tag: str | None = None

    def column(self, columns: frozenset[TextColumn]) -> TextColumn | None:
        """Return by the index of which of `columns` to look; None where none helps."""
        if self.key is not None and "key" in columns:
            return "key"
        return "tag" if self.tag is not None and "tag" in columns else None

    def hash_of(self, column: TextColumn | None) -> int:
        """Return the hash to look for in a column's index."""
        if column is None:
            return 0
        return hash_one((self.key or b"") if column == "key" else (self.tag or "").encode())


class Newest(NamedTuple):
    """The newest record that matches, or how far back it was looked for.

    Attributes:
        offset: of the record; None when none was found yet.
        timestamp_us: the record's.
        from_offset: all from here on was looked at.
    """

    offset: int | None
    timestamp_us: int
    from_offset: int


class _Work:
    """What a read may still look at; always one batch, or one segment in which nothing is named."""

    def __init__(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self._has_got_on = False

    def spend(self, size_bytes: int) -> None:
        """Count something that was looked at, and that gets the read on."""
        self._left_bytes -= size_bytes
        self._has_got_on = True

    @property
    def is_done(self) -> bool:
        """Whether it was enough."""
        return self._left_bytes <= 0 and self._has_got_on


class MatchingReader:
    """See the module. For any thread."""

    def __init__(self, held: HeldEpochs, indexes: RecordIndexes) -> None:
        self._held = held
        self._indexes = indexes

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, wanted: Wanted, work_bytes: int = WORK_BYTES
    ) -> ReadResult:
        """Read what matches from `offset` on, in whole batches that end at or below `limit_offset`.

        About `max_bytes` come back; a single batch may be larger. The first one may have records in front of `offset`.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE below the start of the log.
            NotHeldError: `offset` lies in front of what this node has of the log, and was not deleted by it.
            DamagedError: a batch is not what it should be.
        """
        return again_where_replaced(self._held, lambda: self._read(offset, max_bytes, limit_offset, wanted, work_bytes))

    def newest(self, *, limit_offset: int, wanted: Wanted, work_bytes: int = WORK_BYTES) -> Newest:
        """Look for the newest record that matches in whole batches that end at or below `limit_offset`.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE: what was looked at has been deleted.
            DamagedError: a batch is not what it should be.
        """
        return again_where_replaced(self._held, lambda: self._newest(limit_offset, wanted, work_bytes))

    # ------------------------------------------------------------------------------------ inside

    def _read(self, offset: int, max_bytes: int, limit_offset: int, wanted: Wanted, work_bytes: int) -> ReadResult:
        check_offset(self._held, offset)
        found: list[memoryview] = []
        left_bytes, position, work = min(max_bytes, FETCH_BYTES_MAX), offset, _Work(work_bytes)
        with closing(readable_stretches(self._held, offset, limit_offset)) as stretches:
            for stretch in stretches:
                for slot, batch in self._batches(stretch, wanted, newest=False):
                    position = stretch.offset_of(slot)
                    if work.is_done:
                        return ReadResult(found, position)
                    work.spend(len(batch))
                    matching = _filtered(stretch, slot, batch, wanted)
                    if matching is not None:
                        if found and len(matching) > left_bytes:
                            return ReadResult(found, position)
                        found.append(memoryview(matching))
                        left_bytes -= len(matching)
                    position = stretch.offset_of(slot + 1)
                    if left_bytes <= 0:
                        return ReadResult(found, position)
                position = stretch.end_offset
                work.spend(PROBE_BYTES)
                if work.is_done:
                    break
        if not found and position < limit_offset and position == offset and self._held.limbo is not None:
            raise DamagedError(f"offset {position} cannot be read: {self._held.limbo}")
        return ReadResult(found, position)

    def _newest(self, limit_offset: int, wanted: Wanted, work_bytes: int) -> Newest:
        work = _Work(work_bytes)
        with closing(readable_stretches_back(self._held, limit_offset)) as stretches:
            for stretch in stretches:
                for slot, batch in self._batches(stretch, wanted, newest=True):
                    if work.is_done:
                        return Newest(None, 0, stretch.offset_of(slot + 1))
                    work.spend(len(batch))
                    newest = _newest_in(stretch, slot, batch, wanted)
                    if newest is not None:
                        return newest
                work.spend(PROBE_BYTES)
                if work.is_done:
                    return Newest(None, 0, stretch.offset_of(stretch.first))
        return Newest(None, 0, self._held.start_offset)

    def _batches(self, stretch: OpenStretch, wanted: Wanted, *, newest: bool) -> Iterator[tuple[int, memoryview]]:
        """Yield the batches that may match with their slots, the oldest or the newest first.

        Raises:
            DamagedError: the disk does not read.
        """
        column = wanted.column(self._indexes.columns)
        key_hash = wanted.hash_of(column)
        opened, first, stop = stretch.opened, stretch.first, stretch.stop
        if column is not None:
            self._indexes.prepare(stretch.segment, opened, column, stop)
        while first < stop:
            named = opened.hashes.find(column, key_hash, first, stop, _NAMED_MAX, newest=newest)
            for run in _runs(opened, named.slots, newest=newest):
                yield from _read_run(opened, run, newest=newest)
            first, stop = (first, named.first) if newest else (named.stop, stop)


def _runs(opened: OpenSegment, slots: list[int], *, newest: bool) -> list[tuple[int, int]]:
    """Cut ascending slots into runs (first, stop) that are read at once, in the order asked for."""
    runs: list[tuple[int, int]] = []
    at = 0
    while at < len(slots):
        end = at + 1
        while end < len(slots) and slots[end] == slots[end - 1] + 1:
            end += 1
        first, stop = slots[at], slots[end - 1] + 1
        while first < stop:
            runs.append((first, window_stop(opened.index, first, stop)))
            first = runs[-1][1]
        at = end
    return runs[::-1] if newest else runs


def _read_run(opened: OpenSegment, run: tuple[int, int], *, newest: bool) -> Iterator[tuple[int, memoryview]]:
    index, (first, stop) = opened.index, run
    start, last = index.place(first).position, index.place(stop - 1)
    data = memoryview(opened.file.pread(last.position + last.length - start, start))
    for slot in range(stop - 1, first - 1, -1) if newest else range(first, stop):
        place = index.place(slot)
        yield slot, data[place.position - start : place.position - start + place.length]


def _filtered(stretch: OpenStretch, slot: int, batch: memoryview, wanted: Wanted) -> Buffer | None:
    """Return what of a batch matches.

    Raises:
        DamagedError: it is not the batch that the index names.
    """
    with checking(stretch, slot, batch):
        return filter_batch(batch, key=wanted.key, tag=wanted.tag)


def filter_all(batches: Sequence[memoryview], max_bytes: int, wanted: Wanted) -> ReadResult:
    """Return what of batches in memory matches, at least one of them if any does, and up to where they were looked at.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    found: list[memoryview] = []
    left_bytes, position = max_bytes, 0
    for batch in batches:
        matching = filter_batch(batch, key=wanted.key, tag=wanted.tag)
        if matching is not None:
            if found and len(matching) > left_bytes:
                break
            found.append(memoryview(matching))
            left_bytes -= len(matching)
        position = unpack_header(batch).end_offset
        if left_bytes <= 0:
            break
    return ReadResult(found, position)


def _newest_in(stretch: OpenStretch, slot: int, view: memoryview, wanted: Wanted) -> Newest | None:
    """Return the last record of a batch that matches.

    Raises:
        DamagedError: it is not the batch that the index names.
    """
    with checking(stretch, slot, view):
        batch = RecordBatch.parse(view)
        rows = matching_rows(batch, key=wanted.key, tag=wanted.tag)
        if rows is None:
            return None
        row = int(np.flatnonzero(rows)[-1])
        timestamp_us = batch.header.base_timestamp_us
        if batch.header.flags & Flags.TIMESTAMP:
            stamps: Any = batch.columns().column("timestamp").view(pa.int64())
            timestamp_us = stamps[row].as_py()
        offset = batch.offset_list()[row]
        return Newest(offset, timestamp_us, offset)
