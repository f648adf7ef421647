"""How many logs keep the file open that they append to.

A log that is appended to now and then would hold a descriptor for ever, and ten thousand of them as many. So those that
were used last keep theirs, up to a bound, and the others give theirs up and open the file again for the next append.
One with unsynced writes is synced first: a kernel tells of a failed write-back only to who has the file open. One whose
file cannot be given up at the moment stays, so the bound may be passed by what is being written.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

from tidelog_proto.process.file_descriptors import descriptor_limit

ACTIVE_FILES_MAX: Final = 2048
ACTIVE_FILES_MIN: Final = 64


class Parked(Protocol):
    """A segment that is appended to, as `ActiveSegment` is."""

    was_used: bool
    """Set by each append, unset here."""

    def park(self) -> bool:
        """Close the file until it is needed; False where it has to stay open. May be called by any thread."""
        ...


class ActiveFiles:
    """The segments that have their file open, least recently used first (a clock). Thread-safe."""

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = active_files_max() if capacity is None else capacity
        self._lock = threading.Lock()
        self._open: dict[Parked, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, segment: Parked) -> None:
        """A segment has opened its file; `trim` follows as soon as it holds no lock."""
        with self._lock:
            self._open[segment] = None

    def trim(self, segment: Parked) -> None:
        """Have others than `segment` give up their files, if there are too many. No lock of a segment may be held."""
        for _ in range(2 * len(self._open)):
            oldest = self._oldest(segment)
            if oldest is None:
                return
            if not oldest.park():
                with self._lock:
                    if oldest in self._open:  # in use: it has another turn
                        del self._open[oldest]
                        self._open[oldest] = None

    def discard(self, segment: Parked) -> None:
        """A segment has closed its file, or somebody else sees to it."""
        with self._lock:
            self._open.pop(segment, None)

    def _oldest(self, but: Parked) -> Parked | None:
        """Return which one is to give up its file; None while all may keep theirs, or all but `but` were just used."""
        with self._lock:
            if len(self._open) <= self._capacity:
                return None
            for _ in range(2 * len(self._open)):
                oldest = next(iter(self._open))
                if oldest is not but and not oldest.was_used:
                    return oldest
                oldest.was_used = False
                del self._open[oldest]
                self._open[oldest] = None
            return None


def active_files_max(limit: int | None = None) -> int:
    """Return how many files logs may keep open for appends: a quarter of what this process may open, within bounds."""
    return max(ACTIVE_FILES_MIN, min(ACTIVE_FILES_MAX, (descriptor_limit() if limit is None else limit) // 4))
