"""The search of a compaction pass: the offset of the newest record of each key in a part of the log.

The result is exact: keys are compared, and a hash only decides which keys need a comparison. Comparing 128-bit hashes
instead would let a client that finds a hash collision delete another's record. There are two ways:

    by hash   collects the hash of each key. A hash that occurs once belongs to a key that occurs once. Only the keys
              of the others are compared, and only the batches that have them are read again.
    by key    Arrow's hash table compares all keys. For a log in which most keys repeat.

The first records decide (`SAMPLE_ROWS`): if the hashes of more than half of them repeat, keys are compared. A search
by hash in which as many repeat later begins again by key, and so do the pass's other searches.

Memory is bounded: keys are processed in slices of their hashes, as many as needed for one slice to fit `memory_bytes`.
If more keys are found than fit, the search keeps half of its slice and goes on; the other half is a slice of its own.
A log with more keys than fit is read more often.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog_broker.storage.io.errors import DamagedError
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.key_hash import Hashes, hash_slices, slices_of
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import Layouts

SLICES_MAX: Final = 1 << 16
MERGE_ROWS: Final = 1 << 16
"""Minimum number of rows that are merged into the table at once; the memory limit is checked only at each merge."""
UNKEYED_RANGES_MAX: Final = 1 << 12
"""Maximum number of ranges of batches without keys that a search remembers; the last one grows beyond that."""
HASHED_BYTES: Final = 12
"""Memory of a record in a search by hash: hash and offset, the latter relative to the start if that fits 4 bytes."""
SAMPLE_ROWS: Final = 1 << 18
"""Number of records that decide how a search begins."""
CHECKED_ROWS: Final = 1 << 20
"""Number of records after which a search by hash counts repetitions again."""
REPEATS_MAX: Final = 0.5
"""Fraction of records whose hash repeats, beyond which keys are compared without hashes."""

_KEY: Final = "key"
_OFFSET: Final = "offset"
_HASH_BITS: Final = 64

Offsets = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Read = Callable[[int, int], tuple[list[memoryview], int]]
"""Called with an offset and an end; returns batches from the one that holds the offset, and where to read on."""


class Newest(NamedTuple):
    """The result of a search for the newest record of each key in a slice.

    Attributes:
        offsets: the offsets of the newest records, in any order.
        part: the number of the slice, which may be the first half of the requested one, see `NewestSearch.slices`.
        unkeyed: the offsets of batches with control records or records without a key.
    """

    offsets: Offsets
    part: int
    unkeyed: UnkeyedRanges


class UnkeyedRanges:
    """Ranges of offsets whose batches have control records or records without a key; ascending."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        """Add a batch after all others. Beyond the maximum of ranges, the last one grows to the end of the batch."""
        if self._ends and (self._ends[-1] == start or len(self._ends) >= UNKEYED_RANGES_MAX):
            self._ends[-1] = end
        else:
            self._starts.append(start)
            self._ends.append(end)

    def next_from(self, offset: int, stop: int) -> int:
        """Return the first offset from `offset` on that is in a range; `stop` if no range has one below it."""
        at = bisect_right(self._ends, offset)
        return min(max(offset, self._starts[at]), stop) if at < len(self._ends) else stop


class NewestSearch:
    """Finds the newest record of each key below a horizon of the log; blocks the calling thread.

    Args:
        read: reads the log.
        horizon: the offset at which the search ends.
        memory_bytes: approximate bound for keys in memory.
        layouts: of the batches of a typed topic, see `HeldEpochs`.
    """

    def __init__(self, read: Read, *, horizon: int, memory_bytes: int, layouts: Layouts | None = None) -> None:
        self._read = read
        self._layouts = layouts
        self._horizon = horizon
        self._memory_bytes = memory_bytes
        self._is_repeating = False
        self.slices = 1
        """Number of slices into which the keys are divided; a power of two."""

    def newest(self, start: int, part: int) -> Newest:
        """Find the newest record from `start` on for each key in the slice with number `part`.

        Raises:
            DamagedError: a batch does not begin where the one before it ends.
            ProtocolError: CORRUPT_BATCH.
        """
        unkeyed = UnkeyedRanges()
        keyed = self._keyed_reads(self._reads(start), unkeyed)
        if not self._is_repeating:
            sample = self._sample(keyed)
            if not self._is_repeating:
                found = self._by_hash(chain(sample, keyed), start, part, unkeyed)
                if found is not None:
                    return found
                self._is_repeating = True
                unkeyed, sample = UnkeyedRanges(), []
                keyed = self._keyed_reads(self._reads(start), unkeyed)
            keyed = chain(sample, keyed)
        offsets, part = self._by_key(keyed, part, None)
        return Newest(offsets, part, unkeyed)

    def _sample(self, keyed: Iterator[_Keyed]) -> list[_Keyed]:
        """Take the first records, and decide by them how to search."""
        sample: list[_Keyed] = []
        count = size_bytes = 0
        while count < SAMPLE_ROWS and size_bytes < self._memory_bytes and (one := next(keyed, None)) is not None:
            sample.append(one)
            count += len(one.offsets)
            size_bytes += one.keys.nbytes
        hashes = np.concatenate([np.empty(0, np.uint64), *(hash_slices(slices_of(one.keys)) for one in sample)])
        self._is_repeating = _repeats(hashes) > REPEATS_MAX
        return sample

    # --- by hash -----------------------------------------------------------------------------------------

    def _by_hash(self, keyed: Iterable[_Keyed], start: int, part: int, unkeyed: UnkeyedRanges) -> Newest | None:
        """Find the newest records by the hashes of keys; None if too many repeat or the slice cannot be halved."""
        rows = _HashedRows(max(MERGE_ROWS, self._memory_bytes // HASHED_BYTES), start, self._horizon)
        is_checked = False
        for one in keyed:
            hashes, offsets = hash_slices(slices_of(one.keys)), one.offsets
            if self.slices > 1:
                mine = self._in_slice(hashes, part)
                hashes, offsets = hashes[mine], offsets[mine]
            while not rows.has_room(len(hashes)):
                if _repeats(rows.hashes) > REPEATS_MAX or self.slices >= SLICES_MAX:
                    return None
                self.slices, part = 2 * self.slices, 2 * part
                rows.keep(self._in_slice(rows.hashes, part))
                mine = self._in_slice(hashes, part)
                hashes, offsets = hashes[mine], offsets[mine]
            rows.add(hashes, offsets)
            if not is_checked and rows.count >= CHECKED_ROWS:
                if _repeats(rows.hashes) > REPEATS_MAX:
                    return None
                is_checked = True
        return self._compared(rows.once_or_repeated(), part, unkeyed)

    def _compared(self, found: _OnceOrRepeated, part: int, unkeyed: UnkeyedRanges) -> Newest | None:
        """Complete a search by hash: compare the keys whose hashes repeat, unless too many do (then return None)."""
        repeated = found.repeated
        if len(repeated) > REPEATS_MAX * (len(repeated) + len(found.once)):
            return None
        if not len(repeated):
            return Newest(found.once, part, unkeyed)
        reads = self._keyed_reads(self._reads_of(repeated), UnkeyedRanges())
        newest, part = self._by_key(reads, part, repeated)
        once = found.once[self._in_slice(found.hashes, part)] if self.slices > 1 else found.once
        return Newest(np.concatenate([once, newest]), part, unkeyed)

    # --- by key ------------------------------------------------------------------------------------------

    def _by_key(self, keyed: Iterable[_Keyed], part: int, only: Offsets | None) -> tuple[Offsets, int]:
        """Return the offset of the newest record for each key in a slice, and the slice's number once it is halved.

        Args:
            only: consider the records at these offsets, ascending; None for all.
        """
        table = _empty_table()
        waiting: list[pa.Table] = []
        waiting_rows = waiting_bytes = 0
        for keys, offsets in keyed:
            rows = pa.table([keys, pa.array(offsets)], names=[_KEY, _OFFSET])
            if only is not None:
                rows = rows.filter(pa.array(_among(offsets, only)))
            rows = self._of_slice(rows, part) if self.slices > 1 else rows
            waiting.append(rows)
            waiting_rows += rows.num_rows
            waiting_bytes += rows.nbytes
            if waiting_rows >= MERGE_ROWS and waiting_bytes >= max(self._memory_bytes, table.nbytes):
                table, waiting, waiting_rows, waiting_bytes = _merged([table, *waiting]), [], 0, 0
                while table.nbytes > self._memory_bytes and self.slices < SLICES_MAX:
                    self.slices, part = 2 * self.slices, 2 * part
                    table = self._of_slice(table, part)
        offsets_found: Any = _merged([table, *waiting]).column(_OFFSET)
        result: Offsets = offsets_found.to_numpy()
        return result, part

    def _of_slice(self, rows: pa.Table, part: int) -> pa.Table:
        """Return the rows whose keys are in a slice."""
        chunks: list[Any] = rows.column(_KEY).chunks
        hashes = np.concatenate([np.empty(0, np.uint64), *(hash_slices(slices_of(keys)) for keys in chunks)])
        return rows.filter(pa.array(self._in_slice(hashes, part)))

    def _in_slice(self, hashes: Hashes, part: int) -> Bools:
        """Return which hashes are in a slice."""
        result: Bools = (hashes >> np.uint64(_HASH_BITS + 1 - self.slices.bit_length())) == np.uint64(part)
        return result

    # --- reading -----------------------------------------------------------------------------------------

    @staticmethod
    def _keyed_reads(reads: Iterable[Sequence[RecordBatch]], unkeyed: UnkeyedRanges) -> Iterator[_Keyed]:
        """Yield the keys of each read with their offsets, as copies that do not keep the batches alive."""
        for batches in reads:
            keys: list[Any] = [pa.array([], pa.binary())]
            offsets: list[Offsets] = [np.empty(0, np.int64)]
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
                offsets.append(own_offsets.to_numpy())
            yield _Keyed(pa.concat_arrays(keys), np.concatenate(offsets))

    def _reads(self, offset: int) -> Iterator[list[RecordBatch]]:
        """Yield the checked batches from the one that holds `offset` on; each list has the batches of one read.

        Raises:
            DamagedError: a batch does not begin where the one before it ends.
        """
        expected: int | None = None
        while offset < self._horizon:
            views, offset = self._read(offset, self._horizon)
            batches = [RecordBatch.parse(view, self._layouts) for view in views]
            for batch in batches:
                if batch.base_offset != expected and expected is not None:
                    raise DamagedError(
                        f"a batch begins at offset {batch.base_offset}, but the one before it ends at {expected}"
                    )
                expected = batch.end_offset
            yield batches

    def _reads_of(self, wanted: Offsets) -> Iterator[list[RecordBatch]]:
        """Yield the batches that hold these ascending offsets, and maybe others; each list has those of one read."""
        at = 0
        while at < len(wanted):
            views, next_offset = self._read(int(wanted[at]), self._horizon)
            yield [RecordBatch.parse(view, self._layouts) for view in views]
            at = int(np.searchsorted(wanted, next_offset))


class _Keyed(NamedTuple):
    """Keys, none of which is null, and the offsets of their records."""

    keys: Any
    offsets: Offsets


class _OnceOrRepeated(NamedTuple):
    """Offsets of records by whether their hash occurs once.

    Attributes:
        once: offsets of records whose hash occurs once, in any order.
        hashes: the upper bits of the hashes of `once`, in the same order unless `repeated` is empty.
        repeated: offsets of the other records, ascending.
    """

    once: Offsets
    hashes: Hashes
    repeated: Offsets


class _HashedRows:
    """Hashes and offsets of records, at most `count_max`."""

    def __init__(self, count_max: int, start: int, end: int) -> None:
        self._start = start
        self._hashes = np.empty(count_max, np.uint64)
        # Pages of the arrays take memory only once they are written.
        self._offsets = np.empty(count_max, np.uint32 if end - start < 1 << 32 else np.int64)
        self.count = 0

    @property
    def hashes(self) -> Hashes:
        """The hashes of the records that were added and not removed."""
        return self._hashes[: self.count]

    def has_room(self, count: int) -> bool:
        """Return whether this many records fit."""
        return self.count + count <= len(self._hashes)

    def add(self, hashes: Hashes, offsets: Offsets) -> None:
        """Add records; `has_room` has returned True for their number."""
        end = self.count + len(hashes)
        self._hashes[self.count : end] = hashes
        self._offsets[self.count : end] = offsets - self._start
        self.count = end

    def keep(self, kept: Bools) -> None:
        """Remove the records for which `kept` is False."""
        hashes, offsets = self.hashes[kept], self._offsets[: self.count][kept]
        self.count = len(hashes)
        self._hashes[: self.count], self._offsets[: self.count] = hashes, offsets

    def once_or_repeated(self) -> _OnceOrRepeated:
        """Divide the records by whether their hash repeats, and remove them.

        The lower bits of each hash are replaced by the number of the record, so that one sort of numbers sorts both.
        Hashes that differ only in these bits count as repeated.
        """
        packed, offsets = self.hashes, self._offsets[: self.count]
        bits = np.uint64(max(1, self.count.bit_length()))
        low = (np.uint64(1) << bits) - np.uint64(1)
        packed &= ~low
        packed |= np.arange(self.count, dtype=np.uint64)
        packed.sort()
        repeated = _repeated(packed >> bits)
        self.count = 0
        if not repeated.any():
            return _OnceOrRepeated(self._absolute(offsets), packed, np.empty(0, np.int64))
        once, others = packed[~repeated], packed[repeated]
        return _OnceOrRepeated(
            self._absolute(offsets[once & low]), once, np.sort(self._absolute(offsets[others & low]))
        )

    def _absolute(self, relative: npt.NDArray[Any]) -> Offsets:
        offsets: Offsets = relative.astype(np.int64)
        offsets += self._start
        return offsets


def _repeats(hashes: Hashes) -> float:
    """Return the fraction of numbers that occur more than once."""
    return float(np.count_nonzero(_repeated(np.sort(hashes)))) / max(1, len(hashes))


def _repeated(ordered: Hashes) -> Bools:
    """Return which of ascending numbers occur more than once."""
    repeated = np.zeros(len(ordered), np.bool_)
    same = ordered[1:] == ordered[:-1]
    repeated[1:] = same
    repeated[:-1] |= same
    return repeated


def _among(offsets: Offsets, wanted: Offsets) -> Bools:
    """Return which of `offsets` are in `wanted`, which ascends."""
    if not len(wanted):
        return np.zeros(len(offsets), np.bool_)
    at = np.searchsorted(wanted, offsets)
    at[at == len(wanted)] = 0
    result: Bools = wanted[at] == offsets
    return result


def _empty_table() -> pa.Table:
    return pa.table({_KEY: pa.array([], pa.binary()), _OFFSET: pa.array([], pa.int64())})


def _merged(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one row per key, with its greatest offset."""
    grouped = pa.concat_tables(tables).group_by(_KEY, use_threads=False).aggregate([(_OFFSET, "max")])
    return grouped.rename_columns([_KEY, _OFFSET])
