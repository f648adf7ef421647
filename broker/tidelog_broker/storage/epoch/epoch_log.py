"""The log of one epoch of one partition: segments in a directory, appended to by one thread, read by any.

The order of a publish is `ensure_space`, stamp (by the caller), `append`, `sync`. Space is found before an offset is
given out, so a full disk refuses a group with nothing changed. When a sync happens is the caller's choice (always, at
intervals, never); the log remembers how far the last one reached and writes it down with the next group.

A failed write or sync ends the log's life as a writer: the kernel may have dropped the pages and would call the next
sync a success.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from tidelog_broker.storage.epoch.deferred_syncs import DeferredSyncs
from tidelog_broker.storage.epoch.epoch_dir import make_epoch_dir
from tidelog_broker.storage.epoch.epoch_reader import EpochReader, HeldSegments, Segment
from tidelog_broker.storage.epoch.recovery import Damage, recover_epoch, remove_segment, reopen_last
from tidelog_broker.storage.epoch.repair import has_note, remove_note, write_note
from tidelog_broker.storage.epoch.truncation import cut_files, keep_files, kept_part
from tidelog_broker.storage.io.errors import (
    DivergedError,
    LimboError,
    StorageFailedError,
    is_shortage,
    space_or_failure,
    unreadable,
)
from tidelog_broker.storage.segment.active_segment import ActiveSegment, SegmentStart
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_broker.storage.segment.layout import MARK_BYTES, check_group
from tidelog_broker.storage.segment.sealed_segment import SealedSegment
from tidelog_broker.storage.segment.spare import Spare
from tidelog_proto.batch.header import Buffer
from tidelog_proto.process.file_descriptors import is_out_of_descriptors

State = Literal["active", "sealed", "limbo", "failed"]


class AppendedGroup(NamedTuple):
    """Where a group went."""

    base_offset: int
    end_offset: int
    length_bytes: int


class EpochLog:
    """See the module. Made by `create` or `open`; never share one between two appending threads."""

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
        self.reader = EpochReader(disk, self._held)
        """Reads what is here, on any thread."""
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._active = active
        self._deferred = DeferredSyncs(disk, directory)
        self._spare = Spare(disk.fs, disk.spares, directory)
        self._failure = ""
        self.is_repairing = False
        """Whether it lacks what it once held, see `repair`: in LIMBO, but it takes what is missing."""
        first = self._held.segments[0].header
        self.topic_id, self.partition, self.epoch = first.topic_id, first.partition, first.epoch
        self.synced_offset = self._held.end.offset

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: Path,
        *,
        topic_id: bytes,
        partition: int,
        epoch: int,
        start_offset: int,
        segment_bytes: int,
        start_digest: int = 0,
        is_newest: bool = False,
        is_lacking: bool = False,
        before_named: Callable[[], None] | None = None,
    ) -> EpochLog:
        """Begin an epoch in a new directory, which is there durably and complete, or not at all; see `make_epoch_dir`.

        `start_digest` is the running digest in front of `start_offset`: not 0 in a copy that lacks the epoch's front.

        Raises:
            DiskFullError: there is no space for it; nothing has changed.
            StorageFailedError: the disk failed; the directory may be there.
        """
        start = SegmentStart(topic_id, partition, epoch, start_offset, start_digest, start_offset)
        make_epoch_dir(
            disk,
            directory,
            start,
            segment_bytes=segment_bytes,
            is_newest=is_newest,
            is_lacking=is_lacking,
            before_named=before_named,
        )
        return cls._recovered(disk, directory, segment_bytes=segment_bytes, is_new=True)

    @classmethod
    def open(cls, disk: Disk, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None) -> EpochLog:
        """Recover an epoch; see `recovery`. With `sealed_end_offset` it takes no appends and must end there.

        Raises:
            DamagedError: not even a first segment can be told.
            StorageFailedError: the disk does not read or write.
        """
        return cls._recovered(disk, directory, segment_bytes=segment_bytes, sealed_end_offset=sealed_end_offset)

    @classmethod
    def _recovered(
        cls,
        disk: Disk,
        directory: Path,
        *,
        segment_bytes: int,
        sealed_end_offset: int | None = None,
        is_new: bool = False,
    ) -> EpochLog:
        recovered = recover_epoch(disk.fs, directory, sealed_end_offset=sealed_end_offset, is_new=is_new)
        active = None
        if recovered.last is not None:
            active = reopen_last(disk, recovered.last, segment_bytes=segment_bytes, writable=recovered.damage is None)
        log = cls(disk, directory, sealed=recovered.sealed, active=active, segment_bytes=segment_bytes)
        log._held.damage = recovered.damage
        if log.damage is None:
            log._heed_note(decided=sealed_end_offset is not None)
        return log

    # ------------------------------------------------------------------------------------ what it is

    @property
    def state(self) -> State:
        """Whether it takes appends, and if not, why."""
        if self._failure:
            return "failed"
        if self.damage is not None:
            return "limbo"
        return "active" if self._active is not None else "sealed"

    @property
    def damage(self) -> Damage | None:
        """Why the log is in LIMBO, None when it is not."""
        return self._held.damage

    @property
    def start_offset(self) -> int:
        """The first offset that is still held."""
        return self._held.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last appended record; in LIMBO, behind the last readable one."""
        return self._held.end.offset

    @property
    def end_digest(self) -> int:
        """The running digest at the end."""
        return self._held.end.digest

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._held.segments

    @property
    def start_digest(self) -> int:
        """The running digest at `start_offset`."""
        return self._held.segments[0].header.start_digest

    @property
    def oldest_end_offset(self) -> int:
        """The end of the oldest segment."""
        return self._held.segments[0].end_offset

    @property
    def size_bytes(self) -> int:
        """What the segments hold, without space that is only taken ahead."""
        return sum(segment.size_bytes for segment in self._held.segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._held.segments)

    # ------------------------------------------------------------------------------------ appending

    def has_room(self, needed_bytes: int) -> bool:
        """Whether `ensure_space` for this much would find the space there already; does not touch the disk."""
        active = self._active
        if active is None or self._failure or self._held.damage is not None:
            return False
        needed = needed_bytes + MARK_BYTES
        if active.end.position + needed > self.segment_bytes and active.has_batches:
            return False  # it must roll
        return active.has_space(needed)

    def ensure_space(self, needed_bytes: int) -> None:
        """Make sure of the space for a group, rolling to a new segment if need be.

        Args:
            needed_bytes: the sum of `padded(length)` of the group's batches.

        Raises:
            DiskFullError: no space; nothing has changed and the log goes on.
            LimboError: the log is damaged.
            StorageFailedError: the log is failed or sealed.
        """
        active = self._writable()
        needed = MARK_BYTES + needed_bytes
        try:
            if self._must_roll(active, needed):
                active = self._roll(active)
            active.ensure_space(needed)
        except OSError as error:
            if is_shortage(error):
                self._disk.spares.end()
                self._disk.open_segments.mappings.let_go()
                if is_out_of_descriptors(error):
                    self._disk.open_segments.close_unused()
                if self._give_up_spare():
                    return self.ensure_space(needed_bytes)
                raise space_or_failure(f"no space for {needed} bytes in {self.directory}", error) from error
            raise self._fail("taking space", error) from error
        except StorageFailedError as error:
            self._failure = self._failure or error.message
            raise

    def roll(self) -> bool:
        """Begin another segment where the newest has batches; return whether that was so. For who is not appending.

        Raises:
            DiskFullError: no space; nothing has changed and the log goes on.
            LimboError, StorageFailedError: as `ensure_space`.
        """
        active = self._writable()
        if not active.has_batches:
            return False
        try:
            self._roll(active)
        except OSError as error:
            if is_shortage(error):
                self._disk.spares.end()
                raise space_or_failure(f"no space for another segment in {self.directory}", error) from error
            raise self._fail("taking space", error) from error
        except StorageFailedError as error:
            self._failure = self._failure or error.message
            raise
        return True

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Write a group of stamped batches, for which `ensure_space` was called, behind the end. Does not sync.

        Raises:
            StorageFailedError: the write failed, now or before; any part of the group may be on the disk.
        """
        active = self._writable()
        fields = check_group(batches, epoch=self.epoch, offset=self._held.end.offset, digest=self._held.end.digest)
        before = active.end
        try:
            active.write(batches, fields, self.synced_offset)
        except OSError as error:
            raise self._fail("a write", error) from error
        self._held.end = active.end
        return AppendedGroup(before.offset, active.end.offset, active.end.position - before.position)

    def sync(self) -> int:
        """Make everything appended so far durable and return the end offset of that.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never tried again.
        """
        active = self._writable()
        target = self._held.end.offset
        if target == self.synced_offset and not self._deferred:
            return target
        try:
            self._deferred.sync()
            active.datasync()
        except OSError as error:
            raise self._fail("a sync", error) from error
        self.synced_offset = target
        return target

    def seal(self) -> None:
        """End the epoch here: sync, write the index, take no more appends.

        Raises:
            StorageFailedError: as `sync`.
        """
        active = self._writable()
        self.sync()
        try:
            active.keep_open()
            self._held.segments = (*self._held.segments[:-1], self._retire(active))
        except OSError as error:
            raise self._fail("sealing", error) from error
        self._active = None
        active.release()
        self._give_up_spare()

    def close(self, *, sync: bool = True) -> None:
        """Sync, leave a mark that says so, and close the files. A log that takes no appends is only closed.

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
            self._deferred.give_up()
            if self._active is not None:
                self._active.release()
                self._active = None
            for segment in self._held.segments:
                self._disk.open_segments.drop(segment.path)
            self._failure = self._failure or "it is closed"

    def truncate(self, end_offset: int) -> None:
        """End the log at a batch boundary and go on from there; durable at return. Ends LIMBO, sealing and repairing.

        A log that is opened again after a crash in the middle has all of the tail, a part of it, or none; one that was
        damaged behind `end_offset` may then be cut there and out of LIMBO.

        Raises:
            DivergedError: no batch held here ends there; nothing has changed.
            StorageFailedError: the disk failed, now or before.
        """
        if self._failure:
            self._writable()
        if self.state == "active":
            self.sync()
        digest = self.reader.digest_at(end_offset)
        if digest is None:
            raise DivergedError(f"{self.directory}: no batch ends at offset {end_offset}, where the epoch is to end")
        try:
            self._deferred.sync_names()
            if end_offset != self.end_offset or (self._held.damage is not None and not self.is_repairing):
                self._cut(end_offset, digest)
            remove_note(self._disk.fs, self.directory)
        except OSError as error:
            raise self._fail("cutting the log", error) from error
        self._held.damage, self.is_repairing = None, False

    def cut_to_good(self) -> None:
        """Of a log in LIMBO, keep what lies in front of the damage: it is still in LIMBO, and takes appends.

        Raises:
            DiskFullError: no space for the note that it was cut; nothing is.
            StorageFailedError: the disk failed, now or before.
        """
        assert self._held.damage is not None, "there is no damage"
        if self._failure:
            self._writable()
        if self.is_repairing:
            return
        try:
            write_note(self._disk.fs, self.directory)
        except OSError as error:
            if is_shortage(error):
                raise space_or_failure(f"{self.directory} cannot be cut in front of its damage", error) from error
            raise self._fail("noting that the log is cut", error) from error
        try:
            self._deferred.sync_names()
            self._cut(self.end_offset, self.end_digest)
        except OSError as error:
            raise self._fail("cutting the log in front of its damage", error) from error
        self._begin_repairing()

    def finish_repair(self) -> None:
        """End LIMBO: what was missing has been appended, or was never decided to exist. Syncs first.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        assert self.is_repairing, "nothing is missing"
        self.sync()
        try:
            remove_note(self._disk.fs, self.directory)
        except OSError as error:
            raise self._fail("ending a repair", error) from error
        self._held.damage, self.is_repairing = None, False

    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several segments and return the bytes given back; `sync_names` makes that durable.

        Raises:
            StorageFailedError: its name could not be removed.
        """
        assert len(self._held.segments) > 1, "the newest segment stays"
        oldest = self._held.segments[0]
        try:
            # One by one: a crash must never leave a hole behind an older segment that came back.
            self._deferred.sync_names()
            with self._held.beside:
                self._held.segments = self._held.segments[1:]
            is_kept = self._active is not None and self._spare.keep(oldest.path, oldest.size_bytes)
            if not is_kept:
                remove_segment(self._disk.fs, oldest.path)
            self._deferred.owe_names()
            self._deferred.forget_all_but(len(self._held.segments) - 1)
            if not self._disk.open_segments.drop(oldest.path) and is_kept:
                self._spare.discard()
        except OSError as error:
            raise self._fail(f"deleting {oldest.path.name}", error) from error
        return oldest.size_bytes

    def delete_before(self, offset: int) -> int:
        """Delete whole segments below `offset`, oldest first, never the newest; return the bytes given back.

        Raises:
            StorageFailedError: a name could not be removed.
        """
        freed_bytes = 0
        while len(self._held.segments) > 1 and self._held.segments[0].end_offset <= offset:
            freed_bytes += self.delete_oldest_segment()
        return freed_bytes

    def sync_names(self) -> None:
        """Make durable under which names the segments are. May be called by any thread, to spare the appending one.

        Raises:
            StorageFailedError: the disk failed, now or before; the log's next step fails with it.
        """
        try:
            self._deferred.sync_names()
        except OSError as error:
            raise StorageFailedError(f"{self.directory} could not be synced: {error}; check the disk") from error

    # ------------------------------------------------------------------------------------ inside

    def _heed_note(self, *, decided: bool) -> None:
        """Take up a repair that is under way; where the end of the epoch is decided and met, nothing is missing."""
        try:
            if decided:
                remove_note(self._disk.fs, self.directory)
            elif has_note(self._disk.fs, self.directory):
                self._begin_repairing()
        except OSError as error:
            raise unreadable(f"{self.directory} cannot be recovered", error) from error

    def _begin_repairing(self) -> None:
        path, end = self._held.segments[-1].path, self._held.end
        reason = "the log was cut in front of damage or lost, and what is missing has not been fetched yet"
        self._held.damage = Damage(path, end.position, end.offset, end.offset, reason)
        self.is_repairing = True

    def _cut(self, end_offset: int, end_digest: int) -> None:
        """Cut files and segments at a batch boundary that is held, and open the last one for appends."""
        fs, leases = self._disk.fs, self._disk.open_segments
        segments = self._held.segments
        number = bisect_right(segments, end_offset, key=lambda segment: segment.base_offset) - 1
        path, header = segments[number].path, segments[number].header
        with self._held.beside:
            self._held.takes_files = False
        with self.reader.lease(segments[number]) as opened:
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
        # What is kept was synced, and the marks that said so may have gone.
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
        if self._failure:
            raise StorageFailedError(f"{self.directory} takes nothing more: {self._failure}")
        if self._deferred.error is not None:
            raise self._fail("a sync in the background", self._deferred.error)
        damage = self._held.damage
        if damage is not None and not self.is_repairing:
            raise LimboError(f"{self.directory} takes no appends, {damage.path} is damaged: {damage.reason}")
        if self._active is None:
            raise StorageFailedError(f"{self.directory} is sealed at offset {self.end_offset}")
        return self._active

    def _must_roll(self, active: ActiveSegment, needed_bytes: int) -> bool:
        """A group never spans two segments; one that is larger than a segment gets one to itself."""
        return active.end.position + needed_bytes > self.segment_bytes and active.has_batches

    def _fail(self, what: str, error: OSError) -> StorageFailedError:
        self._failure = f"{what} failed: {error}"
        return StorageFailedError(f"{self.directory}: {self._failure}; the log is stopped, check the disk and restart")

    def _roll(self, old: ActiveSegment) -> ActiveSegment:
        """Begin the next segment and retire the old one. An OSError before the next has its name changes nothing."""
        try:
            self._deferred.sync_names()
            self._deferred.make_room()
        except OSError as error:
            raise self._fail("a sync", error) from error
        # A log that nobody syncs goes by this, too: after a crash all that lies behind it is read.
        owed_from = max(0, len(self._held.segments) - 1 - self._deferred.segment_count)
        self.synced_offset = max(self.synced_offset, self._held.segments[owed_from].base_offset)
        old.keep_open()  # else the new one may have it parked, and no descriptor may be left to open it again
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
        self._deferred.owe_names(new.take_name)
        self._active = new
        try:
            self._held.segments = (*self._held.segments[:-1], self._retire(old), new)
        except OSError as error:
            raise self._fail("rolling", error) from error
        self._held.end = new.end
        if self.synced_offset < self._held.end.offset:
            self._deferred.owe_segment(old.hand_over(), old.size_bytes)
        else:
            old.release()
        return new

    def _give_up_spare(self) -> bool:
        """Delete the spare file, if there is one; where that fails the next open does it."""
        with contextlib.suppress(OSError):
            return self._spare.discard()
        return False

    def _retire(self, active: ActiveSegment) -> SealedSegment:
        active.seal()
        end = active.end
        return SealedSegment(active.path, active.header, end.offset, end.digest, end.position)

    def _leave_mark(self) -> None:
        """Write down that everything is synced, so that rot in the last group is told from a torn write."""
        active = self._writable()
        try:
            active.keep_open()
            active.write_mark(self.synced_offset)
            active.datasync()
            active.give_back_space()
        except OSError as error:
            raise self._fail("the closing mark", error) from error
