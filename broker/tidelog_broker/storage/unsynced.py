"""A rolled segment whose sync is still owed, because its log is not synced with every group.

Its sync is asked for in the background when it is rolled, and done by whoever needs it if it was not done by then. A
sync that failed is never tried again: the error is kept, and everybody who asks meets it.
"""

from __future__ import annotations

import threading

from tidelog_broker.storage.disk import OpenSegment


class UnsyncedSegment:
    """Holds the lease of a rolled segment until `give_up`; `sync` may be called from any thread."""

    def __init__(self, opened: OpenSegment) -> None:
        self.opened = opened
        self.error: OSError | None = None
        self._done = False
        self._lock = threading.Lock()

    def sync(self) -> None:
        """Make the segment durable, unless it is.

        Raises:
            OSError: the sync failed, now or before.
        """
        with self._lock:
            if self.error is not None:
                raise self.error
            if not self._done:
                try:
                    self.opened.file.datasync()
                except OSError as error:
                    self.error = error
                    raise
                self._done = True

    def try_give_up(self) -> OpenSegment | None:
        """As `give_up`, without waiting; None while it is being synced, or when that has failed."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self.error is not None:
                return None
            self._done = True
            return self.opened
        finally:
            self._lock.release()

    def give_up(self) -> OpenSegment:
        """Owe nothing any more and return the segment: no background sync touches its file from here on."""
        with self._lock:
            self._done = True
        return self.opened

    def sync_ahead(self) -> None:
        """As `sync`, in the background: the error waits for the log's next step, which fails with it."""
        try:
            self.sync()
        except OSError:
            assert self.error is not None
