"""Reading an epoch in the database on any thread, while one thread appends, truncates or deletes.

Batches are read by their keys, which the index of their part gives. A read whose rows were deleted meanwhile begins
again with the current parts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from tidelog_broker.storage.engine.reading import (
    CandidateBatches,
    EpochReading,
    Extent,
    FoundBatches,
    Indexes,
    Scrubbed,
    ScrubPart,
)
from tidelog_broker.storage.io.errors import DamagedError, LayoutError, StorageError, StorageFailedError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.rocksdb.database import Database
from tidelog_broker.storage.rocksdb.parts import COLUMNS, IndexCache, PartIndex, RocksContents, RocksPart
from tidelog_broker.storage.rocksdb.presets import BATCHES, TIME
from tidelog_broker.storage.rocksdb.rows import extend_index, extend_runs, row_key
from tidelog_broker.storage.segment.hash_entries import window_stop
from tidelog_broker.storage.segment.index import Index
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.column_slices import TextColumn
from tidelog_proto.batch.header import BatchHeader, digest_after, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FETCH_BYTES_MAX, HEADER_BYTES, MIB

_ATTEMPTS: Final = 5
_WINDOW_BYTES: Final = MIB


class ChangedError(Exception):
    """Batches were deleted, or replaced by others, between the read of the index and that of the batches."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one store: its contents, its database, and the cache of indexes."""

    contents: RocksContents
    database: Database
    cache: IndexCache

    def index(self, part: RocksPart) -> PartIndex:
        """Return the index of a part.

        Raises:
            DamagedError: the index is missing or damaged.
            StorageFailedError: the disk cannot be read.
        """
        if part.growing is not None:
            return part.growing
        return self.cache.get(self.contents.store, part.base_offset, lambda: self._load(part))

    def _load(self, part: RocksPart) -> PartIndex:
        index, key = PartIndex(), row_key(b"p", self.contents.store, part.base_offset)
        try:
            extend_index(index.batches, self._row(TIME, key, part))
            for column in COLUMNS:
                index.runs[column] = extend_runs(index.runs[column], self._row(column, key, part))
        except LayoutError as error:
            raise DamagedError.at(part.path, 0, str(error)) from error
        return index

    def _row(self, family: str, key: bytes, part: RocksPart) -> bytes:
        value = self.database.get(family, key)
        if value is None:
            raise self.missing(part.base_offset)
        return value

    def missing(self, offset: int) -> ProtocolError:
        """Return the error for a row that does not exist: the records were deleted meanwhile, or are damaged."""
        contents = self.contents
        if offset < contents.parts[0].base_offset:
            return self.out_of_range(offset)
        where = contents.parts[contents.number_of(offset)].path
        return DamagedError.at(where, 0, f"the database has no batch at offset {offset}, or another one")

    def out_of_range(self, offset: int) -> ProtocolError:
        """Return the error for an offset that the store does not have."""
        contents = self.contents
        start, start_offset, end_offset = contents.start, contents.parts[0].base_offset, contents.end.offset
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"partition {start.partition} of topic id {start.topic_id.hex()}: offset {offset} is out of range; offsets "
            f"{start_offset} to {end_offset} can be read in epoch {start.epoch}",
            log_start_offset=start_offset,
            high_watermark=end_offset,
        )

    def batches(self, index: Index, first: int, stop: int) -> list[memoryview]:
        """Read the batches of the slots `first` to `stop - 1`.

        Raises:
            ChangedError: a batch does not exist, or has another length.
            DamagedError, StorageFailedError: as `Database.get_many`.
        """
        keys = [row_key(b"", self.contents.store, index.offsets[slot]) for slot in range(first, stop)]
        if not keys:
            return []
        found: list[memoryview] = []
        for slot, value in enumerate(self.database.get_many(BATCHES, keys), first):
            if value is None or len(value) != index.place(slot).length:
                raise ChangedError(index.offsets[slot])
            found.append(memoryview(value))
        return found


