"""A pass of compaction: which records of sealed epochs survive, and the versions of the epochs that hold just those.

What survives of a stretch of the log is a function of the log and of the pass's terms, and what is written is a
function of what survives (`tidelog_proto.batch.derived_batch`). So every replica that passes over its own copy writes
the same bytes, whichever older passes that copy has been through, and a pass that was cut short is simply begun again.

Of each key the newest record below the horizon survives. To find it, the keys of everything from the stretch up to the
horizon are held against each other in C, exactly, by Arrow's hash table. Memory is bounded whatever there is: keys are
looked at in slices of their hashes, so many that the table of one slice stays within `memory_bytes`, and a stretch ends
where its survivors' offsets would not. A log with more keys than fit is read more often, not held in more memory.

Rejected: a map of all keys of the new part of the log, as Kafka's cleaner has it, which passes over as much of the log
as its map has room for: what is left then depends on the memory of the node. Comparing 128-bit hashes instead of keys:
who can find two keys of one hash could delete another's record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, ParamSpec

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_broker.storage.partition.compacted_copies import CompactedCopies, CompactedVersion
from tidelog_broker.storage.partition.copied import LogPosition
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.derived_batch import Deriver
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.key_hash import hash_slices, slices_of
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

READ_BYTES: Final = 4 * MIB
"""So much of the log is read at once."""

OFFSET_BYTES: Final = 8
SLICES_MAX: Final = 1 << 16
MERGE_ROWS: Final = 1 << 16
"""Rows that are gathered before they are merged into the table, which only then is held against its memory."""
_KEY: Final = "key"
_OFFSET: Final = "offset"

Offsets = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
_P = ParamSpec("_P")


class PassStoppedError(Exception):
    """Whoever paces the pass wants no more of it."""


class _TooLargeError(Exception):
    """Records that survive do not fit a batch."""


class Terms(NamedTuple):
    """What a pass does.

    Attributes:
        horizon: the end of the sealed epochs in which newer records of a key are looked for.
        tombstones_below: tombstones in front of this offset go, too.
        floor: the log begins here: nothing below survives.
    """

    horizon: int
    tombstones_below: int
    floor: int


class EpochRange(NamedTuple):
    """A sealed epoch and the offsets that it covers."""

    epoch: int
    start_offset: int
    end_offset: int


class Made(NamedTuple):
    """A version of an epoch that is complete and durable, and not in its place yet."""

    epoch: int
    end: LogPosition
    size_bytes: int


class CompactionPass:
    """See the module. Used by one thread, which it blocks.

    Args:
        reader: of the partition's log, which holds all from the first of the epochs, or from the floor, to the horizon.
        copies: where the versions are made.
        epochs: to be compacted, in order; they end at or below the horizon.
        begin: where the log begins here, at or below the floor: what lies in front of it is gone.
        terms: see there.
        memory_bytes: about what the table of keys, and the survivors' offsets, may each take.
        pace: called with the bytes that were just read; returns when more may be, or raises `PassStoppedError`.
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
        """In how many the keys are looked at; a power of two."""
        self.left: list[int] = []
        """Epochs that stay as they are, because a batch of what survives of them would be too large."""

    @property
    def terms(self) -> Terms:
        """What the pass has done: no tombstone went from behind the start of an epoch that was left as it is.

        Such an epoch may hold older values of the tombstone's key. In front of it nothing changes by that.
        """
        return self._terms

    def run(self) -> list[Made]:
        """Make the versions of all epochs but those in `left`; what was begun is removed when this raises.

        Raises:
            PassStoppedError: see `pace`.
            ProtocolError: OFFSET_OUT_OF_RANGE where retention was faster.
            DiskFullError, DamagedError, StorageFailedError: as the log.
        """
        made: list[Made] = []
        try:
            stretch = _Stretch(0, 0, np.empty(0, np.int64))
            for each in self._epochs:
                stretch = self._compact(each, stretch, made)
        except BaseException:
            for one in made:
                self._copies.abandon(one.epoch)
            raise
        return made

    def _compact(self, each: EpochRange, stretch: _Stretch, made: list[Made]) -> _Stretch:
        version = self._copies.begin(each.epoch, each.start_offset)
        try:
            deriver = Deriver(each.start_offset, epoch=each.epoch)
            begin = min(max(each.start_offset, self._begin), each.end_offset)
            deriver.skip_to(begin)
            for batch in self._batches(begin, each.end_offset):
                if batch.base_offset >= stretch.end:
                    stretch = self._look(batch.base_offset)
                _write(version, _derived(deriver.add, batch, self._kept(batch, stretch.survivors)))
            _write(version, _derived(deriver.finish))
            end = version.finish()
        except BaseException as error:
            version.give_up()
            self._copies.abandon(each.epoch)
            if not isinstance(error, _TooLargeError):
                raise
            self.left.append(each.epoch)
            gone_below = min(self._terms.tombstones_below, each.start_offset)
            self._terms = self._terms._replace(tombstones_below=gone_below)
            return stretch
        if end.offset != each.end_offset:
            raise DamagedError(
                f"epoch {each.epoch} ends at offset {each.end_offset}, what was read of it at {end.offset}"
            )
        made.append(Made(each.epoch, end, version.size_bytes))
        return stretch

    def _kept(self, batch: RecordBatch, survivors: Offsets) -> Bools | None:
        """Return which records of a batch survive; None for all."""
        if batch.control or not len(batch):
            return None
        columns, offsets = batch.columns(), _offsets(batch)
        if batch.header.flags & Flags.KEY:
            at = np.searchsorted(survivors, offsets)
            at[at == len(survivors)] = 0
            newest = survivors[at] == offsets if len(survivors) else np.zeros(len(offsets), np.bool_)
            kept = newest | _is_null(columns.column(_KEY))
        else:
            kept = np.ones(len(offsets), np.bool_)
        gone = _is_null(columns.column("value")) & (offsets < self._terms.tombstones_below)
        return kept & ~gone & (offsets >= self._terms.floor)

    # --- which records are the newest of their keys ----------------------------------------------------

    def _look(self, start: int) -> _Stretch:
        """Find the newest records of all keys from `start` on, of as many offsets as there is memory for."""
        end = max(one.end_offset for one in self._epochs)
        found: list[Offsets] = []
        part = 0
        while part < self.slices:
            newest = self._newest(start, part)
            if newest is None:
                self.slices, part = 2 * self.slices, 2 * part
                continue
            found.append(newest[newest < end])
            if sum(map(len, found)) > self._survivors_max:
                found, end = self._shortened(start, found)
            part += 1
        return _Stretch(start, end, np.sort(np.concatenate(found)))

    def _shortened(self, start: int, found: list[Offsets]) -> tuple[list[Offsets], int]:
        """Leave out the last of too many survivors; the stretch ends in front of the batch of the first that is out."""
        offsets = np.sort(np.concatenate(found))
        last = int(offsets[self._survivors_max // 2])
        batch = next(self._batches(last, self._terms.horizon))
        end = batch.base_offset if batch.base_offset > start else batch.end_offset
        return [offsets[offsets < end]], end

    def _newest(self, start: int, part: int) -> Offsets | None:
        """Return the offsets of the newest record of each key of one slice; None when its table grows too large."""
        table = _empty_table()
        waiting: list[pa.Table] = []
        waiting_rows = 0
        for batch in self._batches(start, self._terms.horizon):
            rows = self._keyed(batch, part)
            if rows is None:
                continue
            waiting.append(rows)
            waiting_rows += rows.num_rows
            if waiting_rows >= max(MERGE_ROWS, table.num_rows):
                table, waiting, waiting_rows = _merged([table, *waiting]), [], 0
                if table.nbytes > self._memory_bytes and self.slices < SLICES_MAX:
                    return None
        offsets: Any = _merged([table, *waiting]).column(_OFFSET)
        result: Offsets = offsets.to_numpy()
        return result

    def _keyed(self, batch: RecordBatch, part: int) -> pa.Table | None:
        """Return the keys of a slice with their offsets; None when the batch has none of them."""
        if batch.control or not len(batch) or not batch.header.flags & Flags.KEY:
            return None
        keys: Any = batch.columns().column(_KEY)
        offsets = pa.array(_offsets(batch))
        if keys.null_count:
            valid: Any = keys.is_valid()
            keys, offsets = keys.filter(valid), offsets.filter(valid)
        if self.slices > 1:
            hashes = hash_slices(slices_of(keys))
            mine = pa.array((hashes >> np.uint64(64 - self.slices.bit_length() + 1)) == np.uint64(part))
            keys, offsets = keys.filter(mine), offsets.filter(mine)
        if not len(keys):
            return None
        return pa.table([keys, offsets], names=[_KEY, _OFFSET])

    # --- reading ---------------------------------------------------------------------------------------

    def _batches(self, offset: int, end: int) -> Iterator[RecordBatch]:
        """Yield the batches from the one that holds `offset` to `end`, at the pace that is given."""
        while offset < end:
            found = self._reader.read(offset, READ_BYTES, limit_offset=end)
            if not found.batches:
                raise DamagedError(f"nothing can be read at offset {offset}, the log goes on to {end}")
            for buffer in found.batches:
                for view in iter_batches(buffer):
                    yield RecordBatch.parse(view)
            self._pace(sum(map(len, found.batches)))
            offset = found.next_offset


class _Stretch(NamedTuple):
    """A stretch of the log and the offsets in it that are the newest of their keys, ascending."""

    start: int
    end: int
    survivors: Offsets


def _empty_table() -> pa.Table:
    return pa.table({_KEY: pa.array([], pa.binary()), _OFFSET: pa.array([], pa.int64())})


def _merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row a key, with its greatest offset."""
    grouped = pa.concat_tables(tables).group_by(_KEY, use_threads=False).aggregate([(_OFFSET, "max")])
    return grouped.rename_columns([_KEY, _OFFSET])


def _offsets(batch: RecordBatch) -> Offsets:
    offsets: Any = batch.offsets()
    result: Offsets = offsets.to_numpy()
    return result


def _is_null(column: Any) -> Bools:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    result: Bools = pc.is_null(column).to_numpy(zero_copy_only=False)
    return result


def _derived(derive: Callable[_P, list[bytearray]], *args: _P.args, **kwargs: _P.kwargs) -> list[bytearray]:
    """Return the batches that `derive` makes.

    Raises:
        _TooLargeError: they would be too large.
        ProtocolError: others of `derive`.
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
