"""Deleting a partition's oldest segments: as an owner what its topic does not keep, elsewhere what the owner deleted.

The owner decides below which offset records are deleted: past the topic's bytes, older than its time (`ages`), or as it
is asked (`deleting`). When an ack quorum has noted that (`core.replication.deletion`) nobody sees them any more, and
files may go that hold nothing else. While the topic is held, nothing is decided and no file goes.

That takes two steps on two threads. The first one waits for the disk: the names of the log's segments are made durable,
since what is newer must be there for good before what is older goes; and where a copy is not the only one it is noted
where the log will begin (`storage.partition.log_start`), or a copy that begins late would look like one that lacks
something. The second one takes the names away, on the thread that appends, which must not wait for what the first does.

The note needs hardly any space, but a full disk is when deleting matters most, so its file is made when the second
segment has begun, or with the next look. A disk that refuses even that is full, not broken: it is said once, and tried
again with the next look. Rejected: making it whenever an epoch begins, which a takeover would wait for.

What a copy lacks of the open epoch it can only have from a log that still has it. Without, it can neither follow that
epoch nor accept its end; where those who have it lose a disk, too few are left who can, and the epoch would never end.
So nothing of the open epoch goes that a replica of it lacks, however long it has been away. What keeps the log within
its bound then is that the epoch ends: of one that has ended, nobody needs what lies below the log's start. The next one
begins with fresh files, so a living copy gets the time to catch up until the log has `PATIENCE` times its bound, unless
the disk was full since the node started. Where a full disk keeps the epoch from ending as well, the old records go.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from tidelog_broker.core.topics import DELETING
from tidelog_broker.partition.ages import RecordAges
from tidelog_broker.partition.changes import Changes
from tidelog_broker.partition.deleting import RecordDeletion
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.partition.tools import PartitionTools
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.partition.log_start import keep_space, raise_log_start
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_proto.errors import ProtocolError

log = logging.getLogger(__name__)

PATIENCE: Final = 2
"""How many times its bound a log may grow to for copies that are behind."""

END_AGAIN_S: Final = 1.0
"""How long an epoch gets to end, for the sake of a copy that is behind, before it is tried again."""

ENDS_MAX: Final = 3
"""How often that is tried where the disk is full, before what the copy lacks is deleted."""


class Retention:
    """What keeps one partition within its bound. All methods are for the event loop's thread.

    Args:
        state: of the partition whose log it is.
        changes: told when older records are gone.
        driver: told where the log begins; ends an epoch for the sake of a copy that is behind.
        tools, io_key: the node's, and the partition's I/O worker.
        deletion: has a quorum note what is asked for.
        roll: has an owner's log begin another segment between two groups.
        failed: called with what the disk did when nobody waits for it.
    """

    def __init__(
        self,
        state: PartitionState,
        changes: Changes,
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
        self._told_of_full_disk = False
        self._has_space = False
        """Whether there is surely a file for the note, or it is being made."""
        self.ages = RecordAges(state, tools, io_key)
        self._followed_offset = 0
        """Below this the owner has deleted, and this copy after it."""
        self._soon = self._soon_after = 0
        """Below which offset is being deleted while nobody waits for it, and what is to follow."""
        self._ending = (-1, 0.0, 0)
        """The epoch that is to end for the sake of a copy that is behind, when that was last tried, and how often."""
        self._is_closed = False

    def close(self) -> None:
        """Delete nothing more: the log is about to be closed, or removed."""
        self._is_closed = True

    async def delete_before(self, offset: int, *, epoch: int) -> None:
        """As the owner of an epoch, delete whole committed segments below `offset`.

        Raises:
            ProtocolError: as `RecordDeletion.agree`; EPOCH_CHANGING: the epoch is over, see `StateLog.snapshot`.
            DiskFullError: no space to note where the log begins; what the note would have said is still there.
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
        """More records are deleted for every reader: files may go that hold nothing else."""
        if self._state.replica.state.owner is not None:
            self._delete_soon(self.removable())

    async def look(self) -> None:
        """Delete what is to go, now, and see that there is a file for the note.

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
            await self.ages.look()
            if self.ages.is_to_roll:
                await self._roll()
            if replica.state.owner is None:
                if replica.state.log_start > state.log.start_offset and not self._is_held:
                    await self._delete(self._outdated(replica.state.log_start, 0, replica.state.log_start))
            else:
                self._decide(self.due())
                below = self.removable()
                await self._delete(below)
                self._raise_log_start(below)
        except DiskFullError as error:
            self._no_space(error)
        else:
            self._told_of_full_disk = False
        self._see_to_space()

    def look_soon(self) -> None:
        """As `look`, when a segment has just begun: the bound holds at any rate, and the next one finds a file."""
        self._see_to_space()
        if self._state.replica.state.owner is not None:
            self._decide(self.due())
            self._delete_soon(self.removable())

    def follow(self) -> None:
        """Delete what the owner has deleted, if it has said so with the last append: the next segment finds a file."""
        self._see_to_space()
        replica = self._state.replica
        offset = replica.state.log_start
        if offset > self._followed_offset and replica.state.owner is None and not self._is_held:
            self._followed_offset = offset
            self._delete_soon(self._outdated(offset, 0, offset))

    def note_log_start(self) -> None:
        """Write down what another node has said about where the log begins, or what it deleted while it was alone."""
        state = self._state
        start_offset = state.replica.state.log_start
        if start_offset > 0 and not self._is_over and state.log.epochs and not state.is_alone:
            self._notes.start(self._io_key, lambda: self._keep(start_offset), lambda _, error: self._kept(error))

    # ------------------------------------------------------------------------------------------------- inside

    @property
    def _is_over(self) -> bool:
        """Whether the partition is served no more: its directory may be gone."""
        return self._is_closed or self._state.refusal is not None

    @property
    def _is_held(self) -> bool:
        return self._state.topic.config.hold

    def _decide(self, below: int) -> None:
        """Have records deleted below an offset; nothing where they are, where the topic is held, or as no owner."""
        if below > self._state.replica.state.deleted_below and not self._is_held and not self._is_over:
            self._driver.delete_below(below)

    def due(self) -> int:
        """Return below which offset whole segments are not to be kept, as the topic says; 0 for nothing."""
        state, config = self._state, self._state.topic.config
        if config.cleanup not in DELETING:
            return 0
        bytes_max, committed = config.retention_bytes, state.high_watermark
        below = self._outdated(self.ages.expired_below, 0, committed) if self.ages.expired_below else 0
        if bytes_max and state.log.size_bytes > bytes_max and not state.replica.backfill.incomplete:
            below = max(below, self._outdated(0, bytes_max, committed))
        return below

    async def _roll(self) -> None:
        """Begin another segment: nothing else would, where nothing is published, and its records would never expire.

        Raises:
            DiskFullError, StorageFailedError: as `PartitionLog.roll`.
        """
        if self._state.replica.state.owner is not None:
            self._roll_between_groups()
        elif self._driver.cut_offset is None and not self._is_over:
            await self._io.call(self._io_key, self._state.log.roll)

    def _see_to_space(self) -> None:
        """Have a file for the note made, once there is something to delete."""
        state = self._state
        if self._has_space or self._is_over or state.is_alone:
            return
        epochs = state.log.epochs
        if len(epochs) > 1 or (len(epochs) == 1 and epochs[0].segment_count > 1):
            self._has_space = True
            fs, directory = self._disk.fs, state.log.directory
            self._notes.start(
                self._io_key, lambda: keep_space(fs, directory), lambda _, error: self._saw_to_space(error)
            )

    def _saw_to_space(self, error: BaseException | None) -> None:
        if error is not None:
            self._has_space = False  # the next look tries again
            if not isinstance(error, DiskFullError) and not self._is_over:
                self._failed(error)

    def removable(self) -> int:
        """Return below which offset an owner's segments go: those that hold nothing but deleted records.

        Where some replica lacks what is to go, the epoch may have to end.
        """
        state, owner = self._state, self._state.replica.state.owner
        deleted, committed = state.replica.state.deleted_below, state.high_watermark
        if self._is_held or deleted <= state.log.start_offset:
            return 0
        held = owner.held_by_all if owner is not None else 0
        below = self._outdated(deleted, 0, committed)
        if below <= held:
            return below
        is_full = self._disk.spares.has_ended
        if is_full or self.lacks_for_long(below) or self._is_out_of_patience(held):
            tried = self.end_epoch()
            if is_full and tried > ENDS_MAX:
                return below
        return self._outdated(deleted, 0, min(committed, held))

    def _is_out_of_patience(self, held: int) -> bool:
        """Whether what a living replica lacks has been kept for it for long enough."""
        bytes_max = self._state.topic.config.retention_bytes
        by_bytes = self._outdated(0, PATIENCE * bytes_max, self._state.high_watermark) if bytes_max else 0
        return max(by_bytes, self.ages.long_expired_below) > held

    def lacks_for_long(self, offset: int) -> bool:
        """Whether a replica lacks what lies below `offset` and is away."""
        replica = self._state.replica
        alive = replica.state.cluster_hints.alive
        return any(each.held_offset < offset and not alive(each.node_id) for each in replica.followers)

    def end_epoch(self) -> int:
        """See that the open epoch ends: nobody lacks anything of the next one. Return how often that was tried."""
        state = self._state
        epoch, now_s = state.epoch, self._loop.time()
        ending, tried_s, tried = self._ending
        if ending != epoch:
            tried = 0
        elif now_s < tried_s + END_AGAIN_S:
            return tried
        self._ending = (epoch, now_s, tried + 1)
        self._loop.call_soon(self._roll_over, epoch)  # this may be called while the replica is at work
        return tried + 1

    def _roll_over(self, epoch: int) -> None:
        state, replica = self._state, self._state.replica
        if not self._is_over and replica.state.owner is not None and state.epoch == epoch and not replica.moving:
            self._driver.roll_over(replica.ownership.plan_next())

    def _outdated(self, offset: int, bytes_max: int, committed: int) -> int:
        """Return below which offset segments go, that end there or are past `bytes_max`; 0 for nothing.

        Nothing behind `committed` goes: the epoch may be decided to end there, and the log must be cut to that. Nor
        does anything behind such an end that is decided already, while the cut is on its way.
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

    def _delete_soon(self, offset: int) -> None:
        """As `_delete`, without waiting for it. One at a time: what comes meanwhile is begun behind it, all at once."""
        if self._soon:
            self._soon_after = max(self._soon_after, offset)
        elif offset:
            self._soon = offset
            self._notes.start(
                self._io_key, lambda: self._prepare(offset), lambda _, error: self._prepared(offset, error)
            )

    def _prepare(self, offset: int) -> None:
        """Wait for the disk in front of a deletion. Runs on a worker of its own."""
        self._state.log.sync_names()
        if not self._state.is_alone:
            self._keep(offset)

    def _prepared(self, offset: int, error: BaseException | None) -> None:
        if error is not None or self._is_over:
            self._looked(offset, error)
        else:
            self._io.start(
                self._io_key, lambda: self.delete_files_below(offset), lambda _, failure: self._looked(offset, failure)
            )

    def delete_files_below(self, offset: int) -> None:
        """Delete, and leave a snapshot of what the deleted records said of producers. Runs on an I/O worker.

        A snapshot is known by the batch in front of it, so a committed one has to stay: else the next look deletes.
        """
        state = self._state
        store, committed = state.log, state.high_watermark
        if store.copies.is_overtaken(offset):
            store.delete_before(offset)
        if store.limbo is not None or offset > min(committed, store.end_offset) or self._is_held:
            return
        snapshot = self.producers_before(offset, committed)
        if snapshot is not None and self._saved(snapshot, committed):
            snapshot = None
        store.delete_before(offset, lambda: not self._is_held)
        if snapshot is not None and not self._saved(snapshot, committed):  # there may be space for it now
            log.warning("%s: producers may be forgotten, there is no space for a snapshot of them", state.name)

    def producers_before(self, offset: int, committed: int) -> ProducerSnapshot | None:
        """Return the producers' state at an offset, to be kept when the records below it go; None where it is unknown.

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
            log.warning("%s: the producers cannot be told, some may be forgotten: %s", state.name, error)
            return None

    def _saved(self, snapshot: ProducerSnapshot, committed: int) -> bool:
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
            # Until it is, a start takes for missing what retention has deleted, and asks the owner.
            log.warning("%s: where the log begins was not written down: %s", self._state.name, error)

    def _looked(self, offset: int, error: BaseException | None) -> None:
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
        """Say what has been deleted, and no more: where something is still to be fetched the log begins later."""
        self._driver.raise_log_start(min(deleted, self._state.log.start_offset))

    def _no_space(self, error: DiskFullError) -> None:
        if not self._told_of_full_disk:
            self._told_of_full_disk = True
            log.warning("%s: nothing old can be deleted, it is tried again: %s", self._state.name, error.message)
