"""The log of one epoch of one partition: segments in a directory, written by one thread, read by any.

A publish calls `ensure_space`, stamps the batches, then calls `append` and `sync`. Space is allocated before an offset
is assigned, so a full disk refuses a group with nothing changed. The caller decides when to sync (always, at intervals,
never); the log records the last synced offset with the next group.

After a failed write or sync the log takes no more writes: the kernel may have dropped the pages, and the next sync
would report success.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tidelog_broker.storage.directory.repair_markers import has_marker, remove_marker
from tidelog_broker.storage.directory.write_guard import WriteGuard
from tidelog_broker.storage.engine.reading import ScrubPart
from tidelog_broker.storage.engine.store import SEGMENT, AppendedGroup, Damage, EpochStore, State
from tidelog_broker.storage.epoch.deferred_syncs import DeferredSyncs
from tidelog_broker.storage.epoch.epoch_reader import EpochReader
from tidelog_broker.storage.epoch.held_segments import HeldSegments, Segment
from tidelog_broker.storage.epoch.recovery import recover_epoch, remove_segment, reopen_last
from tidelog_broker.storage.epoch.segment_part import SegmentPart
from tidelog_broker.storage.epoch.truncation import cut_files, keep_files, kept_part
from tidelog_broker.storage.io.errors import (
    LimboError,
    StorageFailedError,
    is_shortage,
    space_or_failure,
    unreadable,
)
from tidelog_broker.storage.segment.active_segment import ActiveSegment, SegmentStart, check_group
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import MARK_BYTES
from tidelog_broker.storage.segment.sealed_segment import SealedSegment
from tidelog_broker.storage.segment.spare import Spare
from tidelog_proto.batch.header import Buffer
from tidelog_proto.process.file_descriptors import is_out_of_descriptors


class EpochLog(EpochStore):
    """Stores one epoch in segment files. Created by `open`; one thread at a time may append, any thread may read."""

    engine = SEGMENT
    is_lost = False

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        sealed: list[SealedSegment],
        active: ActiveSegment | None,
        segment_bytes: int,
    ) -> None:
        end = active.end if active else SegmentEnd(sealed[-1].end_offset, 0, sealed[-1].end_digest)
        self._disk = disk
        self._held = HeldSegments((*sealed, active) if active else tuple(sealed), end)
        """The segments, their end and their damage; other objects only read them."""
        self.held = self._held
        self.segment_reader = EpochReader(disk, self._held)
        """Reads the log, on any thread."""
        self.reader = self.segment_reader
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._active = active
        self._deferred = DeferredSyncs(disk, directory)
        self._spare = Spare(disk.fs, disk.spares, directory)
        self._guard = WriteGuard(disk.fs, directory)
        self.is_repairing = False
        """Whether records are missing, see `repair_markers`: in LIMBO, the log takes appends of the missing part."""
        first = self._held.segments[0].header
        self.topic_id, self.partition, self.epoch = first.topic_id, first.partition, first.epoch
        self.synced_offset = self._held.end.offset

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: Path,
        *,
        segment_bytes: int,
        sealed_end_offset: int | None = None,
        is_new: bool = False,
    ) -> EpochLog:
        """Recover an epoch; see `recovery`.

        Args:
            sealed_end_offset: the decided end of the epoch, if it has ended: the log then takes no appends, and is in
                LIMBO if it does not end there.
            is_new: whether this process has just created the directory, durably.

        Raises:
            DamagedError: no segment has a valid header.
            StorageFailedError: the disk cannot be read or written.
        """
        recovered = recover_epoch(disk.fs, directory, sealed_end_offset=sealed_end_offset, is_new=is_new)
        active = None
        if recovered.last is not None:
            active = reopen_last(disk, recovered.last, segment_bytes=segment_bytes, writable=recovered.damage is None)
        log = cls(disk, directory, sealed=recovered.sealed, active=active, segment_bytes=segment_bytes)
        log._held.damage = recovered.damage
        if log.damage is None:
            log._resume_repair(decided=sealed_end_offset is not None)
        return log

    # ----------------------------------------------------------------------------------------- state

    @property
    def state(self) -> State:
        """The log's state: whether it takes appends, and if not, why."""
        return self._guard.state(self._held.damage, is_sealed=self._active is None)

    @property
    def end_offset(self) -> int:
        """The offset after the last appended record; in LIMBO, after the last readable one."""
        return self._held.end.offset

    @property
    def end_digest(self) -> int:
        """The running digest at the end."""
        return self._held.end.digest

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._held.segments

    # ------------------------------------------------------------------------------------ appending

    def has_room(self, needed_bytes: int) -> bool:
        """Return whether `ensure_space` would succeed for this many bytes without touching the disk."""
        active = self._active
        if active is None or self._guard.failure or self._held.damage is not None:
            return False
        needed, position = needed_bytes + MARK_BYTES, active.end.position
        if position + needed > self.segment_bytes and active.has_batches:
            return False  # the group needs another segment
        return active.allocated_bytes - position - needed >= active.left_bytes_min

    def ensure_space(self, needed_bytes: int) -> None:
        """Allocate space for a group, rolling to a new segment if needed.

        Args:
            needed_bytes: the sum of `padded(length)` of the group's batches.

        Raises:
            DiskFullError: no space; nothing has changed and the log stays usable.
            LimboError: the log is damaged.
            StorageFailedError: the log has failed or is sealed.
        """
        active = self._writable()
        needed = MARK_BYTES + needed_bytes
        try:
            if self._must_roll(active, needed):
                active = self._roll(active)
            active.ensure_space(needed)
        except OSError as error:
            if is_shortage(error):
                self._disk.open_segments.mappings.let_go()
                if is_out_of_descriptors(error):
                    self._disk.open_segments.close_unused()
                else:
                    self._disk.note_full()
                if self._give_up_spare():
                    return self.ensure_space(needed_bytes)
                raise space_or_failure(f"{needed} bytes cannot be allocated in {self.directory}", error) from error
            raise self._guard.failed("allocating space", error) from error
        except StorageFailedError as error:
            self._guard.give_up(error.message)
            raise

    def roll(self) -> bool:
        """Roll to a new segment if the newest has batches; return whether it did. Not during an append.

        Raises:
            DiskFullError: no space; nothing has changed and the log stays usable.
            LimboError, StorageFailedError: as `ensure_space`.
        """
        active = self._writable()
        if not active.has_batches:
            return False
        try:
            self._roll(active)
        except OSError as error:
            if is_shortage(error):
                if not is_out_of_descriptors(error):
                    self._disk.note_full()
                raise space_or_failure(f"another segment cannot be created in {self.directory}", error) from error
            raise self._guard.failed("creating another segment", error) from error
        except StorageFailedError as error:
            self._guard.give_up(error.message)
            raise
        return True

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Append a group of stamped batches, for which `ensure_space` was called. Does not sync.

        Raises:
            StorageFailedError: the write failed, now or before; any part of the group may be on the disk.
        """
        held, active = self._held, self._active
        if active is None or self._guard.failure or self._deferred.error is not None or held.damage is not None:
            active = self._writable()
        fields = check_group(batches, epoch=self.epoch, offset=held.end.offset, digest=held.end.digest)
        before = active.end
        try:
            active.write(batches, fields, self.synced_offset)
        except OSError as error:
            raise self._guard.failed("a write", error) from error
        held.end = active.end
        return AppendedGroup(before.offset, active.end.offset, active.end.position - before.position)

    def sync(self) -> int:
        """Make all appended batches durable and return their end offset.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never retried.
        """
        active = self._writable()
        target = self._held.end.offset
        if target == self.synced_offset and not self._deferred:
            return target
        try:
            self._deferred.sync()
            active.datasync()
        except OSError as error:
            raise self._guard.failed("a sync", error) from error
        self.synced_offset = target
        return target

    def seal(self) -> None:
        """Seal the epoch at its end: sync, write the index, take no more appends.

        Raises:
            StorageFailedError: as `sync`.
        """
        active = self._writable()
        self.sync()
        try:
            active.keep_open()
            self._held.segments = (*self._held.segments[:-1], self._retire(active))
        except OSError as error:
            raise self._guard.failed("sealing", error) from error
        self._active = None
        active.release()
        self._give_up_spare()

    def close(self, *, sync: bool = True) -> None:
        """Sync, write a sync mark, and close the files. A log whose state is not `active` is only closed.

        Raises:
            StorageFailedError: the last sync failed; the files are closed nevertheless.
        """
        with self._held.beside:
            self._held.takes_files = False
        try:
            if sync and self.state == "active":
                self.sync()
                self._leave_mark()
        finally:
            self._give_up_spare()
            self._deferred.cancel()
            if self._active is not None:
                self._active.release()
                self._active = None
            for segment in self._held.segments:
                self._disk.open_segments.drop(segment.path)
            self._guard.give_up("the log is closed")

    def truncate(self, end_offset: int) -> None:
        """Truncate the log at a batch boundary, durably, and make it appendable again. Ends LIMBO, sealing and repair.

        After a crash during truncation the log has all of the tail, a part of it, or none. A log in LIMBO can be
        truncated at its damage or before it. A sealed log that ends at `end_offset` stays sealed.

        Raises:
            DivergedError: no batch of this log ends at `end_offset`; nothing has changed.
            DamagedError: the batch at `end_offset` is damaged; nothing has changed.
            StorageFailedError: the disk failed, now or before.
        """
        self._guard.check_open()
        if self.state == "active" or self.is_repairing:
            self.sync()
        digest = self.decided_digest(end_offset)
        try:
            self._deferred.sync_names()
            if end_offset != self.end_offset or (self._held.damage is not None and not self.is_repairing):
                self._cut(end_offset, digest)
        except OSError as error:
            raise self._guard.failed("truncating the log", error) from error
        self._guard.end_repair()
        self._held.damage, self.is_repairing = None, False

    def truncate_to_valid_prefix(self) -> None:
        """Truncate a log in LIMBO at its damage: it stays in LIMBO but takes appends of the missing records.

        Raises:
            DiskFullError: no space for the repair marker; nothing was truncated.
            StorageFailedError: the disk failed, now or before.
        """
        assert self._held.damage is not None, "there is no damage"
        self._guard.check_open()
        if self.is_repairing:
            return
        self._guard.begin_repair()
        try:
            self._deferred.sync_names()
            self._cut(self.end_offset, self.end_digest)
        except OSError as error:
            raise self._guard.failed("truncating the log at its damage", error) from error
        self._begin_repairing()

    def finish_repair(self) -> None:
        """End LIMBO; syncs first. Call it only if nothing is missing, or if an operator gives the missing records up.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        assert self.is_repairing, "nothing is missing"
        self.sync()
        self._guard.end_repair()
        self._held.damage, self.is_repairing = None, False

    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several segments and return the bytes freed; `sync_names` makes the deletion durable.

        Raises:
            StorageFailedError: the segment's files could not be removed.
        """
        assert len(self._held.segments) > 1, "the newest segment stays"
        oldest = self._held.segments[0]
        try:
            # Remove one at a time, so that a crash cannot bring back an older segment with a gap after it.
            self._deferred.sync_names()
            with self._held.beside:
                self._held.segments = self._held.segments[1:]
            is_kept = self._active is not None and self._spare.keep(oldest.path, oldest.size_bytes)
            if not is_kept:
                remove_segment(self._disk.fs, oldest.path)
            self._deferred.defer_names_sync()
            self._deferred.cancel_all_but(len(self._held.segments) - 1)
            if not self._disk.open_segments.drop(oldest.path) and is_kept:
                self._spare.discard()
        except OSError as error:
            raise self._guard.failed(f"deleting {oldest.path.name}", error) from error
        return oldest.size_bytes

    def sync_names(self) -> None:
        """Make the segments' names durable. Any thread may call it, so that the appending thread need not wait.

        Raises:
            StorageFailedError: the disk failed, now or before; the log's next operation fails, too.
        """
        try:
            self._deferred.sync_names()
        except OSError as error:
            raise StorageFailedError(f"{self.directory} could not be synced: {error}; check the disk") from error

    def scrub_parts(self, *, is_newest: bool) -> list[ScrubPart]:
        """Return the segments that take no more appends, oldest first."""
        segments = self.segments
        found: list[ScrubPart] = [
            SegmentPart(self.epoch, segment.path, segment.end_offset, following.start_digest)
            for segment, following in pairwise(segments)
        ]
        if segments and not is_newest and self.damage is None:
            found.append(SegmentPart(self.epoch, segments[-1].path, self.end_offset, self.end_digest))
        return found

    # --------------------------------------------------------------------------------- internals

    def _resume_repair(self, *, decided: bool) -> None:
        """Resume a repair, or remove its marker if the log reaches the decided end of the epoch."""
        try:
            if decided:
                remove_marker(self._disk.fs, self.directory)
            elif has_marker(self._disk.fs, self.directory):
                self._begin_repairing()
        except OSError as error:
            raise unreadable(f"{self.directory} cannot be recovered", error) from error

    def _begin_repairing(self) -> None:
        path, end = self._held.segments[-1].path, self._held.end
        reason = "the log was truncated at damage or lost, and the missing records have not been fetched yet"
        self._held.damage = Damage(path, end.position, end.offset, end.offset, reason)
        self.is_repairing = True

    def _cut(self, end_offset: int, end_digest: int) -> None:
        """Truncate the files at a batch boundary, drop later segments, and open the last kept one for appends."""
        fs, leases = self._disk.fs, self._disk.open_segments
        segments = self._held.segments
        number = bisect_right(segments, end_offset, key=lambda segment: segment.base_offset) - 1
        path, header = segments[number].path, segments[number].header
        with self._held.beside:
            self._held.takes_files = False
        with self.segment_reader.lease(segments[number]) as opened:
            kept, hashes = kept_part(opened.index, end_offset, end_digest), opened.hashes
        old, self._active = self._active, None
        # Readers stop at the new end from here on.
        self._held.end = kept.end
        if old is not None:
            old.stop_growing()
            old.release()
        cut_files(fs, path, kept.end.position)
        if self._held.damage is not None and not self.is_repairing:
            whole = [(one.path, one.header, one.end) for one in segments[:number]]
            keep_files(fs, [*whole, (path, header, kept.end)], synced_offset=self._held.damage.synced_offset)
        file = self._disk.open_to_append(path)
        opened = OpenSegment(file, kept.index, hashes=hashes.cut(len(kept.index), file, kept.index))
        leases.replace(path, opened)
        active = ActiveSegment(
            self._disk,
            path,
            header,
            opened,
            kept.end,
            marked_offset=header.synced_offset,
            segment_bytes=self.segment_bytes,
        )
        self._held.segments = (*segments[:number], active)
        self._active = active
        for segment in segments[number + 1 :]:
            leases.drop(segment.path)
        self.synced_offset = end_offset
        # The kept part was synced, but the sync marks that cover it may have been truncated: write another mark.
        try:
            active.ensure_space(MARK_BYTES)
        except OSError as error:
            if not is_shortage(error):
                raise
        active.write_mark(end_offset)
        active.datasync()
        self._held.end = active.end
        self._held.takes_files = True

    def _writable(self) -> ActiveSegment:
        self._guard.check_open()
        if self._deferred.error is not None:
            raise self._guard.failed("a background sync", self._deferred.error)
        damage = self._held.damage
        if damage is not None and not self.is_repairing:
            raise LimboError(
                f"{self.directory} takes no appends: {damage.path} is damaged at byte {damage.position}: "
                f"{damage.reason}; check it with: tidelog log verify {self.directory}; if no other node has the data: "
                "restore a backup, or stop the node and run: tidelog log repair DATA"
            )
        if self._active is None:
            raise self._guard.sealed(self.end_offset)
        return self._active

    def _must_roll(self, active: ActiveSegment, needed_bytes: int) -> bool:
        """Return whether the group needs a new segment. A group never spans two; a larger one gets its own."""
        return active.end.position + needed_bytes > self.segment_bytes and active.has_batches

    def _roll(self, old: ActiveSegment) -> ActiveSegment:
        """Begin the next segment and retire the old one; an OSError while the next one is created changes nothing."""
        try:
            self._deferred.sync_names()
            self._deferred.make_room()
        except OSError as error:
            raise self._guard.failed("a sync", error) from error
        # Everything before the oldest unsynced segment is durable. Recording that also bounds the recovery of a log
        # that is never synced, which reads everything from the synced offset on.
        owed_from = max(0, len(self._held.segments) - 1 - self._deferred.segment_count)
        self.synced_offset = max(self.synced_offset, self._held.segments[owed_from].base_offset)
        old.keep_open()  # Opening the new segment may close the old one's file, with no descriptor left to reopen it.
        start = SegmentStart(
            self.topic_id, self.partition, self.epoch, self._held.end.offset, self._held.end.digest, self.synced_offset
        )
        try:
            new = ActiveSegment.begin(
                self._disk, self.directory, start, segment_bytes=self.segment_bytes, spare=self._spare.use()
            )
        except OSError:
            old.allow_parking()
            raise
        self._deferred.defer_names_sync(new.take_name)
        self._active = new
        try:
            self._held.segments = (*self._held.segments[:-1], self._retire(old), new)
        except OSError as error:
            raise self._guard.failed("rolling to a new segment", error) from error
        self._held.end = new.end
        if self.synced_offset < self._held.end.offset:
            self._deferred.defer_segment_sync(old.hand_over(), old.size_bytes)
        else:
            old.release()
        return new

    def _give_up_spare(self) -> bool:
        """Delete the spare file; return False if it is absent, or if that fails: the next open then deletes it."""
        with contextlib.suppress(OSError):
            return self._spare.discard()
        return False

    def _retire(self, active: ActiveSegment) -> SealedSegment:
        active.seal()
        end = active.end
        return SealedSegment(active.path, active.header, end.offset, end.digest, end.position)

    def _leave_mark(self) -> None:
        """Write a sync mark, so that a later start can distinguish damage in the last group from a torn write."""
        active = self._writable()
        try:
            active.keep_open()
            active.write_mark(self.synced_offset)
            active.datasync()
            active.give_back_space()
        except OSError as error:
            raise self._guard.failed("writing the sync mark at the end of the log", error) from error