class RocksReader(EpochReading):
    """Reads an epoch in the database."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._contents = rows.contents

    def read(
        self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True, to_send: bool = False
    ) -> FoundBatches:
        """Read whole batches; see `EpochReading.read`."""
        del to_send  # The batches are in memory, which Python code may read.
        for _ in range(_ATTEMPTS):
            try:
                return self._read(offset, min(max_bytes, FETCH_BYTES_MAX), limit_offset, at_least_one=at_least_one)
            except ChangedError:
                continue
        raise self._rows.missing(offset)

    def _read(self, offset: int, max_bytes: int, limit_offset: int, *, at_least_one: bool) -> FoundBatches:
        end_offset = self._contents.end.offset
        left_bytes, position = max_bytes, offset
        found: list[memoryview] = []
        for part in self._parts_from(offset, end_offset):
            index = self._rows.index(part).batches
            first, stop, stop_offset = _slots(part, index, position, limit_offset, end_offset)
            last = first
            while last < stop and (
                (length := index.place(last).length) <= left_bytes or (at_least_one and not found and last == first)
            ):
                left_bytes -= length
                last += 1
            found += self._rows.batches(index, first, last)
            if last < stop:
                return FoundBatches(found, found, index.offsets[last])
            position = max(position, stop_offset) if first < stop else position
            if left_bytes <= 0 or position < min(part.end_offset, end_offset):
                break
        return FoundBatches(found, found, position)

    def digest_at(self, offset: int) -> int | None:
        """Return the running digest at a batch boundary; see `EpochReading.digest_at`."""
        end = self._contents.end
        if offset == end.offset:
            return end.digest
        part = self._part_of(offset, end.offset)
        if part is None:
            return None
        if offset == part.base_offset:
            return part.start_digest
        index = self._rows.index(part).batches
        slot = index.slot_of(offset)
        if slot < 1 or index.offsets[slot] != offset:
            return None
        try:
            return unpack_header(self._rows.batches(index, slot - 1, slot)[0], typed=True).digest
        except ChangedError as error:
            raise self._rows.missing(offset) from error
        except StorageError:
            raise
        except ProtocolError as error:
            raise DamagedError.at(part.path, index.place(slot - 1).position, error.message) from error

    def batch_start(self, offset: int) -> int | None:
        """Return the base offset of the batch that holds `offset`; None if no batch does."""
        part = self._part_of(offset, self._contents.end.offset)
        if part is None:
            return None
        index = self._rows.index(part).batches
        return index.offsets[index.slot_of(offset)]

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers from the batch that holds `from_offset` to the current end."""
        self._parts_from(from_offset, self._contents.end.offset)
        for extent in self.extents(from_offset, self._contents.end.offset):
            first = extent.first
            while first < extent.stop:
                stop = extent.window_stop(first, extent.stop)
                yield from (unpack_header(batch, typed=True) for batch in extent.read(first, stop))
                first = stop

    def find_by_time(self, timestamp_us: int, from_offset: int = 0) -> int | None:
        """Return the base offset of the first batch of at least this timestamp; see `EpochReading.find_by_time`."""
        end_offset = self._contents.end.offset
        for part in self._contents.parts:
            if min(part.end_offset, end_offset) <= from_offset or part.max_timestamp_us < timestamp_us:
                continue
            index = self._rows.index(part).batches
            if part.base_offset < from_offset:
                # The index has the maximum so far, perhaps that of an earlier batch, so the headers are read instead.
                first, stop, _ = _slots(part, index, from_offset, end_offset, end_offset)
                found = self._first_of_time(part, index, first, stop, timestamp_us)
                if found is not None:
                    return found
                continue
            slot = index.slot_of_time(timestamp_us)
            if slot is not None and index.offsets[slot] < end_offset:
                return index.offsets[slot]
        return None

    def _first_of_time(self, part: RocksPart, index: Index, first: int, stop: int, timestamp_us: int) -> int | None:
        while first < stop:
            last = window_stop(index, first, stop)
            for batch in RocksExtent(self._rows, part, index, (first, last, 0)).read(first, last):
                header = unpack_header(batch, typed=True)
                if header.max_timestamp_us >= timestamp_us:
                    return header.base_offset
            first = last
        return None

    def extents(self, offset: int, limit_offset: int) -> Generator[Extent]:
        """Yield the extents from the batch that holds `offset` on, oldest first."""
        end_offset, parts = self._contents.end.offset, self._contents.parts
        position = offset
        if position < parts[0].base_offset:
            return
        for part in parts[self._contents.number_of(position) :]:
            if position >= limit_offset:
                return
            if position >= min(part.end_offset, end_offset):
                continue
            slots = _slots(part, self._rows.index(part).batches, position, limit_offset, end_offset)
            if slots[0] < slots[1]:
                yield RocksExtent(self._rows, part, self._rows.index(part).batches, slots)
                position = slots[2]

    def extents_reversed(self, limit_offset: int) -> Generator[Extent]:
        """Yield the extents below `limit_offset`, newest first."""
        end_offset = self._contents.end.offset
        for part in reversed(self._contents.parts):
            if part.base_offset >= limit_offset or part.base_offset >= min(part.end_offset, end_offset):
                continue
            slots = _slots(part, self._rows.index(part).batches, part.base_offset, limit_offset, end_offset)
            if slots[0] < slots[1]:
                yield RocksExtent(self._rows, part, self._rows.index(part).batches, slots)

    # --------------------------------------------------------------------------------- internals

    def _part_of(self, offset: int, end_offset: int) -> RocksPart | None:
        if not self._contents.parts[0].base_offset <= offset < end_offset:
            return None
        return self._contents.parts[self._contents.number_of(offset)]

    def _parts_from(self, offset: int, end_offset: int) -> tuple[RocksPart, ...]:
        """Return the parts from the one that holds `offset` on.

        The caller reads `end_offset` first, because the writer adds parts before it advances the end.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE.
            DamagedError: the log is in LIMBO, and the offset is after its readable end.
        """
        contents = self._contents
        parts, damage = contents.parts, contents.damage
        if parts[0].base_offset <= offset <= end_offset:
            return parts[contents.number_of(offset) :]
        if damage is not None and offset > end_offset:
            raise DamagedError.at(damage.path, damage.position, damage.reason)
        raise self._rows.out_of_range(offset)


