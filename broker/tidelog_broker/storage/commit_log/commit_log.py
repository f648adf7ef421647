"""The commit log of a node: appends of many stores in one sequence of files, one sync for all of them.

Thread-safe. Lock order: the lock of a tail, then the lock of the log. Syncs have a lock of their own, and run beside
appends. After a failed write or sync the log takes no more writes, of any store: the kernel may have dropped pages of
each of them.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tidelog_broker.storage.commit_log.log_files import LogFile, LogFiles
from tidelog_broker.storage.commit_log.records import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    STATE_BYTES,
    Boundary,
    FileHeader,
    Kind,
    Mark,
    mark_bytes,
    pack_boundary,
    pack_header,
    pack_mark,
    pack_record,
    pack_state,
    padding_of,
    record_bytes,
)
from tidelog_broker.storage.commit_log.tail import Tail, TailEntries
from tidelog_broker.storage.engine.store import StagedBatch, Volume
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError, is_shortage, space_or_failure
from tidelog_broker.storage.segment.active_segment import BatchFields
from tidelog_proto.batch.header import Buffer
from tidelog_proto.limits import KIB, MIB

log = logging.getLogger(__name__)

MARGIN_BYTES: Final = 64 * KIB
"""Space that stays allocated for records that are not batches, so that a full disk does not prevent a truncation."""


class Sizes(NamedTuple):
    """Sizes of a commit log.

    Attributes:
        file_bytes: a file is not begun a group in above this size.
        chunk_bytes: space is allocated in steps of this size.
        log_bytes_min: a log up to this size is not tidied.
        tail_bytes_max: the tail of a store is written to its segments at this size.
    """

    file_bytes: int = 64 * MIB
    chunk_bytes: int = 4 * MIB
    log_bytes_min: int = 256 * MIB
    tail_bytes_max: int = MIB


def reserved_bytes(needed_bytes: int) -> int:
    """Return the space in the log for a group whose padded batches take `needed_bytes`.

    A batch takes at least 128 bytes, and up to 64 more in the log; its store takes 16 in the next mark.
    """
    return needed_bytes + needed_bytes // 2 + 64 + 16


class CommitLog:
    """The commit log of a node. Made by `log_recovery.open_log`."""

    def __init__(
        self, volume: Volume, directory: Path, *, nonce: int, position: int, tails: Iterable[Tail], sizes: Sizes
    ) -> None:
        self._volume = volume
        self.directory = directory
        self.nonce = nonce
        self.sizes = sizes
        self.files = LogFiles(volume.fs, directory)
        self.tails = {tail.store: tail for tail in tails}
        self.lock = threading.RLock()
        self.sync_lock = threading.Lock()
        self._position = position
        """The position after the last record."""
        self.synced_position = position
        """Everything before it is durable."""
        self._file: LogFile | None = None
        """The file that takes appends; None until the first one."""
        self._unsynced: list[LogFile] = []
        """Files before it that may have unsynced records."""
        self._reserved_bytes = 0
        self._staged_bytes = 0
        """The part of it that staged batches will take."""
        self._touched: dict[Tail, int] = {}
        """Stores with records that no sync has covered, and their ends."""
        self._syncing: dict[Tail, int] = {}
        """Stores whose records the running sync covers."""
        self._covered: dict[Tail, int] = {}
        """Stores for which the next mark has to say that their records are synced."""
        self._failure = ""
        self.before_first: list[Tail] = []
        """Stores whose ends recovery has cut, which must be recorded before the first append."""
        self.snapshot_position = 0
        """The position of the newest snapshot."""
        self.tidy: Callable[[], None] = lambda: None
        """Called by the thread that has begun a file, without locks."""
        self._is_tidying_due = False

    # --- space -----------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The position after the last record."""
        return self._position

    @property
    def failure(self) -> str:
        """Why the log takes no more writes; empty if it does."""
        return self._failure

    def reserve(self, size_bytes: int, *, may_wait: bool = True) -> bool:
        """Reserve space that `reserved_bytes` has computed; return False if the disk is needed and `may_wait` is False.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the log has failed.
        """
        with self.lock:
            self.check()
            if not self._is_allocated(size_bytes):
                if not may_wait:
                    return False
                self._allocate(size_bytes)
            self._reserved_bytes += size_bytes
        if may_wait:
            self._tidy_if_due()
        return True

    def release(self, size_bytes: int) -> None:
        """Give back reserved space."""
        with self.lock:
            self._reserved_bytes -= size_bytes

    def _owed_bytes(self) -> int:
        """Return the space that reservations and marks will take."""
        stores = len(self._touched) + len(self._syncing) + len(self._covered)
        return self._reserved_bytes + 2 * mark_bytes(0) + 16 * stores

    def _is_allocated(self, size_bytes: int) -> bool:
        file = self._file
        return file is not None and self._position + self._owed_bytes() + MARGIN_BYTES + size_bytes <= file.allocated

    def _allocate(self, size_bytes: int) -> None:
        """Allocate space in the file that takes appends, or begin another file."""
        needed = self._owed_bytes() + MARGIN_BYTES + size_bytes
        file, chunk = self._file, self.sizes.chunk_bytes
        try:
            if file is None or (
                self._position + needed > file.base + self.sizes.file_bytes + MARGIN_BYTES
                and self._position > file.base + FILE_HEADER_BYTES
            ):
                self._begin_file(FILE_HEADER_BYTES + needed)
                return
            grown = -(-(self._position + needed - file.allocated) // chunk) * chunk
            file.file.allocate(file.allocated - file.base, grown)
            file.allocated += grown
        except OSError as error:
            if is_shortage(error):
                self._volume.note_full()
                raise space_or_failure(f"{needed} bytes cannot be allocated in {self.directory}", error) from error
            raise self.failed("allocating space", error) from error

    def _begin_file(self, needed_bytes: int) -> None:
        chunk = self.sizes.chunk_bytes
        header = FileHeader(self.nonce, self._position, self.synced_position)
        needed_bytes += record_bytes(STATE_BYTES) * len(self.before_first)
        old = self._file
        new = self.files.create(header, -(-needed_bytes // chunk) * chunk)
        if old is not None:
            self._unsynced.append(old)
            old.file.truncate(old.end - old.base)
            old.allocated = old.end
            self._is_tidying_due = True
        self._file = new
        self._position = new.end
        before_first, self.before_first = self.before_first, []
        for tail in before_first:
            self._record(Kind.CUT, tail, _state_at(tail, tail.end))

    def _tidy_if_due(self) -> None:
        if self._is_tidying_due:
            self._is_tidying_due = False
            self.tidy()

    # --- appends ---------------------------------------------------------------------------------------

    def append(self, tail: Tail, batches: Sequence[Buffer], fields: Sequence[BatchFields], reserved: int) -> int:
        """Append a group to a tail whose lock is held, in space that was reserved; return the size of its records.

        Raises:
            StorageFailedError: the write failed, now or before; any part of the group may be stored.
        """
        with self.lock:
            self.check()
            size_bytes = self._write_batches(Kind.BATCH, tail, tail.entries, batches, fields)
            self._reserved_bytes -= reserved
            last = fields[-1]
            tail.size_bytes += size_bytes
            tail.end = Boundary(last.base_offset + last.last_offset_delta + 1, last.digest)
            tail.written_position = self._position
            self._touched[tail] = tail.end.offset
        return size_bytes

    def has_room(self, size_bytes: int) -> bool:
        """Reserve space for staged batches, unless the disk is needed; see `SyncGroup.has_room`.

        Raises:
            StorageFailedError: the log has failed.
        """
        size_bytes = reserved_bytes(size_bytes)
        if not self.reserve(size_bytes, may_wait=False):
            return False
        self._staged_bytes += size_bytes
        return True

    def append_staged(self, staged: Sequence[StagedBatch]) -> None:
        """Append a batch to each of several tails with one write; see `SyncGroup.append_staged`.

        Raises:
            StorageFailedError: the write failed, now or before; any part of any batch may be stored.
        """
        held: list[Tail] = []
        try:
            for one in staged:
                assert isinstance(one.place, Tail), "staged by a store of another engine"
                one.place.lock.acquire()
                held.append(one.place)
            with self.lock:
                self._reserved_bytes -= self._staged_bytes
                self._staged_bytes = 0
                self.check()
                if staged:
                    self._write_staged(staged, held)
        finally:
            for tail in held:
                tail.lock.release()

    def _write_staged(self, staged: Sequence[StagedBatch], tails: Sequence[Tail]) -> None:
        buffers: list[Buffer] = []
        position, nonce = self._position + self.add_mark(buffers), self.nonce
        ends: list[int] = []
        for tail, (_, batch, _) in zip(tails, staged, strict=True):
            length = len(batch)
            buffers += (
                pack_header(Kind.BATCH, tail.store, length, nonce=nonce, position=position),
                batch,
                padding_of(length),
            )
            position += record_bytes(length)
            ends.append(position)
        self._write(buffers, position)
        touched = self._touched
        start = ends[0] - record_bytes(len(staged[0].batch))
        for tail, end, (_, batch, header) in zip(tails, ends, staged, strict=True):
            size_bytes, end_offset = end - start, header.base_offset + header.last_offset_delta + 1
            tail.entries.append(header.base_offset, start + RECORD_HEADER_BYTES, len(batch), header.max_timestamp_us)
            start = end
            tail.size_bytes += size_bytes
            tail.end = Boundary(end_offset, header.digest)
            tail.written_position = position
            touched[tail] = end_offset

    def _write_batches(
        self,
        kind: Kind,
        tail: Tail,
        entries: TailEntries,
        batches: Sequence[Buffer],
        fields: Sequence[BatchFields],
    ) -> int:
        """Write batches after a mark, if one is due, and add them to `entries`; return their size with headers."""
        buffers: list[Buffer] = []
        position = first = self._position + self.add_mark(buffers)
        places = array("q")
        for batch in batches:
            length = len(batch)
            buffers += (
                pack_header(kind, tail.store, length, nonce=self.nonce, position=position),
                batch,
                padding_of(length),
            )
            places.append(position + RECORD_HEADER_BYTES)
            position += record_bytes(length)
        self._write(buffers, position)
        for place, batch, one in zip(places, batches, fields, strict=True):
            entries.append(one.base_offset, place, len(batch), one.max_timestamp_us)
        return position - first

    def _write(self, buffers: Sequence[Buffer], end: int) -> None:
        file = self._file
        assert file is not None, "no space was reserved"
        assert end <= file.allocated, "no space was reserved"
        try:
            file.file.pwritev(buffers, self._position - file.base)
        except OSError as error:
            raise self.failed("a write", error) from error
        self._position = file.end = end

    def add_mark(self, buffers: list[Buffer]) -> int:
        """Add a mark to the buffers of the next write if one is due; return its size."""
        if not self._covered:
            return 0
        stores, ends = array("Q"), array("Q")
        for tail, end in self._covered.items():
            if not tail.is_forgotten:
                stores.append(tail.store)
                ends.append(end)
        self._covered = {}
        payload = pack_mark(Mark(self.synced_position, stores, ends))
        buffers.append(pack_record(Kind.MARK, 0, payload, nonce=self.nonce, position=self._position))
        return len(buffers[-1])

    # --- other records ---------------------------------------------------------------------------------

    def state(self, tail: Tail) -> None:
        """Record that a tail is empty and begins at its base. The caller holds its lock, and syncs if needed.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the log has failed.
        """
        with self.lock:
            self.tails[tail.store] = tail
            tail.position = self._record_with_space(Kind.STATE, tail, _state_at(tail, tail.end))

    def cut(self, tail: Tail, end: Boundary) -> None:
        """Record that a tail ends at a boundary, and cut it. The caller holds its lock, and syncs.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the log has failed.
        """
        with self.lock:
            self.tails[tail.store] = tail
            position = self._record_with_space(Kind.CUT, tail, _state_at(tail, end))
            for ends in (self._touched, self._syncing, self._covered):
                if tail in ends:
                    ends[tail] = min(ends[tail], end.offset)
            self._touched[tail] = end.offset  # The next mark says that the tail is no longer than that.
            tail.cut(end, position)

    def forget(self, store: int) -> None:
        """Record that a store has no records in the log any more, durably; do nothing if the log does not know it.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the log has failed.
        """
        tail = self.tails.get(store)
        if tail is None:
            return
        with tail.lock, self.lock:
            self._record_with_space(Kind.FORGET, tail, b"")
            del self.tails[store]
            tail.is_forgotten = True
            for ends in (self._touched, self._syncing, self._covered):
                ends.pop(tail, None)
        self.sync()

    def copy_forward(self, tail: Tail, batches: Sequence[Buffer], fields: Sequence[BatchFields]) -> None:
        """Append a copy of a whole tail whose lock is held, and use it instead; the caller syncs.

        Raises:
            DiskFullError: no space; nothing has changed.
            StorageFailedError: the log has failed.
        """
        entries = TailEntries(tail.entries.base)
        size_bytes = sum(record_bytes(len(batch)) for batch in batches) + 512
        with self.lock:
            self.check()
            if not self._is_allocated(size_bytes):
                self._allocate(size_bytes)
            position = self._record(Kind.COPY_BEGIN, tail, _state_at(tail, entries.base))
            if batches:
                self._write_batches(Kind.COPIED, tail, entries, batches, fields)
            self._record(Kind.COPY_END, tail, pack_boundary(tail.end))
            tail.replace(entries, tail.end, position)
            self._touched[tail] = tail.end.offset

    def _record_with_space(self, kind: Kind, tail: Tail, payload: bytes) -> int:
        """Append a record, in the margin if the disk is full; return its position."""
        self.check()
        size_bytes = record_bytes(len(payload))
        if not self._is_allocated(size_bytes):
            try:
                self._allocate(size_bytes)
            except DiskFullError:
                file = self._file
                if file is None or self._position + self._owed_bytes() + size_bytes > file.allocated:
                    raise
        return self._record(kind, tail, payload)

    def _record(self, kind: Kind, tail: Tail, payload: bytes) -> int:
        buffers: list[Buffer] = []
        position = self._position + self.add_mark(buffers)
        buffers.append(pack_record(kind, tail.store, payload, nonce=self.nonce, position=position))
        self._write(buffers, position + len(buffers[-1]))
        return position

    # --- syncs -----------------------------------------------------------------------------------------

    def sync(self, position: int | None = None) -> None:
        """Return when everything before a position is durable, or everything that was appended so far.

        Raises:
            StorageFailedError: the sync failed, now or before. It is never retried.
        """
        self.check()
        target = self._position if position is None else position
        if self.synced_position >= target:
            return
        with self.sync_lock:
            if self.synced_position < target:
                self._sync()

    def _sync(self) -> None:
        with self.lock:
            self.check()
            covering, rolled, file = self._position, list(self._unsynced), self._file
            self._syncing, self._touched = self._touched, {}
        try:
            for one in (*rolled, file):
                if one is not None:
                    one.file.datasync()
        except OSError as error:
            raise self.failed("a sync", error) from error
        with self.lock:
            self.synced_position = covering
            del self._unsynced[: len(rolled)]
            self._covered.update(self._syncing)
            self._syncing = {}

    def mark_recovered(self) -> None:
        """Let the first mark say that the records are synced that recovery has made durable without one."""
        for tail in self.tails.values():
            if len(tail.entries) and not tail.is_damaged and tail.marked_offset < tail.end.offset:
                self._covered[tail] = tail.end.offset

    def settle(self) -> None:
        """Sync, and write a last mark, so that a start can distinguish damage in the last group from a torn write.

        Raises:
            StorageFailedError: the log has failed.
        """
        self.sync()
        with self.lock:
            if self._file is None and self._covered:
                try:
                    self._allocate(0)
                except DiskFullError:
                    return  # The next start finds again that no mark covers these records.
            if not self._covered:
                return
            buffers: list[Buffer] = []
            size_bytes = self.add_mark(buffers)
            self._write(buffers, self._position + size_bytes)
        self.sync()

    # --- deletion --------------------------------------------------------------------------------------

    def delete_oldest(self) -> None:
        """Delete the oldest file, durably. Everything in it is durable elsewhere, or not needed.

        Raises:
            OSError: the file may or may not exist.
        """
        with self.sync_lock, self.lock:
            oldest = self.files.remove_oldest()
            self._unsynced = [one for one in self._unsynced if one is not oldest]
        self.files.delete(oldest)

    # --- failures --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise StorageFailedError if the log has failed."""
        if self._failure:
            raise StorageFailedError(f"{self.directory} takes no more writes: {self._failure}")

    def failed(self, what: str, error: OSError) -> StorageFailedError:
        """Take no more writes; return the error to raise."""
        self._failure = self._failure or f"{what} failed: {error}; check the disk and restart the node"
        return StorageFailedError(f"{self.directory}: {self._failure}")


def _state_at(tail: Tail, boundary: Boundary) -> bytes:
    return pack_state(tail.start._replace(offset=boundary.offset, digest=boundary.digest))
