"""A bound on the files that logs keep open for appends.

Without it each rarely written log would hold a descriptor forever. Only the most recently used logs keep their files
open; the others close theirs and reopen it for the next append. A file with unsynced writes is synced before it is
closed, because the kernel reports a failed writeback only to open descriptors. A file that is being written stays open,
so the number of open files may exceed the bound.
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

from tidelog_proto.process.file_descriptors import descriptor_limit

ACTIVE_FILES_MAX: Final = 2048
ACTIVE_FILES_MIN: Final = 64


class Parked(Protocol):
    """A segment whose file `ActiveFiles` can park, that is, close until it is needed."""

    was_used: bool
    """Set by each append, cleared by `ActiveFiles`."""

    def park(self) -> bool:
        """Close the file until it is needed; return False if it must stay open. Thread-safe."""
        ...


class ActiveFiles:
    """The segments with an open file, approximately least recently used first (clock algorithm). Thread-safe."""

    def __init__(self, capacity: int | None = None) -> None:
        self._capacity = active_files_max() if capacity is None else capacity
        self._lock = threading.Lock()
        self._open: dict[Parked, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(self, segment: Parked) -> None:
        """Register a segment that has opened its file; the caller then calls `trim` without holding a lock."""
        with self._lock:
            self._open[segment] = None

    def trim(self, segment: Parked) -> None:
        """Park other segments than `segment` while too many files are open. The caller holds no segment's lock."""
        for _ in range(2 * len(self._open)):
            oldest = self._oldest(segment)
            if oldest is None:
                return
            if not oldest.park():
                with self._lock:
                    if oldest in self._open:  # The file is in use, so the segment moves to the end of the queue.
                        del self._open[oldest]
                        self._open[oldest] = None

    def discard(self, segment: Parked) -> None:
        """Unregister a segment that has closed its file or handed it over."""
        with self._lock:
            self._open.pop(segment, None)

    def _oldest(self, but: Parked) -> Parked | None:
        """Return the next segment to park; None if few enough files are open, or all but `but` were used recently."""
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
    """Return how many files logs may keep open for appends: a quarter of the descriptor limit, but 64 to 2048."""
    return max(ACTIVE_FILES_MIN, min(ACTIVE_FILES_MAX, (descriptor_limit() if limit is None else limit) // 4))
