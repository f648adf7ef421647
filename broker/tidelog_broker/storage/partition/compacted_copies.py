"""Compacted versions of sealed epochs: written beside the log, then swapped in.

A version is a separate store of the same engine in the directory `epoch-N.making`; one thread, any one, writes it. When
the version is complete, durable and decided, the partition's appending thread gives the directory a name with the epoch
of the decision, and replaces the older version. After a crash before the rename, the next start removes the new
version; after a crash right after it, both versions remain and the newer one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidelog_broker.storage.engine.store import SEGMENT, EpochStart, EpochStore, padded
from tidelog_broker.storage.engines.stores import create_store, remove_store
from tidelog_broker.storage.io.errors import NotHeldError, StorageFailedError
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.held_epochs import HeldEpochs
from tidelog_broker.storage.partition.partition_dirs import making_dir_name
from tidelog_proto.batch.header import Buffer


class CompactedVersion:
    """A compacted version of an epoch that is being written. Created by `CompactedCopies.begin`."""

    def __init__(self, log: EpochStore) -> None:
        self._log = log
        self.epoch = log.epoch

    @property
    def position(self) -> LogPosition:
        """The end of the written part."""
        return LogPosition(self._log.end_offset, self._log.end_digest)

    @property
    def size_bytes(self) -> int:
        """The size of the version's segments."""
        return self._log.size_bytes

    def append(self, batches: Sequence[Buffer]) -> None:
        """Append stamped batches.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        self._log.ensure_space(sum(padded(len(batch)) for batch in batches))
        self._log.append(batches)

    def finish(self) -> LogPosition:
        """Make the version durable and seal it; return its end.

        Raises:
            StorageFailedError: the disk failed.
        """
        self._log.seal()
        self._log.close(sync=False)
        return self.position

    def give_up(self) -> None:
        """Close the files of an unfinished version; `CompactedCopies.abandon` removes them."""
        self._log.close(sync=False)


class CompactedCopies:
    """Writes compacted versions of one partition's epochs beside the log, and replaces the epochs by them."""

    def __init__(self, held: HeldEpochs) -> None:
        self._held = held

    def begin(self, epoch: int, start_offset: int) -> CompactedVersion:
        """Begin a new version of an epoch, replacing an unfinished one.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the disk failed.
        """
        self.abandon(epoch)
        held, name = self._held.log_of(epoch), self._held.name
        log = create_store(
            self._held.disk,
            self._path(epoch),
            EpochStart(name.topic_id, name.partition, epoch, start_offset),
            engine=held.engine if held is not None else SEGMENT,
            segment_bytes=self._held.segment_bytes,
        )
        return CompactedVersion(log)

    def abandon(self, epoch: int) -> None:
        """Remove the version of an epoch that `begin` has created and that is not in the log.

        Raises:
            StorageFailedError: the disk failed; the next start removes the rest.
        """
        path = self._path(epoch)
        try:
            if self._held.disk.fs.exists(path):
                remove_store(self._held.disk, path)
        except OSError as error:
            raise StorageFailedError(f"{path} cannot be removed: {error}; check the disk") from error

    def put_in_place(self, epoch: int, decided: int, end: LogPosition) -> None:
        """Replace the older version in the log by a finished one; on the partition's appending thread.

        Args:
            epoch: a complete epoch of the log whose end is decided.
            decided: the epoch at whose end this version was decided.

        Raises:
            NotHeldError: the epoch is no longer in the log, is damaged, or ends elsewhere.
            StorageFailedError: the disk failed.
        """
        held = self._held
        old = held.log_of(epoch)
        if old is None or old.damage is not None or old.end_offset != end.offset:
            if old is None:
                why = "is missing"
            elif old.damage is not None:
                why = f"is damaged: {old.damage.reason}"
            else:
                why = f"ends at offset {old.end_offset}, expected {end.offset}"
            raise NotHeldError(
                f"the compacted version of epoch {epoch} in {held.directory} cannot replace the older one: "
                f"that one {why}"
            )
        if old.end_digest == end.digest:
            self.abandon(epoch)  # The same version was fetched from another node meanwhile.
        else:
            held.replace(old, self._path(epoch), decided, end)

    @property
    def has_replaced(self) -> bool:
        """Whether `remove_replaced` has something to remove."""
        return bool(self._held.replaced)

    def remove_replaced(self) -> None:
        """See `HeldEpochs.remove_replaced`."""
        self._held.remove_replaced()

    def _path(self, epoch: int) -> Path:
        return self._held.directory / making_dir_name(epoch)
