"""The store of an epoch whose newest records are in the commit log and whose older ones are in segments (ADR 0196).

The lock of the tail is held while the tail changes, because the tidying of the log copies tails on another thread.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from tidelog_broker.storage.commit_log.commit_log import CommitLog, reserved_bytes
from tidelog_broker.storage.commit_log.log_files import MovedError
from tidelog_broker.storage.commit_log.records import Boundary, record_bytes
from tidelog_broker.storage.commit_log.shared_reader import SharedContents, SharedReader
from tidelog_broker.storage.commit_log.store_directory import GrowingPart, finish_move
from tidelog_broker.storage.commit_log.store_identity import MOVED_NAME
from tidelog_broker.storage.commit_log.tail_batches import CheckedBatches, read_checked
from tidelog_broker.storage.directory.write_guard import WriteGuard
from tidelog_broker.storage.engine.reading import Part, ScrubPart
from tidelog_broker.storage.engine.store import (
    SEGMENT,
    SHARED,
    AppendedGroup,
    Damage,
    EpochStore,
    StagedBatch,
    State,
    padded,
)
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_broker.storage.epoch.recovery import lay_out_segments
from tidelog_broker.storage.io.errors import (
    DiskFullError,
    LimboError,
    StorageFailedError,
    is_shortage,
    space_or_failure,
)
from tidelog_broker.storage.segment.active_segment import SegmentStart, check_group
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.layout import segment_path
from tidelog_proto.batch.header import BatchHeader, Buffer

log = logging.getLogger(__name__)

REPAIRING: Final = "the log was cut in front of damage or was lost, and the missing records have not been fetched yet"


class _Held:
    """The damage of a store, as an attribute."""

    __slots__ = ("damage",)

    def __init__(self) -> None:
        self.damage: Damage | None = None


class SharedStore(EpochStore):
    """The store of one epoch; made by `SharedEngine`. One thread at a time may append, any thread may read."""

    engine = SHARED
    is_lost = False

    def __init__(
        self, disk: Disk, contents: SharedContents, *, segment_bytes: int, damage: Damage | None, is_repairing: bool
    ) -> None:
        self._disk = disk
        self._contents = contents
        self._log: CommitLog = contents.log
        self.directory = contents.directory
        self.topic_id, self.partition, self.epoch = contents.start[:3]
        self.reader = SharedReader(contents)
        self.held = _Held()
        self.is_repairing = is_repairing
        self.segment_bytes = segment_bytes
        self.synced_offset = contents.end.offset
        self.sync_group = contents.log
        self._reserved_bytes = 0
        contents.tail.written_position = contents.log.position
        self._guard = WriteGuard(disk.fs, contents.directory)
        self.is_sealed = False
        """Whether the epoch has ended although its tail is still in the log, because the disk was full."""
        self._set_damage(damage)

    # ----------------------------------------------------------------------------------------- state

    @property
    def state(self) -> State:
        """Whether the store takes appends, and if not, why."""
        if self._guard.failure:
            return "failed"
        if self._contents.is_plain:
            return self._segments.state
        return "failed" if self._log.failure else self._guard.state(self._contents.damage, is_sealed=self.is_sealed)

    @property
    def start_offset(self) -> int:
        """The first offset that the store still has."""
        return self._contents.start_boundary.offset

    @property
    def start_digest(self) -> int:
        """The running digest at `start_offset`."""
        return self._contents.start_boundary.digest

    @property
    def end_offset(self) -> int:
        """The offset after the last appended record; in LIMBO, after the last readable one."""
        return self._contents.end.offset

    @property
    def end_digest(self) -> int:
        """The running digest at the end."""
        return self._contents.end.digest

    @property
    def segments(self) -> Sequence[Part]:
        """The segments, oldest first; the newest one includes the tail."""
        contents, segments = self._contents, self._contents.segments
        if contents.is_plain:
            return self._segments.segments
        older = segments.segments[:-1] if segments is not None else ()
        newest = segments.segments[-1] if segments is not None else None
        start = contents.start_boundary if newest is None else Boundary(newest.base_offset, newest.start_digest)
        size_bytes = (newest.size_bytes if newest is not None else 0) + self._tail_bytes
        growing = GrowingPart(
            segment_path(self.directory, start.offset),
            start.offset,
            contents.end.offset,
            start.digest,
            size_bytes,
            not self.is_sealed,
        )
        return (*older, growing)

    @property
    def segment_count(self) -> int:
        """The number of segments, at least one."""
        segments = self._contents.segments
        return segments.segment_count if segments is not None else 1

    @property
    def oldest_end_offset(self) -> int:
        """The end offset of the oldest segment."""
        return self.segments[0].end_offset

    @property
    def size_bytes(self) -> int:
        """The size of the segments and of the tail."""
        segments = self._contents.segments
        return (segments.size_bytes if segments is not None else 0) + self._tail_bytes

    @property
    def _tail_bytes(self) -> int:
        contents = self._contents
        return 0 if contents.is_plain or contents.is_blocked else contents.tail.size_bytes

    @property
    def _segments(self) -> EpochLog:
        assert self._contents.segments is not None
        return self._contents.segments

    # ------------------------------------------------------------------------------------ appending

    def has_room(self, needed_bytes: int) -> bool:
        """Return whether `ensure_space` would succeed for this many bytes without waiting; reserves them."""
        contents = self._contents
        if self._guard.failure or contents.damage is not None:
            return False
        if contents.is_plain:
            return self._segments.has_room(needed_bytes)
        if self.is_sealed or self._log.failure or self._must_write_out(needed_bytes):
            return False
        return self._reserve(needed_bytes, may_wait=False)

    def ensure_space(self, needed_bytes: int) -> None:
        """Reserve space for a group in the commit log; write the tail to the segments first if it is large.

        Raises:
            DiskFullError: no space; the store stays usable.
            LimboError: the store is damaged.
            StorageFailedError: the store or the commit log has failed, or the store is sealed.
        """
        if self._contents.is_plain:
            self._segments.segment_bytes = self.segment_bytes
            self._segments.ensure_space(needed_bytes)
            return
        self._check_writable()
        if self._must_write_out(needed_bytes):
            self._write_out()
        self._reserve(needed_bytes, may_wait=True)

    def roll(self) -> bool:
        """Begin another segment if the newest has batches, also in the tail; return whether it did."""
        if self._contents.is_plain:
            return self._segments.roll()
        self._check_writable()
        self._write_out()
        return self._contents.segments is not None and self._segments.roll()

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Append a group of stamped batches, for which `ensure_space` was called. Does not sync.

        Raises:
            StorageFailedError: the write failed, now or before; any part of the group may be stored.
        """
        if self._contents.is_plain:
            return self._segments.append(batches)
        self._check_writable()
        tail = self._contents.tail
        before = tail.end
        fields = check_group(batches, epoch=self.epoch, offset=before.offset, digest=before.digest)
        assert sum(record_bytes(len(one)) for one in batches) <= self._reserved_bytes, "ensure_space was not called"
        with tail.lock:
            reserved, self._reserved_bytes = self._reserved_bytes, 0
            size_bytes = self._log.append(tail, batches, fields, reserved)
        return AppendedGroup(before.offset, tail.end.offset, size_bytes)

    def sync(self) -> int:
        """Make all appended batches durable, with one sync for all stores of the log; return their end offset.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never retried.
        """
        if self._contents.is_plain:
            self.synced_offset = self._segments.sync()
            return self.synced_offset
        self._check_writable()
        target = self._contents.tail.end.offset
        self._log.sync(self._contents.tail.written_position)
        self.synced_offset = target
        return target

    def may_stage(self, needed_bytes: int) -> bool:
        """Return whether a batch may be staged; see `EpochStore.may_stage`."""
        contents = self._contents
        if self._guard.failure or contents.damage is not None or contents.is_plain or self.is_sealed:
            return False
        size_bytes = contents.tail.size_bytes
        return not size_bytes or size_bytes + needed_bytes <= min(self._log.sizes.tail_bytes_max, self.segment_bytes)

    def stage(self, batch: Buffer, header: BatchHeader) -> StagedBatch:
        """Prepare a batch for `CommitLog.append_staged`; see `EpochStore.stage`."""
        tail = self._contents.tail
        assert header.base_offset == tail.end.offset, f"a batch at {header.base_offset} in a store to {tail.end.offset}"
        return StagedBatch(tail, batch, header)

    def note_synced(self) -> None:
        """Record that a sync has covered everything in the store; see `EpochStore.note_synced`."""
        if self._contents.is_plain:
            self.sync()
            return
        assert self._log.synced_position >= self._contents.tail.written_position, "no sync covers the newest batches"
        self.synced_offset = self._contents.tail.end.offset

    def seal(self) -> None:
        """Write the tail to the segments, seal them, and make the directory one of the segment engine.

        Raises:
            DiskFullError: no space; the store still takes appends.
            StorageFailedError: as `sync`.
        """
        if self._contents.is_plain:
            self._segments.seal()
            return
        self._check_writable()
        self._log.sync()
        self.move_to_segments()
        self._segments.seal()

    def sealed_at_open(self) -> None:
        """Seal a store whose epoch has ended, as far as there is space; it takes no appends in any case.

        Raises:
            StorageFailedError: the disk failed.
        """
        try:
            self.seal()
        except DiskFullError as error:
            log.info("%s stays in the commit log until there is space: %s", self.directory, error.message)
            self.is_sealed = True

    def close(self, *, sync: bool = True) -> None:
        """Sync, and close the segments. A store whose state is not `active` is only closed.

        Raises:
            StorageFailedError: the last sync failed; the files are closed nevertheless.
        """
        contents = self._contents
        try:
            if sync and not contents.is_plain and self.state == "active":
                self._log.settle()
        finally:
            self._give_back()
            if contents.segments is not None:
                contents.segments.close(sync=sync)
            self._guard.give_up("the store is closed")

    # ------------------------------------------------------------------------------------ changes of the end

    def truncate(self, end_offset: int) -> None:
        """Truncate the store at a batch boundary, durably, and make it appendable. Ends LIMBO, sealing and repair.

        A sealed store that ends at `end_offset` stays sealed.

        Raises:
            DivergedError: no batch of this store ends at `end_offset`; nothing has changed.
            DamagedError: the batch at `end_offset` is damaged; nothing has changed.
            StorageFailedError: the disk failed, now or before.
        """
        contents = self._contents
        if contents.is_plain:
            self._segments.truncate(end_offset)
            self.synced_offset = end_offset
            return
        self._check_open()
        if self.state == "active" or self.is_repairing:
            self._log.sync()
        digest = self.decided_digest(end_offset)
        if self.is_sealed and end_offset == self.end_offset:
            return
        if end_offset != self.end_offset or (contents.damage is not None and not self.is_repairing):
            self._cut(Boundary(end_offset, digest))
            segments = contents.segments
            if segments is not None and (end_offset < segments.end_offset or segments.damage is not None):
                segments.truncate(end_offset)
            contents.is_blocked = False
        self.is_sealed = False
        self.synced_offset = end_offset
        self._end_repair()

    def truncate_to_valid_prefix(self) -> None:
        """Truncate a store in LIMBO at its damage: it stays in LIMBO but takes appends of the missing records.

        Raises:
            DiskFullError: no space for the repair marker; nothing was truncated.
            StorageFailedError: the disk failed, now or before.
        """
        contents = self._contents
        assert contents.damage is not None, "there is no damage"
        if contents.is_plain:
            self._segments.truncate_to_valid_prefix()
            self._follow_segments()
            return
        self._check_open()
        if self.is_repairing:
            return
        self._guard.begin_repair()
        self._cut(contents.end)
        segments = contents.segments
        if segments is not None and segments.damage is not None and not segments.is_repairing:
            segments.truncate_to_valid_prefix()
        contents.is_blocked = False
        self.is_sealed = False
        self.is_repairing = True
        end_offset = contents.end.offset
        self._set_damage(Damage(self.directory, 0, end_offset, end_offset, REPAIRING))

    def finish_repair(self) -> None:
        """End LIMBO; syncs first. Call it only if nothing is missing, or if an operator gives the missing records up.

        Raises:
            StorageFailedError: the disk failed, now or before.
        """
        assert self.is_repairing, "nothing is missing"
        if self._contents.is_plain:
            self._segments.finish_repair()
            self._follow_segments()
            return
        self.sync()
        self._end_repair()

    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several segments and return the bytes freed; see `EpochStore.delete_oldest_segment`."""
        return self._segments.delete_oldest_segment()

    def sync_names(self) -> None:
        """Make the deletion and the beginning of segments durable. Any thread may call it."""
        segments = self._contents.segments
        if segments is not None:
            segments.sync_names()

    def detach(self) -> None:
        """Write the readable part of the tail to the segments, so that the directory has everything that is left.

        Raises:
            StorageFailedError: the disk failed.
        """
        contents = self._contents
        if contents.is_plain or self._guard.failure or self._log.failure:
            return
        try:
            if not contents.is_blocked:
                self._write_out(is_partial=True)
            self._mark_moved()
        except DiskFullError as error:
            log.warning("%s: its newest records stay in the commit log: %s", self.directory, error.message)

    def scrub_parts(self, *, is_newest: bool) -> Sequence[ScrubPart]:
        """Return the segments that take no more appends, oldest first."""
        contents, segments = self._contents, self._contents.segments
        if segments is None:
            return ()
        return segments.scrub_parts(is_newest=is_newest or not contents.is_plain)

    # --------------------------------------------------------------------------------- internals

    def _must_write_out(self, needed_bytes: int) -> bool:
        size_bytes = self._contents.tail.size_bytes
        return size_bytes > 0 and size_bytes + needed_bytes > min(self._log.sizes.tail_bytes_max, self.segment_bytes)

    def _reserve(self, needed_bytes: int, *, may_wait: bool) -> bool:
        """Reserve space in the log for a group, unless more is reserved; return False if that needs the disk."""
        missing_bytes = reserved_bytes(needed_bytes) - self._reserved_bytes
        if missing_bytes > 0:
            if not self._log.reserve(missing_bytes, may_wait=may_wait):
                return False
            self._reserved_bytes += missing_bytes
        return True

    def _give_back(self) -> None:
        self._log.release(self._reserved_bytes)
        self._reserved_bytes = 0

    def _write_out(self, *, is_partial: bool = False) -> None:
        """Write the batches of the tail to the segments, durably, and empty the tail.

        Args:
            is_partial: whether a damaged end of the tail is left out; otherwise damage puts the store into LIMBO.

        Raises:
            DiskFullError: no space; nothing has changed.
            LimboError: a batch of the tail is damaged.
            StorageFailedError: the disk failed.
        """
        contents, tail = self._contents, self._contents.tail
        with tail.lock:
            if not len(tail.entries):
                return
            # Recovery relies on it: a tail without records whose segments are longer was cut.
            self._log.sync()
            checked = self._read_tail()
            if checked.damage is not None and not is_partial:
                self._found_damage(checked)
            segments = contents.segments or self._begin_segments(tail.entries.base)
            segments.segment_bytes = self.segment_bytes
            if checked.batches:
                try:
                    segments.ensure_space(sum(padded(len(batch)) for batch in checked.batches))
                    segments.append(checked.batches)
                    segments.sync()
                except StorageFailedError as error:
                    self._guard.give_up(error.message)
                    raise
            contents.segments = segments
            tail.restart(checked.end, tail.position)
            with suppress(DiskFullError):  # An open finds that the segments have these records.
                self._log.state(tail)

    def _read_tail(self) -> CheckedBatches:
        try:
            return read_checked(self._log.files, self._contents.tail)
        except OSError as error:
            raise self._guard.failed("reading the commit log", error) from error
        except MovedError:
            raise AssertionError("a tail is not copied while its lock is held") from None

    def _found_damage(self, checked: CheckedBatches) -> None:
        assert checked.damage is not None
        tail = self._contents.tail
        reason, synced_offset = checked.damage.message, tail.end.offset
        tail.entries = tail.entries.first(len(checked.batches))
        tail.end, tail.is_damaged, tail.marked_offset = checked.end, True, synced_offset
        tail.size_bytes = tail.entries.log_bytes
        self._set_damage(Damage(self._log.directory, 0, checked.end.offset, synced_offset, reason))
        raise LimboError(f"{self.directory} takes no appends: {reason}")

    def _begin_segments(self, base: Boundary) -> EpochLog:
        start = SegmentStart(self.topic_id, self.partition, self.epoch, base.offset, base.digest, base.offset)
        try:
            if not self._disk.fs.exists(segment_path(self.directory, base.offset)):
                lay_out_segments(self._disk, self.directory, start, segment_bytes=self.segment_bytes)
            self._disk.fs.sync_dir(self.directory)
        except OSError as error:
            if is_shortage(error):
                self._disk.note_full()
                raise space_or_failure(f"a segment cannot be created in {self.directory}", error) from error
            raise self._guard.failed("creating a segment", error) from error
        return EpochLog.open(self._disk, self.directory, segment_bytes=self.segment_bytes, is_new=True)

    def move_to_segments(self) -> None:
        """Write the tail to the segments and make the directory one of the segment engine.

        Raises:
            DiskFullError: no space; the directory is one of the shared model still.
            LimboError, StorageFailedError: as `_write_out`.
        """
        contents = self._contents
        self._write_out()
        if contents.segments is None:
            contents.segments = self._begin_segments(contents.tail.entries.base)
        self._mark_moved()

    def _mark_moved(self) -> None:
        """Record in the directory that the commit log is not needed, then forget the store in the log."""
        contents, fs = self._contents, self._disk.fs
        path = self.directory / MOVED_NAME
        try:
            if not fs.exists(path):
                fs.open(path, create=True).close()
        except OSError as error:
            if is_shortage(error):
                raise space_or_failure(f"{path} cannot be created", error) from error
            raise self._guard.failed(f"creating {path.name}", error) from error
        try:
            fs.sync_dir(self.directory)
            self._give_back()
            contents.is_plain = contents.segments is not None
            finish_move(fs, self.directory, self._log, contents.tail.store)
        except OSError as error:
            raise self._guard.failed("moving the store out of the commit log", error) from error
        except StorageFailedError as error:
            self._guard.give_up(error.message)
            raise
        if contents.is_plain:
            self.engine = SEGMENT
            self.sync_group = None

    def _cut(self, end: Boundary) -> None:
        tail = self._contents.tail
        with tail.lock:
            tail.is_damaged = False
            self._log.cut(tail, end)
            if self._contents.is_blocked:
                tail.restart(end, tail.position)
            self._log.sync()

    def _end_repair(self) -> None:
        segments = self._contents.segments
        if segments is not None and segments.is_repairing:
            segments.finish_repair()
        self._guard.end_repair()
        self.is_repairing = False
        self._set_damage(None)

    def _follow_segments(self) -> None:
        self.is_repairing = self._segments.is_repairing
        self._set_damage(self._segments.damage)

    def _set_damage(self, damage: Damage | None) -> None:
        self._contents.damage = self.held.damage = damage

    def _check_open(self) -> None:
        self._guard.check_open()
        self._log.check()

    def _check_writable(self) -> None:
        self._check_open()
        damage = self._contents.damage
        if damage is not None and not self.is_repairing:
            raise LimboError(
                f"{self.directory} takes no appends: {damage.path} is damaged at byte {damage.position}: "
                f"{damage.reason}; if no other node has the data: restore a backup"
            )
        if self.is_sealed:
            raise self._guard.sealed(self.end_offset)
