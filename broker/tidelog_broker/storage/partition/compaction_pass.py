"""A compaction pass: find the surviving records of sealed epochs and write versions of the epochs with only those.

The survivors of a range of the log are a function of the log and of the pass's terms, and the written bytes are a
function of the survivors (`tidelog_proto.batch.derived_batch`). So every replica that runs the pass over its own copy
writes the same bytes, whichever earlier passes the copy has been through, and an interrupted pass is simply restarted.

Of each key the newest record below the horizon survives. To find it, Arrow's hash table compares, exactly and in C, the
keys of everything from the range up to the horizon. Memory is bounded: keys are processed in slices of their hashes, as
many as needed for the table of one slice to stay within `memory_bytes`, and a range ends where the offsets of its
survivors would exceed it. A table that grows too large keeps the keys of half of its slice, and the search goes on; the
other half is a slice of its own. A log with more keys than fit is read more often.

The search reads every batch and checks it. Writing reads only the batches that have a survivor, or records that survive
without a search (`_UnkeyedRanges`), and the last batch of an epoch, which shows that the epoch's batches end where the
epoch does (ADR 0180).

Rejected: one map of all keys in the new part of the log, as in Kafka's log cleaner, which processes as much of the log
as fits in its map, so that the result depends on the node's memory. Comparing 128-bit hashes instead of keys, because a
client that finds a hash collision could delete another's record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.partition.compacted_copies import CompactedCopies, CompactedVersion
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.derived_batch import Deriver
from tidelog_proto.batch.header import Flags, unpack_header
from tidelog_proto.batch.key_hash import hash_slices, slices_of
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

READ_BYTES: Final = 4 * MIB
"""Maximum bytes of the log in one read."""

OFFSET_BYTES: Final = 8
SLICES_MAX: Final = 1 << 16
MERGE_ROWS: Final = 1 << 16
"""Minimum number of rows that are merged into the table at once; the memory limit is checked only at each merge."""
UNKEYED_RANGES_MAX: Final = 1 << 12
"""Maximum number of ranges of batches without keys that a search remembers; the last one grows beyond that."""
_KEY: Final = "key"
_OFFSET: Final = "offset"

Offsets = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_P = ParamSpec("_P")


class PassStoppedError(Exception):
    """Raised by `pace` to stop the pass."""


class _TooLargeError(Exception):
    """The surviving records do not fit a batch."""


class Terms(NamedTuple):
    """The terms of a pass.

    Attributes:
        horizon: the end of the sealed epochs that are searched for newer records of a key.
        tombstones_below: tombstones below this offset are removed, too.
        floor: start of the log; no record below survives.
    """

    horizon: int
    tombstones_below: int
    floor: int


class EpochRange(NamedTuple):
    """A sealed epoch and its offset range."""

    epoch: int
    start_offset: int
    end_offset: int


class FinishedVersion(NamedTuple):
    """A complete and durable version of an epoch that is not swapped in yet."""

    epoch: int
    end: LogPosition
    size_bytes: int


class CompactionPass:
    """Runs one pass; blocks its thread.

    Args:
        reader: reads the partition's log, which holds all from the first of the epochs, or from the floor, to the
            horizon.
        epochs: the epochs to compact, in order; they end at or below the horizon.
        begin: start of the log on this node, at or below the floor.
        memory_bytes: approximate bound for the table of keys, and for the survivors' offsets.
        pace: called with the number of bytes just read; returns when more may be read, or raises
            `PassStoppedError`.
    """

    def __init__(
        self,
        reader: PartitionLogReader,
        copies: CompactedCopies,
        epochs: Sequence[EpochRange],
        terms: Terms,
        *,
        begin: int,
        memory_bytes: int,
        pace: Callable[[int], None],
    ) -> None:
        assert begin <= terms.floor or begin <= epochs[0].start_offset
        assert all(one.end_offset <= terms.horizon for one in epochs)
        self._reader = reader
        self._copies = copies
        self._epochs = epochs
        self._terms = terms
        self._begin = begin
        self._memory_bytes = memory_bytes
        self._survivors_max = max(1, memory_bytes // OFFSET_BYTES)
        self._pace = pace
        self.slices = 1
        """Number of slices into which the keys are divided; a power of two."""
        self.left: list[int] = []
        """Epochs left unchanged because a batch of their survivors would be too large."""

    @property
    def terms(self) -> Terms:
        """The actual terms: tombstones after the start of an epoch left unchanged were kept.

        Such an epoch may have older values of the tombstone's key.
        """
        return self._terms

    def run(self) -> list[FinishedVersion]:
        """Write the versions of all epochs except those in `left`; on an exception unfinished versions are removed.

        Raises:
            PassStoppedError: raised by `pace`.
            ProtocolError: OFFSET_OUT_OF_RANGE if retention has deleted a part of the input.
            DiskFullError, DamagedError, StorageFailedError: from the log.
        """
        made: list[FinishedVersion] = []
        try:
            survivor_range = _NOTHING_FOUND
            for each in self._epochs:
                survivor_range = self._compact(each, survivor_range, made)
        except BaseException:
            for one in made:
                self._copies.abandon(one.epoch)
            raise
        return made

    def _compact(self, each: EpochRange, survivor_range: _SurvivorRange, made: list[FinishedVersion]) -> _SurvivorRange:
        version = self._copies.begin(each.epoch, each.start_offset)
        try:
            survivor_range = self._derive(each, survivor_range, version)
            end = version.finish()
        except BaseException as error:
            version.give_up()
            self._copies.abandon(each.epoch)
            if not isinstance(error, _TooLargeError):
                raise
            self.left.append(each.epoch)
            gone_below = min(self._terms.tombstones_below, each.start_offset)
            self._terms = self._terms._replace(tombstones_below=gone_below)
            return _NOTHING_FOUND  # The next epoch begins with a search of its own.
        if end.offset != each.end_offset:
            raise DamagedError(
                f"epoch {each.epoch} ends at offset {each.end_offset}, but its batches end at {end.offset}"
            )
        made.append(FinishedVersion(each.epoch, end, version.size_bytes))
        return survivor_range

    def _derive(self, each: EpochRange, survivor_range: _SurvivorRange, version: CompactedVersion) -> _SurvivorRange:
        """Write the survivors of an epoch to its new version; return the range of the last search."""
        deriver = Deriver(each.start_offset, epoch=each.epoch)
        position = min(max(each.start_offset, self._begin), each.end_offset)
        deriver.skip_to(position)
        while position < each.end_offset:
            if position >= survivor_range.end:
                survivor_range = self._look(position)
            stop = min(survivor_range.end, each.end_offset)
            wanted = survivor_range.next_wanted(position, stop)
            if wanted == stop:
                if stop < each.end_offset:
                    position = stop
                    continue
                wanted = stop - 1  # The last batch shows where the epoch's batches end.
            views, position = self._read(wanted, stop)
            for view in views:
                self._add(view, survivor_range, deriver, version)
        _write(version, _derived(deriver.finish))
        return survivor_range

    def _add(
        self, view: memoryview, survivor_range: _SurvivorRange, deriver: Deriver, version: CompactedVersion
    ) -> None:
        """Add a batch's survivors to the new version; a batch without any is not decoded."""
        header = unpack_header(view)
        base_offset, end_offset = header.base_offset, header.end_offset
        if survivor_range.next_wanted(base_offset, end_offset) == end_offset:
            deriver.skip_to(end_offset)
            return
        deriver.skip_to(base_offset)
        batch = RecordBatch.parse(view)
        _write(version, _derived(deriver.add, batch, self._kept(batch, survivor_range.survivors)))

    def _kept(self, batch: RecordBatch, survivors: Offsets) -> Bools | None:
        """Return which records of a batch survive; None for all."""
        if batch.control or not len(batch):
            return None
        columns, offsets = batch.columns(), _offsets(batch)
        if batch.header.flags & Flags.KEY:
            kept = _newest_of(batch, offsets, survivors) | _is_null(columns.column(_KEY))
        else:
            kept = np.ones(len(offsets), np.bool_)
        gone = _is_null(columns.column("value")) & (offsets < self._terms.tombstones_below)
        return kept & ~gone & (offsets >= self._terms.floor)

    # --- search for the newest record of each key ---------------------------------------------------

    def _look(self, start: int) -> _SurvivorRange:
        """Find the newest records of all keys from `start` on, for as many offsets as fit in memory."""
        end = max(one.end_offset for one in self._epochs)
        found: list[Offsets] = []
        unkeyed = _UnkeyedRanges()
        part = 0
        while part < self.slices:
            newest, part = self._newest(start, part, _UnkeyedRanges() if found else unkeyed)
            found.append(newest[newest < end])
            if sum(map(len, found)) > self._survivors_max:
                found, end = self._shortened(start, found)
            part += 1
        return _SurvivorRange(start, end, np.sort(np.concatenate(found)), unkeyed)

    def _shortened(self, start: int, found: list[Offsets]) -> tuple[list[Offsets], int]:
        """Drop the last of too many survivors; the range ends before the batch of the first dropped one."""
        offsets = np.sort(np.concatenate(found))
        last = int(offsets[self._survivors_max // 2])
        header = unpack_header(self._read(last, self._terms.horizon)[0][0])
        end = header.base_offset if header.base_offset > start else header.end_offset
        return [offsets[offsets < end]], end

    def _newest(self, start: int, part: int, unkeyed: _UnkeyedRanges) -> tuple[Offsets, int]:
        """Return the offsets of the newest record of each key of one slice, and the number of that slice.

        A slice whose table grows too large is halved: the result is that of its first half.
        """
        table = _empty_table()
        waiting: list[pa.Table] = []
        waiting_rows = waiting_bytes = 0
        for batches in self._reads(start, self._terms.horizon):
            rows = self._keyed(batches, part, unkeyed)
            waiting.append(rows)
            waiting_rows += rows.num_rows
            waiting_bytes += rows.nbytes
            if waiting_rows >= MERGE_ROWS and waiting_bytes >= max(self._memory_bytes, table.nbytes):
                table, waiting, waiting_rows, waiting_bytes = _merged([table, *waiting]), [], 0, 0
                while table.nbytes > self._memory_bytes and self.slices < SLICES_MAX:
                    self.slices, part = 2 * self.slices, 2 * part
                    table = self._of_slice(table, part)
        offsets: Any = _merged([table, *waiting]).column(_OFFSET)
        result: Offsets = offsets.to_numpy()
        return result, part

    def _keyed(self, batches: Sequence[RecordBatch], part: int, unkeyed: _UnkeyedRanges) -> pa.Table:
        """Return the keys of a slice with their offsets, as a copy that does not keep the batches alive."""
        keys: list[Any] = [pa.array([], pa.binary())]
        offsets: list[Any] = [pa.array([], pa.int64())]
        for batch in batches:
            if not len(batch):
                continue
            if batch.control or not batch.header.flags & Flags.KEY:
                unkeyed.add(batch.base_offset, batch.end_offset)
                continue
            own_keys: Any = batch.columns().column(_KEY)
            own_offsets: Any = batch.offsets()
            if own_keys.null_count:
                unkeyed.add(batch.base_offset, batch.end_offset)
                valid: Any = own_keys.is_valid()
                own_keys, own_offsets = own_keys.filter(valid), own_offsets.filter(valid)
            keys.append(own_keys)
            offsets.append(own_offsets)
        rows = pa.table([pa.concat_arrays(keys), pa.concat_arrays(offsets)], names=[_KEY, _OFFSET])
        return self._of_slice(rows, part) if self.slices > 1 else rows

    def _of_slice(self, rows: pa.Table, part: int) -> pa.Table:
        """Return the rows whose keys are in a slice."""
        chunks: list[Any] = rows.column(_KEY).chunks
        hashes = np.concatenate([np.empty(0, np.uint64), *(hash_slices(slices_of(keys)) for keys in chunks)])
        return rows.filter(pa.array((hashes >> np.uint64(64 - self.slices.bit_length() + 1)) == np.uint64(part)))

    # --- reading ---------------------------------------------------------------------------------------

    def _reads(self, offset: int, end: int) -> Iterator[list[RecordBatch]]:
        """Yield the batches from the one that holds `offset` up to `end`, those of a read at once, in full and checked.

        Raises:
            DamagedError: a batch does not begin where the one before it ends.
        """
        expected: int | None = None
        while offset < end:
            views, offset = self._read(offset, end)
            batches = [RecordBatch.parse(view) for view in views]
            for batch in batches:
                if batch.base_offset != expected and expected is not None:
                    raise DamagedError(
                        f"a batch begins at offset {batch.base_offset}, but the one before it ends at {expected}"
                    )
                expected = batch.end_offset
            yield batches

    def _read(self, offset: int, end: int) -> tuple[list[memoryview], int]:
        """Return batches from the one that holds `offset` up to `end`, and where to read on; throttled by `pace`.

        Raises:
            DamagedError: no batch holds `offset`.
        """
        found = self._reader.read(offset, READ_BYTES, limit_offset=end)
        if not found.batches:
            raise DamagedError(f"no batch can be read at offset {offset}, but the log ends at {end}")
        self._pace(sum(map(len, found.batches)))
        return [view for buffer in found.batches for view in iter_batches(buffer)], found.next_offset


class _UnkeyedRanges:
    """Ranges of offsets whose batches have control records or records without a key; ascending."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a batch after all others; one too many extends the last range, and what lies between is read, too."""
        if self._ends and (self._ends[-1] == start or len(self._ends) >= UNKEYED_RANGES_MAX):
            self._ends[-1] = end
        else:
            self._starts.append(start)
            self._ends.append(end)

    def next_from(self, offset: int, stop: int) -> int:
        """Return the first offset from `offset` on that is in a range; `stop` without one before it."""
        at = bisect_right(self._ends, offset)
        return min(max(offset, self._starts[at]), stop) if at < len(self._ends) else stop


class _SurvivorRange(NamedTuple):
    """An offset range of the log with the offsets of its survivors, ascending, and its batches without keys."""

    start: int
    end: int
    survivors: Offsets
    unkeyed: _UnkeyedRanges

    def next_wanted(self, offset: int, stop: int) -> int:
        """Return the first offset from `offset` on whose batch may have a survivor; `stop` without one before it."""
        at = int(np.searchsorted(self.survivors, offset))
        survivor = int(self.survivors[at]) if at < len(self.survivors) else stop
        return self.unkeyed.next_from(offset, min(survivor, stop))


_NOTHING_FOUND: Final = _SurvivorRange(0, 0, np.empty(0, np.int64), _UnkeyedRanges())


def _empty_table() -> pa.Table:
    return pa.table({_KEY: pa.array([], pa.binary()), _OFFSET: pa.array([], pa.int64())})


def _merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row per key, with its greatest offset."""
    grouped = pa.concat_tables(tables).group_by(_KEY, use_threads=False).aggregate([(_OFFSET, "max")])
    return grouped.rename_columns([_KEY, _OFFSET])


def _offsets(batch: RecordBatch) -> Offsets:
    offsets: Any = batch.offsets()
    result: Offsets = offsets.to_numpy()
    return result


def _newest_of(batch: RecordBatch, offsets: Offsets, survivors: Offsets) -> Bools:
    """Return which records of a batch with these offsets are among the survivors of the log."""
    first, stop = np.searchsorted(survivors, [batch.base_offset, batch.end_offset]).tolist()
    mine = survivors[first:stop]
    newest = np.zeros(len(offsets), np.bool_)
    if not batch.derived:
        newest[mine - batch.base_offset] = True
    elif len(mine):
        at = np.searchsorted(mine, offsets)
        at[at == len(mine)] = 0
        newest = mine[at] == offsets
    return newest


def _is_null(column: Any) -> Bools:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    result: Bools = pc.is_null(column).to_numpy(zero_copy_only=False)
    return result


def _derived(derive: Callable[_P, list[bytearray]], *args: _P.args, **kwargs: _P.kwargs) -> list[bytearray]:
    """Return the batches that `derive` builds.

    Raises:
        _TooLargeError: they would be too large.
        ProtocolError: another error of `derive`.
    """
    try:
        return derive(*args, **kwargs)
    except ProtocolError as error:
        if error.code == pb.BATCH_TOO_LARGE:
            raise _TooLargeError(error.message) from error
        raise


def _write(version: CompactedVersion, batches: Sequence[bytearray]) -> None:
    if batches:
        version.append(batches)
