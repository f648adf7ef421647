"""Repair of the newest epoch's log where this node has lost acknowledged records.

All methods run on the partition's appending thread. A log that may lack records stays in LIMBO until they are fetched
from the owner, or until the end of its epoch is decided.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_broker.storage.directory.existence_markers import has_directory_marker, recreate_directory
from tidelog_broker.storage.directory.repair_markers import clear_short, is_marked_short, mark_short
from tidelog_broker.storage.engine.store import EpochStore, padded
from tidelog_broker.storage.io.errors import StorageFailedError, space_or_failure
from tidelog_broker.storage.partition.copied_batches import LogPosition, check_copied
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.partition_dirs import lost_epoch
from tidelog_proto.batch.header import Buffer


class EpochRepair:
    """Repairs the newest epoch of one partition where this node has lost records of it."""

    def __init__(self, held: HeldEpochs) -> None:
        self._held = held

    def mark_short(self, epoch: int) -> None:
        """Record durably that the newest epoch may lack acknowledged records, because the machine crashed.

        Raises:
            DiskFullError: no space for the marker.
            StorageFailedError: the disk failed.
        """
        try:
            mark_short(self._held.disk.fs, self._held.directory, epoch)
        except OSError as error:
            raise space_or_failure(
                f"{self._held.directory}: the marker that epoch {epoch} may lack records cannot be created", error
            ) from error

    def is_marked_short(self, epoch: int) -> bool:
        """Return whether an epoch was marked as lacking records and has not caught up since."""
        return is_marked_short(self._held.disk.fs, self._held.directory, epoch)

    def clear_short(self) -> None:
        """Remove the `short` markers, because the epoch has caught up or its end is decided.

        Raises:
            StorageFailedError: the disk failed; the marker may remain.
        """
        try:
            clear_short(self._held.disk.fs, self._held.directory)
        except OSError as error:
            raise StorageFailedError(
                f"{self._held.directory}: the marker that an epoch may lack records cannot be removed: {error}; check "
                "the disk"
            ) from error

    def lost_epoch(self, active_epoch: int) -> int | None:
        """Return the newest epoch that has begun on this node, if its directory is missing; None if it exists.

        If the partition's whole directory is missing, `active_epoch` is returned, because it may have begun here.
        """
        fs = self._held.disk.fs
        if fs.exists(self._held.directory):
            return lost_epoch(fs, self._held.directory)
        return active_epoch if has_directory_marker(fs, self._held.directory) else None

    def recreate_directory(self, epoch: int) -> None:
        """Recreate the partition's directory if it is missing, with the marker that this epoch had begun in it.

        Raises:
            DiskFullError: no space.
            StorageFailedError: the disk failed.
        """
        fs = self._held.disk.fs
        try:
            if not fs.exists(self._held.directory):
                recreate_directory(fs, self._held.directory, epoch)
        except OSError as error:
            raise space_or_failure(f"{self._held.directory} cannot be recreated", error) from error

    def repairable_end(self, epoch: int) -> LogPosition | None:
        """Return the end of the valid prefix of the newest epoch.

        None if the newest epoch is not `epoch` or not in LIMBO, or if an epoch cannot be opened or was set aside.
        """
        log = self._held.active
        if log is None or log.epoch != epoch or log.damage is None or self._held.lost is not None:
            return None
        return LogPosition(log.end_offset, log.end_digest)

    def truncate_to_valid_prefix(self, epoch: int) -> LogPosition:
        """Truncate the newest epoch to its valid prefix, for `append_repair`; the epoch stays in LIMBO. Return its end.

        Raises:
            DiskFullError: no space for the repair marker; nothing has changed.
            StorageFailedError: the disk failed.
        """
        self._repairing(epoch).truncate_to_valid_prefix()
        return self._repaired_to(epoch)

    def append_repair(self, epoch: int, batches: Sequence[Buffer]) -> LogPosition:
        """Append missing batches after the valid prefix, verified and synced.

        Raises:
            ProtocolError: CORRUPT_BATCH and others: the batches are refused and nothing has changed.
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        log = self._repairing(epoch)
        assert log.is_repairing, "truncate_to_valid_prefix was not called"
        check_copied(batches, epoch=epoch, position=self._repaired_to(epoch), layouts=self._held.layouts)
        if batches:
            log.ensure_space(sum(padded(len(batch)) for batch in batches))
            log.append(batches)
            log.sync()
        return self._repaired_to(epoch)

    def finish_repair(self, epoch: int) -> None:
        """End LIMBO of the newest epoch, because it reaches the end that its owner reported after the truncation.

        Only the owner's end counts: this node may have acknowledged more than any other replica. If the owner has
        failed, the end must be decided without this node; then `truncate_epoch`, `start_epoch` or a completed copy ends
        LIMBO.

        Raises:
            StorageFailedError: the disk failed.
        """
        self._repairing(epoch).finish_repair()

    # --------------------------------------------------------------------------------- internals

    def _repairing(self, epoch: int) -> EpochStore:
        log = self._held.active
        assert log is not None
        assert log.epoch == epoch, f"epoch {epoch} is not the newest, set it aside"
        return log

    def _repaired_to(self, epoch: int) -> LogPosition:
        log = self._repairing(epoch)
        return LogPosition(log.end_offset, log.end_digest)
