"""The part of a partition's log on this node: the logs of its epochs, and why it is in LIMBO.

The tuples of the epochs' logs are replaced as a whole, never mutated, so readers on other threads load them once.
Everything else belongs to the partition's appending thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidelog_broker.storage.directory.existence_markers import mark_directory
from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.engine.store import EpochStore, State, Volume
from tidelog_broker.storage.engines.stores import open_store, remove_store
from tidelog_broker.storage.io.deferred_sync import DeferredSync
from tidelog_broker.storage.io.errors import DamagedError, StorageFailedError, space_or_failure
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.partition_dirs import (
    OpenedEpochs,
    PartitionName,
    compacted_dir_name,
    missing_epoch,
)
from tidelog_proto.batch.row_layout import Layouts


class LostEpoch(NamedTuple):
    """An epoch that puts the whole partition into LIMBO: it is unreadable, or was set aside while it was the newest.

    Attributes:
        message: why the partition is in LIMBO, for the operator.
        is_aside: whether the epoch was set aside.
        needs_engine: whether the epoch is unreadable because its engine is not installed.
    """

    epoch: int
    message: str
    is_aside: bool
    needs_engine: bool = False


class HeldEpochs:
    """The logs of a partition's epochs on this node.

    Attributes:
        epochs: the epochs' logs, oldest first; the last one is the active one.
        detached: complete copies of older epochs beside the log, oldest first.
        lost: the epoch that puts the whole partition into LIMBO; None if no epoch does.
        gone_below: retention on this node has deleted the records below this offset.
        replaced: directories of older versions, to be removed.
        segment_bytes: the segment size of epochs and segments that begin from now on.
        layouts: of the batches of a typed topic, by schema number; None for an untyped topic.
    """

    def __init__(
        self,
        disk: Volume,
        directory: Path,
        name: PartitionName,
        epochs: Sequence[EpochStore],
        *,
        segment_bytes: int,
        lost: LostEpoch | None = None,
        layouts: Layouts | None = None,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.name = name
        self.epochs = tuple(epochs)
        self.detached: tuple[EpochStore, ...] = ()
        self.lost = lost
        self.gone_below = 0
        self.replaced: list[Path] = []
        self.segment_bytes = segment_bytes
        self.layouts = layouts

    @property
    def active(self) -> EpochStore | None:
        """The newest epoch's log, None before the first one."""
        return self.epochs[-1] if self.epochs else None

    @property
    def state(self) -> State:
        """The newest epoch's state, "sealed" before the first one; "limbo" if any epoch is in LIMBO."""
        if self.limbo is not None:
            return "limbo"
        return self.epochs[-1].state if self.epochs else "sealed"

    @property
    def limbo(self) -> str | None:
        """Why the partition is in LIMBO, for the operator; None if it is not."""
        if self.lost is not None:
            return self.lost.message
        for log in self.epochs:
            if (damage := log.damage) is not None:
                return f"{damage.path} is damaged at byte {damage.position}: {damage.reason}"
        return None

    def unreadable_error(self, offset: int) -> DamagedError:
        """Return the error for an offset that cannot be read because the partition is in LIMBO."""
        remedy = "" if self.needs_engine else "; check the data directory with: tidelog log verify DATA"
        return DamagedError(
            f"{self.name.topic}/{self.name.partition}: offset {offset} cannot be read: {self.limbo}{remedy}"
        )

    @property
    def unreadable_epoch(self) -> int | None:
        """The damaged epoch that cannot be opened, so that older ones stay closed, too; None if all can be."""
        lost = self.lost
        return lost.epoch if lost is not None and not lost.is_aside and not lost.needs_engine else None

    @property
    def needs_engine(self) -> bool:
        """Whether an epoch cannot be opened because its engine is not installed."""
        return self.lost is not None and self.lost.needs_engine

    @property
    def start_offset(self) -> int:
        """The first readable offset, 0 before the first epoch; the log has no gaps after it."""
        return self.epochs[0].start_offset if self.epochs else 0

    @property
    def end_offset(self) -> int:
        """The offset after the last record; 0 before the first epoch."""
        return self.epochs[-1].end_offset if self.epochs else 0

    @property
    def end_digest(self) -> int:
        """The running digest at the end of the newest epoch; 0 before the first epoch."""
        return self.epochs[-1].end_digest if self.epochs else 0

    @property
    def synced_offset(self) -> int:
        """The end of the synced part of the newest epoch; 0 before the first epoch."""
        return self.epochs[-1].synced_offset if self.epochs else 0

    def epoch_end(self, epoch: int, start_offset: int) -> tuple[int, int]:
        """Return end offset and end digest of an epoch; if the log does not have it, `start_offset` and 0."""
        for log in self.epochs:
            if log.epoch == epoch:
                return log.end_offset, log.end_digest
        return start_offset, 0

    @property
    def size_bytes(self) -> int:
        """The size of the log's segments, without partial copies and copies that were set aside."""
        return sum(log.size_bytes for log in self.epochs)

    def log_of(self, epoch: int) -> EpochStore | None:
        """Return an epoch's log; None if the partition's log does not have the epoch."""
        return next((log for log in self.epochs if log.epoch == epoch), None)

    def copy_of(self, epoch: int) -> EpochStore | None:
        """Return an epoch's log, or its complete copy beside the log; None if there is neither."""
        return next((log for log in (*self.epochs, *self.detached) if log.epoch == epoch), None)

    def replace(self, old: EpochStore, made: Path, decided: int, end: LogPosition) -> None:
        """Replace the log of an epoch by a finished version of it; on the partition's appending thread.

        Args:
            old: a log of the same length, whose files `remove_replaced` removes later.
            made: the directory of the new version, durable. It is renamed.
            decided: the epoch at whose end this version was decided.

        Raises:
            StorageFailedError: the disk failed.
        """
        path = self.directory / compacted_dir_name(old.epoch, decided)
        assert path != old.directory, "this version is in its place"
        if old.damage is None and old.state != "sealed":
            old.seal()  # The next epoch has not begun on this node.
        try:
            self.disk.fs.rename(made, path)
            self.disk.fs.sync_dir(self.directory)
        except OSError as error:
            raise StorageFailedError(f"{made} cannot be renamed: {error}; check the disk") from error
        new = open_store(self.disk, path, segment_bytes=self.segment_bytes, sealed_end_offset=end.offset)
        assert new is not None, "this process has just finished it"
        assert new.damage is not None or new.end_digest == end.digest
        self.epochs = tuple(new if one is old else one for one in self.epochs)
        old.close(sync=False)
        try:
            gone = self._replaced_path(old.directory)
            self.disk.fs.rename(old.directory, gone)  # Not synced: a start that finds both versions uses the newer one.
        except OSError as error:
            raise StorageFailedError(f"{old.directory} cannot be renamed: {error}; check the disk") from error
        self.replaced.append(gone)

    def _replaced_path(self, directory: Path) -> Path:
        number = 1
        while self.disk.fs.exists(path := directory.with_name(f"{directory.name}.{number}{NEW_SUFFIX}")):
            number += 1
        return path

    def remove_replaced(self) -> None:
        """Remove the files of replaced versions. Takes long, so it does not run on the appending thread.

        The next start removes what is left.

        Raises:
            StorageFailedError: the disk failed.
        """
        while self.replaced:
            path = self.replaced[0]
            try:
                if self.disk.fs.exists(path):
                    remove_store(self.disk, path)
            except OSError as error:
                raise StorageFailedError(f"{path} cannot be removed: {error}; check the disk") from error
            self.replaced.pop(0)

    def make_directory(self) -> Callable[[], None]:
        """Create the partition's directory if it is missing; return a function that waits until it is durable.

        The sync runs on another thread if there is one. Call the function before an epoch gets its name: if this
        process were killed before the sync, the next one would take the epoch's log for durable.

        Raises:
            DiskFullError: no space; the returned function raises it, too.
            StorageFailedError: the disk failed; the returned function raises it, too.
        """
        fs, what = self.disk.fs, f"{self.directory} cannot be created"
        try:
            if not fs.exists(self.directory):
                fs.make_dir(self.directory)
            mark_directory(fs, self.directory)
        except OSError as error:
            raise space_or_failure(what, error) from error
        owed = DeferredSync(partial(fs.sync_dir, self.directory.parent), lambda _: None)
        if self.disk.namer is not None:
            self.disk.namer.offer(owed.finish_in_background)

        def finish() -> None:
            try:
                owed.finish()
            except OSError as error:
                raise space_or_failure(what, error) from error

        return finish


def find_lost_epoch(disk: Volume, directory: Path, opened: OpenedEpochs) -> LostEpoch | None:
    """Return the epoch that puts a partition into LIMBO, after its epochs were opened; None if all are readable."""
    if opened.unreadable is not None:
        epoch, message = opened.unreadable
        return LostEpoch(epoch, message, is_aside=False, needs_engine=opened.needs_engine)
    missing = missing_epoch(disk.fs, directory)
    if missing is None:
        return None
    message = f"epoch {missing} of {directory} was set aside and has not been replaced yet"
    return LostEpoch(missing, message, is_aside=True)
