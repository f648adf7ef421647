"""The files of an epoch in memory whose topic has `flush=async`: a prefix of its records, written in the background.

The files belong to a store of another engine, the *file store*, in the directory of the epoch. `write` appends to it
the records that are only in memory, so these records are the queue: a slow disk takes no further memory.
After a restart `recovered` reads the files into memory again, as far as they are valid.

The files never have a record that the memory does not have at that offset: before the end of the memory is truncated,
that of the files is, durably. If that fails, the files are removed; if that fails, too, the truncation fails.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

from tidelog_broker.storage.directory.engine_marker import is_engine_marker
from tidelog_broker.storage.directory.repair_markers import REPAIR_MARKER
from tidelog_broker.storage.engine.store import Engine, EpochStart, EpochStore, padded
from tidelog_broker.storage.io.errors import DamagedError, DiskFullError, StorageError, space_or_failure
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.memory.contents import Contents
from tidelog_broker.storage.memory.memory_reader import MemoryReader
from tidelog_broker.storage.segment.active_segment import check_group
from tidelog_broker.storage.segment.index import SegmentEnd
from tidelog_proto.batch.header import crc_checked_body, digest_after, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

log = logging.getLogger(__name__)

FILE_NAME: Final = "memory"
"""The file of the memory engine in the directory of an epoch."""
WRITTEN_BYTES: Final = MIB
"""How much is read from memory and appended to the file store at once."""

Writing = Literal["on", "full", "failed"]
"""`on`: records are written; `full`: no space, another attempt follows; `failed`: nothing more is written before the
store is opened again.
"""


class FileCopy:
    """Writes the records of one open store to files. Thread-safe.

    Attributes:
        writing: whether records are written.
        is_due: whether a schedule has this copy in its queue.
        is_closed: whether nothing more is written.
    """

    def __init__(
        self, fs: FileSystem, files: Engine, directory: Path, contents: Contents, *, segment_bytes: int
    ) -> None:
        self.writing: Writing = "on"
        self.is_due = False
        self.directory = directory
        self._fs = fs
        self._files = files
        self._contents = contents
        self._reader = MemoryReader(contents)
        self._segment_bytes = segment_bytes
        self._lock = threading.RLock()
        self._store: EpochStore | None = None
        self.is_closed = False

    @property
    def backlog_bytes(self) -> int:
        """The size of the blocks that are not written, or not completely."""
        written = self._contents.written_offset
        return sum(block.size_bytes for block in self._contents.blocks if block.end_offset > written)

    # --- writing ---------------------------------------------------------------------------------------

    def write(self, bytes_max: int) -> bool:
        """Write up to about `bytes_max` of the records that are not written; return whether more are left."""
        with self._lock:
            return self._attempt(lambda: self._write(bytes_max))

    def sync(self) -> None:
        """Make what is written durable, and seal the files of a sealed epoch."""
        with self._lock:
            self._attempt(self._sync)

    def close(self, *, finish: bool) -> None:
        """Close the files.

        Args:
            finish: whether to write and sync first what is not written.
        """
        with self._lock:
            if finish:
                while self.write(WRITTEN_BYTES):
                    pass
                self.sync()
            self.is_closed = True
            self._close()

    def _attempt(self, work: Callable[[], bool]) -> bool:
        if self.is_closed or self.writing == "failed":
            return False
        try:
            return work()
        except OSError as error:
            self._note(space_or_failure("the records cannot be written", error))
        except StorageError as error:
            self._note(error)
        return False

    def _note(self, error: StorageError) -> None:
        writing: Writing = "full" if isinstance(error, DiskFullError) else "failed"
        if writing != self.writing:
            log.warning("%s: new records stay in memory only: %s", self.directory, error.message)
        self.writing = writing

    def _write(self, bytes_max: int) -> bool:
        contents, store = self._contents, self._opened()
        end_offset = contents.end.offset
        while store.end_offset < end_offset and bytes_max > 0:
            try:
                found = self._reader.read(store.end_offset, WRITTEN_BYTES, limit_offset=end_offset)
            except ProtocolError:
                return (
                    True  # Retention has deleted these records from memory meanwhile: the files begin again after them.
                )
            size_bytes = sum(padded(len(batch)) for batch in found.batches)
            store.ensure_space(size_bytes)
            store.append(found.batches)
            contents.written_offset = store.end_offset
            bytes_max -= size_bytes
        start_offset = contents.blocks[0].base_offset
        while store.segment_count > 1 and store.oldest_end_offset <= start_offset:
            store.delete_oldest_segment()
            store.sync_names()
        self.writing = "on"
        return store.end_offset < end_offset

    def _sync(self) -> bool:
        store, contents = self._store, self._contents
        if store is not None and store.state != "sealed":
            if contents.is_sealed and contents.damage is None and store.end_offset == contents.end.offset:
                store.seal()
            elif store.synced_offset < store.end_offset:
                store.sync()
        return False

    # --- the end of the memory -------------------------------------------------------------------------

    @contextlib.contextmanager
    def cut(self, end_offset: int) -> Iterator[None]:
        """Truncate the files at a batch boundary, durably; write nothing until the block, which cuts the memory, ends.

        Raises:
            OSError: the files can neither be truncated nor removed.
        """
        with self._lock:
            if not self._is_truncated(end_offset):
                self._discard()
            yield

    def _is_truncated(self, end_offset: int) -> bool:
        """Truncate the files; return whether they have no record from `end_offset` on."""
        if self._files.is_deleted(self._fs.list_dir(self.directory)):
            return True
        try:
            store = self._store = self._store or self._existing()
            if store is not None and store.end_offset > end_offset:
                store.truncate(end_offset)
                self._contents.written_offset = end_offset
        except (StorageError, OSError) as error:
            log.warning(
                "%s: the written records are removed, because they cannot be truncated: %s", self.directory, error
            )
            return False
        return True

    # --- the file store --------------------------------------------------------------------------------

    def _opened(self) -> EpochStore:
        """Return the file store; create it if its records do not reach those in memory."""
        store = self._store = self._store or self._existing()
        first = self._contents.blocks[0]
        if store is None or store.end_offset < first.base_offset:
            self._discard()
            start = self._contents.start._replace(offset=first.base_offset, digest=first.start_digest)
            self._files.lay_out(self.directory, start, segment_bytes=self._segment_bytes)
            self._fs.sync_dir(self.directory)
            store = self._store = self._files.open(self.directory, segment_bytes=self._segment_bytes, is_new=True)
            assert store is not None, "a new store is not lost"
        self._contents.written_offset = store.end_offset
        return store

    def _existing(self) -> EpochStore | None:
        """Open the files of a closed store or an earlier process; remove files that differ from the memory."""
        if self._files.is_deleted(self._fs.list_dir(self.directory)):
            return None
        try:
            store = self._files.open(self.directory, segment_bytes=self._segment_bytes)
        except DamagedError as error:
            log.warning("%s: the written records are removed, because they are damaged: %s", self.directory, error)
            store = None
        if store is not None and not self._agrees(store):
            store.close(sync=False)
            store = None
        if store is None:
            self._discard()
        return store

    def _agrees(self, store: EpochStore) -> bool:
        """Return whether the file store ends where the memory has the same running digest."""
        is_whole = store.damage is None or store.is_repairing
        return (
            is_whole
            and (store.topic_id, store.partition, store.epoch) == self._contents.start[:3]
            and self._reader.digest_at(store.end_offset) == store.end_digest
        )

    def _discard(self) -> None:
        """Remove the files, durably."""
        self._close()
        remove_files(self._fs, self.directory)
        self._contents.written_offset = self._contents.blocks[0].base_offset

    def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(StorageError):  # A power cut may then remove unsynced records.
                store.close()


def remove_files(fs: FileSystem, directory: Path) -> None:
    """Remove what a file store has left in the directory of an epoch, durably.

    Raises:
        OSError: some files may remain.
    """
    kept = {FILE_NAME, REPAIR_MARKER}
    names = [name for name in fs.list_dir(directory) if name not in kept and not is_engine_marker(name)]
    for name in reversed(names):
        fs.unlink(directory / name)
    if names:
        fs.sync_dir(directory)


def recovered(
    files: Engine,
    fs: FileSystem,
    directory: Path,
    start: EpochStart,
    reserve: Callable[[int], None],
    *,
    segment_bytes: int,
) -> Contents | None:
    """Read the records of an epoch that an earlier process has written; None if no record was written.

    They are a prefix of those that the epoch had: the first batch that is damaged or does not fit into memory ends it.

    Args:
        reserve: reserves memory; raises MemoryFullError.

    Raises:
        StorageFailedError, NoDescriptorError, OSError: the disk cannot be read.
    """
    if files.is_deleted(fs.list_dir(directory)):
        return None
    try:
        store = files.open(directory, segment_bytes=segment_bytes)
    except DamagedError as error:
        log.warning("%s: the records that were written cannot be read: %s", directory, error)
        return None
    if store is None:
        return None
    try:
        if (store.topic_id, store.partition, store.epoch) != start[:3] or store.start_offset < start.offset:
            return None
        contents = Contents(start, directory, begins_at=(store.start_offset, store.start_digest))
        _load(store, contents, reserve)
        is_whole = contents.end.offset == store.end_offset and (store.damage is None or store.is_repairing)
    finally:
        store.close(sync=False)
    if is_whole:
        contents.written_offset = contents.end.offset
    else:  # The files must not have records that the memory lacks.
        remove_files(fs, directory)
    return contents


def _check(batches: Sequence[memoryview], epoch: int, at: SegmentEnd) -> None:
    """Raise DamagedError or another ProtocolError unless valid batches continue an epoch."""
    offset, digest = at.offset, at.digest
    for batch in batches:
        header = unpack_header(batch, typed=True)
        crc_checked_body(header, batch)
        digest = digest_after(batch, 0, digest)
        if (header.epoch, header.base_offset, header.digest) != (epoch, offset, digest):
            raise DamagedError(f"the batch at offset {header.base_offset} does not continue the one before it")
        offset = header.end_offset


def _load(store: EpochStore, contents: Contents, reserve: Callable[[int], None]) -> None:
    end_offset = store.end_offset
    try:
        while (at := contents.end).offset < end_offset:
            found = store.reader.read(at.offset, WRITTEN_BYTES, limit_offset=end_offset)
            _check(found.batches, store.epoch, at)
            reserve(sum(padded(len(batch)) for batch in found.batches))
            if contents.blocks[-1].batches:
                contents.roll(contents.blocks[-1].path.parent)
            contents.append(
                found.batches, check_group(found.batches, epoch=store.epoch, offset=at.offset, digest=at.digest)
            )
    except ProtocolError as error:
        log.warning(
            "%s: of the records that were written, those from offset %d on cannot be used: %s",
            store.directory,
            contents.end.offset,
            error,
        )
