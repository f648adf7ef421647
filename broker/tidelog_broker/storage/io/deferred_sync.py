"""A sync that runs once, in the background or on the first thread that needs it.

A failed sync is never retried: the error is kept and raised to every caller after that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable


class DeferredSync:
    """One sync that runs at most once. Thread-safe.

    Args:
        sync: runs the sync; raises OSError.
        failed: called with the error, on the thread on which the sync failed.
    """

    def __init__(self, sync: Callable[[], None], failed: Callable[[OSError], None]) -> None:
        self._sync = sync
        self._failed = failed
        self._lock = threading.Lock()
        """Held while the sync runs."""
        self._error: OSError | None = None
        self.is_done = False
        """Whether the sync is complete or was cancelled."""

    def finish(self) -> None:
        """Run the sync, or wait for it if it is running; return at once if it is complete or was cancelled.

        Raises:
            OSError: the sync failed, now or before.
        """
        if self.is_done and self._error is None:
            return
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self.is_done:
                try:
                    self._sync()
                except OSError as error:
                    self._error = error
                    self._failed(error)
                    raise
                self.is_done = True

    def finish_in_background(self) -> None:
        """Run the sync on a background thread, where its error cannot be raised: the next `finish` raises it."""
        with contextlib.suppress(OSError):
            self.finish()

    def cancel(self) -> None:
        """Cancel the sync, or wait for it if it is running: no thread runs it after this returns."""
        with self._lock:
            self.is_done = True

    def try_cancel(self) -> bool:
        """Cancel the sync without waiting; return False while it runs or if it has failed."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._error is not None:
                return False
            self.is_done = True
            return True
        finally:
            self._lock.release()
