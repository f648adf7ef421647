"""A partial copy of an epoch whose end is decided: fetched from peers, and stored beside the log.

The copy is a separate store in `epoch-N.fill`: recovered, appended to and bounded like any other, but never read or
counted before it is complete. It is complete when it ends at the decided offset with the decided digest; the digest
covers every batch, so the sender does not matter. A copy that is too short, too long or damaged after a valid prefix is
resumed; one that differs from the decided log is set aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tidelog_broker.storage.engine.store import SEGMENT, SHARED, EpochStart, EpochStore, Volume, padded
from tidelog_broker.storage.engines.stores import create_store, is_deleted, open_store, remove_store
from tidelog_broker.storage.io.errors import DamagedError, DivergedError, unreadable
from tidelog_broker.storage.partition.copied_batches import LogPosition, check_copied
from tidelog_broker.storage.partition.partition_dirs import partial_copy_dir_name, put_aside
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Buffer
from tidelog_proto.batch.row_layout import Layouts
from tidelog_proto.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """The decided contents of a copy.

    Attributes:
        start: the epoch's start with digest 0, or a later batch boundary.
        end: the decided end.
        or_digests: other valid end digests: those of less compacted versions.
        engine: the name of the engine that stores the copy if it does not exist yet.
        is_only: whether no other node has the epoch, so that an existing copy is resumed wherever it begins and ends.
    """

    epoch: int
    start: LogPosition
    end: LogPosition
    or_digests: tuple[int, ...] = ()
    engine: str = SEGMENT
    is_only: bool = False


class PartialCopy:
    """The partial copy of an epoch. Created by `begin` or `resume`; used by the partition's appending thread."""

    def __init__(self, target: CopyTarget, log: EpochStore) -> None:
        self.target = target
        self.log = log

    @classmethod
    def begin(
        cls,
        disk: Volume,
        directory: Path,
        target: CopyTarget,
        *,
        topic_id: bytes,
        partition: int,
        segment_bytes: int,
    ) -> PartialCopy:
        """Begin a copy, or resume an existing one in the partition's `directory`.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        resumed = cls.resume(disk, directory, target, segment_bytes=segment_bytes)
        if resumed is not None:
            return resumed
        log = create_store(
            disk,
            directory / partial_copy_dir_name(target.epoch),
            EpochStart(topic_id, partition, target.epoch, *target.start),
            engine=SEGMENT if target.engine == SHARED else target.engine,  # An ended epoch is in segments.
            segment_bytes=segment_bytes,
        )
        return cls(target, log)

    @classmethod
    def resume(cls, disk: Volume, directory: Path, target: CopyTarget, *, segment_bytes: int) -> PartialCopy | None:
        """Resume an existing copy. A copy that cannot be resumed is removed or set aside.

        Returns:
            The copy; None if this node has no such copy, or could not resume it.

        Raises:
            StorageFailedError: the disk failed.
        """
        assert target.start.offset <= target.end.offset
        path = directory / partial_copy_dir_name(target.epoch)
        try:
            log = _open_existing(disk, path, target, segment_bytes=segment_bytes) if disk.fs.exists(path) else None
        except OSError as error:
            raise unreadable(f"{path} cannot be resumed", error) from error
        if log is None:
            return None
        if log.end_offset == target.end.offset:
            target = replace(target, end=LogPosition(log.end_offset, log.end_digest))
        return cls(target, log)

    @property
    def position(self) -> LogPosition:
        """The end of the copy. After a crash the copy may be shorter: unsynced batches are fetched again."""
        return LogPosition(self.log.end_offset, self.log.end_digest)

    @property
    def is_complete(self) -> bool:
        """Whether the copy reaches the decided end with the decided digest."""
        return self.position == self.target.end

    def append(self, batches: Sequence[Buffer], layouts: Layouts | None = None) -> LogPosition:
        """Verify batches and append them; return the new position. `seal` makes them durable.

        Args:
            layouts: of the batches of a typed topic, see `HeldEpochs`.

        Raises:
            ProtocolError: CORRUPT_BATCH and others: the batches are refused and nothing has changed.
            DivergedError: the batches would complete the copy with another digest than decided.
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        target = self.target
        reached = check_copied(batches, epoch=target.epoch, position=self.position, layouts=layouts)
        if reached.offset > target.end.offset:
            raise ProtocolError(
                pb.CORRUPT_BATCH,
                f"received batches up to offset {reached.offset}, but epoch {target.epoch} ends at {target.end.offset}",
            )
        if reached.offset == target.end.offset and reached.digest != target.end.digest:
            raise DivergedError(
                f"{self.log.directory} would end at offset {reached.offset} with digest {reached.digest:#010x}, but "
                f"digest {target.end.digest:#010x} is decided"
            )
        if batches:
            self.log.ensure_space(sum(padded(len(batch)) for batch in batches))
            self.log.append(batches)
        assert self.position == reached
        return reached

    def seal(self) -> None:
        """Make a complete copy durable and seal it.

        Raises:
            StorageFailedError: the disk failed.
        """
        assert self.is_complete
        if self.log.state != "sealed":
            self.log.seal()


def _open_existing(disk: Volume, path: Path, target: CopyTarget, *, segment_bytes: int) -> EpochStore | None:
    """Open an existing copy as a prefix of the target. If it cannot become one, remove or set it aside; return None."""
    fs = disk.fs
    if is_deleted(disk, path):
        remove_store(disk, path)
        return None
    try:
        log = open_store(disk, path, segment_bytes=segment_bytes)
        assert log is not None, "its end is not given"
    except DamagedError as error:
        put_aside(fs, path, error.message)
        return None
    is_beside = log.start_offset > target.start.offset or log.end_offset < target.start.offset
    if is_beside and not target.is_only:
        # Batches cannot be added before the start.
        log.close(sync=False)
        remove_store(disk, path)
        return None
    try:
        log.truncate(min(log.end_offset, target.end.offset))
    except (DamagedError, DivergedError) as error:
        reason = error.message
    else:
        if log.end_offset != target.end.offset or log.end_digest in {target.end.digest, *target.or_digests}:
            return log
        reason = f"the copy ends with digest {log.end_digest:#010x}, but {target.end.digest:#010x} is decided"
    log.detach()
    log.close(sync=False)
    put_aside(fs, path, reason)
    return None
