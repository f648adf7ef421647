"""Deferred syncs of a log: of its directory entries and of rolled segments.

Each is a `DeferredSync`, which runs once, in the background or on the first thread that needs it.

Directory entries. A segment is created under a temporary name (`layout.BEGUN_SUFFIX`) and renamed when its header is
durable; the directory is synced after the rename. This happens in the background, because the disk may be busy for 100
ms with writeback and an append must not wait for that. Each deletion of a segment defers a sync of the directory, too.
At most one such change is pending: the next one first completes the previous one, so that no older segment can reappear
after a crash with a gap after it. `sync` completes the pending change before it reports anything as durable. A deleted
segment's file is therefore reused only after the removal of its old name is durable.

Rolled segments. If the log is synced from time to time, a rolled segment is synced in the background so that the next
sync is short. With `flush=never` the kernel writes pages back at its own pace, so segments that retention deletes early
never reach the disk. Only when the number of unsynced segments reaches the limit is the oldest one synced, in the
background. Syncing every segment would take more CPU time under full load than storing the records, and all of the
disk's bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.io.deferred_sync import DeferredSync
from tidelog_broker.storage.segment.disk import Disk, OpenSegment

UNSYNCED_SEGMENTS_MAX: Final = 4
"""Maximum number of rolled, unsynced segments, because the end of an epoch waits for their syncs. Before it rolls
another segment, the appending thread syncs the oldest of them.
"""


class _Rolled(NamedTuple):
    """A rolled segment, leased until its sync is complete."""

    opened: OpenSegment
    sync: DeferredSync


class DeferredSyncs:
    """The deferred syncs of one log. `sync_names` may be called by any thread, the rest by the appending thread.

    Attributes:
        error: the last error of a sync, in the background or not; None if no sync has failed.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._names: DeferredSync | None = None
        """The newest change of directory entries; all earlier ones are durable."""
        self._rolled: list[_Rolled] = []
        """The rolled segments that await a sync, oldest first."""
        self._is_synced_at_times = False
        self.error: OSError | None = None

    def __bool__(self) -> bool:
        """Return whether a sync is pending."""
        return bool(self._rolled) or (self._names is not None and not self._names.is_done)

    @property
    def segment_count(self) -> int:
        """The number of rolled segments that await a sync."""
        return len(self._rolled)

    def sync(self) -> None:
        """Run all pending syncs.

        Raises:
            OSError: a sync failed, now or before.
        """
        self._is_synced_at_times = True
        if self._names is not None:
            self._names.finish()
        while self._rolled:
            self._sync_oldest()

    def cancel(self) -> None:
        """Cancel all pending syncs: no other thread uses the directory or a segment's file after this returns."""
        if self._names is not None:
            self._names.cancel()
        for opened, sync in self._rolled:
            sync.cancel()
            self._disk.open_segments.release(opened)
        self._rolled.clear()

    # ------------------------------------------------------------------------------------ names

    def defer_names_sync(self, first: Callable[[], None] | None = None) -> None:
        """Defer a sync of the directory. The caller has just called `sync_names`.

        Args:
            first: called right before the sync; None if nothing has to be done first.
        """
        assert self._names is None or self._names.is_done, "the last change of names is not durable yet"
        owed = self._names = DeferredSync(partial(self._sync_directory, first), self._note)
        if self._disk.namer is not None:
            self._disk.namer.offer(owed.finish_in_background)

    def sync_names(self) -> None:
        """Return when every change of directory entries so far is durable.

        Raises:
            OSError: a sync failed, now or before.
        """
        if self._names is not None:
            self._names.finish()

    # ------------------------------------------------------------------------------------ rolled segments

    def make_room(self) -> None:
        """Sync the oldest rolled segments until one more may be deferred.

        Raises:
            OSError: a sync failed, now or before.
        """
        while len(self._rolled) >= UNSYNCED_SEGMENTS_MAX:
            self._sync_oldest()

    def defer_segment_sync(self, opened: OpenSegment, size_bytes: int) -> None:
        """Defer the sync of a segment that is completely written (`size_bytes`), and take over its lease."""
        newest = _Rolled(opened, DeferredSync(partial(opened.datasync, size_bytes), self._note))
        self._rolled.append(newest)
        if self._disk.syncer is None:
            return
        if self._is_synced_at_times:
            self._disk.syncer.offer(newest.sync.finish_in_background)
        elif len(self._rolled) == UNSYNCED_SEGMENTS_MAX:
            self._disk.syncer.offer(self._rolled[0].sync.finish_in_background)

    def cancel_all_but(self, count: int) -> None:
        """Cancel the pending syncs of all but the newest `count` rolled segments: the older ones are being deleted.

        Stops at a sync that is running or has failed.
        """
        while len(self._rolled) > count and self._rolled[0].sync.try_cancel():
            self._disk.open_segments.release(self._rolled.pop(0).opened)

    # --------------------------------------------------------------------------------- internals

    def _sync_oldest(self) -> None:
        self._rolled[0].sync.finish()
        self._disk.open_segments.release(self._rolled.pop(0).opened)

    def _sync_directory(self, first: Callable[[], None] | None) -> None:
        if first is not None:
            first()
        self._disk.fs.sync_dir(self._directory)

    def _note(self, error: OSError) -> None:
        self.error = error
