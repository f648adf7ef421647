"""The log of a partition on this node: its epochs' logs in a chain, read as one.

    DATA/partitions/TOPIC.ID-N/epoch-00000000/, epoch-00000001/, …, and producers-….snap beside them

Offsets are contiguous across epochs: an epoch begins where the one before it ends, and only the last one may take
appends. An older epoch was sealed and synced before its successor came to be, so nothing of it is ever cut.
A partition is deleted by renaming it into the trash first; what is in the trash is removed at the next start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.disk import Disk
from tidelog_broker.storage.epoch_log import AppendedGroup, EpochLog, ReadResult, State
from tidelog_broker.storage.errors import DamagedError, LimboError, StorageFailedError, space_or_failure
from tidelog_broker.storage.filesystem import FileSystem
from tidelog_broker.storage.recovery import remove_epoch_dir
from tidelog_broker.storage.segment import NEW_SUFFIX, SEGMENT_HEADER_BYTES
from tidelog_broker.storage.snapshots import ProducerSnapshot, load_snapshot, save_snapshot
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader, Buffer
from tidelog_proto.limits import FETCH_BYTES_MAX, TOPIC_ID_BYTES

TRASH_PREFIX: Final = ".trash-"
_EPOCH_DIR: Final = re.compile(r"epoch-(\d{8,20})")
_PARTITION_DIR: Final = re.compile(r"([A-Za-z0-9._-]+)\.([0-9a-f]{32})-(\d{1,10})")


class PartitionName(NamedTuple):
    """What a partition's directory is called after."""

    topic: str
    topic_id: bytes
    partition: int


def partition_dir_name(topic: str, topic_id: bytes, partition: int) -> str:
    """Return the name of a partition's directory: `TOPIC.ID-N`, the id in hex."""
    assert len(topic_id) == TOPIC_ID_BYTES
    return f"{topic}.{topic_id.hex()}-{partition}"


def parse_partition_dir_name(name: str) -> PartitionName | None:
    """Return what a directory is called after, None when it is not a partition's."""
    match = _PARTITION_DIR.fullmatch(name)
    return PartitionName(match[1], bytes.fromhex(match[2]), int(match[3])) if match else None


def epoch_dir_name(epoch: int) -> str:
    """Return the name of an epoch's directory."""
    return f"epoch-{epoch:08d}"


def epoch_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the epochs' directories of a partition by epoch, in order."""
    matches = [(match, name) for name in fs.list_dir(directory) if (match := _EPOCH_DIR.fullmatch(name))]
    return dict(sorted((int(match[1]), directory / name) for match, name in matches))


