"""Content hashes of a partition's newest records, to find duplicates in a batch (ADR 0087).

A window covers the last `records_max` records, of these the ones appended in the last `age_us` if that is set, and no
record below the log start. `find` takes the append time of the batch, so the result depends only on the log before that
batch.

Rows are stored in generations, oldest first: arrays in log order, with an open-addressing hash table that is at most
half full. When a generation is full the next one is started, as large as the current number of live rows, up to a
quarter of the window. Rows are never deleted from a table: rows outside the window are ignored, and a generation is
dropped as a whole with its last row. The cost of each operation is therefore proportional to its records. Memory is
bounded: a row takes `ROW_BYTES`, and there are at most twice as many rows as in a full window, including the generation
that is being filled.

Rejected: one table with deletions, and sorted runs, because rebuilding or merging them pauses the partition for about
100 ms with a million rows; a Bloom filter, because a false positive would drop a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tidelog_proto.batch.canonical_columns import Int64s
from tidelog_proto.batch.content_hash import Contents

ROW_BYTES: Final = 48
"""Memory of a row: two hash words, offset and append time of 8 bytes each, and two table slots of 8 bytes."""

_Tags = npt.NDArray[np.uint32]
_ROWS_MIN: Final = 4096
"""Minimum number of rows of a generation, unless the window is smaller."""


class DeduplicationWindow:
    """The content hashes of a partition's newest records; see the module.

    Not thread-safe. `find` does not allocate or release accounted memory.

    Args:
        age_us: maximum age in µs; 0 for no limit.
        take: reserves a number of bytes of the memory budget; returns False if they are not available.
        give_back: returns bytes to the budget.
    """

    def __init__(
        self, *, records_max: int, age_us: int, take: Callable[[int], bool], give_back: Callable[[int], None]
    ) -> None:
        assert records_max > 0
        self._records_max = records_max
        self._age_us = age_us
        self._take = take
        self._give_back = give_back
        self._generations: list[_Generation] = []
        self._end = 0
        """Number of rows ever added."""
        self._start = 0
        """The first row inside the window."""

    def __len__(self) -> int:
        """Return the number of records in the window as of the last `find` or `add`."""
        return self._end - self._start

    @property
    def size_bytes(self) -> int:
        """Memory of all generations."""
        return sum(one.size_bytes for one in self._generations)

    def find(self, contents: Contents, *, now_us: int, log_start: int) -> Int64s:
        """Return for each content the offset of its newest record in the window, -1 if it has no record there.

        Args:
            now_us: append time of the batch; must not decrease.
            log_start: records below this offset are deleted, so they are not found.
        """
        self._expire(now_us, log_start)
        found = np.full(len(contents), -1, np.int64)
        tags = _tags(contents)
        for generation in reversed(self._generations):
            wanted, rows = generation.find(contents, tags)
            if len(wanted):
                counts = (rows >= self._start - generation.first) & (found[wanted] < 0)
                found[wanted[counts]] = generation.offsets[rows[counts]]
        return found

    def reserve(self, count: int) -> bool:
        """Reserve memory for `count` more rows; return False, and reserve none, if it is not available."""
        self._drop()
        count = min(count, self._records_max)
        missing = count - sum(one.room for one in self._generations)
        least = min(_ROWS_MIN, _power(self._records_max))
        most = max(_power(-(-self._records_max // 4)), least)
        sizes: list[int] = []
        while missing > 0:
            sizes.append(min(most, max(_power(missing), _power(len(self)), least)))
            missing -= sizes[-1]
        if sizes and not self._take(sum(sizes) * ROW_BYTES):
            return False
        self._generations = [*self._generations, *map(_Generation, sizes)]
        return True

    def add(self, contents: Contents, offsets: Int64s, append_us: Int64s) -> None:
        """Add the newest records, in order; their memory must have been reserved by `reserve`.

        Args:
            offsets: the records' offsets, above all earlier ones.
            append_us: the records' append times, not below earlier ones.
        """
        newest = slice(max(0, len(contents) - self._records_max), None)
        contents, offsets, append_us = contents[newest], offsets[newest], append_us[newest]
        at = 0
        for generation in self._generations:
            room = min(generation.room, len(contents) - at)
            if room > 0:
                part = slice(at, at + room)
                if generation.first < 0:
                    generation.first = self._end
                generation.add(contents[part], offsets[part], append_us[part])
                self._end += room
                at += room
        assert at == len(contents), "memory for these rows was not reserved"
        self._start = max(self._start, self._end - self._records_max)
        self._drop()

    def close(self) -> None:
        """Drop all rows and release their memory."""
        self._give_back(self.size_bytes)
        self._generations = []
        self._start = self._end

    def _expire(self, now_us: int, log_start: int) -> None:
        oldest_us = now_us - self._age_us if self._age_us else None
        for generation in self._generations:
            if generation.first < 0:
                break
            count = generation.count
            gone = int(np.searchsorted(generation.offsets[:count], log_start))
            if oldest_us is not None:
                gone = max(gone, int(np.searchsorted(generation.append_us[:count], oldest_us, "right")))
            self._start = max(self._start, generation.first + gone)
            if gone < count:
                break

    def _drop(self) -> None:
        """Drop full generations without rows inside the window."""
        while len(self._generations) > 1 and self._generations[1].first >= 0:
            oldest = self._generations[0]
            if oldest.first + oldest.count > self._start:
                break
            self._generations = self._generations[1:]
            self._give_back(oldest.size_bytes)


class _Generation:
    """Consecutive rows of a window. `first` is the number of rows ever added before them; -1 while it has no row."""

    def __init__(self, rows: int) -> None:
        self.first = -1
        self.count = 0
        self.size_bytes = rows * ROW_BYTES
        self.offsets: Int64s = np.zeros(rows, np.int64)
        self.append_us: Int64s = np.zeros(rows, np.int64)
        self._contents: Contents = np.zeros((rows, 2), np.uint64)
        self._tags = np.zeros(2 * rows, np.uint32)
        """For each table slot, a part of the hash stored there; 0 for a free slot."""
        self._rows = np.zeros(2 * rows, np.int32)
        """For each table slot, its row."""
        self._mask = np.uint64(2 * rows - 1)

    @property
    def room(self) -> int:
        """Number of free rows."""
        return len(self.offsets) - self.count

    def find(self, contents: Contents, tags: _Tags) -> tuple[Int64s, Int64s]:
        """Return the indexes of the contents that are found, and the newest row of each."""
        places = self._places(contents)
        wanted = np.arange(len(contents))
        numbers: list[Int64s] = []
        rows: list[Int64s] = []
        while len(wanted):
            there = self._tags[places]
            taken = np.flatnonzero(there)
            alike = taken[there[taken] == tags[wanted[taken]]]
            if len(alike):  # Equal tags nearly always mean equal contents, but the contents decide.
                found = self._rows[places[alike]].astype(np.int64)
                same = (self._contents[found] == contents[wanted[alike]]).all(axis=1)
                numbers.append(wanted[alike[same]])
                rows.append(found[same])
                taken = np.setdiff1d(taken, alike[same], assume_unique=True)
            wanted, places = wanted[taken], self._next(places[taken])
        none = np.empty(0, np.int64)
        return np.concatenate([none, *numbers]), np.concatenate([none, *rows])

    def add(self, contents: Contents, offsets: Int64s, append_us: Int64s) -> None:
        """Add rows; the caller ensures `room`. Of equal contents, `find` returns the newest row."""
        part = slice(self.count, self.count + len(contents))
        self._contents[part], self.offsets[part], self.append_us[part] = contents, offsets, append_us
        rows = np.arange(part.start, part.stop)
        self.count = part.stop
        places, tags = self._places(contents), _tags(contents)
        while len(rows):
            free = self._tags[places] == 0
            others = self._rows[places].astype(np.int64)
            same = ~free & (self._tags[places] == tags)
            alike = np.flatnonzero(same)
            same[alike] = (self._contents[others[alike]] == self._contents[rows[alike]]).all(axis=1)
            ours = free | (same & (others < rows))
            self._tags[places[ours]], self._rows[places[ours]] = tags[ours], rows[ours]
            settled = (ours & (self._rows[places] == rows)) | (same & ~ours)
            # Rows whose slot holds other content probe the next slot; rows whose slot was overwritten in this step
            # retry it.
            places = np.where(free | same, places, self._next(places))[~settled]
            rows, tags = rows[~settled], tags[~settled]

    def _places(self, contents: Contents) -> Int64s:
        return (contents[:, 0] & self._mask).astype(np.int64)

    def _next(self, places: Int64s) -> Int64s:
        return (places + 1) & np.int64(self._mask)


def _tags(contents: Contents) -> _Tags:
    """Return a non-zero part of each hash."""
    return (contents[:, 1] >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _power(count: int) -> int:
    """Return the smallest power of two >= `count`; 1 for 0."""
    return 1 << max(count - 1, 0).bit_length()
