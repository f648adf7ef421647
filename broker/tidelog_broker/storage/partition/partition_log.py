"""The log of a partition on this node: the logs of its epochs, read as one.

The log's files are in the partition's directory:

    DATA/partitions/TOPIC.ID-N/epoch-00000000/, epoch-00000001/, …, and producers-….snap beside them

Offsets are contiguous across the epochs of the log: an epoch begins where the one before it ends, and only the last one
may take appends. An older epoch was sealed and synced before its successor was created, so it is never truncated. Older
epochs that this node has only in part, or not contiguous with the others, are stored beside the log (see
`partition_dirs`) until they are complete. Reading records outside the log raises `NotHeldError`.

A partition is deleted by renaming its directory to a name with `TRASH_PREFIX`, and then removing it; the next start
removes what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tidelog_broker.storage.directory.existence_markers import remove_directory_marker
from tidelog_broker.storage.engine.store import SEGMENT, AppendedGroup, EpochStart, EpochStore, State, Volume
from tidelog_broker.storage.engines.stores import (
    create_store,
    forget_stores,
    record_indexes,
    remove_store,
    survives_restart,
)
from tidelog_broker.storage.io.errors import (
    DamagedError,
    DiskFullError,
    DivergedError,
    LimboError,
    StorageFailedError,
    unreadable,
)
from tidelog_broker.storage.partition.append_times import AppendTimes
from tidelog_broker.storage.partition.compacted_copies import CompactedCopies
from tidelog_broker.storage.partition.detached_epochs import DetachedEpochs
from tidelog_broker.storage.partition.epoch_copies import EpochCopies
from tidelog_broker.storage.partition.epoch_repair import EpochRepair
from tidelog_broker.storage.partition.held_epochs import HeldEpochs, find_lost_epoch
from tidelog_broker.storage.partition.matching import MatchingReader
from tidelog_broker.storage.partition.partition_dirs import (
    TRASH_PREFIX,
    OpenedEpochs,
    PartitionName,
    epoch_dir_name,
    mark_newest_dir,
    open_epochs,
    partial_copy_dirs,
    partition_dir_name,
    remove_partition_dir,
)
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_broker.storage.partition.projecting import ProjectingReader
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot, drop_snapshots_behind, save_snapshot
from tidelog_proto.batch.header import Buffer
from tidelog_proto.batch.row_layout import Layouts


class LogBeginning(NamedTuple):
    """The beginning of a log: its epoch, its offset, and the running digest of the epoch there."""

    epoch: int
    offset: int
    digest: int


class PartitionLog:
    """The log of a partition. Created by `open`; appended to by one thread, read by any.

    A partition that was never used has no epochs and no directory; `start_epoch` creates them.
    """

    def __init__(self, held: HeldEpochs, dormant_copies: Sequence[int] = ()) -> None:
        self._held = held
        self.directory = held.directory
        self.name = held.name
        self.reader = PartitionLogReader(held)
        """Reads the log, on any thread."""
        self.indexes = record_indexes(held)
        """Indexes to find records by key and tag."""
        self.before_leaving: Callable[[], None] = lambda: None
        """Called before epochs leave the log because the next epoch begins after a gap."""
        self.after_leaving: Callable[[], None] = lambda: None
        """Called when an epoch has begun while there are copies beside the log, such as epochs that have left it."""
        self.matching = MatchingReader(held, self.indexes)
        """Reads records that match a filter, on any thread."""
        self.projecting = ProjectingReader(held, self.reader)
        """Reads some columns, or records of a time range, on any thread."""
        self.copies = EpochCopies(held, dormant_copies)
        """Partial copies of missing epochs."""
        self.detached = DetachedEpochs(held)
        """Reads complete copies beside the log."""
        self.compacted = CompactedCopies(held)
        """Swaps in compacted versions of sealed epochs."""
        self.times = AppendTimes(held)
        """Reads the age of the segments."""
        self.repair = EpochRepair(held)
        """Repairs the newest epoch."""

    @classmethod
    def open(
        cls,
        disk: Volume,
        partitions_dir: Path,
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        segment_bytes: int,
        layouts: Layouts | None = None,
    ) -> PartitionLog:
        """Recover the epochs of a partition; damage does not raise an error, but puts the log into LIMBO, see `limbo`.

        Args:
            layouts: of the batches of a typed topic, see `HeldEpochs`.

        Raises:
            StorageFailedError: the disk cannot be read or written.
        """
        name = PartitionName(topic, topic_id, partition)
        directory = partitions_dir / partition_dir_name(*name)
        opened, lost, copies = OpenedEpochs([], None), None, list[int]()
        try:
            if disk.fs.exists(directory):
                mark_newest_dir(disk.fs, directory)  # A killed process may not have created the existence markers.
                opened = open_epochs(disk, directory, segment_bytes=segment_bytes)
                lost = find_lost_epoch(disk, directory, opened)
                copies = list(partial_copy_dirs(disk.fs, directory))
        except OSError as error:
            raise unreadable(f"{directory} cannot be opened", error) from error
        held = HeldEpochs(disk, directory, name, opened.logs, segment_bytes=segment_bytes, lost=lost, layouts=layouts)
        return cls(held, copies)

    # ----------------------------------------------------------------------------------------- state

    @property
    def segment_bytes(self) -> int:
        """The size of segments that begin from now on."""
        return self._held.segment_bytes

    @segment_bytes.setter
    def segment_bytes(self, size_bytes: int) -> None:
        self._held.segment_bytes = size_bytes

    @property
    def layouts(self) -> Layouts | None:
        """The layouts of the batches of a typed topic, by schema number; None for an untyped topic."""
        return self._held.layouts

    @property
    def epochs(self) -> tuple[EpochStore, ...]:
        """The epochs' stores, oldest first; the last one is the active one."""
        return self._held.epochs

    @property
    def active(self) -> EpochStore | None:
        """The newest epoch's store, None before the first one."""
        return self._held.epochs[-1] if self._held.epochs else None

    @property
    def state(self) -> State:
        """The newest epoch's state, "sealed" before the first one; "limbo" if any epoch is in LIMBO."""
        return self._held.state

    @property
    def limbo(self) -> str | None:
        """Why the partition is in LIMBO, for the operator; None if it is not."""
        return self._held.limbo

    @property
    def unreadable_epoch(self) -> int | None:
        """The damaged epoch that cannot be opened, so that older ones were not opened either; None if all are open."""
        return self._held.unreadable_epoch

    @property
    def needs_engine(self) -> bool:
        """Whether an epoch cannot be opened because its engine is not installed."""
        return self._held.needs_engine

    def unreadable_error(self, offset: int) -> DamagedError:
        """Return the error for an offset that cannot be read because the partition is in LIMBO."""
        return self._held.unreadable_error(offset)

    @property
    def start_offset(self) -> int:
        """The first readable offset, 0 before the first epoch; the log has no gaps after it."""
        return self._held.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last record; 0 before the first epoch."""
        return self._held.end_offset

    @property
    def end_digest(self) -> int:
        """The running digest at the end of the newest epoch."""
        return self._held.end_digest

    @property
    def synced_offset(self) -> int:
        """The end of the synced part of the newest epoch."""
        return self._held.synced_offset

    @property
    def size_bytes(self) -> int:
        """The size of the log's segments, without partial copies and copies that were set aside."""
        return self._held.size_bytes

    def survives_restart(self, engine: str) -> bool:
        """Return whether an engine's synced records survive a restart; True also if the engine is not installed."""
        return survives_restart(self._held.disk, engine)

    def log_of(self, epoch: int) -> EpochStore | None:
        """Return the store of an epoch; None if the partition's log does not have the epoch."""
        return self._held.log_of(epoch)

    def copy_of(self, epoch: int) -> EpochStore | None:
        """Return the store of an epoch in the log, or of its complete copy beside the log; None if there is neither."""
        return self._held.copy_of(epoch)

    def epoch_end(self, epoch: int, start_offset: int) -> tuple[int, int]:
        """Return end offset and end digest of an epoch; if the log does not have it, `start_offset` and 0."""
        return self._held.epoch_end(epoch, start_offset)

    # ------------------------------------------------------------------------------------ appending

    def ensure_space(self, needed_bytes: int) -> None:
        """See `EpochStore.ensure_space`."""
        log = self._writable()
        log.segment_bytes = self._held.segment_bytes
        log.ensure_space(needed_bytes)

    def has_room(self, epoch: int, needed_bytes: int) -> bool:
        """Return whether a group fits an epoch without allocating space, rolling a segment, or creating the epoch."""
        epochs = self._held.epochs
        return bool(epochs) and epochs[-1].epoch == epoch and epochs[-1].has_room(needed_bytes)

    def staging(self, epoch: int, needed_bytes: int) -> EpochStore | None:
        """Return the store of an epoch if it may stage a batch of this padded size.

        None if the epoch is not the newest one of the log, if a part of the log is damaged or missing, and if the log
        has indexes, which follow each append.
        """
        held = self._held
        epochs = held.epochs
        if not epochs or epochs[-1].epoch != epoch or held.lost is not None or self.indexes.columns:
            return None
        for log in epochs:
            if log.held.damage is not None:
                return None
        newest = epochs[-1]
        return newest if newest.may_stage(needed_bytes) else None

    def make_space(self, epoch: int, start_offset: int, needed_bytes: int, *, engine: str = SEGMENT) -> bool:
        """Allocate space for a group, creating its epoch if needed. Return whether a new segment was created.

        Raises:
            DiskFullError: no space; nothing has changed.
            LimboError, StorageFailedError: as `start_epoch` and `ensure_space`.
        """
        active = self.active
        if active is None or active.epoch != epoch:
            active = self.start_epoch(epoch, start_offset, engine=engine)
        segments = active.segment_count
        self.ensure_space(needed_bytes)
        return active.segment_count > segments

    def roll(self) -> bool:
        """Roll to a new segment if the newest has batches and takes appends; return whether it did.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        active = self.active
        if active is None or active.state != "active" or self.limbo is not None:
            return False
        return active.roll()

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """See `EpochStore.append`."""
        epochs = self._held.epochs
        is_checked = bool(epochs) and self._held.lost is None
        for log in epochs:
            if log.held.damage is not None:
                is_checked = False
        newest = epochs[-1] if is_checked else self._writable()
        appended = newest.append(batches)
        if self.indexes.columns:
            self.indexes.appended()
        return appended

    def sync(self) -> int:
        """See `EpochStore.sync`."""
        return self._writable().sync()

    def start_epoch(
        self, epoch: int, start_offset: int, *, engine: str = SEGMENT, is_lacking: bool = False
    ) -> EpochStore:
        """Begin the next epoch at `start_offset`, sealing the newest one if it ends there.

        If the log ends earlier, its epochs leave it and become partial copies, because there would be a gap. A
        partition whose newest epoch is set aside or being repaired continues with this call, too, because the end of
        that epoch is decided. Beginning an epoch that has begun and is still empty changes nothing.

        Args:
            engine: the name of the engine that stores a new epoch.
            is_lacking: whether the epoch had begun before and its directory was lost: it is in LIMBO then, as during a
                repair.

        Raises:
            EngineMissingError: the engine is not installed; the old epoch may be sealed.
            DiskFullError: the old epoch is sealed, the new one does not exist; try again when there is space.
            LimboError: the partition is damaged.
            StorageFailedError: the disk failed.
        """
        old = self.active
        if old is not None and (old.epoch, old.start_offset, old.end_offset) == (epoch, start_offset, start_offset):
            self._writable()
            return old
        self._check_may_begin(epoch)
        until_durable: Callable[[], None] | None = None
        if old is None:
            until_durable = self._held.make_directory()
        else:
            assert old.end_offset <= start_offset, f"epoch {epoch} at {start_offset}, the log ends at {old.end_offset}"
            assert epoch > old.epoch, f"epoch {epoch} after {old.epoch}"
            if old.end_offset < start_offset:
                self.before_leaving()
                self.copies.demote(len(self._held.epochs))
            else:
                if old.is_repairing:
                    old.finish_repair()
                if old.state != "sealed":
                    old.seal()
        try:
            new = create_store(
                self._held.disk,
                self.directory / epoch_dir_name(epoch),
                EpochStart(self.name.topic_id, self.name.partition, epoch, start_offset),
                engine=engine,
                segment_bytes=self._held.segment_bytes,
                is_newest=True,
                is_lacking=is_lacking,
                before_named=until_durable,
            )
        except DiskFullError:
            if until_durable is not None:
                # A later attempt would mistake a failed sync that was not reported for a successful one.
                until_durable()
            raise
        self._held.epochs = (*self._held.epochs, new)
        self._held.lost = None
        # The older epochs have left the log, so complete copies beside it may continue the log now.
        self.copies.add_complete_copies()
        if self.copies.partial_epochs:
            self.after_leaving()
        return new

    def truncate_epoch(self, epoch: int, end_offset: int) -> None:
        """Truncate the newest epoch's log to its decided end, durably. See `EpochStore.truncate`.

        An epoch without files has nothing to truncate. LIMBO of this epoch ends if its log is valid up to the decided
        end.

        Raises:
            DivergedError: no batch of this log ends at `end_offset`; nothing has changed.
            LimboError, DamagedError: the log is damaged before `end_offset`; nothing has changed.
            StorageFailedError: the disk failed.
        """
        log = self.active
        if log is None or log.epoch < epoch:
            return
        assert log.epoch == epoch, f"epoch {epoch} is sealed, {log.epoch} is the newest"
        if end_offset > log.end_offset:
            if log.damage is not None and self.limbo is not None:
                raise LimboError(self.limbo)
            raise DivergedError(
                f"{log.directory} ends at offset {log.end_offset}, but epoch {epoch} ends at {end_offset}"
            )
        log.truncate(end_offset)
        try:
            drop_snapshots_behind(self._held.disk.fs, self.directory, end_offset)
        except OSError as error:
            raise StorageFailedError(
                f"producer snapshots in {self.directory} cannot be removed: {error}; check the disk"
            ) from error

    def outdated(self, *, below: int, bytes_max: int, committed: int) -> int:
        """Return the offset below which retention is to delete whole old segments, or 0. Thread-safe.

        Nothing is deleted in LIMBO, and the newest segment is never deleted.

        Args:
            below: segments that end at or below this offset are deleted.
            bytes_max: the oldest segments are deleted while the log is larger than this; 0: no limit.
            committed: segments that end above this offset are not deleted.
        """
        if self.limbo is not None:
            return 0
        segments = [segment for log in self._held.epochs for segment in log.segments]
        offset, held_bytes = 0, sum(segment.size_bytes for segment in segments)  # One consistent view of the segments.
        for segment in segments[:-1]:
            is_old = segment.end_offset <= below or 0 < bytes_max < held_bytes
            if not is_old or segment.end_offset > committed:
                break
            offset, held_bytes = segment.end_offset, held_bytes - segment.size_bytes
        return offset

    def sync_names(self) -> None:
        """See `EpochStore.sync_names`. Thread-safe.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        for log in self._held.epochs:
            log.sync_names()

    def beginning_above(self, below: int) -> LogBeginning | None:
        """Return where the log begins once the records below an offset are deleted; None if it has no epoch."""
        parts = [(held.epoch, part) for held in self._held.epochs for part in held.segments]
        found = next((one for one in parts if one[1].end_offset > below), parts[-1]) if parts else None
        return LogBeginning(found[0], found[1].base_offset, found[1].start_digest) if found is not None else None

    def delete_before(self, offset: int, go_on: Callable[[], bool] = lambda: True) -> int:
        """Delete whole old segments, and epochs left empty, that end at or below `offset`; the newest stays.

        If the log is overtaken (`EpochCopies.is_overtaken`), all of it is deleted, and the copy after the gap becomes
        the log.

        Args:
            go_on: called before each deletion; False ends the deletions.

        Returns:
            The bytes freed.

        Raises:
            StorageFailedError: the files of a segment could not be removed.
        """
        freed_bytes = 0
        if self.copies.is_overtaken(offset):
            self.copies.demote(len(self._held.epochs))
            self.copies.add_complete_copies()
        self.copies.drop_below(offset)
        while (
            self._held.epochs
            and self._held.epochs[0].oldest_end_offset <= offset
            and go_on()
            and (freed := self._delete_oldest())
        ):
            freed_bytes += freed
        return freed_bytes

    def delete(self) -> None:
        """Close the partition and remove its files, durably.

        Raises:
            StorageFailedError: the disk failed; the rest is removed at the next start.
        """
        self.close(sync=False)
        fs = self._held.disk.fs
        trash = self.directory.with_name(TRASH_PREFIX + self.directory.name)
        try:
            remove_directory_marker(fs, self.directory)
            if not fs.exists(self.directory):
                return
            forget_stores(self._held.disk, self.directory)
            fs.rename(self.directory, trash)
            fs.sync_dir(trash.parent)
            remove_partition_dir(fs, trash)
        except OSError as error:
            raise StorageFailedError(f"{self.directory} cannot be deleted: {error}; check the disk") from error

    def close(self, *, sync: bool = True) -> None:
        """Close every epoch and every copy; with `sync`, those that take appends are synced first.

        Raises:
            StorageFailedError: the last sync failed; the files are closed nevertheless.
        """
        self.copies.close(sync=sync)
        self.indexes.close()
        for log in self._held.epochs:
            log.close(sync=sync)

    def save_producer_snapshot(self, epoch: int, offset: int, digest: int, payload: bytes, *, committed: int) -> None:
        """Save a snapshot of the producers' state beside the log, durably; see `snapshots` for the ones that are kept.

        Raises:
            DiskFullError: no space; the older ones are unchanged.
            StorageFailedError: the disk failed.
        """
        snapshot = ProducerSnapshot(epoch, offset, digest, payload)
        save_snapshot(self._held.disk.fs, self.directory, snapshot, committed=committed)

    # --------------------------------------------------------------------------------- internals

    def _writable(self) -> EpochStore:
        held = self._held
        if held.lost is not None:
            raise LimboError(held.lost.message)
        for log in held.epochs:
            if log.damage is not None:
                raise LimboError(str(held.limbo))
        if not held.epochs:
            raise StorageFailedError(f"{self.directory} takes no appends: no epoch has begun")
        return held.epochs[-1]

    def _check_may_begin(self, epoch: int) -> None:
        """Refuse to begin an epoch after damage that the decided end of the previous epoch does not remove."""
        if self._held.lost is not None:
            if not self._held.lost.is_aside or epoch <= self._held.lost.epoch:
                raise LimboError(self._held.lost.message)
        elif self.limbo is not None:
            newest = self._held.epochs[-1]
            if not newest.is_repairing or any(log.damage is not None for log in self._held.epochs[:-1]):
                raise LimboError(self.limbo)

    def _delete_oldest(self) -> int:
        """Delete the oldest segment, and its epoch if it is then empty; return the freed bytes, 0 if it must stay."""
        if not self._held.epochs or self.limbo is not None:
            return 0
        oldest = self._held.epochs[0]
        if oldest.segment_count == 1 and len(self._held.epochs) == 1:
            return 0
        self._held.gone_below = oldest.oldest_end_offset
        if oldest.segment_count > 1:
            return oldest.delete_oldest_segment()
        freed_bytes = oldest.size_bytes
        self._held.epochs = self._held.epochs[1:]
        oldest.close(sync=False)
        try:
            remove_store(self._held.disk, oldest.directory)
        except OSError as error:
            raise StorageFailedError(f"{oldest.directory} cannot be deleted: {error}; check the disk") from error
        return freed_bytes
