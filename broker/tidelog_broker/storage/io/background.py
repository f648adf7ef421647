"""A thread for work that an appender would rather not wait for: taking space ahead, syncing rolled segments.

What runs here is only a head start. Whoever needs the result does the work himself if it has not been done, and meets
the errors where they can be answered; so a request that does not fit the queue is simply declined.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

_PENDING_MAX: Final = 1024


class Background:
    """One thread, begun by the first request, that runs requests in order."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._requests: queue.Queue[Callable[[], None] | None] = queue.Queue(_PENDING_MAX)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def request(self, work: Callable[[], None]) -> bool:
        """Ask for `work`, which must not raise; False when nobody will do it and the caller is on its own."""
        with self._lock:
            if self._closed or self._requests.full():
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"tidelog-{self._name}", daemon=True)
                self._thread.start()
            self._requests.put(work)
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
        while (work := self._requests.get()) is not None:
            work()
            del work  # what it holds must not live until the next one comes
