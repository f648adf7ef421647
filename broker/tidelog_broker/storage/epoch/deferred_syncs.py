"""Syncs that a log still owes: of names in its directory, and of segments that were rolled.

One idea for both: what is owed is done once, in the background or by whoever needs it first. What failed is never tried
again: the error is kept, and everybody who asks meets it.

Names. A segment begins under a name of its own kind (`layout.BEGUN_SUFFIX`). It gets the name of a segment when its
header is on the disk, and the directory is synced behind that: in the background, because the disk may be busy for a
tenth of a second with what the kernel writes back, and an append must not wait for that. Each deletion owes a sync of
the directory, too. Never more than one such change is owed: whoever makes the next one does the last one first, so that
a crash never leaves a hole behind an older segment that came back. So does a sync before it reports anything as
durable. So the file of a deleted segment is used again only after its old name is gone durably.

Rolled segments. A log that is synced now and then has it done in the background when a segment is rolled, so that the
next sync is a short one. A log that nobody ever syncs (flush=never) leaves its pages to the kernel, which writes them
when it likes: what retention deletes before that never goes to the disk. Only when as many are owed as may be is the
oldest one synced in the background. Syncing every segment cost a node under full load more than storing the records
did, and the disk all of its bandwidth.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.segment.disk import Disk, OpenSegment

UNSYNCED_SEGMENTS_MAX: Final = 4
"""What the end of an epoch may have to sync besides the newest segment; past this an append waits for the oldest."""


class DeferredSync:
    """One sync that is owed. Used by any thread.

    Args:
        sync: does it; raises OSError.
        failed: told of the error, on the thread that met it.
    """

    def __init__(self, sync: Callable[[], None], failed: Callable[[OSError], None]) -> None:
        self._sync = sync
        self._failed = failed
        self._lock = threading.Lock()
        """Held while it is done: for as long as the disk takes."""
        self._error: OSError | None = None
        self.is_done = False
        """Whether nothing is owed any more."""

    def finish(self) -> None:
        """Return when it is done.

        Raises:
            OSError: it failed, now or before.
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

    def finish_ahead(self) -> None:
        """As `finish`, in the background: the error waits for the log's next step, which fails with it."""
        with contextlib.suppress(OSError):
            self.finish()

    def give_up(self) -> None:
        """Owe it no more: no other thread does it from here on."""
        with self._lock:
            self.is_done = True

    def try_give_up(self) -> bool:
        """As `give_up`, without waiting; False while it is being done, or when it has failed."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._error is not None:
                return False
            self.is_done = True
            return True
        finally:
            self._lock.release()


class _Rolled(NamedTuple):
    """A rolled segment, which stays leased for as long as its sync is owed."""

    opened: OpenSegment
    sync: DeferredSync


class DeferredSyncs:
    """What one log owes. `sync_names` is for any thread, the rest for the log's appending one.

    Attributes:
        error: why something failed, in the background or not.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._names: DeferredSync | None = None
        """The newest change of names; what went before it is done."""
        self._rolled: list[_Rolled] = []
        """Oldest first."""
        self._is_synced_at_times = False
        self.error: OSError | None = None

    def __bool__(self) -> bool:
        """Whether something is owed."""
        return bool(self._rolled) or (self._names is not None and not self._names.is_done)

    @property
    def segment_count(self) -> int:
        """How many rolled segments are owed a sync."""
        return len(self._rolled)

    def sync(self) -> None:
        """Do all that is owed.

        Raises:
            OSError: something failed, now or before.
        """
        self._is_synced_at_times = True
        if self._names is not None:
            self._names.finish()
        while self._rolled:
            self._sync_oldest()

    def give_up(self) -> None:
        """Owe nothing any more: no other thread touches the directory or a segment's file from here on."""
        if self._names is not None:
            self._names.give_up()
        for opened, sync in self._rolled:
            sync.give_up()
            self._disk.open_segments.release(opened)
        self._rolled.clear()

    # ------------------------------------------------------------------------------------ names

    def owe_names(self, first: Callable[[], None] | None = None) -> None:
        """Owe a sync of the directory, and what is to be done before it; `sync_names` came right before this."""
        assert self._names is None or self._names.is_done, "the last change of names is not durable yet"
        owed = self._names = DeferredSync(partial(self._sync_directory, first), self._note)
        if self._disk.namer is not None:
            self._disk.namer.offer(owed.finish_ahead)

    def sync_names(self) -> None:
        """Return when every change of names so far is durable.

        Raises:
            OSError: something failed, now or before.
        """
        if self._names is not None:
            self._names.finish()

    # ------------------------------------------------------------------------------------ rolled segments

    def make_room(self) -> None:
        """Make sure that one more segment may be owed.

        Raises:
            OSError: a sync failed, now or before.
        """
        while len(self._rolled) >= UNSYNCED_SEGMENTS_MAX:
            self._sync_oldest()

    def owe_segment(self, opened: OpenSegment, size_bytes: int) -> None:
        """Owe one more, all of whose `size_bytes` are written, and take its lease."""
        newest = _Rolled(opened, DeferredSync(partial(opened.datasync, size_bytes), self._note))
        self._rolled.append(newest)
        if self._disk.syncer is None:
            return
        if self._is_synced_at_times:
            self._disk.syncer.offer(newest.sync.finish_ahead)
        elif len(self._rolled) == UNSYNCED_SEGMENTS_MAX:
            self._disk.syncer.offer(self._rolled[0].sync.finish_ahead)

    def forget_all_but(self, count: int) -> None:
        """Owe nothing for the oldest segments, which are being deleted, as far as nobody is syncing them."""
        while len(self._rolled) > count and self._rolled[0].sync.try_give_up():
            self._disk.open_segments.release(self._rolled.pop(0).opened)

    # ------------------------------------------------------------------------------------ inside

    def _sync_oldest(self) -> None:
        self._rolled[0].sync.finish()
        self._disk.open_segments.release(self._rolled.pop(0).opened)

    def _sync_directory(self, first: Callable[[], None] | None) -> None:
        if first is not None:
            first()
        self._disk.fs.sync_dir(self._directory)

    def _note(self, error: OSError) -> None:
        self.error = error
