"""Deletion of a partition's oldest segments: the owner decides by the topic's settings, other replicas follow.

The owner decides below which offset records are deleted: because the log exceeds the topic's retention size, because
records exceed its retention time (`record_ages`), or on request (`record_deletion`). When an ack quorum has agreed
(`core.replication.deletion`) no reader sees these records any more, and files with only deleted records may be removed.
While the topic is on hold, nothing is decided and no file is removed.

A deletion takes two steps on two threads. The first one waits for the disk: the names of the log's segments are synced,
because newer segments must be durable before older ones are removed; and unless this is the only copy the log start is
stored (`storage.partition.log_start`), because a copy that begins late would otherwise look incomplete. The second one
removes the names, on the appending thread, which must not wait for the disk.

The stored log start needs hardly any space, but deletions matter most on a full disk, so its file is created when the
second segment has begun, or at the next check. If a full disk refuses even that, it is logged once and retried at the
next check. Rejected: creating it whenever an epoch begins, which would delay a takeover.

A replica can fetch missing records of the open epoch only from a log that still has them. Without them it can neither
follow the epoch nor accept its end; if other replicas then lose a disk, too few can, and the epoch would never end. So
records of the open epoch that a replica lacks are kept, however long it has been away. To stay within its bound the log
then ends the epoch: of an ended epoch no replica needs records below the log start. The next epoch begins with new
files, so a live replica gets time to catch up until the log has `LAGGARD_GROWTH_FACTOR` times its bound, unless the
disk has been full since the node started. If a full disk prevents the end of the epoch as well, the old records are
deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tidelog_broker.core.topics import DELETING
from tidelog_broker.partition.change_notifier import ChangeNotifier
from tidelog_broker.partition.record_ages import RecordAges
from tidelog_broker.partition.record_deletion import RecordDeletion
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.partition.log_start import keep_space, raise_log_start
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

LAGGARD_GROWTH_FACTOR: Final = 2
"""How many times its retention size a log may grow while it keeps records for lagging replicas."""

END_EPOCH_RETRY_S: Final = 1.0
"""How long to wait for the end of an epoch that a lagging replica blocks before trying again."""

ENDS_MAX: Final = 3
"""Maximum number of attempts to end the epoch on a full disk, before the records that replicas lack are deleted."""


class Retention:
    """Applies the topic's retention to one partition. All methods are for the event loop's thread.

    Args:
        changes: notified when older records are deleted.
        driver: informed of the log start; ends an epoch for a lagging replica.
        deletion: proposes deletions to a quorum.
        roll: rolls an owner's log to a new segment between two groups.
        failed: called with the error if the disk fails during background work.
    """

    def __init__(
        self,
        state: PartitionState,
        changes: ChangeNotifier,
        driver: ReplicaDriver,
        *,
        tools: PartitionTools,
        io_key: int,
        deletion: RecordDeletion,
        roll: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._state = state
        self._changes = changes
        self._driver = driver
        self._deletion = deletion
        self._roll_between_groups = roll
        self._failed = failed
        self._loop, self._disk, self._io, self._notes = tools.loop, tools.disk, tools.io, tools.notes
        self._io_key = io_key
        self._logged_full_disk = False
        self._has_space = False
        """Whether the log-start file exists, or is being created."""
        self.ages = RecordAges(state, tools, io_key)
        self._followed_offset = 0
        """The owner's last log start up to which this copy has begun to delete segments."""
        self._soon = self._soon_after = 0
        """The offset of the running background deletion, and that of the next one."""
        self._ending = (-1, 0.0, 0)
        """The epoch to be ended for a lagging replica, the time of the last attempt, and the number of attempts."""
        self._is_closed = False

    def close(self) -> None:
        """Begin no more deletions, because the log is about to be closed or removed."""
        self._is_closed = True

    async def delete_before(self, offset: int, *, epoch: int) -> None:
        """As the owner of an epoch, delete whole committed segments below `offset`.

        Raises:
            ProtocolError: as `RecordDeletion.agree`; EPOCH_CHANGING: the epoch is over, see `StateLog.snapshot`.
            DiskFullError: no space to store the log start; the files remain.
            StorageFailedError: the disk failed.
        """
        if self._state.epoch != epoch:
            raise self._state.outdated(epoch)
        below = self._outdated(offset, 0, self._state.high_watermark)
        await self._deletion.agree(below, epoch=epoch)
        below = self.removable()
        await self._delete(below)
        if self._state.replica.state.owner is not None:
            self._raise_log_start(below)

    def records_deleted(self) -> None:
        """Remove files in the background, because a quorum has agreed to delete more records."""
        if self._state.replica.state.owner is not None:
            self._delete_soon(self.removable())

    async def check(self) -> None:
        """Delete expired segments, and ensure that the log-start file exists.

        Raises:
            StorageFailedError: the disk failed.
        """
        state = self._state
        replica = state.replica
        if self._is_over or replica.state.halted is not None:
            return
        try:
            if self._driver.cut_offset is None and state.log.copies.is_overtaken(replica.state.log_start):
                await self._delete(replica.state.log_start)
                self._changes.wake()
            await self.ages.find_expired()
            if self.ages.must_roll:
                await self._roll()
            if replica.state.owner is None:
                if replica.state.log_start > state.log.start_offset and not self._is_held:
                    await self._delete(self._outdated(replica.state.log_start, 0, replica.state.log_start))
            else:
                self._decide(self.due())
                below = self.removable()
                await self._delete(below)
                self._raise_log_start(below)
            if not self._is_held:
                await self._drop_partial_copies(replica.state.log_start)
        except DiskFullError as error:
            self._no_space(error)
        else:
            self._logged_full_disk = False
        self._create_log_start_soon()

    def check_soon(self) -> None:
        """Delete in the background when a segment has begun, so that the bound holds and files are reused."""
        self._create_log_start_soon()
        if self._state.replica.state.owner is not None:
            self._decide(self.due())
            self._delete_soon(self.removable())

    def follow(self) -> None:
        """Delete in the background up to the log start in the owner's last append, so that files are reused."""
        self._create_log_start_soon()
        replica = self._state.replica
        offset = replica.state.log_start
        if offset > self._followed_offset and replica.state.owner is None and not self._is_held:
            self._followed_offset = offset
            self._delete_soon(self._outdated(offset, 0, offset))

    def note_log_start(self) -> None:
        """Store the log start in the background, unless this is the only copy.

        Another node has reported it, or this node has deleted records while it had the only copy.
        """
        state = self._state
        start_offset = state.replica.state.log_start
        if start_offset > 0 and not self._is_over and state.log.epochs and not state.is_alone:
            self._notes.start(self._io_key, lambda: self._keep(start_offset), lambda _, error: self._kept(error))

    # ---------------------------------------------------------------------------------------------- internals

    @property
    def _is_over(self) -> bool:
        """Whether the partition is closed: its directory may have been removed."""
        return self._is_closed or self._state.refusal is not None

    @property
    def _is_held(self) -> bool:
        return self._state.topic.config.hold

    def _decide(self, below: int) -> None:
        """Propose the deletion of records below an offset, once; do nothing on hold or if another node owns the log."""
        if below > self._state.replica.state.deleted_below and not self._is_held and not self._is_over:
            self._driver.delete_below(below)

    def due(self) -> int:
        """Return the offset below which whole segments exceed the topic's retention; 0 if no segment does."""
        state, config = self._state, self._state.topic.config
        if config.cleanup not in DELETING:
            return 0
        bytes_max, committed = config.retention_bytes, state.high_watermark
        below = self._outdated(self.ages.expired_below, 0, committed) if self.ages.expired_below else 0
        if bytes_max and state.log.size_bytes > bytes_max and not state.replica.backfill.awaits_any:
            below = max(below, self._outdated(0, bytes_max, committed))
        return below

    async def _roll(self) -> None:
        """Roll to a new segment: without publishes the segment would never be rolled and its records never expire."""
        if self._state.replica.state.owner is not None:
            self._roll_between_groups()
        elif self._driver.cut_offset is None and not self._is_over:
            await self._io.call(self._io_key, self._state.log.roll)

    def _create_log_start_soon(self) -> None:
        """Create the log-start file in the background once the log has a second segment."""
        state = self._state
        if self._has_space:
            return
        epochs = state.log.epochs
        is_long = len(epochs) > 1 or (len(epochs) == 1 and epochs[0].segment_count > 1)
        if state.is_alone and (state.replica.state.halted is not None or not self._driver.view.may_store_start()):
            return
        if is_long and not self._is_over:
            self._has_space = True
            fs, directory = self._disk.fs, state.log.directory
            # The start of an only copy that was opened without the file counts as that of retention.
            start_offset = state.replica.state.log_start if state.is_alone else 0

            def create() -> None:
                keep_space(fs, directory)
                raise_log_start(fs, directory, start_offset)

            self._notes.start(self._io_key, create, lambda _, error: self._log_start_created(error))

    def _log_start_created(self, error: BaseException | None) -> None:
        if error is not None:
            self._has_space = False  # The next check tries again.
            if not isinstance(error, DiskFullError) and not self._is_over:
                self._failed(error)

    def removable(self) -> int:
        """Return the offset below which an owner's segments have only deleted records and may be removed, or 0.

        If a replica lacks some of them, the epoch may have to end.
        """
        state, owner = self._state, self._state.replica.state.owner
        deleted, committed = state.replica.state.deleted_below, state.high_watermark
        if self._is_held or deleted <= state.log.start_offset:
            return 0
        held = owner.held_by_all if owner is not None else 0
        below = self._outdated(deleted, 0, committed)
        if below <= held:
            return below
        is_full = self._disk.was_full
        if is_full or self.lacked_by_down_replica(below) or self._exceeds_laggard_bound(held):
            tried = self.end_epoch()
            if is_full and tried > ENDS_MAX:
                return below
        return self._outdated(deleted, 0, min(committed, held))

    def _exceeds_laggard_bound(self, held: int) -> bool:
        """Return whether records above offset `held` exceed the size or age up to which they are kept for laggards."""
        bytes_max = self._state.topic.config.retention_bytes
        by_bytes = self._outdated(0, LAGGARD_GROWTH_FACTOR * bytes_max, self._state.high_watermark) if bytes_max else 0
        return max(by_bytes, self.ages.long_expired_below) > held

    def lacked_by_down_replica(self, offset: int) -> bool:
        """Return whether a replica lacks records below `offset` and is down."""
        replica = self._state.replica
        alive = replica.state.cluster_hints.alive
        return any(each.held_offset < offset and not alive(each.node_id) for each in replica.followers)

    def end_epoch(self) -> int:
        """Begin to end the open epoch, because no replica lacks records of the next one; return the number of attempts.

        Does nothing within `END_EPOCH_RETRY_S` of the last attempt.
        """
        state = self._state
        epoch, now_s = state.epoch, self._loop.time()
        ending, tried_s, tried = self._ending
        if ending != epoch:
            tried = 0
        elif now_s < tried_s + END_EPOCH_RETRY_S:
            return tried
        self._ending = (epoch, now_s, tried + 1)
        self._loop.call_soon(self._roll_over, epoch)  # This may be called while the replica handles an input.
        return tried + 1

    def _roll_over(self, epoch: int) -> None:
        state, replica = self._state, self._state.replica
        if not self._is_over and replica.state.owner is not None and state.epoch == epoch and not replica.moving:
            self._driver.roll_over(replica.ownership.plan_next())

    def _outdated(self, offset: int, bytes_max: int, committed: int) -> int:
        """Return the offset below which segments end at or below `offset` or exceed `bytes_max`; 0 if no segment does.

        Nothing after `committed` is deleted: the epoch may be decided to end there, and the log must be truncated to
        it. Nor is anything after a decided end whose truncation is pending.
        """
        cut_offset = self._driver.cut_offset
        if cut_offset is not None:
            committed = min(committed, cut_offset)
        return self._state.log.outdated(below=offset, bytes_max=bytes_max, committed=committed)

    async def _delete(self, offset: int) -> None:
        """Delete whole segments below `offset`.

        Raises:
            DiskFullError, StorageFailedError: as `delete_before`.
        """
        if not offset:
            return
        try:
            await self._notes.call(self._io_key, self._prepare, offset)
            if not self._is_over:
                await self._io.call(self._io_key, self.delete_files_below, offset)
        except StorageFailedError:
            if not self._is_over:
                raise

    async def _drop_partial_copies(self, offset: int) -> None:
        """Remove partial copies of epochs that end at or below the log start.

        `_delete` removes them with segments of the log. A log that begins at the log start has no such segments, as on
        a node whose disk was full until all older records were deleted: the copies would occupy its disk.

        Raises:
            DiskFullError, StorageFailedError: as `delete_before`.
        """
        copies = self._state.log.copies
        if not copies.has_copy_below(offset):
            return
        try:
            await self._notes.call(self._io_key, self._prepare, offset)
            if not self._is_over and not self._is_held:
                await self._io.call(self._io_key, copies.drop_below, offset)
        except StorageFailedError:
            if not self._is_over:
                raise

    def _delete_soon(self, offset: int) -> None:
        """Delete in the background. One deletion at a time: later ones are merged and follow it."""
        if self._soon:
            self._soon_after = max(self._soon_after, offset)
        elif offset:
            self._soon = offset
            self._notes.start(
                self._io_key, lambda: self._prepare(offset), lambda _, error: self._prepared(offset, error)
            )

    def _prepare(self, offset: int) -> None:
        """Sync the segments' names, and store the log start, before a deletion. Runs on a separate worker."""
        self._state.log.sync_names()
        if not self._state.is_alone:
            self._keep(offset)

    def _prepared(self, offset: int, error: BaseException | None) -> None:
        if error is not None or self._is_over:
            self._log_start_stored(offset, error)
        else:
            self._io.start(
                self._io_key,
                lambda: self.delete_files_below(offset),
                lambda _, failure: self._log_start_stored(offset, failure),
            )

    def delete_files_below(self, offset: int) -> None:
        """Delete segments, after saving the producers' state in a snapshot. Runs on an I/O worker.

        A snapshot is validated by the batch before it, so a committed batch must remain; without one, nothing is
        deleted until the next check.
        """
        state = self._state
        store, committed = state.log, state.high_watermark
        if store.copies.is_overtaken(offset):
            store.delete_before(offset)
        if store.limbo is not None or offset > min(committed, store.end_offset) or self._is_held:
            return
        snapshot = self.producers_before(offset, committed)
        if snapshot is not None and self._save_snapshot(snapshot, committed):
            snapshot = None
        store.delete_before(offset, lambda: not self._is_held)
        # The snapshot may fit now, because the deletion may have freed space.
        if snapshot is not None and not self._save_snapshot(snapshot, committed):
            log.warning(
                "%s: the producer snapshot cannot be written, so old batches that producers send again may be stored "
                "twice; free disk space, or raise the limit of open files",
                state.name,
            )

    def producers_before(self, offset: int, committed: int) -> ProducerSnapshot | None:
        """Return the producers' state to be saved before the records below an offset are deleted.

        None if a later snapshot has the same information, or the state is unknown or cannot be read, which is logged.

        Raises:
            StorageFailedError: the disk failed.
        """
        state = self._state
        view, log_start = self._driver.view, state.replica.state.log_start
        try:
            return view.producers.keep(offset, committed=committed, log_start=log_start)
        except StorageFailedError:
            raise
        except ProtocolError as error:
            log.warning(
                "%s: the producer state cannot be read and saved before records are deleted, so old batches that "
                "producers send again may be stored twice: %s",
                state.name,
                error,
            )
            return None

    def _save_snapshot(self, snapshot: ProducerSnapshot, committed: int) -> bool:
        try:
            self._state.log.save_producer_snapshot(*snapshot, committed=committed)
        except DiskFullError:
            return False
        return True

    def _keep(self, offset: int) -> None:
        raise_log_start(self._disk.fs, self._state.log.directory, offset)

    def _kept(self, error: BaseException | None) -> None:
        if isinstance(error, StorageFailedError):
            if not self._is_over:
                self._failed(error)
        elif error is not None:
            # Until it is stored, a start treats deleted records as missing, and asks the owner.
            log.warning(
                "%s: cannot store the start offset of the log; after a restart this node asks the owner for it: %s",
                self._state.name,
                error,
            )

    def _log_start_stored(self, offset: int, error: BaseException | None) -> None:
        after, self._soon, self._soon_after = self._soon_after, 0, 0
        if self._is_over:
            return
        if isinstance(error, DiskFullError):
            self._no_space(error)
        elif error is not None:
            self._failed(error)
        else:
            self._raise_log_start(offset)
            self._delete_soon(after)

    def _raise_log_start(self, deleted: int) -> None:
        """Report the deletion to the replica; the log start stays lower while older records are being fetched."""
        self._driver.raise_log_start(min(deleted, self._state.log.start_offset))

    def _no_space(self, error: DiskFullError) -> None:
        if not self._logged_full_disk:
            self._logged_full_disk = True
            log.warning("%s: old segments cannot be deleted, retrying later: %s", self._state.name, error.message)