class PartitionLog:
    """See the module. Made by `open`; appended to by one thread, read by any.

    A partition that was never used has no epochs and no directory: it begins with `start_epoch`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        name: PartitionName,
        epochs: Sequence[EpochLog],
        *,
        segment_bytes: int,
        limbo: str | None = None,
    ) -> None:
        self.directory = directory
        self.name = name
        self.segment_bytes = segment_bytes
        """For epochs and segments that begin from now on."""
        self._disk = disk
        self._limbo = limbo
        # Replaced as a whole, never changed: readers on other threads take it once.
        self._epochs = tuple(epochs)

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
        logs: list[EpochLog] = []
        limbo: str | None = None
        try:
            if disk.fs.exists(directory):
                dirs = _usable_epoch_dirs(disk.fs, directory)
                logs, limbo = _open_epochs(disk, dirs, segment_bytes=segment_bytes)
        except OSError as error:
            raise StorageFailedError(f"{directory} cannot be opened: {error}; check the disk") from error
        return cls(disk, directory, name, logs, segment_bytes=segment_bytes, limbo=limbo)

    # ------------------------------------------------------------------------------------ what it is

    @property
    def epochs(self) -> tuple[EpochLog, ...]:
        """The epochs' logs, oldest first; the last one is the active one."""
        return self._epochs

    @property
    def active(self) -> EpochLog | None:
        """The newest epoch's log, None before the first one."""
        return self._epochs[-1] if self._epochs else None

    @property
    def state(self) -> State:
        """The newest epoch's state, "sealed" before the first one; LIMBO when any epoch is in it."""
        if self.limbo is not None:
            return "limbo"
        return self._epochs[-1].state if self._epochs else "sealed"

    @property
    def limbo(self) -> str | None:
        """Why the partition is in LIMBO, for a person; None when it is not."""
        if self._limbo is not None:
            return self._limbo
        damage = next((log.damage for log in self._epochs if log.damage is not None), None)
        return f"{damage.path} is damaged at byte {damage.position}: {damage.reason}" if damage else None

    @property
    def start_offset(self) -> int:
        """The first offset that is still held; 0 before the first epoch."""
        return self._epochs[0].start_offset if self._epochs else 0

    @property
    def end_offset(self) -> int:
        """The offset behind the last record; 0 before the first epoch."""
        return self._epochs[-1].end_offset if self._epochs else 0

    @property
    def end_digest(self) -> int:
        """The running digest at the end of the newest epoch."""
        return self._epochs[-1].end_digest if self._epochs else 0

    @property
    def synced_offset(self) -> int:
        """How far the newest epoch is synced."""
        return self._epochs[-1].synced_offset if self._epochs else 0

    def epoch_end(self, epoch: int, start_offset: int) -> tuple[int, int]:
        """Return end offset and end digest of an epoch; of one that never got its first file, its start and 0."""
        for log in self._epochs:
            if log.epoch == epoch:
                return log.end_offset, log.end_digest
        return start_offset, 0

    @property
    def size_bytes(self) -> int:
        """What all segments hold."""
        return sum(log.size_bytes for log in self._epochs)

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

    def start_epoch(self, epoch: int, start_offset: int) -> EpochLog:
        """Seal the newest epoch and begin the next one at `start_offset`, which is where the former ends.

        Beginning an epoch that has begun and is still empty changes nothing.

        Raises:
            DiskFullError: the old epoch is sealed, the new one does not exist; try again when there is space.
            LimboError: the partition is damaged.
            StorageFailedError: the disk failed.
        """
        if self.limbo is not None:
            raise LimboError(self.limbo)
        old = self.active
        if old is not None:
            assert old.end_offset == start_offset, f"epoch {epoch} at {start_offset}, the log ends at {old.end_offset}"
            if old.epoch == epoch and old.state == "active" and old.size_bytes == SEGMENT_HEADER_BYTES:
                return old
            assert epoch > old.epoch, f"epoch {epoch} after {old.epoch}"
            if old.state != "sealed":
                old.seal()
        else:
            self._make_directory()
        new = EpochLog.create(
            self._disk,
            self.directory / epoch_dir_name(epoch),
            topic_id=self.name.topic_id,
            partition=self.name.partition,
            epoch=epoch,
            start_offset=start_offset,
            segment_bytes=self.segment_bytes,
        )
        self._epochs = (*self._epochs, new)
        return new

    def retain(self, retention_bytes: int) -> int:
        """Delete whole old segments, and epochs left empty, until at most this much is held; the newest stays.

        Returns the bytes given back.

        Raises:
            StorageFailedError: a name could not be removed.
        """
        freed_bytes = 0
        while self.size_bytes > retention_bytes and (freed := self._delete_oldest()):
            freed_bytes += freed
        return freed_bytes

    def delete_before(self, offset: int) -> int:
        """Delete whole old segments, and epochs left empty, that end at or below `offset`; the newest stays.

        Returns the bytes given back.

        Raises:
            StorageFailedError: a name could not be removed.
        """
        freed_bytes = 0
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
        if not fs.exists(self.directory):
            return
        trash = self.directory.with_name(TRASH_PREFIX + self.directory.name)
        try:
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
        for log in self._epochs:
            log.close(sync=sync)

    # ------------------------------------------------------------------------------------ reading

    def read(self, offset: int, max_bytes: int, *, limit_offset: int) -> ReadResult:
        """Read whole batches across epochs; otherwise as `EpochLog.read`."""
        epochs = self._epochs
        if not self.start_offset <= offset <= self.end_offset and self.limbo is None:
            raise self._out_of_range(offset)
        left_bytes = min(max_bytes, FETCH_BYTES_MAX)
        batches: list[memoryview] = []
        position = offset
        for number, log in enumerate(epochs):
            if log.end_offset <= position and log is not epochs[-1] and log.damage is None:
                continue
            if position >= limit_offset:
                break
            found = log.read(position, left_bytes, limit_offset=limit_offset, at_least_one=not batches)
            batches += found.batches
            position = found.next_offset
            left_bytes -= sum(map(len, found.batches))
            following = epochs[number + 1] if number + 1 < len(epochs) else None
            if left_bytes <= 0 or following is None or position < following.start_offset:
                break
        if not batches and position < limit_offset and self.limbo is not None:
            raise DamagedError(f"offset {position} cannot be read: {self.limbo}")
        return ReadResult(batches, position)

    def find_by_time(self, timestamp_us: int) -> int | None:
        """Return the base offset of the first batch with a record of at least this timestamp; None without one."""
        for log in self._epochs:
            found = log.find_by_time(timestamp_us)
            if found is not None:
                return found
        return None

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the end of now."""
        for log in self._epochs:
            if log.end_offset > from_offset:
                yield from log.scan_headers(max(from_offset, log.start_offset))

    # ------------------------------------------------------------------------------------ producer snapshots

    def save_producer_snapshot(self, epoch: int, offset: int, digest: int, payload: bytes) -> None:
        """Keep a snapshot of the producers' state beside the log, durably; the one before it is kept, too.

        Raises:
            DiskFullError: no space; the older ones are still there.
            StorageFailedError: the disk failed.
        """
        save_snapshot(self._disk.fs, self.directory, ProducerSnapshot(epoch, offset, digest, payload))

    def load_producer_snapshot(self) -> ProducerSnapshot | None:
        """Return the newest valid snapshot, None without one; it may name offsets that retention has deleted."""
        return load_snapshot(self._disk.fs, self.directory) if self._epochs else None

    # ------------------------------------------------------------------------------------ inside

    def _writable(self) -> EpochLog:
        if self.limbo is not None:
            raise LimboError(self.limbo)
        if not self._epochs:
            raise StorageFailedError(f"{self.directory} has no epoch yet")
        return self._epochs[-1]

    def _make_directory(self) -> None:
        fs = self._disk.fs
        try:
            if not fs.exists(self.directory):
                fs.make_dir(self.directory)
            fs.sync_dir(self.directory.parent)
        except OSError as error:
            raise space_or_failure(f"{self.directory} cannot be made", error) from error

    def _delete_oldest(self) -> int:
        """Delete the oldest segment, and its epoch if that leaves it empty; 0 for the newest of all and in LIMBO."""
        if not self._epochs or self.limbo is not None:
            return 0
        oldest = self._epochs[0]
        if oldest.segment_count > 1:
            return oldest.delete_oldest_segment()
        if len(self._epochs) == 1:
            return 0
        freed_bytes = oldest.size_bytes
        self._epochs = self._epochs[1:]
        oldest.close(sync=False)
        try:
            remove_epoch_dir(self._disk.fs, oldest.directory)
        except OSError as error:
            raise StorageFailedError(f"{oldest.directory} cannot be deleted: {error}") from error
        return freed_bytes

    def _out_of_range(self, offset: int) -> ProtocolError:
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"offset {offset}; {self.start_offset} to {self.end_offset} can be read",
            log_start_offset=self.start_offset,
            high_watermark=self.end_offset,
        )


def _open_epochs(disk: Disk, dirs: dict[int, Path], *, segment_bytes: int) -> tuple[list[EpochLog], str | None]:
    """Open epochs newest first, as each one's start is the end of the one before it; return them in order.

    When one cannot be opened at all, nothing is readable: the end of the one before it is not known.
    """
    logs: list[EpochLog] = []
    end_offset: int | None = None
    for path in reversed(dirs.values()):
        try:
            log = EpochLog.open(disk, path, segment_bytes=segment_bytes, sealed_end_offset=end_offset)
        except DamagedError as error:
            for opened in logs:
                opened.close(sync=False)
            return [], error.message
        end_offset = log.start_offset
        logs.insert(0, log)
    return logs, None


def _usable_epoch_dirs(fs: FileSystem, directory: Path) -> dict[int, Path]:
    """Return the epochs' directories, after removing what a crash left of one that was being made or deleted."""
    for name in fs.list_dir(directory):
        if name.endswith(NEW_SUFFIX):
            if fs.is_dir(directory / name):
                remove_epoch_dir(fs, directory / name)
            else:
                fs.unlink(directory / name)
    dirs = epoch_dirs(fs, directory)
    for epoch in list(dirs)[:-1]:
        # Retention deletes from the front: an empty directory there is one that it did not finish.
        if fs.list_dir(dirs[epoch]):
            break
        remove_epoch_dir(fs, dirs.pop(epoch))
    return dirs


def remove_partition_dir(fs: FileSystem, directory: Path) -> None:
    """Remove a directory that no log uses any more, with everything in it."""
    for name in fs.list_dir(directory):
        path = directory / name
        if fs.is_dir(path):
            remove_partition_dir(fs, path)
        else:
            fs.unlink(path)
    fs.remove_dir(directory)
    fs.sync_dir(directory.parent)


def sweep_trash(fs: FileSystem, partitions_dir: Path) -> int:
    """Remove what deletions and creations that were cut short left behind; return how many."""
    names = [name for name in fs.list_dir(partitions_dir) if name.startswith(TRASH_PREFIX) or name.endswith(NEW_SUFFIX)]
    for name in names:
        remove_partition_dir(fs, partitions_dir / name)
    return len(names)
