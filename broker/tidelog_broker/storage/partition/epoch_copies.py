"""Partial copies of epochs that a partition's log lacks: stored beside the log, and added to it when complete.

All methods run on the partition's appending thread, unless they say otherwise. Epochs that are not contiguous with the
log are stored beside it, see `partition_dirs`, until they are complete. A damaged copy is set aside for the operator
and fetched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.engine.store import SEGMENT, EpochStore
from tidelog_broker.storage.engines.stores import open_store, remove_store
from tidelog_broker.storage.io.errors import DivergedError, NotHeldError, StorageFailedError
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.held_epochs import HeldEpochs, LostEpoch, find_lost_epoch
from tidelog_broker.storage.partition.partial_copy import CopyTarget, PartialCopy
from tidelog_broker.storage.partition.partition_dirs import (
    demote,
    epoch_dir_name,
    epoch_dirs,
    open_epochs,
    partial_copy_dir_name,
    put_aside,
)
from tidelog_proto.batch.header import Buffer


class EpochCopies:
    """Stores copies of epochs beside one partition's log, and adds complete ones to the log.

    Args:
        dormant: epochs of which an earlier process left a copy.
    """

    def __init__(self, held: HeldEpochs, dormant: Sequence[int] = ()) -> None:
        self._held = held
        self._copies: dict[int, PartialCopy | None] = dict.fromkeys(dormant)
        """Partial copies by epoch; None if an earlier process or an abandoned copy left files that have not been
        resumed."""

    @property
    def partial_epochs(self) -> tuple[int, ...]:
        """The epochs with a copy, complete or not, outside the log; oldest first."""
        return tuple(sorted(self._copies))

    def begin_copy(
        self,
        epoch: int,
        start_offset: int,
        end_offset: int,
        end_digest: int,
        *,
        start_digest: int | None = 0,
        or_digests: Sequence[int] = (),
        engine: str = SEGMENT,
        is_only: bool = False,
    ) -> LogPosition:
        """Begin or resume the copy of an epoch whose end is decided; return the end of the copy.

        Args:
            epoch: the epoch to copy. If it is the newest one of the log and ends before `end_offset`, it leaves the log
                and its files become the copy, which is resumed. If it is complete in the log, the copy is of another
                version. Copy the newest epochs first: a copy is added to the log once the two are contiguous.
            start_offset: where the epoch begins, or a later batch boundary if its beginning is permanently deleted.
            end_offset: the decided end offset.
            end_digest: the decided end digest.
            start_digest: the running digest before `start_offset`; None if it is unknown, so that only an existing
                copy can be resumed. Unless it is 0, everything before `start_offset` is permanently deleted: older
                epochs that end before the copy begins leave the log, and the copy need not continue them.
            or_digests: an existing copy that ends with one of these digests is complete, too.
            engine: the name of the engine that stores a copy that does not exist yet.
            is_only: whether no other node has the epoch: an existing copy is resumed wherever it begins, because the
                records before it were deleted or are lost, and no other copy has the ones after.

        Raises:
            NotHeldError: `start_digest` is None and no copy can be resumed.
            DiskFullError: no space to begin the copy; call again when there is space.
            StorageFailedError: the disk failed.
        """
        newest, lost = self._held.active, self._held.lost
        if newest is not None and newest.epoch == epoch and newest.end_offset < end_offset:
            self._demote_newest()
        held = self._held.log_of(epoch)
        assert held is None or held.end_offset == end_offset, f"epoch {epoch} is in the log"
        assert lost is None or lost.is_aside or epoch > lost.epoch, "set the unreadable epoch aside"
        end = LogPosition(end_offset, end_digest)
        copy = self._copies.get(epoch)
        if (
            copy is None
            or copy.target.end != end
            or not (copy.log.start_offset <= start_offset <= copy.position.offset)
        ):
            if copy is not None:
                copy.log.close()
                self._copies[epoch] = None
            self._held.make_directory()()
            start = LogPosition(start_offset, start_digest or 0)
            copy = self._open_copy(CopyTarget(epoch, start, end, tuple(or_digests), engine, is_only), start_digest)
            self._copies[epoch] = copy
        newest = self._held.active
        if (
            newest is not None
            and newest.epoch < epoch
            and newest.end_offset < copy.log.start_offset
            and start_digest != 0
        ):
            # The gap before the copy is never filled, so the older epochs leave the log. (An existing copy may begin
            # earlier than requested, without a gap.)
            self.demote(len(self._held.epochs))
        self._note_detached()
        return copy.position

    def _open_copy(self, target: CopyTarget, start_digest: int | None) -> PartialCopy:
        if start_digest is None:
            copy = PartialCopy.resume(
                self._held.disk, self._held.directory, target, segment_bytes=self._held.segment_bytes
            )
            if copy is None:
                self._copies.pop(target.epoch, None)
                raise NotHeldError(f"no copy of epoch {target.epoch} in {self._held.directory} can be resumed")
            return copy
        return PartialCopy.begin(
            self._held.disk,
            self._held.directory,
            target,
            topic_id=self._held.name.topic_id,
            partition=self._held.name.partition,
            segment_bytes=self._held.segment_bytes,
        )

    def copy_position(self, epoch: int) -> LogPosition | None:
        """Return the end of the copy of an epoch; None unless `begin_copy` has begun or resumed this copy."""
        copy = self._copies.get(epoch)
        return copy.position if copy is not None else None

    def append_copy(self, epoch: int, batches: Sequence[Buffer]) -> LogPosition:
        """Append batches of a peer to the copy of an epoch; see `PartialCopy.append`.

        Raises:
            NotHeldError: the copy was not begun, or retention has removed it.
        """
        return self._copy_of(epoch).append(batches, self._held.layouts)

    def finish_copy(self, epoch: int, decided: int | None = None) -> bool:
        """Add a complete copy to the log, durably, and every other complete one that becomes contiguous.

        Args:
            decided: the epoch at whose end the copy's version was decided, if the copy replaces an older version in
                the log; otherwise None.

        Returns:
            Whether the epoch is in the log now, or has no records and so needs no files. If not, an epoch between the
            log and the copy is missing; the copy is added together with that epoch.

        Raises:
            DivergedError: the copy is incomplete or differs from the decision.
            NotHeldError: as `append_copy`.
            StorageFailedError: the disk failed.
        """
        copy = self._copy_of(epoch)
        if not copy.is_complete:
            reached, end = copy.position, copy.target.end
            raise DivergedError(
                f"the copy of epoch {epoch} in {self._held.directory} ends at offset {reached.offset} with digest "
                f"{reached.digest:#010x}, but offset {end.offset} with digest {end.digest:#010x} is decided"
            )
        copy.seal()
        held = self._held.log_of(epoch)
        if held is not None and (held.end_offset, held.end_digest) == copy.target.end:
            self.abandon_copy(epoch)  # Compaction on this node has produced the same version meanwhile.
            return True
        if held is not None:
            assert decided is not None, f"epoch {epoch} is in the log as it was decided at first"
            self._take_place_of(held, copy, decided)
            return True
        self.add_complete_copies()
        if epoch in self._copies and copy.target.start == copy.target.end:
            # An epoch without records needs no files: the epochs before and after it are contiguous.
            self.abandon_copy(epoch)
            return True
        return self._held.log_of(epoch) is not None

    def abandon_copy(self, epoch: int) -> None:
        """Remove the copy of an epoch.

        Raises:
            StorageFailedError: the disk failed; a part of it may remain.
        """
        if epoch not in self._copies:
            return
        copy = self._copies.pop(epoch)
        self._note_detached()
        if copy is not None:
            copy.log.close(sync=False)
        path = self._held.directory / partial_copy_dir_name(epoch)
        try:
            if self._held.disk.fs.exists(path):
                remove_store(self._held.disk, path)
        except OSError as error:
            raise StorageFailedError(f"{path} cannot be removed: {error}; check the disk") from error

    def begin_anew(self, epoch: int, end_offset: int) -> None:
        """Remove the copy of a sealed epoch, so that another version of it can be fetched.

        Args:
            end_offset: the end of the epoch. If the log's newest epoch is this one and ends earlier, it is removed,
                too.

        Raises:
            StorageFailedError: the disk failed; a part of it may remain.
        """
        newest = self._held.active
        if newest is not None and newest.epoch == epoch and newest.end_offset < end_offset:
            self._demote_newest()
        self.abandon_copy(epoch)

    def set_aside(self, epoch: int, reason: str) -> Path:
        """Rename this node's copy of an epoch to `.bad-N`, for the operator, so that it is fetched again.

        Older epochs leave the log with it and become partial copies; no bytes are copied. LIMBO ends with the last
        damaged epoch, except when the newest epoch is set aside: its end must be decided first, so LIMBO then ends with
        the next `start_epoch` or with the completed copy.

        Returns:
            The new path of the copy.

        Raises:
            StorageFailedError: the disk failed.
        """
        try:
            return self._set_aside(epoch, reason)
        except OSError as error:
            raise StorageFailedError(
                f"epoch {epoch} of {self._held.directory} cannot be set aside: {error}; check the disk"
            ) from error

    def is_overtaken(self, offset: int) -> bool:
        """Return whether the log ends before a complete copy, and only records below `offset` are missing in between.

        If `offset` is the partition's log start, retention has deleted these records on all nodes, so the log can never
        reach the copy. Thread-safe.
        """
        if self._held.limbo is not None or not self._held.epochs or self._held.end_offset >= offset:
            return False
        newest = self._held.epochs[-1].epoch
        return any(
            copy is not None
            and copy.is_complete
            and copy.target.epoch > newest
            and self._held.end_offset < copy.target.start.offset <= offset
            for copy in list(self._copies.values())
        )

    def close(self, *, sync: bool) -> None:
        """Close the files of every copy.

        Raises:
            StorageFailedError: a sync failed.
        """
        for copy in self._copies.values():
            if copy is not None:
                copy.log.close(sync=sync)
        self._copies.clear()
        self._note_detached()

    def demote(self, count: int) -> None:
        """Turn the `count` oldest epochs of the log into partial copies, oldest first: so a crash leaves no gap."""
        for log in self._held.epochs[:count]:
            self._held.epochs = self._held.epochs[1:]
            self._rename_to_partial_copy(log)

    def add_complete_copies(self) -> None:
        """Add every complete copy that continues the log."""
        while (ready := next(filter(self._fits, filter(None, self._copies.values())), None)) is not None:
            self._add_copy(ready)
        self._note_detached()

    def has_copy_below(self, offset: int) -> bool:
        """Return whether `drop_below` has something to remove. Thread-safe."""
        return bool(self._below(offset))

    def drop_below(self, offset: int) -> None:
        """Remove partial copies of epochs older than the log that contain only records below `offset`."""
        for epoch in self._below(offset):
            self.abandon_copy(epoch)

    # --------------------------------------------------------------------------------- internals

    def _below(self, offset: int) -> list[int]:
        """Return epochs older than the log whose partial copies contain only records below `offset`; none in LIMBO."""
        epochs = self._held.epochs
        if self._held.limbo is not None or not epochs:
            return []
        oldest, start_offset = epochs[0].epoch, self._held.start_offset
        ends = {
            epoch: start_offset if copy is None else copy.target.end.offset for epoch, copy in [*self._copies.items()]
        }
        return [epoch for epoch, end_offset in ends.items() if epoch < oldest and end_offset <= offset]

    def _note_detached(self) -> None:
        """Show readers the complete copies of epochs before the log."""
        epochs = self._held.epochs
        oldest = epochs[0].epoch if epochs else 0
        complete = (copy for copy in self._copies.values() if copy is not None and copy.log.state == "sealed")
        stores = sorted(
            (copy.log for copy in complete if copy.target.epoch < oldest and copy.is_complete),
            key=lambda store: store.epoch,
        )
        if stores or self._held.detached:
            self._held.detached = tuple(stores)

    def _copy_of(self, epoch: int) -> PartialCopy:
        copy = self._copies.get(epoch)
        if copy is None:
            raise NotHeldError(f"epoch {epoch} is not being copied to {self._held.directory}")
        return copy

    def _demote_newest(self) -> None:
        """Turn the newest epoch of the log into a partial copy, which can be resumed."""
        log = self._held.epochs[-1]
        self._held.epochs = self._held.epochs[:-1]
        self._rename_to_partial_copy(log)

    def _rename_to_partial_copy(self, log: EpochStore) -> None:
        log.close()
        beside = self._copies.get(log.epoch)
        if beside is not None:
            beside.log.close(sync=False)  # An incomplete copy of another version: `demote` removes its directory.
        try:
            demote(self._held.disk, log.directory)
        except OSError as error:
            raise StorageFailedError(f"{log.directory} cannot be renamed: {error}; check the disk") from error
        self._copies[log.epoch] = None

    def _fits(self, copy: PartialCopy) -> bool:
        """Return whether a copy is complete and continues the log at its start or end."""
        if copy.log.state != "sealed":
            return False
        if not self._held.epochs:
            return self._held.lost is None or self._held.lost.is_aside
        oldest, newest = self._held.epochs[0], self._held.epochs[-1]
        if copy.target.epoch > newest.epoch:
            return newest.end_offset == copy.log.start_offset and newest.state in {"sealed", "active"}
        return copy.target.epoch < oldest.epoch and copy.target.end.offset == oldest.start_offset

    def _add_copy(self, copy: PartialCopy) -> None:
        epoch, end_offset = copy.target.epoch, copy.target.end.offset
        newest = self._held.active
        if newest is not None and newest.epoch < epoch and newest.state != "sealed":
            # After a restart the epoch was opened as the newest one, without its decided end, so it is not sealed yet.
            newest.seal()
        del self._copies[epoch]
        self._note_detached()
        copy.log.close()
        path = self._held.directory / epoch_dir_name(epoch)
        try:
            self._held.disk.fs.rename(copy.log.directory, path)
            self._held.disk.fs.sync_dir(self._held.directory)
        except OSError as error:
            raise StorageFailedError(f"{copy.log.directory} cannot be renamed: {error}; check the disk") from error
        log = open_store(self._held.disk, path, segment_bytes=self._held.segment_bytes, sealed_end_offset=end_offset)
        assert log is not None, "this process has just completed it"
        assert log.damage is not None or log.end_digest == copy.target.end.digest
        newer = [one for one in self._held.epochs if one.epoch > epoch]
        self._held.epochs = (log, *newer) if newer else (*self._held.epochs, log)
        if self._held.lost is not None and self._held.lost.epoch <= epoch:
            self._held.lost = None

    def _take_place_of(self, old: EpochStore, copy: PartialCopy, decided: int) -> None:
        """Replace the log's older version of an epoch by a complete copy."""
        if copy.log.start_offset > old.start_offset:
            # The epochs before `old` are not contiguous with the copy, so they leave the log; retention deletes them.
            self.demote(self._held.epochs.index(old))
        del self._copies[old.epoch]
        copy.log.close()
        self._held.replace(old, copy.log.directory, decided, copy.target.end)

    def _set_aside(self, epoch: int, reason: str) -> Path:
        fs = self._held.disk.fs
        if epoch in self._copies and self._held.log_of(epoch) is None:
            copy = self._copies.pop(epoch)
            self._note_detached()
            if copy is not None:
                copy.log.detach()
                copy.log.close(sync=False)
            return put_aside(fs, self._held.directory / partial_copy_dir_name(epoch), reason)
        lost = self._held.lost
        if lost is not None and not lost.is_aside and lost.epoch == epoch:
            return self._set_unreadable_aside(epoch, reason)
        number = next(number for number, log in enumerate(self._held.epochs) if log.epoch == epoch)
        log = self._held.epochs[number]
        if number + 1 == len(self._held.epochs):
            self._held.epochs = self._held.epochs[:-1]
            if lost is None or lost.is_aside:
                self._held.lost = LostEpoch(epoch, f"epoch {epoch} was set aside: {reason}", is_aside=True)
        else:
            self.demote(number)
            self._held.epochs = self._held.epochs[1:]
        log.detach()
        log.close(sync=False)
        return put_aside(fs, log.directory, reason)

    def _set_unreadable_aside(self, epoch: int, reason: str) -> Path:
        """Set aside an epoch that could not be opened; older epochs are then opened, or become partial copies."""
        fs = self._held.disk.fs
        paths = epoch_dirs(fs, self._held.directory)
        for older, path in paths.items():
            if older < epoch and self._held.epochs:
                demote(self._held.disk, path)
                self._copies[older] = None
        target = put_aside(fs, paths[epoch], reason)  # The newest version, whatever its name.
        if self._held.epochs:
            self._held.lost = None
        else:
            opened = open_epochs(self._held.disk, self._held.directory, segment_bytes=self._held.segment_bytes)
            self._held.lost = find_lost_epoch(self._held.disk, self._held.directory, opened)
            self._held.epochs = tuple(opened.logs)
        return target
