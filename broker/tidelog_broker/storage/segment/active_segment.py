"""The one segment of an epoch that grows: space, writes, sync, and its sealing.

While nothing is written its file may be closed, see `active_files`: then it is parked. The index stays in memory, and
the file is opened again for the next write. Two locks, of which one may be taken inside the other: `_space_lock` while
space is taken or the file is synced to be parked, and `_file_lock` while the file is written, opened or closed.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidelog_broker.storage.io.errors import is_shortage
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.segment.disk import Disk, OpenSegment
from tidelog_broker.storage.segment.index import Index, SegmentEnd, pack_index
from tidelog_broker.storage.segment.layout import (
    MARK_BYTES,
    NEW_SUFFIX,
    SEGMENT_HEADER_BYTES,
    BatchFields,
    SegmentHeader,
    begun_path,
    index_path,
    pack_mark,
    segment_path,
)
from tidelog_broker.storage.segment.preallocate import ahead_bytes, next_chunk_bytes
from tidelog_proto.batch.header import Buffer
from tidelog_proto.limits import BATCH_ALIGNMENT_BYTES
from tidelog_proto.process.file_descriptors import is_out_of_descriptors

_PARKED_BYTES: Final = 1 << 62
"""More than any file has space for: an appender asks for space first, and that opens the file."""
_PADDING: Final = [bytes(length) for length in range(BATCH_ALIGNMENT_BYTES)]


@dataclass(frozen=True, slots=True)
class SegmentStart:
    """What a new segment continues."""

    topic_id: bytes
    partition: int
    epoch: int
    base_offset: int
    start_digest: int
    synced_offset: int


class ActiveSegment:
    """A segment that is appended to by one thread; only its space may grow from another."""

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
        self._allocated_bytes = opened.file.size()
        self._growing = False
        self._sealed = False
        self._left_bytes_min = 0
        self._file_lock = threading.Lock()
        self._may_be_parked = is_named
        """Whether the file has its name, and is this segment's."""
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
        """Make a new segment file, or take a `spare` one; `take_name` makes its header durable and gives it its name.

        Raises:
            OSError: nothing has changed.
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
        """Make the header durable, then give the file its name; whoever calls it syncs the directory. From any thread.

        Raises:
            OSError: the segment must not be used any more.
        """
        self.opened.file.pwritev_durably([self.header.pack()], 0)
        self._disk.fs.rename(begun_path(self.path), self.path)
        self._may_be_parked = not self._sealed

    @property
    def base_offset(self) -> int:
        """The offset of its first record."""
        return self.header.base_offset

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.end.offset

    @property
    def size_bytes(self) -> int:
        """What it holds, without space that is only taken ahead."""
        return self.end.position

    @property
    def has_batches(self) -> bool:
        """Whether anything was appended."""
        return len(self.opened.index) > 0

    def has_space(self, length_bytes: int) -> bool:
        """Whether this much fits behind the end without asking the disk, and no growth ahead is due."""
        return self._allocated_bytes - self.end.position - length_bytes >= self._left_bytes_min

    def ensure_space(self, length_bytes: int) -> None:
        """Make sure of space for this much behind the end.

        Raises:
            OSError: ENOSPC and others from the allocation; nothing has changed.
        """
        if self.is_parked:
            with self._file_lock:
                self._unpark()
            self._disk.active_files.trim(self)
        needed = self.end.position + length_bytes
        if needed > self._allocated_bytes:
            self._grow_to(needed)
        preallocator = self._disk.preallocator
        if preallocator is not None and self._allocated_bytes - needed < self._left_bytes_min:
            self._growing = preallocator.offer(self._grow_ahead)
            self._look_ahead()

    # ------------------------------------------------------------------------------------ the file

    def abandon(self) -> None:
        """Close the file, which goes on to be opened under another name."""
        self._disk.open_segments.drop(self.path)
        self.release()

    def release(self) -> None:
        """End the lease on the file: nothing more is written here."""
        self._disk.active_files.discard(self)
        with self._space_lock, self._file_lock:
            self._may_be_parked = False
            if not self.is_parked:
                self._disk.open_segments.release(self.opened)

    def keep_open(self) -> None:
        """Open the file if it is parked, and keep it open until `hand_over`, `release` or `allow_parking`.

        Where descriptors have run out, files that only readers had open are closed first.

        Raises:
            OSError: it cannot be opened.
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
        """Let the file be closed again while nothing is written: undo `keep_open`."""
        self._may_be_parked = not self._sealed

    def hand_over(self) -> OpenSegment:
        """Return the file, which `keep_open` has opened; its lease is the caller's from now on."""
        with self._space_lock, self._file_lock:
            assert not self.is_parked, "keep_open comes first"
            self._disk.active_files.discard(self)
            return self.opened

    def park(self) -> bool:
        """Close the file until it is needed, syncing it first; False where it has to stay open. From any thread."""
        if not self._space_lock.acquire(blocking=False):
            return False
        try:
            with self._file_lock:
                opened, written_bytes = self.opened, self._written_bytes
            if not self._may_be_parked or self._growing or opened.has_failed:
                return False
            if written_bytes > opened.synced_bytes:
                with contextlib.suppress(OSError):  # it is kept, and the log's next sync fails with it
                    opened.datasync(written_bytes)
            with self._file_lock:
                if self._is_syncing or self._written_bytes > opened.synced_bytes:
                    return False  # it is in use, or was written meanwhile
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
        """Whether a reader may open the file for itself: it may have been parked a moment ago."""
        return self._may_be_parked

    def open_to_read(self) -> OpenSegment:
        """Open a parked segment for a reader.

        Raises:
            OSError: it cannot be opened.
        """
        file, known = self._disk.fs.open_readonly(self.path), self.opened
        hashes = known.hashes.cut(len(known.index), file, known.index)
        return OpenSegment(file, known.index, synced_bytes=known.synced_bytes, hashes=hashes)

    def _unpark(self) -> None:
        """Open the file again; with `_file_lock` held. Whoever can, then lets others give theirs up."""
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
            self._written_bytes = end_position  # before the end is told to anybody: until then it is not parked
            self.opened.file.pwritev(buffers, position)
        self.was_used = True
        if was_parked:
            self._disk.active_files.trim(self)

    # ------------------------------------------------------------------------------------ writing

    def write(self, batches: Sequence[Buffer], fields: Sequence[BatchFields], synced_offset: int) -> None:
        """Write a group behind the end in one go, a sync mark in front of it if there is news; then index it.

        Raises:
            OSError: the group may be on the disk in any part; the segment must not be used any more.
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
        assert position <= self._allocated_bytes, "ensure the space first"
        self._write(buffers, self.end.position, position)
        index = self.opened.index
        for (at, length), batch_fields in zip(places, fields, strict=True):
            index.append(batch_fields.base_offset, at, length, batch_fields.max_timestamp_us)
        last = fields[-1]
        # Published last and in one step: readers take the end first and look only below it.
        self.end = SegmentEnd(last.base_offset + last.last_offset_delta + 1, position, last.digest)

    def write_mark(self, synced_offset: int) -> None:
        """Write a sync mark without a group behind it, for a clean stop, if there is news and space for it."""
        if synced_offset <= self.marked_offset or self.end.position + MARK_BYTES > self._allocated_bytes:
            return
        position = self.end.position
        mark = pack_mark(nonce=self.header.nonce, position=position, synced_offset=synced_offset)
        self._write([mark], position, position + MARK_BYTES)
        self.marked_offset = synced_offset
        self.end = SegmentEnd(self.end.offset, position + MARK_BYTES, self.end.digest)

    def give_back_space(self) -> None:
        """Cut what lies behind the end, at a clean stop: space taken ahead, and what a file used again once held."""
        with self._space_lock:
            self._sealed = True
            if self._allocated_bytes > self.end.position:
                self._truncate()
                self._allocated_bytes = self.end.position
            self._look_ahead()

    def datasync(self) -> None:
        """Make everything written durable. Of a parked segment everything is."""
        with self._file_lock:
            if self.is_parked:
                return
            self._is_syncing = True
        try:
            self.opened.datasync(self.end.position)
        finally:
            self._is_syncing = False

    def stop_growing(self) -> None:
        """Take no more space from another thread: somebody else goes on with the file."""
        with self._space_lock:
            self._sealed = True
        self._finish_writing()

    def seal(self) -> None:
        """Give back the space behind the end and write the index file. The caller still holds the lease."""
        with self._space_lock:
            self._sealed = True
            if self._allocated_bytes > self.end.position:
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
        """Note how much must be left behind a group before space is taken ahead, unless somebody is at it already.

        Called whenever one of these has changed; it is asked with every publish.
        """
        if self.is_parked:
            self._left_bytes_min = _PARKED_BYTES
            return
        is_enough = self._disk.preallocator is None or self._growing or self._allocated_bytes >= self._segment_bytes
        self._left_bytes_min = 0 if is_enough else ahead_bytes(self._allocated_bytes)

    def _grow_to(self, size_bytes: int) -> None:
        with self._space_lock:
            missing = size_bytes - self._allocated_bytes
            if missing <= 0:
                return
            rest = max(0, self._segment_bytes - size_bytes)  # a group beyond the size of a segment takes what it needs
            try:
                self._allocate(missing + min(next_chunk_bytes(size_bytes), rest))
            except OSError as error:
                if not is_shortage(error):
                    raise
                # What is needed may still fit where a whole chunk does not.
                self._allocate(missing)

    def _grow_ahead(self) -> None:
        """Run by the preallocator."""
        with self._space_lock:
            self._growing = False
            if self._sealed:
                return
            # Where there is no space the appender meets the same error, and can answer it before it gives offsets out.
            with contextlib.suppress(OSError):
                rest = max(0, self._segment_bytes - self._allocated_bytes)
                self._allocate(min(next_chunk_bytes(self._allocated_bytes), rest))
            self._look_ahead()

    def _allocate(self, length_bytes: int) -> None:
        if length_bytes > 0:
            with self._file_lock:
                if self.is_parked:
                    self._unpark()
                file = self.opened.file
            file.allocate(self._allocated_bytes, length_bytes)  # `_space_lock` keeps it from being parked
            self._allocated_bytes += length_bytes
            self._look_ahead()


def write_index(fs: FileSystem, segment: Path, header: SegmentHeader, index: Index, end: SegmentEnd) -> None:
    """Write the index file of a sealed segment beside it and give it its name. It is not synced: its CRC is enough.

    On a full disk there is none: whoever reads the segment makes the index anew.
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
    """Remove what a failed creation left; on a disk that fails, the next open does."""
    with contextlib.suppress(OSError):  # the first error is the one to report
        if fs.exists(path):
            fs.unlink(path)
