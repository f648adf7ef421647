"""The log of one epoch of one partition: segments in a directory, appended to by one thread, read by any.

The order of a publish is `reserve`, stamp (by the caller), `append`, `sync`. Space is found before an offset is given
out, so a full disk refuses a group with nothing changed. When a sync happens is the caller's choice (always, at
intervals, never); the log remembers how far the last one reached and writes it down with the next group.

A failed write or sync ends the log's life as a writer: the kernel may have dropped the pages and would call the next
sync a success.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from tidelog_broker.storage.active_segment import ActiveSegment, SegmentStart
from tidelog_broker.storage.disk import Disk, OpenSegment
from tidelog_broker.storage.errors import (
    DamagedError,
    DiskFullError,
    LimboError,
    StorageFailedError,
    is_disk_full,
    space_or_failure,
)
from tidelog_broker.storage.index import SegmentEnd
from tidelog_broker.storage.reading import read_batches, read_headers
from tidelog_broker.storage.recovery import Damage, recover_epoch, remove_epoch_dir, remove_segment, reopen_last
from tidelog_broker.storage.sealed_segment import SealedSegment
from tidelog_broker.storage.segment import MARK_BYTES, NEW_SUFFIX, BatchFields, batch_fields
from tidelog_broker.storage.unsynced import UnsyncedSegment
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.header import BatchHeader, Buffer, digest_after
from tidelog_proto.limits import FETCH_BYTES_MAX, HEADER_BYTES

State = Literal["active", "sealed", "limbo", "failed"]

_UNSYNCED_SEGMENTS_MAX: Final = 4
"""Rolled segments whose sync may still be owed; past this an append waits for the oldest."""


class AppendedGroup(NamedTuple):
    """Where a group went."""

    base_offset: int
    end_offset: int
    length_bytes: int


class ReadResult(NamedTuple):
    """Whole batches, copied, without padding, and the offset to go on from."""

    batches: list[memoryview]
    next_offset: int


Segment = SealedSegment | ActiveSegment


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
        # Replaced as a whole, never changed: readers on other threads take it once. The end is taken before it.
        self._segments: tuple[Segment, ...] = (*sealed, active) if active else tuple(sealed)
        self.directory = directory
        self.segment_bytes = segment_bytes
        self.damage: Damage | None = None
        self._disk = disk
        self._active = active
        self._unsynced: list[UnsyncedSegment] = []
        self._failure = ""
        self._end = active.end if active else SegmentEnd(sealed[-1].end_offset, 0, sealed[-1].end_digest)
        first = self._segments[0].header
        self.topic_id, self.partition, self.epoch = first.topic_id, first.partition, first.epoch
        self.synced_offset = self._end.offset

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
    ) -> EpochLog:
        """Begin an epoch in a new directory, which is there durably and complete, or not at all.

        Raises:
            DiskFullError: there is no space for it; nothing has changed.
            StorageFailedError: the disk failed.
        """
        unnamed = directory.with_name(directory.name + NEW_SUFFIX)
        start = SegmentStart(topic_id, partition, epoch, start_offset, 0, start_offset)
        try:
            if disk.fs.exists(unnamed):
                remove_epoch_dir(disk.fs, unnamed)
            disk.fs.make_dir(unnamed)
            ActiveSegment.create(disk, unnamed, start, segment_bytes=segment_bytes).abandon()
            disk.fs.rename(unnamed, directory)
            disk.fs.sync_dir(directory.parent)
        except OSError as error:
            raise space_or_failure(f"epoch {epoch} cannot begin in {directory}", error) from error
        return cls.open(disk, directory, segment_bytes=segment_bytes)

    @classmethod
    def open(cls, disk: Disk, directory: Path, *, segment_bytes: int, sealed_end_offset: int | None = None) -> EpochLog:
        """Recover an epoch; see `recovery`. With `sealed_end_offset` it takes no appends and must end there.

        Raises:
            DamagedError: not even a first segment can be told.
            StorageFailedError: the disk does not read or write.
        """
        recovered = recover_epoch(disk.fs, directory, sealed_end_offset=sealed_end_offset)
        active = None
        if recovered.last is not None:
            active = reopen_last(disk, recovered.last, segment_bytes=segment_bytes, writable=recovered.damage is None)
        log = cls(disk, directory, sealed=recovered.sealed, active=active, segment_bytes=segment_bytes)
        log.damage = recovered.damage
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
    def start_offset(self) -> int:
        """The first offset that is still held."""
        return self._segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """The offset behind the last appended record; in LIMBO, behind the last readable one."""
        return self._end.offset

    @property
    def oldest_end_offset(self) -> int:
        """The end of the oldest segment."""
        return self._segments[0].end_offset

    @property
    def end_digest(self) -> int:
        """The running digest at the end."""
        return self._end.digest

    @property
    def size_bytes(self) -> int:
        """What the segments hold, without space that is only taken ahead."""
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segment_count(self) -> int:
        """How many segments there are."""
        return len(self._segments)

    # ------------------------------------------------------------------------------------ appending

    def has_room(self, needed_bytes: int) -> bool:
        """Whether `reserve` for this much would find the space there already; does not touch the disk."""
        active = self._active
        if active is None or self._failure or self.damage is not None:
            return False
        return not self._must_roll(active, needed_bytes + MARK_BYTES) and active.has_space(needed_bytes + MARK_BYTES)

    def reserve(self, needed_bytes: int) -> None:
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
            if is_disk_full(error):
                raise DiskFullError(f"no space for {needed} bytes in {self.directory}: {error}") from error
            raise self._fail("taking space", error) from error
        except StorageFailedError as error:
            self._failure = self._failure or error.message
            raise

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Write a group of stamped batches, for which `reserve` was called, behind the end. Does not sync.

        Raises:
            StorageFailedError: the write failed, now or before; any part of the group may be on the disk.
        """
        active = self._writable()
        fields = self._check_group(batches)
        before = active.end
        try:
            active.write(batches, fields, self.synced_offset)
        except OSError as error:
            raise self._fail("a write", error) from error
        self._end = active.end
        return AppendedGroup(before.offset, active.end.offset, active.end.position - before.position)

    def sync(self) -> int:
        """Make everything appended so far durable and return the end offset of that.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never tried again.
        """
        active = self._writable()
        target = self._end.offset
        if target == self.synced_offset and not self._unsynced:
            return target
        try:
            while self._unsynced:
                self._sync_oldest()
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
            self._segments = (*self._segments[:-1], self._retire(active))
        except OSError as error:
            raise self._fail("sealing", error) from error
        self._active = None
        self._disk.open_segments.release(active.opened)

    def close(self, *, sync: bool = True) -> None:
        """Sync, leave a mark that says so, and close the files. A log that takes no appends is only closed.

        Raises:
            StorageFailedError: the last sync failed; the files are closed nevertheless.
        """
        try:
            if sync and self.state == "active":
                self.sync()
                self._leave_mark()
        finally:
            for owed in self._unsynced:
                self._disk.open_segments.release(owed.give_up())
            self._unsynced.clear()
            if self._active is not None:
                self._disk.open_segments.release(self._active.opened)
                self._active = None
            for segment in self._segments:
                self._disk.open_segments.drop(segment.path)
            self._failure = self._failure or "it is closed"

    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several segments and return the bytes given back.

        Raises:
            StorageFailedError: its name could not be removed.
        """
        assert len(self._segments) > 1, "the newest segment stays"
        oldest = self._segments[0]
        self._segments = self._segments[1:]
        try:
            remove_segment(self._disk.fs, oldest.path)
            # Durable one by one: a crash must never leave a hole behind an older segment that came back.
            self._disk.fs.sync_dir(self.directory)
        except OSError as error:
            raise self._fail(f"deleting {oldest.path.name}", error) from error
        self._disk.open_segments.drop(oldest.path)
        return oldest.size_bytes

    def delete_before(self, offset: int) -> int:
        """Delete whole segments below `offset`, oldest first, never the newest; return the bytes given back.

        Raises:
            StorageFailedError: a name could not be removed.
        """
        freed_bytes = 0
        while len(self._segments) > 1 and self._segments[0].end_offset <= offset:
            freed_bytes += self.delete_oldest_segment()
        return freed_bytes

    # ------------------------------------------------------------------------------------ reading

    def read(self, offset: int, max_bytes: int, *, limit_offset: int, at_least_one: bool = True) -> ReadResult:
        """Read whole batches from the one that holds `offset` on, none of which ends above `limit_offset`.

        At least one batch comes back when there is one below the limit, however large it is, unless `at_least_one` is
        unset; the first may begin before `offset`. May be called by any thread.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE below the start or above the end.
            DamagedError: the bytes are not what the index says, or the log is in LIMBO and ends before `offset`.
        """
        end_offset = self._end.offset
        left_bytes = min(max_bytes, FETCH_BYTES_MAX)
        batches: list[memoryview] = []
        position = offset
        for segment in self._segments_from(offset, end_offset):
            segment_end = min(segment.end_offset, end_offset)
            if position >= segment_end:
                continue
            with self._lease(segment) as opened:
                found, position = read_batches(
                    opened,
                    segment.path,
                    offset=position,
                    limit_offset=limit_offset,
                    end_offset=segment_end,
                    max_bytes=left_bytes,
                    at_least_one=at_least_one and not batches,
                )
            batches += found
            left_bytes -= sum(map(len, found))
            if position < segment_end or left_bytes <= 0:
                break
        return ReadResult(batches, position)

    def find_by_time(self, timestamp_us: int) -> int | None:
        """Return the base offset of the first batch with a record of at least this timestamp; None without one."""
        end_offset = self._end.offset
        for segment in self._segments:
            with self._lease(segment) as opened:
                slot = opened.index.slot_of_time(timestamp_us)
                if slot is not None and opened.index.offsets[slot] < end_offset:
                    return opened.index.offsets[slot]
        return None

    def scan_headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds `from_offset` to the end of now."""
        end_offset = self._end.offset
        for segment in self._segments_from(from_offset, end_offset):
            with self._lease(segment) as opened:
                yield from read_headers(
                    opened, segment.path, offset=from_offset, end_offset=min(end_offset, segment.end_offset)
                )

    # ------------------------------------------------------------------------------------ inside

    def _segments_from(self, offset: int, end_offset: int) -> tuple[Segment, ...]:
        """Return the segments from the one that holds `offset` on; `end_offset` was taken before.

        Raises:
            ProtocolError: OFFSET_OUT_OF_RANGE.
            DamagedError: behind the readable end in LIMBO.
        """
        segments = self._segments
        start_offset = segments[0].base_offset
        if not start_offset <= offset <= end_offset:
            if self.damage is not None and offset > end_offset:
                raise DamagedError.at(self.damage.path, self.damage.position, self.damage.reason)
            raise self._out_of_range(offset, start_offset, end_offset)
        return segments[max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1) :]

    def _lease(self, segment: Segment) -> AbstractContextManager[OpenSegment]:
        return self._disk.open_segments.lease(segment.path, lambda: self._open_segment(segment))

    def _open_segment(self, segment: Segment) -> OpenSegment:
        """Open a segment that a reader has in hand, which may have been rolled or deleted since it took it."""
        now = next((one for one in self._segments if one.base_offset == segment.base_offset), None)
        try:
            if isinstance(now, SealedSegment):
                return now.open(self._disk)
        except FileNotFoundError:
            # Deleted between the look and the open.
            now = None
        except OSError as error:
            raise StorageFailedError(f"{segment.path} cannot be opened: {error}; check the disk") from error
        if now is None:
            raise self._out_of_range(segment.base_offset, self.start_offset, self.end_offset)
        raise StorageFailedError(f"{segment.path}: the log is closed")

    def _out_of_range(self, offset: int, start_offset: int, end_offset: int) -> ProtocolError:
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"offset {offset}; {start_offset} to {end_offset} can be read",
            log_start_offset=start_offset,
            high_watermark=end_offset,
        )

    def _writable(self) -> ActiveSegment:
        if self._failure:
            raise StorageFailedError(f"{self.directory} takes nothing more: {self._failure}")
        for owed in self._unsynced:
            if owed.error is not None:
                raise self._fail("a sync in the background", owed.error)
        if self.damage is not None:
            raise LimboError(f"{self.directory} takes no appends, {self.damage.path} is damaged: {self.damage.reason}")
        if self._active is None:
            raise StorageFailedError(f"{self.directory} is sealed at offset {self.end_offset}")
        return self._active

    def _must_roll(self, active: ActiveSegment, needed_bytes: int) -> bool:
        """A group never spans two segments; one that is larger than a segment gets one to itself."""
        return active.has_batches and active.end.position + needed_bytes > self.segment_bytes

    def _fail(self, what: str, error: OSError) -> StorageFailedError:
        self._failure = f"{what} failed: {error}"
        return StorageFailedError(f"{self.directory}: {self._failure}; the log is stopped, check the disk and restart")

    def _check_group(self, batches: Sequence[Buffer]) -> list[BatchFields]:
        """Assert that the caller stamped the group onto the end of this log."""
        assert batches, "a group has at least one batch"
        offset, digest = self._end.offset, self._end.digest
        group: list[BatchFields] = []
        for batch in batches:
            fields = batch_fields(batch)
            assert fields.epoch == self.epoch, f"a batch of epoch {fields.epoch} in epoch {self.epoch}"
            assert fields.base_offset == offset, f"a batch at offset {fields.base_offset} where {offset} comes next"
            assert fields.body_length + HEADER_BYTES == len(batch), "a batch is as long as its header says"
            digest = digest_after(batch, 0, digest)
            assert fields.digest == digest, "the running digest continues the one before"
            offset += fields.last_offset_delta + 1
            group.append(fields)
        return group

    def _roll(self, old: ActiveSegment) -> ActiveSegment:
        """Begin the next segment and retire the old one. An OSError before the next has its name changes nothing."""
        start = SegmentStart(
            self.topic_id, self.partition, self.epoch, self._end.offset, self._end.digest, self.synced_offset
        )
        while len(self._unsynced) >= _UNSYNCED_SEGMENTS_MAX:
            self._sync_oldest()
        new = ActiveSegment.create(self._disk, self.directory, start, segment_bytes=self.segment_bytes)
        self._active = new
        try:
            self._segments = (*self._segments[:-1], self._retire(old), new)
        except OSError as error:
            raise self._fail("rolling", error) from error
        self._end = new.end
        if self.synced_offset < self._end.offset:
            owed = UnsyncedSegment(old.opened)
            self._unsynced.append(owed)
            if self._disk.syncer is not None:
                self._disk.syncer.request(owed.sync_ahead)
        else:
            self._disk.open_segments.release(old.opened)
        return new

    def _retire(self, active: ActiveSegment) -> SealedSegment:
        active.seal()
        end = active.end
        return SealedSegment(active.path, active.header, end.offset, end.digest, end.position)

    def _sync_oldest(self) -> None:
        try:
            self._unsynced[0].sync()
        except OSError as error:
            raise self._fail("a sync", error) from error
        self._disk.open_segments.release(self._unsynced.pop(0).give_up())

    def _leave_mark(self) -> None:
        """Write down that everything is synced, so that rot in the last group is told from a torn write."""
        active = self._writable()
        try:
            active.write_mark(self.synced_offset)
            active.datasync()
        except OSError as error:
            raise self._fail("the closing mark", error) from error
