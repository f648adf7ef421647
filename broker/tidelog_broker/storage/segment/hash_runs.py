"""An index of keys or tags in memory: what of a segment has been read into it so far.

Entries come in runs, each sorted, of batches behind those of the run before. A new run is merged with the ones in front
of it that are not more than twice as long, so a look-up searches few, and each entry is merged a few times at most. A
reader takes the runs as they are; whoever adds puts new ones in their place.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from tidelog_broker.storage.segment.hash_entries import (
    ENTRY_BYTES,
    NO_ENTRIES,
    Collected,
    Entries,
    bounds_of,
    newest_or_oldest,
    slots_of,
)


@dataclass(frozen=True, slots=True)
class HashRuns:
    """See the module. Never changed: `with_more` and `first` return others.

    Attributes:
        covered: the slots below this are in it.
        runs: of entries, older batches first.
        open_slots: which every look-up names, ascending.
    """

    covered: int = 0
    runs: tuple[Entries, ...] = ()
    open_slots: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        return ENTRY_BYTES * (sum(map(len, self.runs)) + len(self.open_slots))

    def with_more(self, found: Collected, covered: int) -> HashRuns:
        """Return what also has the entries of the slots from `self.covered` up to `covered`."""
        runs, new = list(self.runs), found.entries
        while runs and len(runs[-1]) <= 2 * len(new):
            new = _merged([runs.pop(), new])
        if len(new):
            runs.append(new)
        return HashRuns(covered, tuple(runs), (*self.open_slots, *found.open_slots))

    def first(self, count: int) -> HashRuns:
        """Return what it has of the slots below `count`."""
        if count >= self.covered:
            return self
        runs = tuple(kept for run in self.runs if len(kept := run[slots_of(run) < count]))
        return replace(self, covered=count, runs=runs, open_slots=tuple(one for one in self.open_slots if one < count))

    def entries(self) -> Entries:
        """Return all of them, sorted."""
        return _merged(self.runs)

    def find(self, key_hash: int, first: int, stop: int, count_max: int, *, newest: bool) -> list[int]:
        """Return the slots of first..stop-1 that may have a key, ascending: the first `count_max`, or the last."""
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
    merged.sort(kind="stable")  # finds the runs, and merges them
    return merged


def _between(ordered: tuple[int, ...], first: int, stop: int, count_max: int, *, newest: bool) -> tuple[int, ...]:
    at, end = bisect_left(ordered, first), bisect_left(ordered, stop)
    return ordered[max(at, end - count_max) : end] if newest else ordered[at : min(end, at + count_max)]
