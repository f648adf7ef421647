"""The log of a partition on this node: its epochs' logs in a chain, read as one.

    DATA/partitions/TOPIC.ID-N/epoch-00000000/, epoch-00000001/, …, and producers-….snap beside them

Offsets are contiguous across the epochs of the log: an epoch begins where the one before it ends, and only the last
one may take appends. An older epoch was sealed and synced before its successor came to be, so nothing of it is ever
cut. What older epochs this node has only in part, or not next to the others, lies beside the log (see
`partition_dirs`) and comes into it when it is complete: what is not in the log is `NotHeldError`, wherever it lies.

A partition is deleted by renaming it into the trash first; what is in the trash is removed at the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.epoch.epoch_log import AppendedGroup, EpochLog
from tidelog_broker.storage.epoch.presence import forget_directory
from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.io.errors import LimboError, StorageFailedError
from tidelog_broker.storage.partition.partition_dirs import (
    TRASH_PREFIX,
    OpenedEpochs,
    PartitionName,
    epoch_dir_name,
    fill_dirs,
    note_newest_dir,
    open_epochs,
    partition_dir_name,
    remove_partition_dir,
)
from tidelog_broker.storage.partition.repair_and_fill import PartitionCopies, find_lost_epoch
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot, save_snapshot
from tidelog_broker.storage.segment.disk import Disk
from tidelog_proto.header import Buffer


class PartitionLog(PartitionCopies):
    """See the module. Made by `open`; appended to by one thread, read by any.

    A partition that was never used has no epochs and no directory: it begins with `start_epoch`.
    """

    @classmethod
    def open(
        cls, disk: Disk, partitions_dir: Path, *, topic: str, topic_id: bytes, partition: int, segment_bytes: int
    ) -> PartitionLog:
        """Recover every epoch of a partition; one that is damaged is opened all the same, see `limbo`.

        Raises:
            StorageFailedError: the disk does not read or write.
        """
        name = PartitionName(topic, topic_id, partition)
        directory = partitions_dir / partition_dir_name(*name)
        opened, lost, fills = OpenedEpochs([], None), None, list[int]()
        try:
            if disk.fs.exists(directory):
                note_newest_dir(disk.fs, directory)  # whoever was killed may not have got to it
                opened = open_epochs(disk, directory, segment_bytes=segment_bytes)
                lost = find_lost_epoch(disk, directory, opened)
                fills = list(fill_dirs(disk.fs, directory))
        except OSError as error:
            raise StorageFailedError(f"{directory} cannot be opened: {error}; check the disk") from error
        return cls(disk, directory, name, opened.logs, segment_bytes=segment_bytes, lost=lost, dormant_fills=fills)

    # ------------------------------------------------------------------------------------ appending

    def has_room(self, needed_bytes: int) -> bool:
        """See `EpochLog.has_room`."""
        return self._writable().has_room(needed_bytes)

    def reserve(self, needed_bytes: int) -> None:
        """See `EpochLog.reserve`."""
        log = self._writable()
        log.segment_bytes = self.segment_bytes
        log.reserve(needed_bytes)

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """See `EpochLog.append`."""
        return self._writable().append(batches)

    def sync(self) -> int:
        """See `EpochLog.sync`."""
        return self._writable().sync()

    def start_epoch(self, epoch: int, start_offset: int, *, is_lacking: bool = False) -> EpochLog:
        """Begin the next epoch at `start_offset`, sealing the newest one if it ends there.

        Where the log ends below, what it held until now leaves it and waits to be filled: there would be a hole. That
        is also how a partition goes on whose newest epoch is set aside or being repaired, since its end is decided.
        Beginning an epoch that has begun and is still empty changes nothing. One `is_lacking` that has begun before and
        whose directory is lost: it is in LIMBO as one being repaired.

        Raises:
            DiskFullError: the old epoch is sealed, the new one does not exist; try again when there is space.
            LimboError: the partition is damaged.
            StorageFailedError: the disk failed.
        """
        old = self.active
        if old is not None and (old.epoch, old.start_offset, old.end_offset) == (epoch, start_offset, start_offset):
            self._writable()
            return old
        self._check_may_begin(epoch)
        if old is None:
            self._make_directory()
        else:
            assert old.end_offset <= start_offset, f"epoch {epoch} at {start_offset}, the log ends at {old.end_offset}"
            assert epoch > old.epoch, f"epoch {epoch} after {old.epoch}"
            if old.end_offset < start_offset:
                self._demote(len(self._epochs))
            else:
                if old.is_repairing:
                    old.finish_repair()
                if old.state != "sealed":
                    old.seal()
        new = EpochLog.create(
            self._disk,
            self.directory / epoch_dir_name(epoch),
            topic_id=self.name.topic_id,
            partition=self.name.partition,
            epoch=epoch,
            start_offset=start_offset,
            segment_bytes=self.segment_bytes,
            is_newest=True,
            is_lacking=is_lacking,
        )
        self._epochs = (*self._epochs, new)
        self._lost = None
        self._take_in_whole()  # what was complete and did not continue the older epochs that have left the log
        return new

    def outdated(self, *, below: int, bytes_max: int, committed: int) -> int:
        """Return below which offset whole old segments are to go, 0 for none. May be called by any thread.

        Those go that end at or below `below`, or that are past `bytes_max` (0: no bound); none that ends behind
        `committed`, never the newest with records, by which a snapshot of the producers is known, and in LIMBO nothing.
        """
        if self.limbo is not None:
            return 0
        segments = [segment for log in self._epochs for segment in log.segments]
        offset, held_bytes = 0, sum(segment.size_bytes for segment in segments)  # all of it at one moment
        for segment in segments[:-1]:
            is_old = segment.end_offset <= below or 0 < bytes_max < held_bytes
            if not is_old or segment.end_offset > committed or segment.end_offset == segments[-1].end_offset:
                break
            offset, held_bytes = segment.end_offset, held_bytes - segment.size_bytes
        return offset

    def settle(self) -> None:
        """See `EpochLog.settle`. May be called by any thread.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        for log in self._epochs:
            log.settle()

    def is_overtaken(self, offset: int) -> bool:
        """Whether what lies below `offset` is all that keeps a whole copy out of the log: nothing will fill the hole.

        May be called by any thread.
        """
        if self.limbo is not None or not 0 < self.end_offset < offset:
            return False
        newest = self._epochs[-1].epoch
        return any(
            fill is not None
            and fill.is_complete
            and fill.target.epoch > newest
            and self.end_offset < fill.target.start.offset <= offset
            for fill in list(self._fills.values())
        )

    def delete_before(self, offset: int) -> int:
        """Delete whole old segments, and epochs left empty, that end at or below `offset`; the newest stays.

        All of the log goes where it `is_overtaken`: the copy behind the hole is the log from then on.

        Returns the bytes given back.

        Raises:
            StorageFailedError: a name could not be removed.
        """
        freed_bytes = 0
        if self.is_overtaken(offset):
            self._demote(len(self._epochs))
            self._take_in_whole()
        self._drop_fills_below(offset)
        while self._epochs and self._epochs[0].oldest_end_offset <= offset and (freed := self._delete_oldest()):
            freed_bytes += freed
        return freed_bytes

    def delete(self) -> None:
        """Close the partition and remove its files; it is gone durably when this returns.

        Raises:
            StorageFailedError: the disk failed; the rest is removed at the next start.
        """
        self.close(sync=False)
        fs = self._disk.fs
        trash = self.directory.with_name(TRASH_PREFIX + self.directory.name)
        try:
            forget_directory(fs, self.directory)
            if not fs.exists(self.directory):
                return
            fs.rename(self.directory, trash)
            fs.sync_dir(trash.parent)
            remove_partition_dir(fs, trash)
        except OSError as error:
            raise StorageFailedError(f"{self.directory} cannot be deleted: {error}") from error

    def close(self, *, sync: bool = True) -> None:
        """Close every epoch; the active one is synced first unless told otherwise.

        Raises:
            StorageFailedError: the last sync failed; the files are closed nevertheless.
        """
        for fill in self._fills.values():
            if fill is not None:
                fill.log.close(sync=sync)
        self._fills.clear()
        for log in self._epochs:
            log.close(sync=sync)

    def save_producer_snapshot(self, epoch: int, offset: int, digest: int, payload: bytes, *, committed: int) -> None:
        """Keep a snapshot of the producers' state beside the log, durably; see `snapshots` for which ones stay.

        Raises:
            DiskFullError: no space; the older ones are still there.
            StorageFailedError: the disk failed.
        """
        snapshot = ProducerSnapshot(epoch, offset, digest, payload)
        save_snapshot(self._disk.fs, self.directory, snapshot, committed=committed)

    # ------------------------------------------------------------------------------------ inside

    def _writable(self) -> EpochLog:
        if self.limbo is not None:
            raise LimboError(self.limbo)
        if not self._epochs:
            raise StorageFailedError(f"{self.directory} has no epoch yet")
        return self._epochs[-1]

    def _check_may_begin(self, epoch: int) -> None:
        """Refuse to begin an epoch over damage that the decision behind that epoch does not settle."""
        if self._lost is not None:
            if not self._lost.is_aside or epoch <= self._lost.epoch:
                raise LimboError(self._lost.message)
        elif self.limbo is not None:
            newest = self._epochs[-1]
            if not newest.is_repairing or any(log.damage is not None for log in self._epochs[:-1]):
                raise LimboError(self.limbo)

    def _delete_oldest(self) -> int:
        """Delete the oldest segment, and its epoch if that leaves it empty; 0 for the newest of all and in LIMBO."""
        if not self._epochs or self.limbo is not None:
            return 0
        oldest = self._epochs[0]
        if oldest.segment_count == 1 and len(self._epochs) == 1:
            return 0
        self._gone_below = oldest.oldest_end_offset
        if oldest.segment_count > 1:
            return oldest.delete_oldest_segment()
        freed_bytes = oldest.size_bytes
        self._epochs = self._epochs[1:]
        oldest.close(sync=False)
        try:
            remove_epoch_dir(self._disk.fs, oldest.directory)
        except OSError as error:
            raise StorageFailedError(f"{oldest.directory} cannot be deleted: {error}") from error
        return freed_bytes
