"""A compaction pass: find the surviving records of sealed epochs and write versions of the epochs with only those.

The survivors of a range of the log are a function of the log and of the pass's bounds (`Terms`), and the written bytes
are a function of the survivors (`tidelog_proto.batch.derived_batch`). So every replica that runs the pass over its own
copy writes the same bytes, whichever earlier passes have compacted that copy, and an interrupted pass is simply
restarted.

Of each key the newest record below the horizon survives; `newest_search` finds it, exactly, in slices of keys that fit
`memory_bytes`. A range ends where the offsets of its survivors would exceed that.

The search reads every batch and checks it. Writing reads only the batches that have a survivor, or records that survive
without a search (`UnkeyedRanges`), and the last batch of an epoch, which shows that the epoch's batches end where the
epoch does (ADR 0180).

Rejected: one map of all keys in the new part of the log, as in Kafka's log cleaner, which processes as much of the log
as fits in its map, so that the result depends on the node's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, ParamSpec

import numpy as np
import pyarrow.compute as pc

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.partition.compacted_copies import CompactedCopies, CompactedVersion
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.newest_search import Bools, NewestSearch, Offsets, UnkeyedRanges
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.derived_batch import Deriver
from tidelog_proto.batch.header import Flags, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

READ_BYTES: Final = 4 * MIB
"""Maximum bytes of the log in one read."""

OFFSET_BYTES: Final = 8
_KEY: Final = "key"

_P = ParamSpec("_P")


class PassStoppedError(Exception):
    """Raised by the `pace` of a `CompactionPass` to stop the pass."""


class _TooLargeError(Exception):
    """The surviving records do not fit a batch."""


class Terms(NamedTuple):
    """The bounds of a compaction pass: offsets that every replica applies alike.

    Attributes:
        horizon: the end of the sealed epochs that are searched for newer records of a key.
        tombstones_below: tombstones (records without a value) below this offset are removed, too.
        floor: the log start; no record below it survives.
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
    """Runs one compaction pass over sealed epochs of a partition; blocks the calling thread.

    Args:
        reader: reads the partition's log, which must have all records from the start of the first of the epochs, or
            from the floor, to the horizon.
        epochs: the epochs to compact, in order; they end at or below the horizon.
        begin: the start of the log on this node: at or below the floor or the start of the first of the epochs.
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
        self._search = NewestSearch(
            self._read, horizon=terms.horizon, memory_bytes=memory_bytes, layouts=reader.layouts
        )
        self._survivors_max = max(1, memory_bytes // OFFSET_BYTES)
        self._pace = pace
        self.left: list[int] = []
        """Epochs left unchanged because a batch of their survivors would be too large."""

    @property
    def slices(self) -> int:
        """Number of slices into which the keys are divided; a power of two."""
        return self._search.slices

    @property
    def terms(self) -> Terms:
        """The bounds that the pass has applied.

        Tombstones after the start of an epoch in `left` were kept, because that epoch may have older records of their
        keys; `tombstones_below` is lower then.
        """
        return self._terms

    def run(self) -> list[FinishedVersion]:
        """Write the versions of all epochs except those in `left`; on an exception remove all versions of this pass.

        Raises:
            PassStoppedError: raised by `pace`.
            ProtocolError: OFFSET_OUT_OF_RANGE if retention has deleted a part of the input; EPOCH_CHANGING if this node
            does not know the schema of a batch yet.
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
        header = unpack_header(view, typed=True)
        base_offset, end_offset = header.base_offset, header.end_offset
        if survivor_range.next_wanted(base_offset, end_offset) == end_offset:
            deriver.skip_to(end_offset)
            return
        deriver.skip_to(base_offset)
        batch = RecordBatch.parse(view, self._reader.layouts)
        _write(version, _derived(deriver.add, batch, self._kept(batch, survivor_range.survivors)))

    def _kept(self, batch: RecordBatch, survivors: Offsets) -> Bools | None:
        """Return which records of a batch survive; None for a control or empty batch, which is kept whole."""
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
        """Find the survivors (the newest record of each key) from `start` on.

        The range of the result ends early if more than `_survivors_max` survivors are found.
        """
        end = max(one.end_offset for one in self._epochs)
        found: list[Offsets] = []
        unkeyed = UnkeyedRanges()
        part = 0
        while part < self._search.slices:
            newest = self._search.newest(start, part)
            unkeyed, part = newest.unkeyed, newest.part
            found.append(newest.offsets[newest.offsets < end])
            if sum(map(len, found)) > self._survivors_max:
                found, end = self._shortened(start, found)
            part += 1
        return _SurvivorRange(start, end, _ascending(found), unkeyed)

    def _shortened(self, start: int, found: list[Offsets]) -> tuple[list[Offsets], int]:
        """Return about the first half of the survivors, and the new end of the range.

        The new end is the start of the batch that holds the middle survivor, or that batch's end if the range starts in
        it.
        """
        offsets = _ascending(found)
        last = int(offsets[self._survivors_max // 2])
        header = unpack_header(self._read(last, self._terms.horizon)[0][0], typed=True)
        end = header.base_offset if header.base_offset > start else header.end_offset
        return [offsets[offsets < end]], end

    # --- reading ---------------------------------------------------------------------------------------

    def _read(self, offset: int, end: int) -> tuple[list[memoryview], int]:
        """Return batches from the one that holds `offset` up to `end`, and where to read on; throttled by `pace`.

        Raises:
            DamagedError: no batch holds `offset`.
        """
        found = self._reader.read(offset, READ_BYTES, limit_offset=end)
        if not found.batches:
            raise DamagedError(f"no batch holds offset {offset}, although batches are expected up to offset {end}")
        self._pace(sum(map(len, found.batches)))
        return [view for buffer in found.batches for view in iter_batches(buffer)], found.next_offset


class _SurvivorRange(NamedTuple):
    """An offset range of the log with the offsets of its survivors, ascending, and its batches without keys."""

    start: int
    end: int
    survivors: Offsets
    unkeyed: UnkeyedRanges

    def next_wanted(self, offset: int, stop: int) -> int:
        """Return the first offset from `offset` on whose batch may have a survivor; `stop` if no batch below it has."""
        at = int(np.searchsorted(self.survivors, offset))
        survivor = int(self.survivors[at]) if at < len(self.survivors) else stop
        return self.unkeyed.next_from(offset, min(survivor, stop))


_NOTHING_FOUND: Final = _SurvivorRange(0, 0, np.empty(0, np.int64), UnkeyedRanges())


def _ascending(found: Sequence[Offsets]) -> Offsets:
    offsets = np.concatenate(found)
    if not (offsets[1:] > offsets[:-1]).all():  # They are in order already if no key repeats.
        offsets.sort()
    return offsets


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
