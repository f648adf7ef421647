"""The parts of an epoch in the database, and their indexes.

The tuple of parts and the end are replaced as a whole, never mutated. The writer appends to the index of the newest
part and then advances the end; a reader loads the end first and the parts after it, and reads only below that end. The
index of the growing part is in memory; that of a closed part is one row for each column family, read when it is needed
and kept in a bounded cache.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, cast

import numpy as np

from tidelog_broker.storage.engine.store import Damage, EpochStart, padded
from tidelog_broker.storage.io.filesystem import File
from tidelog_broker.storage.rocksdb.rows import PartRow
from tidelog_broker.storage.segment.active_segment import BatchFields
from tidelog_broker.storage.segment.hash_entries import BatchEntries, collect
from tidelog_broker.storage.segment.hash_runs import HashRuns
from tidelog_broker.storage.segment.index import Index, SegmentEnd
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import Buffer
from tidelog_proto.limits import MIB

PART_BYTES: Final = 4 * MIB
"""Maximum size of a part of more than one group, unless the topic's `segment_bytes` is smaller."""

COLUMNS: Final[tuple[TextColumn, ...]] = ("key", "tag")


class PartIndex:
    """The index of a part: batches by offset and time, and by key and tag. See `segment.index` and `hash_runs`."""

    __slots__ = ("batches", "runs")

    def __init__(self, batches: Index | None = None, runs: dict[TextColumn, HashRuns] | None = None) -> None:
        self.batches = batches if batches is not None else Index()
        self.runs: dict[TextColumn, HashRuns] = runs if runs is not None else {name: HashRuns() for name in COLUMNS}

    @property
    def size_bytes(self) -> int:
        """The memory that the index takes."""
        return self.batches.size_bytes + sum(runs.size_bytes for runs in self.runs.values())

    def first(self, count: int) -> PartIndex:
        """Return an index of the first batches; this one is not affected."""
        return PartIndex(self.batches.first(count), {name: runs.first(count) for name, runs in self.runs.items()})


class RocksPart:
    """Contiguous batches, which are deleted together. Positions are those that the batches would have in a file.

    Attributes:
        path: a path that names the part in messages, and identifies it.
        growing: the index while the part takes batches; None once it is closed.
        is_growing: whether the part takes appends.
    """

    __slots__ = (
        "base_offset",
        "end_digest",
        "end_offset",
        "growing",
        "is_growing",
        "max_timestamp_us",
        "path",
        "size_bytes",
        "start_digest",
    )

    def __init__(self, directory: Path, base_offset: int, row: PartRow) -> None:
        self.path = directory / f"{base_offset:020d}"
        self.base_offset = base_offset
        self.start_digest = row.start_digest
        self.end_offset = row.end_offset if row.is_closed else base_offset
        self.end_digest = row.end_digest if row.is_closed else row.start_digest
        self.size_bytes = row.size_bytes
        self.max_timestamp_us = row.max_timestamp_us
        self.growing = None if row.is_closed else PartIndex()
        self.is_growing = not row.is_closed

    @property
    def row(self) -> PartRow:
        """The row of the part in the database, as a closed one."""
        return PartRow(
            self.start_digest, True, self.end_offset, self.size_bytes, self.max_timestamp_us, self.end_digest
        )

    def append(
        self, lengths: Sequence[int], fields: Sequence[BatchFields], found: dict[TextColumn, BatchEntries]
    ) -> None:
        """Add batches to the index."""
        growing = self.growing
        assert growing is not None
        for length, batch in zip(lengths, fields, strict=True):
            growing.batches.append(batch.base_offset, self.size_bytes, length, batch.max_timestamp_us)
            self.size_bytes += padded(length)
        stop = len(growing.batches)
        for column, entries in found.items():
            growing.runs[column] = growing.runs[column].with_more(entries, stop)
        self.end_offset = fields[-1].base_offset + fields[-1].last_offset_delta + 1
        self.end_digest = fields[-1].digest
        self.max_timestamp_us = growing.batches.times_us[-1]


class RocksContents:
    """The records of an epoch.

    Attributes:
        store: the id of the store in the database.
        slot: the slot of its sync mark.
        start: the identity and the beginning of the epoch.
        parts: oldest first, at least one.
        end: the end of the last record; the position is not used.
        is_sealed: whether the store takes no appends.
        damage: why the store is in LIMBO, None if it is not.
    """

    __slots__ = ("damage", "end", "is_sealed", "parts", "slot", "start", "store")

    def __init__(self, store: int, slot: int, start: EpochStart, parts: Sequence[RocksPart]) -> None:
        self.store = store
        self.slot = slot
        self.start = start
        self.parts = tuple(parts)
        self.end = SegmentEnd(parts[-1].end_offset, 0, parts[-1].end_digest)
        self.is_sealed = False
        self.damage: Damage | None = None

    @property
    def size_bytes(self) -> int:
        """The size of all batches with padding."""
        return sum(part.size_bytes for part in self.parts)

    def number_of(self, offset: int) -> int:
        """Return the number of the part that holds `offset`; 0 for an earlier offset."""
        return max(0, bisect_right(self.parts, offset, key=lambda part: part.base_offset) - 1)


class _Group:
    """A group of batches as a file, for `collect`."""

    def __init__(self, batches: Sequence[Buffer], fields: Sequence[BatchFields]) -> None:
        self.index = Index()
        pieces: list[Buffer] = []
        position = 0
        for batch, one in zip(batches, fields, strict=True):
            self.index.append(one.base_offset, position, len(batch), one.max_timestamp_us)
            size_bytes = padded(len(batch))
            pieces += [batch, bytes(size_bytes - len(batch))]
            position += size_bytes
        self._data = b"".join(pieces)

    def pread(self, length_bytes: int, at: int) -> bytes:
        """Return a range of the group."""
        return self._data[at : at + length_bytes]


def hashes_of(batches: Sequence[Buffer], fields: Sequence[BatchFields], first: int) -> dict[TextColumn, BatchEntries]:
    """Return the index entries of a group whose first batch has the slot `first`."""
    group = _Group(batches, fields)
    found = collect(cast(File, group), group.index, COLUMNS, 0, len(batches))
    shift = np.uint64(first)
    moved: dict[TextColumn, BatchEntries] = {
        column: BatchEntries(one.entries + shift, [slot + first for slot in one.open_slots])
        for column, one in found.items()
    }
    return moved


class IndexCache:
    """The indexes of closed parts that were used last, up to a size in bytes. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._indexes: OrderedDict[tuple[int, int], PartIndex] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, store: int, base_offset: int, load: Callable[[], PartIndex]) -> PartIndex:
        """Return the index of a part, read by `load` if it is not cached."""
        key = store, base_offset
        with self._lock:
            found = self._indexes.get(key)
            if found is not None:
                self._indexes.move_to_end(key)
                return found
        loaded = load()
        with self._lock:
            if key not in self._indexes:
                self._indexes[key] = loaded
                self._size_bytes += loaded.size_bytes
                while self._size_bytes > self._bytes_max and len(self._indexes) > 1:
                    self._size_bytes -= self._indexes.popitem(last=False)[1].size_bytes
        return loaded

    def drop(self, store: int, base_offset: int) -> None:
        """Remove the index of a part that was deleted or changed."""
        with self._lock:
            found = self._indexes.pop((store, base_offset), None)
            if found is not None:
                self._size_bytes -= found.size_bytes
