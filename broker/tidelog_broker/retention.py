"""Deleting a partition's oldest segments: as an owner past the topic's bound, elsewhere what the owner has deleted.

Where a copy is not the only one, each step first writes down where the log will begin (`storage.log_start`): a copy
that begins late would look like one that lacks something. That note needs hardly any space, but a full disk is when
deleting matters most, so the file is made with the second segment (`PartitionLog.reserve`), or with the next look where
the second one came with another epoch or a copy, and is written over in its place where there is no space for another.
A disk that refuses even that is full, not broken: it is said once, and tried again with the next look. Rejected: making
it whenever an epoch begins, which a takeover would wait for.

A copy that retention overtakes while it catches up cannot follow the epoch any more: the epoch ends for its sake, the
next one begins with fresh files, and under full load the same happens again. So what a living copy that pulls still
lacks of the newest epoch is left to it, up to `PATIENCE` times the bound, unless the disk was full since the node
started.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Final

from tidelog_broker.partition_reads import PartitionReads
from tidelog_broker.storage.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.log_start import keep_space, load_log_start, save_log_start

log = logging.getLogger(__name__)

PATIENCE: Final = 2
"""How many times its bound a log may grow to for copies that are behind."""

_EVERYTHING: Final = 2**63 - 1


class Retention:
    """What keeps one partition within its bound. All methods are for the event loop's thread.

    Args:
        partition: whose log it is.
        failed: called with what the disk did when nobody waits for it.
    """

    def __init__(self, partition: PartitionReads, failed: Callable[[BaseException], None]) -> None:
        self._partition = partition
        self._failed = failed
        self._io, self._io_key = partition.node.io, partition.io_key
        self._told_of_full_disk = False
        self._has_space = False
        """Whether there is surely a file for the note."""
        self._followed_offset = 0
        """Below this the owner has deleted, and this copy after it."""

    async def delete_before(self, offset: int) -> None:
        """Delete whole segments below `offset`.

        Raises:
            DiskFullError: no space to note where the log begins; what the note would have said is still there.
            StorageFailedError: the disk failed.
        """
        partition = self._partition
        await self._io.call(self._io_key, self._delete_oldest, offset, 0, partition.high_watermark)
        if partition.replica.owner is not None:
            self._raise_log_start()

    async def look(self) -> None:
        """Delete what is to go, now, and see that there is a file for the note.

        Raises:
            StorageFailedError: the disk failed.
        """
        partition = self._partition
        replica = partition.replica
        if partition.refusal is not None or replica.halted is not None:
            return
        try:
            if replica.owner is None:
                if replica.log_start > partition.log.start_offset:
                    log_start = replica.log_start
                    await self._io.call(self._io_key, self._delete_oldest, log_start, 0, log_start)
            elif self._is_past_bound:
                await self._io.call(self._io_key, self._delete_past_bound, *self._bounds())
                self._raise_log_start()
        except DiskFullError as error:
            self._no_space(error)
        else:
            self._told_of_full_disk = False
        if self._lacks_space:
            with contextlib.suppress(DiskFullError):  # the next look tries again
                await self._io.call(self._io_key, keep_space, partition.node.disk.fs, partition.log.directory)
                self._has_space = True

    def look_soon(self) -> None:
        """As `look`, when a segment has just begun: the bound holds at any rate, and the next one finds a file."""
        if self._is_past_bound:
            bounds = self._bounds()
            self._io.start(self._io_key, lambda: self._delete_past_bound(*bounds), lambda _, error: self._looked(error))

    def follow(self) -> None:
        """Delete what the owner has deleted, if it has said so with the last append: the next segment finds a file."""
        replica = self._partition.replica
        offset = replica.log_start
        if offset > self._followed_offset and replica.owner is None:
            self._followed_offset = offset
            self._io.start(
                self._io_key, lambda: self._delete_oldest(offset, 0, offset), lambda _, error: self._looked(error)
            )

    def note_log_start(self) -> None:
        """Write down what another node has said about where the log begins, or what it deleted while it was alone."""
        partition = self._partition
        start_offset = partition.replica.log_start
        is_served = partition.refusal is None  # the directory of a deleted topic may be gone
        if start_offset > 0 and is_served and partition.log.epochs and not partition.is_alone:
            self._io.start(self._io_key, lambda: self._keep(start_offset), lambda _, error: self._kept(error))

    # ------------------------------------------------------------------------------------------------- inside

    @property
    def _is_past_bound(self) -> bool:
        partition = self._partition
        bytes_max = partition.topic.config.retention_bytes
        return bool(bytes_max) and partition.log.size_bytes > bytes_max and not partition.replica.history.incomplete

    @property
    def _lacks_space(self) -> bool:
        """Whether there may be no file for the note, and something to delete; not when the topic was deleted."""
        partition = self._partition
        if self._has_space or partition.refusal is not None or partition.is_alone:
            return False
        epochs = partition.log.epochs
        return len(epochs) > 1 or (len(epochs) == 1 and epochs[0].segment_count > 1)

    def _bounds(self) -> tuple[int, int, int]:
        """Return how many bytes may stay, what is committed, and what is waited for by no living copy."""
        partition, replica = self._partition, self._partition.replica
        is_patient = not partition.node.disk.spares.has_ended
        # Who is in the push window has the rest in a moment; waiting for that would keep the file from the segment that
        # begins next.
        held = [
            each.held_offset
            for each in replica.followers
            if is_patient and not each.streaming and replica.surroundings.alive(each.node_id)
        ]
        return partition.topic.config.retention_bytes, partition.high_watermark, min(held, default=_EVERYTHING)

    def _delete_past_bound(self, bytes_max: int, committed: int, held_offset: int) -> None:
        """Delete segments until `bytes_max` are left; those that copies lack only where it is too much for patience."""
        self._delete_oldest(0, bytes_max, min(committed, held_offset))
        self._delete_oldest(0, PATIENCE * bytes_max, committed)

    def _delete_oldest(self, offset: int, bytes_max: int, committed: int) -> None:
        """Delete segments that end at or below `offset`, or until `bytes_max` are left. Runs on an I/O worker.

        Nothing behind `committed` goes: the epoch may be decided to end there, and the log must be cut to that.
        """
        store = self._partition.log
        while store.epochs and store.limbo is None:
            oldest = store.epochs[0]
            end_offset = oldest.oldest_end_offset
            is_last = len(store.epochs) == 1 and oldest.segment_count == 1
            past_bound = bool(bytes_max) and store.size_bytes > bytes_max
            if is_last or end_offset > committed or not (end_offset <= offset or past_bound):
                return
            if not self._partition.is_alone:
                self._keep(end_offset)
            store.delete_before(end_offset)

    def _keep(self, offset: int) -> None:
        """Write down at least `offset`: what was asked for earlier may come after a deletion went further."""
        fs, directory = self._partition.node.disk.fs, self._partition.log.directory
        save_log_start(fs, directory, max(offset, load_log_start(fs, directory)))

    def _kept(self, error: BaseException | None) -> None:
        if isinstance(error, StorageFailedError):
            self._failed(error)
        elif error is not None:
            # Until it is, a start takes for missing what retention has deleted, and asks the owner.
            log.warning("%s: where the log begins was not written down: %s", self._partition.name, error)

    def _looked(self, error: BaseException | None) -> None:
        if isinstance(error, DiskFullError):
            self._no_space(error)
        elif error is not None:
            self._failed(error)
        else:
            self._raise_log_start()

    def _raise_log_start(self) -> None:
        self._partition.driver.raise_log_start(self._partition.log.start_offset)

    def _no_space(self, error: DiskFullError) -> None:
        if not self._told_of_full_disk:
            self._told_of_full_disk = True
            log.warning("%s: nothing old can be deleted, it is tried again: %s", self._partition.name, error.message)
