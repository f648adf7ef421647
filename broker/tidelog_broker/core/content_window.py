"""The contents of a partition's newest records: which of them a batch has again (ADR 0087).

A window is the last `records_max` records and, if there is a bound by time, of those the ones that were appended in the
last `age_us`, and nothing below the log's start. It is asked with the time of the batch that is about to be appended,
so it is a function of the log in front of that batch.

The rows lie in generations, oldest first: numbers in the order of the log, with a hash table in front (open addressing,
at most half full). A full generation is followed by another, as large as all rows that count, up to a quarter of the
window. Nothing is ever deleted from a table: rows in front of the window do not count, and a generation goes as a whole
when its last row does. So no step costs more than the records that it is about, and memory is bounded: a row takes
`ROW_BYTES`, and there are no more rows than twice those of a full window, a generation to be filled included.

Rejected: one table with deletions, which is rebuilt now and then in a pause of 100 ms for a million rows; sorted runs,
which are merged with such a pause, too; a Bloom filter in front, which says yes now and then: a record would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tidelog_proto.batch.canonical_columns import Int64s
from tidelog_proto.batch.content_hash import Contents

ROW_BYTES: Final = 48
"""Two numbers of the hash, offset and time of 8 bytes each, and two places of 8 in the table."""

_Tags = npt.NDArray[np.uint32]
_ROWS_MIN: Final = 4096
"""Of a generation, unless the window is smaller."""


class ContentWindow:
    """See the module. Used by one thread at a time; `find` takes and gives back no memory.

    Args:
        records_max: how many records it has.
        age_us: how old they are at most, in µs; 0: of any age.
        take: counts so many bytes of memory in, if there is room for them.
        give_back: counts them out.
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
        """How many rows there ever were."""
        self._start = 0
        """The first row that counts."""

    def __len__(self) -> int:
        """How many records count, as far as has been looked at."""
        return self._end - self._start

    @property
    def size_bytes(self) -> int:
        """The memory that it takes."""
        return sum(one.size_bytes for one in self._generations)

    def find(self, contents: Contents, *, now_us: int, log_start: int) -> Int64s:
        """Return for each content the offset of its newest record in the window, -1 where it has none.

        Args:
            contents: their hashes.
            now_us: when they are to be appended; never earlier than before.
            log_start: records below are deleted.
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
        """Take the memory for so many more rows; False when there is none, and nothing has changed."""
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
        """Add the newest records, in order; `reserve` has taken the memory for them.

        Args:
            contents: their hashes.
            offsets: where they are, above all before.
            append_us: when they were appended, never earlier than those before.
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
        assert at == len(contents), "memory for these rows was not taken"
        self._start = max(self._start, self._end - self._records_max)
        self._drop()

    def close(self) -> None:
        """Forget everything, and give the memory back."""
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
        """Drop generations of which no row counts and none will be added to."""
        while len(self._generations) > 1 and self._generations[1].first >= 0:
            oldest = self._generations[0]
            if oldest.first + oldest.count > self._start:
                break
            self._generations = self._generations[1:]
            self._give_back(oldest.size_bytes)


class _Generation:
    """Rows that follow each other. `first` is the number of its first row in the window, -1 before it has one."""

    def __init__(self, rows: int) -> None:
        self.first = -1
        self.count = 0
        self.size_bytes = rows * ROW_BYTES
        self.offsets: Int64s = np.zeros(rows, np.int64)
        self.append_us: Int64s = np.zeros(rows, np.int64)
        self._contents: Contents = np.zeros((rows, 2), np.uint64)
        self._tags = np.zeros(2 * rows, np.uint32)
        """In each place of the table a part of the hash that is there; 0: free."""
        self._rows = np.zeros(2 * rows, np.int32)
        """And the row that it is of."""
        self._mask = np.uint64(2 * rows - 1)

    @property
    def room(self) -> int:
        """How many rows it has left."""
        return len(self.offsets) - self.count

    def find(self, contents: Contents, tags: _Tags) -> tuple[Int64s, Int64s]:
        """Return the numbers of those contents that are here, and of each its newest row."""
        places = self._places(contents)
        wanted = np.arange(len(contents))
        numbers: list[Int64s] = []
        rows: list[Int64s] = []
        while len(wanted):
            there = self._tags[places]
            taken = np.flatnonzero(there)
            alike = taken[there[taken] == tags[wanted[taken]]]
            if len(alike):  # nearly always the same content
                found = self._rows[places[alike]].astype(np.int64)
                same = (self._contents[found] == contents[wanted[alike]]).all(axis=1)
                numbers.append(wanted[alike[same]])
                rows.append(found[same])
                taken = np.setdiff1d(taken, alike[same], assume_unique=True)
            wanted, places = wanted[taken], self._next(places[taken])
        none = np.empty(0, np.int64)
        return np.concatenate([none, *numbers]), np.concatenate([none, *rows])

    def add(self, contents: Contents, offsets: Int64s, append_us: Int64s) -> None:
        """Add rows, for which there is room. Of equal contents the newest row is found from then on."""
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
            # Who finds another content there goes on; who was overwritten in this step looks at the place again.
            places = np.where(free | same, places, self._next(places))[~settled]
            rows, tags = rows[~settled], tags[~settled]

    def _places(self, contents: Contents) -> Int64s:
        return (contents[:, 0] & self._mask).astype(np.int64)

    def _next(self, places: Int64s) -> Int64s:
        return (places + 1) & np.int64(self._mask)


def _tags(contents: Contents) -> _Tags:
    """Return of each hash a part, which is not 0."""
    return (contents[:, 1] >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _power(count: int) -> int:
    """Return the smallest power of two that is no smaller; 1 for 0."""
    return 1 << max(count - 1, 0).bit_length()
