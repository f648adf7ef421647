"""Copies of epochs that a partition's log lacks: filled from peers beside it, and taken in when they are whole.

Everything here runs on the partition's one appending thread. What is not contiguous with the log lies beside it, see
`partition_dirs`, and comes in complete. A damaged copy is set aside for the operator, and fetched again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.recovery import remove_epoch_dir
from tidelog_broker.storage.io.errors import DivergedError, NotHeldError, StorageFailedError
from tidelog_broker.storage.partition.copied import LogPosition
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
    """See the module.

    Args:
        held: the partition's log.
        dormant: epochs of which a former run left a copy.
    """

    def __init__(self, held: HeldEpochs, dormant: Sequence[int] = ()) -> None:
        self._held = held
        self._fills: dict[int, EpochFill | None] = dict.fromkeys(dormant)
        """By epoch; None for one that a former run or copy left and that has not been begun since."""

    @property
    def fill_epochs(self) -> tuple[int, ...]:
        """The epochs of which there is a copy, whole or not, that is not in the log; oldest first."""
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
        """Begin, or go on, to fill an epoch that is decided and not whole in the log; return how far it is.

        Args:
            epoch: the newest leaves the log if it ends too soon, and is gone on with. Of one that is whole in the log
                this is another version. Newest first is best: a copy is in use when the ones behind it are.
            start_offset: where the epoch begins, or a batch boundary behind that if the front is gone for good.
            end_offset: of the decision.
            end_digest: of the decision.
            start_digest: the running digest in front of `start_offset`; None where it is not known, and only a copy
                that is there can be gone on with. Unless it is 0, what lies in front is gone for good: a log that
                ends there leaves, and the copy need not continue it.

            or_digests: a copy that is there and ends with one of these is whole, too.

        Raises:
            NotHeldError: without `start_digest`: nothing is there to be gone on with.
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
            self.demote(len(self._held.epochs))  # a copy that was there may begin earlier, and continue the log
        return fill.position

    def _open_fill(self, target: FillTarget, start_digest: int | None) -> EpochFill:
        if start_digest is None:
            fill = EpochFill.resume(
                self._held.disk, self._held.directory, target, segment_bytes=self._held.segment_bytes
            )
            if fill is None:
                self._fills.pop(target.epoch, None)
                raise NotHeldError(f"no copy of epoch {target.epoch} in {self._held.directory} can be gone on with")
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
        """Return how far the copy of an epoch is filled; None when `begin_fill` was not called since the start."""
        fill = self._fills.get(epoch)
        return fill.position if fill is not None else None

    def append_fill(self, epoch: int, batches: Sequence[Buffer]) -> LogPosition:
        """Append batches of a peer to the copy of an epoch; see `EpochFill.append`.

        Raises:
            NotHeldError: the fill has not begun, or retention has ended it.
        """
        return self._fill(epoch).append(batches)

    def finish_fill(self, epoch: int, decided: int | None = None) -> bool:
        """Take a complete copy into the log, durably, and every other complete one that this makes contiguous.

        Args:
            epoch: of the copy.
            decided: where the log has an older version, whose place the copy takes: the epoch at whose end this one
                was decided.

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
        held = self._held.log_of(epoch)
        if held is not None and (held.end_offset, held.end_digest) == fill.target.end:
            self.abandon_fill(epoch)  # it has been made here meanwhile
            return True
        if held is not None:
            assert decided is not None, f"epoch {epoch} is in the log as it was decided at first"
            self._take_place_of(held, fill, decided)
            return True
        self.take_in_whole()
        if epoch in self._fills and fill.target.start == fill.target.end:
            # An epoch without records need not lie anywhere: those around it continue each other.
            self.abandon_fill(epoch)
            return True
        return self._held.log_of(epoch) is not None

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
        path = self._held.directory / fill_dir_name(epoch)
        try:
            if self._held.disk.fs.exists(path):
                remove_epoch_dir(self._held.disk.fs, path)
        except OSError as error:
            raise StorageFailedError(f"{path} cannot be removed: {error}") from error

    def begin_anew(self, epoch: int, end_offset: int) -> None:
        """Make place for another version of a sealed epoch: what was filled of it is removed.

        Args:
            epoch: of the copy.
            end_offset: where it ends. What does not reach there goes even as the log's newest epoch.

        Raises:
            StorageFailedError: the disk failed; a part of it may be there.
        """
        newest = self._held.active
        if newest is not None and newest.epoch == epoch and newest.end_offset < end_offset:
            self._demote_newest()
        self.abandon_fill(epoch)

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
            raise StorageFailedError(f"epoch {epoch} of {self._held.directory} cannot be set aside: {error}") from error

    def is_overtaken(self, offset: int) -> bool:
        """Whether what lies below `offset` is all that keeps a whole copy out of the log: nothing will fill the hole.

        May be called by any thread.
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
        """Let the oldest epochs leave the log, oldest first, so that what a crash leaves of it has no hole."""
        for log in self._held.epochs[:count]:
            self._held.epochs = self._held.epochs[1:]
            self._rename_to_fill(log)

    def take_in_whole(self) -> None:
        """Take every complete copy into the log that continues it."""
        while (ready := next(filter(self._fits, filter(None, self._fills.values())), None)) is not None:
            self._take_in(ready)

    def drop_below(self, offset: int) -> None:
        """Remove copies outside the log all of whose records lie below `offset`, as retention would once inside."""
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
        """Let the newest epoch leave the log: its copy goes on where it ends."""
        log = self._held.epochs[-1]
        self._held.epochs = self._held.epochs[:-1]
        self._rename_to_fill(log)

    def _rename_to_fill(self, log: EpochLog) -> None:
        log.close()
        beside = self._fills.get(log.epoch)
        if beside is not None:
            beside.log.close(sync=False)  # of another version, and not whole: its directory is removed
        try:
            demote(self._held.disk.fs, log.directory)
        except OSError as error:
            raise StorageFailedError(f"{log.directory} cannot be renamed: {error}") from error
        self._fills[log.epoch] = None

    def _fits(self, fill: EpochFill) -> bool:
        """Whether a copy is complete and continues the log at one of its ends."""
        if fill.log.state != "sealed":
            return False
        if not self._held.epochs:
            return self._held.lost is None or self._held.lost.is_aside
        oldest, newest = self._held.epochs[0], self._held.epochs[-1]
        if fill.target.epoch > newest.epoch:
            return newest.end_offset == fill.log.start_offset and newest.state in {"sealed", "active"}
        return fill.target.epoch < oldest.epoch and fill.target.end.offset == oldest.start_offset

    def _take_in(self, fill: EpochFill) -> None:
        epoch, end_offset = fill.target.epoch, fill.target.end.offset
        newest = self._held.active
        if newest is not None and newest.epoch < epoch and newest.state != "sealed":
            # Opened as the newest one after a restart; it ends where it was decided to.
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
        """Let a complete copy take the place of the log's older version."""
        if fill.log.start_offset > old.start_offset:
            self.demote(self._held.epochs.index(old))  # what the copy does not continue any more: retention takes it
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
        """Set an epoch aside that could not be opened, behind which the older ones stayed closed."""
        fs = self._held.disk.fs
        paths = epoch_dirs(fs, self._held.directory)
        for older, path in paths.items():
            if older < epoch and self._held.epochs:
                demote(fs, path)
                self._fills[older] = None
        target = put_aside(fs, paths[epoch], reason)  # the newest version, whatever its name
        if self._held.epochs:
            self._held.lost = None
        else:
            opened = open_epochs(self._held.disk, self._held.directory, segment_bytes=self._held.segment_bytes)
            self._held.lost = find_lost_epoch(self._held.disk, self._held.directory, opened)
            self._held.epochs = tuple(opened.logs)
        return target