def _slots(part: RocksPart, index: Index, offset: int, limit_offset: int, end_offset: int) -> tuple[int, int, int]:
    """Return the slots from the batch that holds `offset` on, below both limits: first, stop, and their end offset."""
    part_end = min(part.end_offset, end_offset)
    if offset >= part_end:
        return 0, 0, part_end
    first, readable = max(0, index.slot_of(offset)), index.slots_below(part_end)
    stop = min(readable, max(0, index.slot_of(limit_offset))) if limit_offset < part_end else readable
    return first, stop, index.offsets[stop] if stop < readable else part_end


class RocksExtent(Extent):
    """The readable batches of a part.

    Args:
        slots: the first slot, the slot after the last one, and the end offset of the last one.
    """

    def __init__(self, rows: Rows, part: RocksPart, index: Index, slots: tuple[int, int, int]) -> None:
        self._rows = rows
        self._part = part
        self._index = index
        self.first, self.stop, self.end_offset = slots

    def offset_of(self, slot: int) -> int:
        """Return the base offset of the batch in a slot; for `stop`, the end offset of the last batch."""
        return self._index.offsets[slot] if slot < self.stop else self.end_offset

    def slots_below(self, offset: int) -> int:
        """Return the first slot whose batch begins at or after `offset`."""
        return self._index.slots_below(offset)

    def length_of(self, slot: int) -> int:
        """Return the size of a batch in bytes."""
        return self._index.place(slot).length

    def span_bytes(self, first: int, stop: int) -> int:
        """Return the size of the batches `first` to `stop - 1` in bytes."""
        return sum(self._index.place(slot).length for slot in range(first, stop))

    def window_stop(self, first: int, stop: int) -> int:
        """Return the slot before which to end a read of about `WINDOW_BYTES`; see `Extent.window_stop`."""
        return window_stop(self._index, first, stop)

    def read(self, first: int, stop: int) -> list[memoryview]:
        """Return the batches `first` to `stop - 1`.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE if they were deleted meanwhile.
            DamagedError, StorageFailedError: they cannot be read.
        """
        try:
            return self._rows.batches(self._index, first, stop)
        except ChangedError as error:
            raise self._rows.missing(self._index.offsets[first]) from error

    def head(self, slot: int) -> memoryview:
        """Return the header of a batch."""
        return self.read(slot, slot + 1)[0][:HEADER_BYTES]

    def place_of(self, slot: int) -> tuple[Path, int]:
        """Return the part's path and the batch's position in it, for messages."""
        return self._part.path, self._index.place(slot).position

    def prepare(self, column: TextColumn, indexes: Indexes | None) -> None:
        """Do nothing: each batch is indexed when it is appended."""
        del column, indexes

    def find(
        self, column: TextColumn | None, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool
    ) -> CandidateBatches:
        """Return batches that may match; see `Extent.find`."""
        if column is None:
            if newest:
                first = max(first, stop - count_max)
            else:
                stop = min(stop, first + count_max)
            return CandidateBatches(list(range(first, stop)), first, stop)
        runs = self._rows.index(self._part).runs[column]
        found = runs.find(key_hash, first, stop, count_max, newest=newest)
        if len(found) < count_max:
            return CandidateBatches(found, first, stop)
        if newest:
            return CandidateBatches(found, found[0], stop)
        return CandidateBatches(found, first, found[-1] + 1)


