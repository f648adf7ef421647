"""An in-memory index of keys or tags for the part of a segment that was read so far.

Entries are kept in sorted runs; each run covers later batches than the previous one. A new run is merged with preceding
ones of at most twice its length, so a lookup searches few runs and each entry is merged few times. The runs are
immutable: readers use them without a lock, and writers replace them.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from tidelog_broker.storage.segment.hash_entries import (
    ENTRY_BYTES,
    NO_ENTRIES,
    BatchEntries,
    Entries,
    bounds_of,
    newest_or_oldest,
    slots_of,
)


@dataclass(frozen=True, slots=True)
class HashRuns:
    """Immutable runs of entries; `with_more` and `first` return new objects.

    Attributes:
        covered: batches with lower slots are indexed.
        runs: the runs of entries, those of older batches first.
        open_slots: the slots of open batches, which every lookup returns; ascending.
    """

    covered: int = 0
    runs: tuple[Entries, ...] = ()
    open_slots: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """The size of the runs in memory."""
        return ENTRY_BYTES * (sum(map(len, self.runs)) + len(self.open_slots))

    def with_more(self, found: BatchEntries, covered: int) -> HashRuns:
        """Return an index with the entries of the slots from `self.covered` up to `covered` added."""
        runs, new = list(self.runs), found.entries
        while runs and len(runs[-1]) <= 2 * len(new):
            new = _merged([runs.pop(), new])
        if len(new):
            runs.append(new)
        return HashRuns(covered, tuple(runs), (*self.open_slots, *found.open_slots))

    def first(self, count: int) -> HashRuns:
        """Return the index of the slots below `count`."""
        if count >= self.covered:
            return self
        runs = tuple(kept for run in self.runs if len(kept := run[slots_of(run) < count]))
        return replace(self, covered=count, runs=runs, open_slots=tuple(one for one in self.open_slots if one < count))

    def entries(self) -> Entries:
        """Return all entries, sorted."""
        return _merged(self.runs)

    def find(self, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool) -> list[int]:
        """Return slots of first..stop-1 that may have a key, ascending: the first `count_max`, or the `newest` ones."""
        low, high = bounds_of(key_hash, first, stop)
        found = [np.array(_between(self.open_slots, first, stop, count_max, newest=newest), np.int64)]
        for run in self.runs:
            at, end = (int(place) for place in np.searchsorted(run, np.array([low, high], np.uint64)))
            if end - at > count_max:
                at, end = (end - count_max, end) if newest else (at, at + count_max)
            if end > at:
                found.append(slots_of(run[at:end]))
        return newest_or_oldest(found, count_max, newest=newest)


def _merged(runs: list[Entries] | tuple[Entries, ...]) -> Entries:
    merged = np.concatenate([NO_ENTRIES, *runs])
    merged.sort(kind="stable")  # A stable sort detects the sorted runs and merges them.
    return merged


def _between(ordered: tuple[int, ...], first: int, stop: int, count_max: int, *, newest: bool) -> tuple[int, ...]:
    at, end = bisect_left(ordered, first), bisect_left(ordered, stop)
    return ordered[max(at, end - count_max) : end] if newest else ordered[at : min(end, at + count_max)]
