"""The growing segment of an epoch: allocation, writes, syncs and sealing.

While nothing is written, the segment's file may be closed ("parked"), see `active_files`: the index stays in memory,
and the file is reopened for the next write. Lock order: `_space_lock`, held while space is allocated or the file is
synced to be parked, then `_file_lock`, held while the file is written, opened or closed.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.directory.names import NEW_SUFFIX
from tidelog_broker.storage.io.errors import is_shortage
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.index import Index, SegmentEnd, pack_index
from tidelog_broker.storage.segment.layout import (
    MARK_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    begun_path,
    index_path,
    pack_mark,
    segment_path,
)
from tidelog_broker.storage.segment.preallocate import ahead_bytes, next_chunk_bytes
from tidelog_proto.batch.header import Buffer, digest_after
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES, HEADER_BYTES
from tidelog_proto.process.file_descriptors import is_out_of_descriptors

_PARKED_BYTES: Final = 1 << 62
"""`left_bytes_min` of a parked segment: larger than any file, so that the appender first calls `ensure_space`, which
reopens the file.
"""
_PADDING: Final = [bytes(length) for length in range(BATCH_ALIGNMENT_BYTES)]


_BATCH_FIELDS: Final = struct.Struct("<12xI36xI8xqQ8xQ24xI")


class BatchFields(NamedTuple):
    """The header fields that an append needs of a stamped batch, that is, one with its offset, epoch and digest."""

    body_length: int
    last_offset_delta: int
    max_timestamp_us: int
    base_offset: int
    epoch: int
    digest: int


_made: Final = tuple.__new__


def batch_fields(batch: Buffer) -> BatchFields:
    """Parse the fields without the checks of `unpack_header`: for batches that this node has verified and stamped."""
    return _made(BatchFields, _BATCH_FIELDS.unpack_from(batch))


def check_group(batches: Sequence[Buffer], *, epoch: int, offset: int, digest: int) -> list[BatchFields]:
    """Assert that the caller has stamped a group as the continuation of a log, and return the batches' fields."""
    assert batches, "a group has at least one batch"
    group: list[BatchFields] = []
    for batch in batches:
        fields = batch_fields(batch)
        assert fields.epoch == epoch, f"a batch of epoch {fields.epoch} in epoch {epoch}"
        assert fields.base_offset == offset, f"a batch at offset {fields.base_offset} where {offset} comes next"
        assert fields.body_length + HEADER_BYTES == len(batch), "a batch is as long as its header says"
        digest = digest_after(batch, 0, digest)
        assert fields.digest == digest, "the running digest continues the one before"
        offset += fields.last_offset_delta + 1
        group.append(fields)
    return group


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """The identity of a new segment's epoch, and the position at which the segment begins."""

    topic_id: bytes
    partition: int
    epoch: int
    base_offset: int
    start_digest: int
    synced_offset: int