def verified_to(rows: Rows, index: Index, first: int, stop: int, digest: int) -> tuple[int, int, str]:
    """Check the batches of the slots `first` to `stop - 1`: header, CRC, offsets and chain of digests.

    Args:
        digest: the running digest before `first`.

    Returns:
        The slot of the first invalid batch or `stop`, the digest there, and the reason.

    Raises:
        StorageFailedError: the disk cannot be read.
    """
    while first < stop:
        last = window_stop(index, first, stop)
        try:
            batches: Sequence[memoryview] = rows.batches(index, first, last)
        except (ChangedError, DamagedError) as error:
            if last - first > 1:  # Find out which batch it is.
                found = verified_to(rows, index, first, first + (last - first) // 2, digest)
                if found[2]:
                    return found
                first, digest = found[0], found[1]
                continue
            reason = error.message if isinstance(error, DamagedError) else "the database does not have the batch"
            return first, digest, reason
        for batch in batches:
            reason = _fault(batch, index.offsets[first], digest)
            if reason:
                return first, digest, reason
            digest = unpack_header(batch, typed=True).digest
            first += 1
    return stop, digest, ""


def _fault(batch: memoryview, offset: int, digest: int) -> str:
    try:
        header = unpack_header(batch, typed=True)
    except ProtocolError as error:
        return error.message
    if header.base_offset != offset:
        return f"found a batch at offset {header.base_offset}, expected {offset}"
    if header.digest != (expected := digest_after(batch, 0, digest)):
        return f"found a batch with digest {header.digest:#x}, expected {expected:#x}"
    if header.body_crc != (found := crc32c(batch[HEADER_BYTES:])):
        return f"the header declares CRC32C {header.body_crc:#010x} for the body, its bytes have {found:#010x}"
    return ""


class RocksScrubPart(ScrubPart):
    """A closed part of an epoch."""

    def __init__(self, rows: Rows, epoch: int, part: RocksPart) -> None:
        self._rows = rows
        self._part = part
        self.epoch = epoch
        self.path = part.path

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RocksScrubPart):
            return NotImplemented
        return (self.path, self._part.row) == (other.path, other._part.row)

    def __hash__(self) -> int:
        return hash(self.path)

    def scrub(self, fs: FileSystem, start: object, bytes_max: int) -> Scrubbed:
        """Read and check a portion of the part; see `ScrubPart.scrub`."""
        del fs
        part = self._part
        first, digest = start if isinstance(start, tuple) else (0, part.start_digest)
        try:
            index = self._rows.index(part).batches
            begin = index.place(first).position if first < len(index) else part.size_bytes
            stop = max(first + 1, index.slots_before_position(begin + bytes_max, first, len(index)))
            reached, digest, reason = verified_to(self._rows, index, first, min(stop, len(index)), digest)
        except (DamagedError, StorageFailedError) as error:
            return Scrubbed(start, 0, is_done=True, damage=error.message)
        except ProtocolError as error:
            raise OSError(error.message) from error  # The part was deleted.
        if reason:
            place = index.place(reached).position
            return Scrubbed(start, 0, is_done=True, damage=f"{part.path} is damaged at byte {place:,}: {reason}")
        end_bytes = index.place(reached).position if reached < len(index) else part.size_bytes
        is_done = reached >= len(index)
        damage = ""
        if is_done and digest != part.end_digest:
            damage = f"{part.path} is damaged: it ends with digest {digest:#x}, expected {part.end_digest:#x}"
        return Scrubbed((reached, digest), end_bytes - begin, is_done=is_done, damage=damage)
