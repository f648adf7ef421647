"""Bringing a partition's log to what was decided: cutting it, filling what is missing from peers, replacing damage.

Everything here runs on the partition's one appending thread. What is not contiguous with the log lies beside it, see
`partition_dirs`, and comes in complete; a log that may lack what this node acknowledged stays in LIMBO until that is
fetched from the owner, or does not matter any more because the end of its epoch is decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.presence import has_directory_note, make_again, note_directory
from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.epoch.repair import forget_short, is_short, note_short
from tidelog_broker.storage.io.errors import (
    DivergedError,
    LimboError,
    NotHeldError,
    StorageFailedError,
    space_or_failure,
)
from tidelog_broker.storage.partition.copied import LogPosition, check_copied
from tidelog_broker.storage.partition.fill import EpochFill, FillTarget
from tidelog_broker.storage.partition.partition_dirs import (
    OpenedEpochs,
    PartitionName,
    demote,
    epoch_dir_name,
    epoch_dirs,
    fill_dir_name,
    lost_epoch,
    missing_epoch,
    open_epochs,
    put_aside,
)
from tidelog_broker.storage.partition.partition_reader import LostEpoch, PartitionReader
from tidelog_broker.storage.partition.snapshots import drop_snapshots_behind
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import padded
from tidelog_proto.header import Buffer


class PartitionCopies(PartitionReader):
    """The part of `PartitionLog` that a replica needs."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        name: PartitionName,
        epochs: Sequence[EpochLog],
        *,
        segment_bytes: int,
        lost: LostEpoch | None = None,
        dormant_fills: Sequence[int] = (),
    ) -> None:
        super().__init__(disk, directory, name, epochs, segment_bytes=segment_bytes, lost=lost)
        self._fills: dict[int, EpochFill | None] = dict.fromkeys(dormant_fills)
        """By epoch; None for one that a former run or copy left and that has not been begun since."""

    def truncate_epoch(self, epoch: int, end_offset: int) -> None:
        """Cut the newest epoch's log to its decided end; durable at return. See `EpochLog.truncate`.

        An epoch of which nothing is here has nothing to cut. LIMBO of this epoch ends if all of it up to there is good.

        Raises:
            DivergedError: no batch held here ends at `end_offset`; nothing has changed.
            LimboError: it is damaged in front of `end_offset`; nothing has changed.
            StorageFailedError: the disk failed.
        """
        log = self.active
        if log is None or log.epoch < epoch:
            return
        assert log.epoch == epoch, f"epoch {epoch} is sealed, {log.epoch} is the newest"
        if end_offset > log.end_offset:
            if log.damage is not None and self.limbo is not None:
                raise LimboError(self.limbo)
            raise DivergedError(f"{log.directory} ends at {log.end_offset}, the epoch at {end_offset}")
        log.truncate(end_offset)
        try:
            drop_snapshots_behind(self._disk.fs, self.directory, end_offset)
        except OSError as error:
            raise StorageFailedError(f"snapshots in {self.directory} cannot be removed: {error}") from error

    # ------------------------------------------------------------------------------------ filling

    @property
    def fill_epochs(self) -> tuple[int, ...]:
        """The epochs of which there is a copy, whole or not, that is not in the log; oldest first."""
        return tuple(sorted(self._fills))

    def begin_fill(
        self, epoch: int, start_offset: int, end_offset: int, end_digest: int, *, start_digest: int | None = 0
    ) -> LogPosition:
        """Begin, or go on, to fill an epoch that is decided and not whole in the log; return how far it is.

        Args:
            epoch: any but the whole ones of the log; the newest leaves the log if it ends too soon, and is gone on
                with. Newest first is best: a copy is in use when the ones behind it are.
            start_offset: where the epoch begins, or a batch boundary behind that if the front is gone for good.
            end_offset: of the decision.
            end_digest: of the decision.
            start_digest: the running digest in front of `start_offset`; None where it is not known, and only a copy
                that is there can be gone on with. Unless it is 0, what lies in front is gone for good: a log that
                ends there leaves, and the copy need not continue it.

        Raises:
            NotHeldError: without `start_digest`: nothing is there to be gone on with.
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        newest = self.active
        if newest is not None and newest.epoch == epoch and newest.end_offset < end_offset:
            self._demote_newest()
        assert self._log_of(epoch) is None, f"epoch {epoch} is in the log"
        assert self._lost is None or self._lost.is_aside or epoch > self._lost.epoch, "set the unreadable epoch aside"
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
            self._make_directory()
            fill = self._open_fill(FillTarget(epoch, LogPosition(start_offset, start_digest or 0), end), start_digest)
            self._fills[epoch] = fill
        newest = self.active
        if start_digest != 0 and newest is not None and newest.epoch < epoch and newest.end_offset < start_offset:
            self._demote(len(self._epochs))
        return fill.position

    def _open_fill(self, target: FillTarget, start_digest: int | None) -> EpochFill:
        if start_digest is None:
            fill = EpochFill.resume(self._disk, self.directory, target, segment_bytes=self.segment_bytes)
            if fill is None:
                self._fills.pop(target.epoch, None)
                raise NotHeldError(f"no copy of epoch {target.epoch} in {self.directory} can be gone on with")
            return fill
        return EpochFill.begin(
            self._disk,
            self.directory,
            target,
            topic_id=self.name.topic_id,
            partition=self.name.partition,
            segment_bytes=self.segment_bytes,
        )

    def fill_position(self, epoch: int) -> LogPosition | None:
        """Return how far the copy of an epoch is filled; None when `begin_fill` was not called since the start."""
        fill = self._fills.get(epoch)
        return fill.position if fill is not None else None

    def append_fill(self, epoch: int, batches: Sequence[Buffer]) -> LogPosition:
        """Append batches of a peer to the copy of an epoch; see `EpochFill.append`.

        Raises:
            NotHeldError: the fill has not begun, or retention has ended it.
        """
        return self._fill(epoch).append(batches)

    def finish_fill(self, epoch: int) -> bool:
        """Take a complete copy into the log, durably, and every other complete one that this makes contiguous.

        Returns:
            Whether it is in the log. If not, an epoch between is missing; it comes in with that one.

        Raises:
            DivergedError: it is not complete, or is not what was decided.
            NotHeldError: as `append_fill`.
            StorageFailedError: the disk failed.
        """
        fill = self._fill(epoch)
        if not fill.is_complete:
            raise DivergedError(f"epoch {epoch} is filled to {fill.position}, decided is {fill.target.end}")
        fill.seal()
        self._take_in_whole()
        if epoch in self._fills and fill.target.start == fill.target.end:
            # An epoch without records need not lie anywhere: those around it continue each other.
            self.abandon_fill(epoch)
            return True
        return self._log_of(epoch) is not None

    def abandon_fill(self, epoch: int) -> None:
        """Remove what was filled of an epoch.

        Raises:
            StorageFailedError: the disk failed; a part of it may be there.
        """
        if epoch not in self._fills:
            return
        fill = self._fills.pop(epoch)
        if fill is not None:
            fill.log.close(sync=False)
        path = self.directory / fill_dir_name(epoch)
        try:
            if self._disk.fs.exists(path):
                remove_epoch_dir(self._disk.fs, path)
        except OSError as error:
            raise StorageFailedError(f"{path} cannot be removed: {error}") from error

    # ------------------------------------------------------------------------------------ repairing

    def set_aside(self, epoch: int, reason: str) -> Path:
        """Rename this node's copy of an epoch to `.bad-N`, for the operator, so that it can be fetched again.

        Older epochs leave the log with it and wait to be filled, which costs them no bytes. LIMBO ends with the last
        damaged epoch, but not when it is the newest that goes: what it had acknowledged must be decided upon first,
        so then it ends with the next `start_epoch` or with the filled copy.

        Returns:
            Its new path.

        Raises:
            StorageFailedError: the disk failed.
        """
        try:
            return self._set_aside(epoch, reason)
        except OSError as error:
            raise StorageFailedError(f"epoch {epoch} of {self.directory} cannot be set aside: {error}") from error

    def note_short(self, epoch: int) -> None:
        """Note durably that the newest epoch may lack what it acknowledged, because the machine went down.

        Raises:
            StorageFailedError: the disk failed.
        """
        try:
            note_short(self._disk.fs, self.directory, epoch)
        except OSError as error:
            raise StorageFailedError(
                f"{self.directory}: that epoch {epoch} is short cannot be noted: {error}"
            ) from error

    def is_short(self, epoch: int) -> bool:
        """Whether an epoch was noted as short, and has not caught up since."""
        return is_short(self._disk.fs, self.directory, epoch)

    def forget_short(self) -> None:
        """What was short has caught up, or its end is decided.

        Raises:
            StorageFailedError: the disk failed; the note may still be there.
        """
        try:
            forget_short(self._disk.fs, self.directory)
        except OSError as error:
            raise StorageFailedError(f"{self.directory}: a note cannot be removed: {error}") from error

    def lost_epoch(self, active_epoch: int) -> int | None:
        """Return the epoch that has begun here, the newest, and whose directory is missing; None when none is.

        Where all of the partition is missing, which it was cannot be told: it may be `active_epoch`.
        """
        fs = self._disk.fs
        if fs.exists(self.directory):
            return lost_epoch(fs, self.directory)
        return active_epoch if has_directory_note(fs, self.directory) else None

    def make_again(self, epoch: int) -> None:
        """Make the partition's directory if it is missing, with the note that this epoch had begun in it.

        Raises:
            DiskFullError: no space.
            StorageFailedError: the disk failed.
        """
        fs = self._disk.fs
        try:
            if not fs.exists(self.directory):
                make_again(fs, self.directory, epoch)
        except OSError as error:
            raise space_or_failure(f"{self.directory} cannot be made again", error) from error

    def repairable_end(self, epoch: int) -> LogPosition | None:
        """Return where the good prefix of the newest epoch in LIMBO ends; None when it is not that, or all is lost."""
        log = self.active
        if log is None or log.epoch != epoch or log.damage is None or self._lost is not None:
            return None
        return LogPosition(log.end_offset, log.end_digest)

    def cut_to_good(self, epoch: int) -> LogPosition:
        """Keep only the good prefix of the newest epoch and make it ready for `append_repair`. LIMBO stays.

        Raises:
            StorageFailedError: the disk failed.
        """
        self._repairing(epoch).cut_to_good()
        return self._repaired_to(epoch)

    def append_repair(self, epoch: int, batches: Sequence[Buffer]) -> LogPosition:
        """Append what is missing behind the good prefix, checked and synced.

        Raises:
            ProtocolError: CORRUPT_BATCH and others: what came is refused and nothing has changed.
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        log = self._repairing(epoch)
        assert log.is_repairing, "cut it first"
        check_copied(batches, epoch=epoch, position=self._repaired_to(epoch))
        if batches:
            log.reserve(sum(padded(len(batch)) for batch in batches))
            log.append(batches)
            log.sync()
        return self._repaired_to(epoch)

    def finish_repair(self, epoch: int) -> None:
        """End LIMBO of the newest epoch: it has everything through the end that its owner told after the cut.

        Nobody else's end will do: this node may have acknowledged more than any other replica. Where the owner is gone
        the end must be decided without this node; then `truncate_epoch`, `start_epoch` or a fill ends it.

        Raises:
            StorageFailedError: the disk failed.
        """
        self._repairing(epoch).finish_repair()

    # ------------------------------------------------------------------------------------ inside

    def _make_directory(self) -> None:
        fs = self._disk.fs
        try:
            if not fs.exists(self.directory):
                fs.make_dir(self.directory)
            note_directory(fs, self.directory)
            fs.sync_dir(self.directory.parent)
        except OSError as error:
            raise space_or_failure(f"{self.directory} cannot be made", error) from error

    def _fill(self, epoch: int) -> EpochFill:
        fill = self._fills.get(epoch)
        if fill is None:
            raise NotHeldError(f"epoch {epoch} is not being filled in {self.directory}")
        return fill

    def _repairing(self, epoch: int) -> EpochLog:
        log = self.active
        assert log is not None
        assert log.epoch == epoch, f"epoch {epoch} is not the newest, set it aside"
        return log

    def _repaired_to(self, epoch: int) -> LogPosition:
        log = self._repairing(epoch)
        return LogPosition(log.end_offset, log.end_digest)

    def _demote(self, count: int) -> None:
        """Let the oldest epochs leave the log, oldest first, so that what a crash leaves of it has no hole."""
        for log in self._epochs[:count]:
            self._epochs = self._epochs[1:]
            self._rename_to_fill(log)

    def _demote_newest(self) -> None:
        """Let the newest epoch leave the log: its copy goes on where it ends."""
        log = self._epochs[-1]
        self._epochs = self._epochs[:-1]
        self._rename_to_fill(log)

    def _rename_to_fill(self, log: EpochLog) -> None:
        log.close()
        try:
            demote(self._disk.fs, log.directory)
        except OSError as error:
            raise StorageFailedError(f"{log.directory} cannot be renamed: {error}") from error
        self._fills[log.epoch] = None

    def _fits(self, fill: EpochFill) -> bool:
        """Whether a copy is complete and continues the log at one of its ends."""
        if fill.log.state != "sealed":
            return False
        if not self._epochs:
            return self._lost is None or self._lost.is_aside
        oldest, newest = self._epochs[0], self._epochs[-1]
        if fill.target.epoch > newest.epoch:
            return newest.end_offset == fill.log.start_offset and newest.state in {"sealed", "active"}
        return fill.target.epoch < oldest.epoch and fill.target.end.offset == oldest.start_offset

    def _take_in_whole(self) -> None:
        """Take every complete copy into the log that continues it."""
        while (ready := next(filter(self._fits, filter(None, self._fills.values())), None)) is not None:
            self._take_in(ready)

    def _take_in(self, fill: EpochFill) -> None:
        epoch, end_offset = fill.target.epoch, fill.target.end.offset
        newest = self.active
        if newest is not None and newest.epoch < epoch and newest.state != "sealed":
            # Opened as the newest one after a restart; it ends where it was decided to.
            newest.seal()
        del self._fills[epoch]
        fill.log.close()
        path = self.directory / epoch_dir_name(epoch)
        try:
            self._disk.fs.rename(fill.log.directory, path)
            self._disk.fs.sync_dir(self.directory)
        except OSError as error:
            raise StorageFailedError(f"{fill.log.directory} cannot be renamed: {error}") from error
        log = EpochLog.open(self._disk, path, segment_bytes=self.segment_bytes, sealed_end_offset=end_offset)
        assert log.damage is not None or log.end_digest == fill.target.end.digest
        newer = [one for one in self._epochs if one.epoch > epoch]
        self._epochs = (log, *newer) if newer else (*self._epochs, log)
        if self._lost is not None and self._lost.epoch <= epoch:
            self._lost = None

    def _set_aside(self, epoch: int, reason: str) -> Path:
        fs = self._disk.fs
        if epoch in self._fills:
            fill = self._fills.pop(epoch)
            if fill is not None:
                fill.log.close(sync=False)
            return put_aside(fs, self.directory / fill_dir_name(epoch), reason)
        lost = self._lost
        if lost is not None and not lost.is_aside and lost.epoch == epoch:
            return self._set_unreadable_aside(epoch, reason)
        number = next(number for number, log in enumerate(self._epochs) if log.epoch == epoch)
        log = self._epochs[number]
        if number + 1 == len(self._epochs):
            self._epochs = self._epochs[:-1]
            if lost is None or lost.is_aside:
                self._lost = LostEpoch(epoch, f"epoch {epoch} was set aside: {reason}", is_aside=True)
        else:
            self._demote(number)
            self._epochs = self._epochs[1:]
        log.close(sync=False)
        return put_aside(fs, log.directory, reason)

    def _set_unreadable_aside(self, epoch: int, reason: str) -> Path:
        """Set an epoch aside that could not be opened, behind which the older ones stayed closed."""
        fs = self._disk.fs
        for older, path in epoch_dirs(fs, self.directory).items():
            if older < epoch and self._epochs:
                demote(fs, path)
                self._fills[older] = None
        target = put_aside(fs, self.directory / epoch_dir_name(epoch), reason)
        if self._epochs:
            self._lost = None
        else:
            opened = open_epochs(self._disk, self.directory, segment_bytes=self.segment_bytes)
            self._lost = find_lost_epoch(self._disk, self.directory, opened)
            self._epochs = tuple(opened.logs)
        return target

    def _drop_fills_below(self, offset: int) -> None:
        """Remove copies outside the log all of whose records lie below `offset`, as retention would once inside."""
        if self.limbo is not None:
            return
        for epoch, fill in list(self._fills.items()):
            bound = fill.target.end.offset if fill is not None else self.start_offset
            if self._epochs and epoch < self._epochs[0].epoch and bound <= offset:
                self.abandon_fill(epoch)


def find_lost_epoch(disk: Disk, directory: Path, opened: OpenedEpochs) -> LostEpoch | None:
    """Return what keeps a partition in LIMBO as a whole, after its epochs were opened."""
    if opened.unreadable is not None:
        epoch, message = opened.unreadable
        return LostEpoch(epoch, message, is_aside=False)
    missing = missing_epoch(disk.fs, directory)
    if missing is None:
        return None
    message = f"epoch {missing} of {directory} was set aside and has not been replaced yet"
    return LostEpoch(missing, message, is_aside=True)