class ActiveSegment:
    """The growing segment of an epoch: one thread appends to it; others may allocate space, park it or rename it."""

    def __init__(
        self,
        disk: Disk,
        path: Path,
        header: SegmentHeader,
        opened: OpenSegment,
        end: SegmentEnd,
        *,
        marked_offset: int,
        segment_bytes: int,
        is_named: bool = True,
    ) -> None:
        self._disk = disk
        self.path = path
        self.header = header
        self.opened = opened
        self.end = end
        self.marked_offset = marked_offset
        self._space_lock = threading.Lock()
        self._segment_bytes = segment_bytes
        self.allocated_bytes = opened.file.size()
        self._growing = False
        self._sealed = False
        self.left_bytes_min = 0
        """Minimum bytes of `allocated_bytes` that a group must leave free; otherwise the appender calls `ensure_space`
        first, because preallocation is due.
        """
        self._file_lock = threading.Lock()
        self._may_be_parked = is_named
        """Whether the file has its final name and belongs to this segment."""
        self.is_parked = False
        self.was_used = True
        self._written_bytes = end.position
        self._is_syncing = False
        self._look_ahead()
        disk.active_files.add(self)
        disk.active_files.trim(self)

    @classmethod
    def begin(
        cls, disk: Disk, directory: Path, start: SegmentStart, *, segment_bytes: int, spare: Path | None = None
    ) -> ActiveSegment:
        """Create a segment file under a temporary name, or reuse the file `spare`; `take_name` gives it its final name.

        Raises:
            OSError: the segment was not created; the file `spare` may have been removed.
        """
        header = SegmentHeader(
            nonce=secrets.randbits(64),
            topic_id=start.topic_id,
            partition=start.partition,
            epoch=start.epoch,
            base_offset=start.base_offset,
            start_digest=start.start_digest,
            synced_offset=start.synced_offset,
        )
        path = segment_path(directory, start.base_offset)
        begun = begun_path(path)
        if disk.fs.exists(begun):
            disk.fs.unlink(begun)
        if spare is not None:
            disk.fs.rename(spare, begun)
        file = disk.open_to_append(begun, create=spare is None)
        try:
            if spare is None:
                file.allocate(0, next_chunk_bytes(0))
            file.pwritev([header.pack()], 0)
        except OSError:
            file.close()
            _remove_leftover(disk.fs, begun)
            raise
        opened = OpenSegment(file, Index())
        disk.open_segments.adopt(path, opened)
        end = SegmentEnd(start.base_offset, SEGMENT_HEADER_BYTES, start.start_digest)
        return cls(
            disk,
            path,
            header,
            opened,
            end,
            marked_offset=start.synced_offset,
            segment_bytes=segment_bytes,
            is_named=False,
        )

    def take_name(self) -> None:
        """Make the header durable, then rename the file; the caller syncs the directory. Thread-safe.

        Raises:
            OSError: the disk failed; the segment must not be used any more.
        """
        self.opened.file.pwritev_durably([self.header.pack()], 0)
        self._disk.fs.rename(begun_path(self.path), self.path)
        self._may_be_parked = not self._sealed

    @property
    def base_offset(self) -> int:
        """The offset of the segment's first record."""
        return self.header.base_offset

    @property
    def is_growing(self) -> bool:
        """Whether the segment takes appends: always True here."""
        return True

    @property
    def start_digest(self) -> int:
        """The running digest before the segment's first record."""
        return self.header.start_digest

    @property
    def end_offset(self) -> int:
        """The offset after the segment's last record."""
        return self.end.offset

    @property
    def size_bytes(self) -> int:
        """The size of the segment's content, without preallocated space."""
        return self.end.position

    @property
    def has_batches(self) -> bool:
        """Whether the segment has batches: it may have only its header and sync marks."""
        return len(self.opened.index) > 0

    def ensure_space(self, length_bytes: int) -> None:
        """Ensure that `length_bytes` are allocated after the end of the segment; reopens a parked file.

        Raises:
            OSError: the file cannot be reopened, or no space can be allocated; the contents are unchanged.
        """
        if self.is_parked:
            with self._file_lock:
                self._unpark()
            self._disk.active_files.trim(self)
        needed = self.end.position + length_bytes
        if needed > self.allocated_bytes:
            self._grow_to(needed)
        preallocator = self._disk.preallocator
        if preallocator is not None and self.allocated_bytes - needed < self.left_bytes_min:
            self._growing = preallocator.offer(self._grow_ahead)
            self._look_ahead()

    # ------------------------------------------------------------------------------------ the file

    def abandon(self) -> None:
        """Close the file, which will be opened under another name."""
        self._disk.open_segments.drop(self.path)
        self.release()

    def release(self) -> None:
        """End the lease on the file: this object writes no more."""
        self._disk.active_files.discard(self)
        with self._space_lock, self._file_lock:
            self._may_be_parked = False
            if not self.is_parked:
                self._disk.open_segments.release(self.opened)

    def keep_open(self) -> None:
        """Reopen the file if it is parked, and keep it open until `hand_over`, `release` or `allow_parking`.

        If descriptors are exhausted, files without a lease are closed first.

        Raises:
            OSError: the file cannot be opened.
        """
        with self._space_lock, self._file_lock:
            if self.is_parked:
                try:
                    self._unpark()
                except OSError as error:
                    if not is_out_of_descriptors(error):
                        raise
                    self._disk.open_segments.close_unused()
                    self._unpark()
            self._may_be_parked = False

    def allow_parking(self) -> None:
        """Allow the file to be parked again: undo `keep_open`."""
        self._may_be_parked = not self._sealed

    def hand_over(self) -> OpenSegment:
        """Return the file, which `keep_open` has opened; its lease passes to the caller."""
        with self._space_lock, self._file_lock:
            assert not self.is_parked, "keep_open was not called"
            self._disk.active_files.discard(self)
            return self.opened

    def park(self) -> bool:
        """Sync and close the file until it is needed; return False if it must stay open. Thread-safe."""
        if not self._space_lock.acquire(blocking=False):
            return False
        try:
            with self._file_lock:
                opened, written_bytes = self.opened, self._written_bytes
            if not self._may_be_parked or self._growing or opened.has_failed:
                return False
            if written_bytes > opened.synced_bytes:
                with contextlib.suppress(OSError):  # The error is stored, and the log's next sync raises it.
                    opened.datasync(written_bytes)
            with self._file_lock:
                if self._is_syncing or self._written_bytes > opened.synced_bytes:
                    return False  # Not parked: the file is in use, or was written meanwhile.
                self._disk.active_files.discard(self)
                if not self.is_parked:
                    self.is_parked = True
                    self._look_ahead()
                    self._disk.open_segments.drop(self.path)
                    self._disk.open_segments.release(opened)
            return True
        finally:
            self._space_lock.release()

    @property
    def can_be_opened(self) -> bool:
        """Whether a reader may open the file by its path, because this object may have parked it."""
        return self._may_be_parked

    def open_to_read(self) -> OpenSegment:
        """Open a parked segment for a reader.

        Raises:
            OSError: the file cannot be opened.
        """
        file, known = self._disk.fs.open_readonly(self.path), self.opened
        hashes = known.hashes.cut(len(known.index), file, known.index)
        return OpenSegment(file, known.index, synced_bytes=known.synced_bytes, hashes=hashes)

    def _unpark(self) -> None:
        """Reopen the file; with `_file_lock` held. The caller trims `active_files` once it holds no lock."""
        file, known = self._disk.open_to_append(self.path), self.opened
        hashes = known.hashes.cut(len(known.index), file, known.index)
        self.opened = OpenSegment(file, known.index, synced_bytes=known.synced_bytes, hashes=hashes)
        self._disk.open_segments.replace(self.path, self.opened)
        self.is_parked = False
        self.was_used = True
        self._disk.active_files.add(self)
        self._look_ahead()

    def _write(self, buffers: Sequence[Buffer], position: int, end_position: int) -> None:
        with self._file_lock:
            was_parked = self.is_parked
            if was_parked:
                self._unpark()
            self._written_bytes = end_position  # Set first, so that `park` syncs these bytes before it closes the file.
            self.opened.file.pwritev(buffers, position)
        self.was_used = True
        if was_parked:
            self._disk.active_files.trim(self)

    # ------------------------------------------------------------------------------------ writing

    def write(self, batches: Sequence[Buffer], fields: Sequence[BatchFields], synced_offset: int) -> None:
        """Write a group of batches in one call, after a sync mark if `synced_offset` has advanced; then index them.

        Raises:
            OSError: any part of the group may be on the disk; the segment must not be used any more.
        """
        position = self.end.position
        buffers: list[Buffer] = []
        if synced_offset > self.marked_offset:
            buffers.append(pack_mark(nonce=self.header.nonce, position=position, synced_offset=synced_offset))
            position += MARK_BYTES
            self.marked_offset = synced_offset
        places: list[tuple[int, int]] = []
        for batch in batches:
            length = len(batch)
            gap = -length % BATCH_ALIGNMENT_BYTES
            buffers.append(batch)
            if gap:
                buffers.append(_PADDING[gap])
            places.append((position, length))
            position += length + gap
        assert position <= self.allocated_bytes, "ensure_space was not called"
        self._write(buffers, self.end.position, position)
        index = self.opened.index
        for (at, length), batch_fields in zip(places, fields, strict=True):
            index.append(batch_fields.base_offset, at, length, batch_fields.max_timestamp_us)
        last = fields[-1]
        # The end is published last and atomically: readers load it first and read only below it.
        self.end = SegmentEnd(last.base_offset + last.last_offset_delta + 1, position, last.digest)

    def write_mark(self, synced_offset: int) -> None:
        """Write a sync mark without a group, for a clean stop, if the offset has advanced and there is space."""
        if synced_offset <= self.marked_offset or self.end.position + MARK_BYTES > self.allocated_bytes:
            return
        position = self.end.position
        mark = pack_mark(nonce=self.header.nonce, position=position, synced_offset=synced_offset)
        self._write([mark], position, position + MARK_BYTES)
        self.marked_offset = synced_offset
        self.end = SegmentEnd(self.end.offset, position + MARK_BYTES, self.end.digest)

    def give_back_space(self) -> None:
        """Truncate the file at the end, at a clean stop: preallocated space, and old contents of a reused file."""
        with self._space_lock:
            self._sealed = True
            if self.allocated_bytes > self.end.position:
                self._truncate()
                self.allocated_bytes = self.end.position
            self._look_ahead()

    def datasync(self) -> None:
        """Make everything written durable, which a parked segment already is."""
        with self._file_lock:
            if self.is_parked:
                return
            self._is_syncing = True
        try:
            self.opened.datasync(self.end.position)
        finally:
            self._is_syncing = False

    def stop_growing(self) -> None:
        """Stop preallocation: another object continues with the file."""
        with self._space_lock:
            self._sealed = True
        self._finish_writing()

    def seal(self) -> None:
        """Truncate the file at the end and write the index file. The caller keeps the lease."""
        with self._space_lock:
            self._sealed = True
            if self.allocated_bytes > self.end.position:
                self._truncate()
        self._finish_writing()
        write_index(self._disk.fs, self.path, self.header, self.opened.index, self.end)

    def _finish_writing(self) -> None:
        with self._file_lock:
            if not self.is_parked:
                self.opened.file.finish_writing()

    def _truncate(self) -> None:
        with self._file_lock:
            if self.is_parked:
                self._unpark()
            self.opened.file.truncate(self.end.position)

    def _look_ahead(self) -> None:
        """Update `left_bytes_min`: the free space below which the next chunk is due; 0 if no chunk is to be requested.

        Called when one of its inputs has changed, so that a publish only compares two numbers.
        """
        if self.is_parked:
            self.left_bytes_min = _PARKED_BYTES
            return
        is_enough = self._disk.preallocator is None or self._growing or self.allocated_bytes >= self._segment_bytes
        self.left_bytes_min = 0 if is_enough else ahead_bytes(self.allocated_bytes)

    def _grow_to(self, size_bytes: int) -> None:
        with self._space_lock:
            missing = size_bytes - self.allocated_bytes
            if missing <= 0:
                return
            # A group larger than a segment allocates exactly the space that it needs.
            rest = max(0, self._segment_bytes - size_bytes)
            try:
                self._allocate(missing + min(next_chunk_bytes(size_bytes), rest))
            except OSError as error:
                if not is_shortage(error):
                    raise
                # The required space may fit although a whole chunk does not.
                self._allocate(missing)

    def _grow_ahead(self) -> None:
        """Allocate the next chunk; run by the preallocator."""
        with self._space_lock:
            self._growing = False
            if self._sealed:
                return
            # The appender gets the same error and can report it before it assigns offsets.
            with contextlib.suppress(OSError):
                rest = max(0, self._segment_bytes - self.allocated_bytes)
                self._allocate(min(next_chunk_bytes(self.allocated_bytes), rest))
            self._look_ahead()

    def _allocate(self, length_bytes: int) -> None:
        if length_bytes > 0:
            with self._file_lock:
                if self.is_parked:
                    self._unpark()
                file = self.opened.file
            file.allocate(self.allocated_bytes, length_bytes)  # `_space_lock` keeps the file from being parked
            self.allocated_bytes += length_bytes
            self._look_ahead()


def write_index(fs: FileSystem, segment: Path, header: SegmentHeader, index: Index, end: SegmentEnd) -> None:
    """Write the index file of a sealed segment and rename it. No sync is needed: readers check the CRC.

    On a full disk the file is not written; a reader rebuilds the index from the segment.
    """
    path = index_path(segment)
    unnamed = path.with_name(path.name + NEW_SUFFIX)
    try:
        if fs.exists(unnamed):
            fs.unlink(unnamed)
        with closing(fs.open(unnamed, create=True)) as file:
            file.pwritev([pack_index(index, nonce=header.nonce, end=end)], 0)
        fs.rename(unnamed, path)
    except OSError as error:
        if not is_shortage(error):
            raise
        _remove_leftover(fs, unnamed)


def _remove_leftover(fs: FileSystem, path: Path) -> None:
    """Remove the remains of a failed creation; on a failing disk the next open removes them."""
    with contextlib.suppress(OSError):  # The caller handles the error of the creation.
        if fs.exists(path):
            fs.unlink(path)
