"""Rolled segments whose syncs are still owed, because their log is not synced with every group.

A log that is synced now and then has it done in the background when a segment is rolled, so that the next sync is a
short one. A log that nobody ever syncs (flush=never) leaves its pages to the kernel, which writes them when it likes:
what retention deletes before that never goes to the disk. Only when as many are owed as may be is the oldest one synced
in the background. Syncing every segment cost a node under full load more than storing the records did, and the disk all
of its bandwidth. Whatever was not done by then is done by whoever needs it.

A sync that failed is never tried again: the error is kept, and everybody who asks meets it.
"""

from __future__ import annotations

import threading
from typing import Final

from tidelog_broker.storage.segment.disk import Disk, OpenSegment

UNSYNCED_SEGMENTS_MAX: Final = 4
"""What the end of an epoch may have to sync besides the newest segment; past this an append waits for the oldest."""


class UnsyncedSegment:
    """Holds the lease of a rolled segment until `give_up`; `sync` may be called from any thread."""

    def __init__(self, opened: OpenSegment, size_bytes: int) -> None:
        self.opened = opened
        self._size_bytes = size_bytes
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
                    self.opened.datasync(self._size_bytes)
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


class OwedSyncs:
    """The rolled segments of one log whose syncs are owed, oldest first. For the log's appending thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.owed: list[UnsyncedSegment] = []
        """Oldest first."""
        self._is_synced_at_times = False

    def __len__(self) -> int:
        return len(self.owed)

    @property
    def error(self) -> OSError | None:
        """Why a sync in the background failed, if one did."""
        for owed in self.owed:
            if owed.error is not None:
                return owed.error
        return None

    def make_room(self) -> None:
        """Make sure that one more may be owed.

        Raises:
            OSError: a sync failed, now or before.
        """
        while len(self.owed) >= UNSYNCED_SEGMENTS_MAX:
            self._sync_oldest()

    def add(self, opened: OpenSegment, size_bytes: int) -> None:
        """Owe one more, all of whose `size_bytes` are written, and take its lease."""
        newest = UnsyncedSegment(opened, size_bytes)
        self.owed.append(newest)
        if self._disk.syncer is None:
            return
        if self._is_synced_at_times:
            self._disk.syncer.request(newest.sync_ahead)
        elif len(self.owed) == UNSYNCED_SEGMENTS_MAX:
            self._disk.syncer.request(self.owed[0].sync_ahead)

    def sync(self) -> None:
        """Make all of them durable.

        Raises:
            OSError: a sync failed, now or before.
        """
        self._is_synced_at_times = True
        while self.owed:
            self._sync_oldest()

    def forget_all_but(self, count: int) -> None:
        """Owe nothing for the oldest, which are being deleted, as far as nobody is syncing them."""
        while len(self.owed) > count and (opened := self.owed[0].try_give_up()):
            self.owed.pop(0)
            self._disk.open_segments.release(opened)

    def give_up(self) -> None:
        """Owe nothing any more."""
        for owed in self.owed:
            self._disk.open_segments.release(owed.give_up())
        self.owed.clear()

    def _sync_oldest(self) -> None:
        self.owed[0].sync()
        self._disk.open_segments.release(self.owed.pop(0).give_up())
