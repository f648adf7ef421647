"""Copies of epochs that a partition's log lacks: filled from peers beside the log, and added to it when complete.

All methods run on the partition's appending thread, unless they say otherwise. Epochs that are not contiguous with the
log are stored beside it, see `partition_dirs`, until they are complete. A damaged copy is set aside for the operator
and fetched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.io.errors import DivergedError, NotHeldError, StorageFailedError
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.fill import EpochFill, FillTarget
from tidelog_broker.storage.partition.held_epochs import HeldEpochs, LostEpoch, find_lost_epoch
from tidelog_broker.storage.partition.partition_dirs import (
    demote,
    epoch_dir_name,
    epoch_dirs,
    fill_dir_name,
    open_epochs,
    put_aside,
)
from tidelog_proto.batch.header import Buffer


class EpochCopies:
    """The copies beside one partition's log.

    Args:
        held: the partition's log.
        dormant: epochs of which a former run left a copy.
    """

    def __init__(self, held: HeldEpochs, dormant: Sequence[int] = ()) -> None:
        self._held = held
        self._fills: dict[int, EpochFill | None] = dict.fromkeys(dormant)
        """By epoch; None for a copy that a former run or copy left and that has not been resumed."""

    @property
    def fill_epochs(self) -> tuple[int, ...]:
        """The epochs with a copy, complete or not, outside the log; oldest first."""
        return tuple(sorted(self._fills))

    def begin_fill(
        self,
        epoch: int,
        start_offset: int,
        end_offset: int,
        end_digest: int,
        *,
        start_digest: int | None = 0,
        or_digests: Sequence[int] = (),
    ) -> LogPosition:
        """Begin or resume filling an epoch that is decided and incomplete in the log; return how far it is filled.

        Args:
            epoch: the newest epoch leaves the log if it ends too early, and its copy is resumed. If the epoch is
                complete in the log, this fills another version of it. Fill newest epochs first: a copy is usable once
                all newer ones are.
            start_offset: where the epoch begins, or a later batch boundary if its beginning is permanently deleted.
            end_offset: the decided end offset.
            end_digest: the decided end digest.
            start_digest: the running digest before `start_offset`; None if it is unknown, so that only an existing
                copy can be resumed. Unless it is 0, everything before is permanently deleted: a log that ends there
                leaves, and the copy need not continue it.
            or_digests: an existing copy that ends with one of these digests is complete, too.

        Raises:
            NotHeldError: `start_digest` is None and no copy can be resumed.
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        newest, lost = self._held.active, self._held.lost
        if newest is not None and newest.epoch == epoch and newest.end_offset < end_offset:
            self._demote_newest()
        held = self._held.log_of(epoch)
        assert held is None or held.end_offset == end_offset, f"epoch {epoch} is in the log"
        assert lost is None or lost.is_aside or epoch > lost.epoch, "set the unreadable epoch aside"
        end = LogPosition(end_offset, end_digest)
        fill = self._fills.get(epoch)
        if (
            fill is None
            or fill.target.end != end
            or not (fill.log.start_offset <= start_offset <= fill.position.offset)
        ):
            if fill is not None:
                fill.log.close()
                self._fills[epoch] = None
            self._held.make_directory()()
            start = LogPosition(start_offset, start_digest or 0)
            fill = self._open_fill(FillTarget(epoch, start, end, tuple(or_digests)), start_digest)
            self._fills[epoch] = fill
        newest = self._held.active
        if (
            newest is not None
            and newest.epoch < epoch
            and newest.end_offset < fill.log.start_offset
            and start_digest != 0
        ):
            self.demote(len(self._held.epochs))  # An existing copy may begin earlier and continue the log.
        return fill.position

    def _open_fill(self, target: FillTarget, start_digest: int | None) -> EpochFill:
        if start_digest is None:
            fill = EpochFill.resume(
                self._held.disk, self._held.directory, target, segment_bytes=self._held.segment_bytes
            )
            if fill is None:
                self._fills.pop(target.epoch, None)
                raise NotHeldError(f"no copy of epoch {target.epoch} in {self._held.directory} can be resumed")
            return fill
        return EpochFill.begin(
            self._held.disk,
            self._held.directory,
            target,
            topic_id=self._held.name.topic_id,
            partition=self._held.name.partition,
            segment_bytes=self._held.segment_bytes,
        )

    def fill_position(self, epoch: int) -> LogPosition | None:
        """Return how far the copy of an epoch is filled; None if `begin_fill` was not called since the start."""
        fill = self._fills.get(epoch)
        return fill.position if fill is not None else None

    def append_fill(self, epoch: int, batches: Sequence[Buffer]) -> LogPosition:
        """Append batches of a peer to the copy of an epoch; see `EpochFill.append`.

        Raises:
            NotHeldError: the fill has not begun, or retention has ended it.
        """
        return self._fill(epoch).append(batches)

    def finish_fill(self, epoch: int, decided: int | None = None) -> bool:
        """Add a complete copy to the log, durably, and every other complete one that becomes contiguous.

        Args:
            epoch: the epoch of the copy.
            decided: if the log has an older version that the copy replaces, the epoch at whose end this one was
                decided.

        Returns:
            Whether it is in the log. If not, an epoch in between is missing; it is added together with that one.

        Raises:
            DivergedError: it is incomplete or differs from the decision.
            NotHeldError: as `append_fill`.
            StorageFailedError: the disk failed.
        """
        fill = self._fill(epoch)
        if not fill.is_complete:
            raise DivergedError(
                f"epoch {epoch} is filled up to {fill.position}, but its decided end is {fill.target.end}"
            )
        fill.seal()
        held = self._held.log_of(epoch)
        if held is not None and (held.end_offset, held.end_digest) == fill.target.end:
            self.abandon_fill(epoch)  # Compaction on this node has produced the same version meanwhile.
            return True
        if held is not None:
            assert decided is not None, f"epoch {epoch} is in the log as it was decided at first"
            self._take_place_of(held, fill, decided)
            return True
        self.add_complete_fills()
        if epoch in self._fills and fill.target.start == fill.target.end:
            # An epoch without records needs no files: its neighbours are contiguous.
            self.abandon_fill(epoch)
            return True
        return self._held.log_of(epoch) is not None

    def abandon_fill(self, epoch: int) -> None:
        """Remove the copy of an epoch.

        Raises:
            StorageFailedError: the disk failed; a part of it may remain.
        """
        if epoch not in self._fills:
            return
        fill = self._fills.pop(epoch)
        if fill is not None:
            fill.log.close(sync=False)
        path = self._held.directory / fill_dir_name(epoch)
        try:
            if self._held.disk.fs.exists(path):
                remove_epoch_dir(self._held.disk.fs, path)
        except OSError as error:
            raise StorageFailedError(f"{path} cannot be removed: {error}") from error

    def begin_anew(self, epoch: int, end_offset: int) -> None:
        """Remove the copy of a sealed epoch, to fill another version of it.

        Args:
            epoch: the epoch of the copy.
            end_offset: the end of the epoch. If the log's newest epoch is this one and ends earlier, it is removed,
                too.

        Raises:
            StorageFailedError: the disk failed; a part of it may remain.
        """
        newest = self._held.active
        if newest is not None and newest.epoch == epoch and newest.end_offset < end_offset:
            self._demote_newest()
        self.abandon_fill(epoch)

    def set_aside(self, epoch: int, reason: str) -> Path:
        """Rename this node's copy of an epoch to `.bad-N`, for the operator, so that it is fetched again.

        Older epochs leave the log with it and become fills, without copying bytes. LIMBO ends with the last damaged
        epoch, except when the newest epoch is set aside: the fate of its acknowledged records must be decided first, so
        LIMBO then ends with the next `start_epoch` or with the filled copy.

        Returns:
            Its new path.

        Raises:
            StorageFailedError: the disk failed.
        """
        try:
            return self._set_aside(epoch, reason)
        except OSError as error:
            raise StorageFailedError(f"epoch {epoch} of {self._held.directory} cannot be set aside: {error}") from error

    def is_overtaken(self, offset: int) -> bool:
        """Whether the log will never reach a complete copy: only records below `offset` are missing in between.

        Thread-safe.
        """
        if self._held.limbo is not None or not self._held.epochs or self._held.end_offset >= offset:
            return False
        newest = self._held.epochs[-1].epoch
        return any(
            fill is not None
            and fill.is_complete
            and fill.target.epoch > newest
            and self._held.end_offset < fill.target.start.offset <= offset
            for fill in list(self._fills.values())
        )

    def close(self, *, sync: bool) -> None:
        """Close the files of every copy.

        Raises:
            StorageFailedError: a sync failed.
        """
        for fill in self._fills.values():
            if fill is not None:
                fill.log.close(sync=sync)
        self._fills.clear()

    def demote(self, count: int) -> None:
        """Remove the oldest epochs from the log, oldest first, so that a crash leaves no gap."""
        for log in self._held.epochs[:count]:
            self._held.epochs = self._held.epochs[1:]
            self._rename_to_fill(log)

    def add_complete_fills(self) -> None:
        """Add every complete copy that continues the log."""
        while (ready := next(filter(self._fits, filter(None, self._fills.values())), None)) is not None:
            self._add_fill(ready)

    def drop_below(self, offset: int) -> None:
        """Remove copies outside the log all of whose records are below `offset`, as retention would inside the log."""
        if self._held.limbo is not None:
            return
        for epoch, fill in list(self._fills.items()):
            bound = fill.target.end.offset if fill is not None else self._held.start_offset
            if self._held.epochs and epoch < self._held.epochs[0].epoch and bound <= offset:
                self.abandon_fill(epoch)

    # ------------------------------------------------------------------------------------ inside

    def _fill(self, epoch: int) -> EpochFill:
        fill = self._fills.get(epoch)
        if fill is None:
            raise NotHeldError(f"epoch {epoch} is not being filled in {self._held.directory}")
        return fill

    def _demote_newest(self) -> None:
        """Remove the newest epoch from the log; its copy can be resumed."""
        log = self._held.epochs[-1]
        self._held.epochs = self._held.epochs[:-1]
        self._rename_to_fill(log)

    def _rename_to_fill(self, log: EpochLog) -> None:
        log.close()
        beside = self._fills.get(log.epoch)
        if beside is not None:
            beside.log.close(
                sync=False
            )  # A copy of another version, which is incomplete: `demote` removes its directory.
        try:
            demote(self._held.disk.fs, log.directory)
        except OSError as error:
            raise StorageFailedError(f"{log.directory} cannot be renamed: {error}") from error
        self._fills[log.epoch] = None

    def _fits(self, fill: EpochFill) -> bool:
        """Whether a copy is complete and continues the log at its start or end."""
        if fill.log.state != "sealed":
            return False
        if not self._held.epochs:
            return self._held.lost is None or self._held.lost.is_aside
        oldest, newest = self._held.epochs[0], self._held.epochs[-1]
        if fill.target.epoch > newest.epoch:
            return newest.end_offset == fill.log.start_offset and newest.state in {"sealed", "active"}
        return fill.target.epoch < oldest.epoch and fill.target.end.offset == oldest.start_offset

    def _add_fill(self, fill: EpochFill) -> None:
        epoch, end_offset = fill.target.epoch, fill.target.end.offset
        newest = self._held.active
        if newest is not None and newest.epoch < epoch and newest.state != "sealed":
            # It was opened as the newest epoch after a restart; it ends at its decided end.
            newest.seal()
        del self._fills[epoch]
        fill.log.close()
        path = self._held.directory / epoch_dir_name(epoch)
        try:
            self._held.disk.fs.rename(fill.log.directory, path)
            self._held.disk.fs.sync_dir(self._held.directory)
        except OSError as error:
            raise StorageFailedError(f"{fill.log.directory} cannot be renamed: {error}") from error
        log = EpochLog.open(self._held.disk, path, segment_bytes=self._held.segment_bytes, sealed_end_offset=end_offset)
        assert log.damage is not None or log.end_digest == fill.target.end.digest
        newer = [one for one in self._held.epochs if one.epoch > epoch]
        self._held.epochs = (log, *newer) if newer else (*self._held.epochs, log)
        if self._held.lost is not None and self._held.lost.epoch <= epoch:
            self._held.lost = None

    def _take_place_of(self, old: EpochLog, fill: EpochFill, decided: int) -> None:
        """Replace the log's older version of an epoch by a complete copy."""
        if fill.log.start_offset > old.start_offset:
            self.demote(
                self._held.epochs.index(old)
            )  # These epochs are not contiguous with the copy any more; retention deletes them.
        del self._fills[old.epoch]
        fill.log.close()
        self._held.replace(old, fill.log.directory, decided, fill.target.end)

    def _set_aside(self, epoch: int, reason: str) -> Path:
        fs = self._held.disk.fs
        if epoch in self._fills and self._held.log_of(epoch) is None:
            fill = self._fills.pop(epoch)
            if fill is not None:
                fill.log.close(sync=False)
            return put_aside(fs, self._held.directory / fill_dir_name(epoch), reason)
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
        log.close(sync=False)
        return put_aside(fs, log.directory, reason)

    def _set_unreadable_aside(self, epoch: int, reason: str) -> Path:
        """Set aside an epoch that could not be opened, and because of which older ones were not opened."""
        fs = self._held.disk.fs
        paths = epoch_dirs(fs, self._held.directory)
        for older, path in paths.items():
            if older < epoch and self._held.epochs:
                demote(fs, path)
                self._fills[older] = None
        target = put_aside(fs, paths[epoch], reason)  # The newest version, whatever its name.
        if self._held.epochs:
            self._held.lost = None
        else:
            opened = open_epochs(self._held.disk, self._held.directory, segment_bytes=self._held.segment_bytes)
            self._held.lost = find_lost_epoch(self._held.disk, self._held.directory, opened)
            self._held.epochs = tuple(opened.logs)
        return target
