"""Taking disk space ahead of the appender, on a thread of its own.

A segment grows in chunks that double from a few kilobytes to 64 MiB, so that a small partition stays small and a
busy one asks rarely. When less than half of the last chunk is left the next one is asked for here; an appender that
outruns the thread takes the space itself. Growth is only a head start: errors are left to the appender, which meets
them again where they can be answered.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from tidelog_proto.limits import KIB, MIB

CHUNK_BYTES_MIN: Final = 16 * KIB
CHUNK_BYTES_MAX: Final = 64 * MIB
_PENDING_MAX: Final = 1024


def next_chunk_bytes(allocated_bytes: int) -> int:
    """Return how much a file that has this much space takes next: as much again, within bounds."""
    return min(max(allocated_bytes, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)


class Preallocator:
    """One thread, begun by the first request, that runs requests in order and takes no more than it can queue."""

    def __init__(self) -> None:
        self._requests: queue.Queue[Callable[[], None] | None] = queue.Queue(_PENDING_MAX)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def request(self, grow: Callable[[], None]) -> bool:
        """Ask for a growth; False when nobody will do it and the caller is on its own. `grow` must not raise."""
        with self._lock:
            if self._closed or self._requests.full():
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidelog-preallocate", daemon=True)
                self._thread.start()
            self._requests.put(grow)
            return True

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        with self._lock:
            self._closed = True
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (grow := self._requests.get()) is not None:
            grow()
