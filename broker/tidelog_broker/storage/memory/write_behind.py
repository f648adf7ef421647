"""The memory engine with `flush=async`: records are in memory, and are written to files in the background.

The engine promises the same as the memory engine: a copy counts as lost after each restart, even if the files are
complete. The files shorten the loss: after a restart the store has the written prefix, so that fewer records have to be
fetched, and fewer are lost if all copies restart. See docs/adr/0199.

A full, failing or slow disk changes nothing for publishers: records stay in memory, within the bounds of the memory
engine, and `unwritten` reports it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tidelog_broker.storage.engine.store import AppendedGroup, Engine, EpochStart, Volume
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.memory.contents import Contents
from tidelog_broker.storage.memory.file_copy import WRITTEN_BYTES, FileCopy, recovered
from tidelog_broker.storage.memory.memory_engine import MemoryBudget, MemoryEngine
from tidelog_broker.storage.memory.memory_store import Bytes, MemoryStore
from tidelog_proto.batch.header import Buffer
from tidelog_proto.topic_settings import MEMORY_ASYNC

log = logging.getLogger(__name__)

WRITE_PERIOD_S: Final = 0.5
"""Time between two rounds of writing, after each of which the written records are synced."""
IDLE_S: Final = 10.0
"""The writing thread ends when nothing was appended for this long."""
_TURN_BYTES: Final = 8 * WRITTEN_BYTES
"""How much of one store is written before other stores have their turn."""


class Unwritten(NamedTuple):
    """The records of all open stores that are not on the disk.

    Attributes:
        backlog_bytes: records that are not written, rounded up to whole blocks.
        stopped: number of stores whose records cannot be written, because the disk is full or has failed.
    """

    backlog_bytes: int
    stopped: int


class Schedule(Protocol):
    """Decides when copies are written."""

    def wake(self, copy: FileCopy) -> None:
        """Write a copy soon. Called on any thread when records were appended, or a store was sealed."""
        ...


class WriteAtOnce:
    """Writes a copy on the thread that appends: for logs without background threads."""

    def wake(self, copy: FileCopy) -> None:
        """Write and sync everything."""
        while copy.write(_TURN_BYTES):
            pass
        copy.sync()


class WriterThread:
    """Writes copies on a thread of its own, which is started when a copy is due and ends when it is idle."""

    def __init__(self, *, period_s: float = WRITE_PERIOD_S, idle_s: float = IDLE_S) -> None:
        self._period_s = period_s
        self._idle_s = idle_s
        self._condition = threading.Condition()
        self._due: list[FileCopy] = []
        self.is_running = False

    def wake(self, copy: FileCopy) -> None:
        """Queue a copy, and start the thread unless it runs."""
        with self._condition:
            if copy.is_due:
                return
            copy.is_due = True
            self._due.append(copy)
            self._condition.notify()
            if not self.is_running:
                self.is_running = True
                threading.Thread(target=self._run, name="tidelog-write-behind", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while (due := self._take()) is not None:
            for copy in due:
                try:
                    is_left = copy.write(_TURN_BYTES)
                    copy.sync()
                except Exception:
                    log.exception("%s: records are not written any more; restart this node", copy.directory)
                    copy.writing = "failed"
                    is_left = False
                if (is_left or copy.writing == "full") and not copy.is_closed:
                    self.wake(copy)
            del due
            pause.wait(self._period_s)

    def _take(self) -> list[FileCopy] | None:
        """Wait for copies that are due; None if no copy was due for `idle_s`: the thread ends."""
        with self._condition:
            if not self._due and not self._condition.wait_for(lambda: bool(self._due), self._idle_s):
                self.is_running = False
                return None
            due, self._due = self._due, []
            for copy in due:
                copy.is_due = False  # Before it is written: a later append queues it again.
            return due


class WriteBehindStore(MemoryStore):
    """The store of an epoch in memory whose records are written to files in the background."""

    engine = MEMORY_ASYNC

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        contents: Contents,
        memory: Bytes,
        *,
        copy: FileCopy,
        schedule: Schedule,
        segment_bytes: int,
        is_repairing: bool,
    ) -> None:
        super().__init__(fs, directory, contents, memory, segment_bytes=segment_bytes, is_repairing=is_repairing)
        self.copy = copy
        self._schedule = schedule
        if contents.end.offset > contents.written_offset:
            schedule.wake(copy)

    def append(self, batches: Sequence[Buffer]) -> AppendedGroup:
        """Append a group of stamped batches to the memory; see `MemoryStore.append`."""
        group = super().append(batches)
        copy = self.copy
        if not copy.is_due and copy.writing != "failed":
            self._schedule.wake(copy)
        return group

    def seal(self) -> None:
        """Take no more appends; the files are sealed when everything is written."""
        super().seal()
        self._schedule.wake(self.copy)

    def delete_oldest_segment(self) -> int:
        """Delete the oldest of several blocks and return the bytes freed; the files follow in the background."""
        freed_bytes = super().delete_oldest_segment()
        self._schedule.wake(self.copy)
        return freed_bytes

    def truncate(self, end_offset: int) -> None:
        """Truncate the files and the memory at a batch boundary; see `MemoryStore.truncate`.

        Raises:
            StorageFailedError: also if the files can neither be truncated nor removed.
        """
        self._guard.check_open()
        if self.reader.digest_at(end_offset) is None:
            return super().truncate(end_offset)  # It refuses that.
        try:
            with self.copy.cut(end_offset):
                super().truncate(end_offset)
        except OSError as error:
            raise self._guard.failed("truncating the written records", error) from error
        return None

    def close(self, *, sync: bool = True) -> None:
        """Close the store; with `sync`, everything is written and synced before."""
        super().close(sync=sync)
        self.copy.close(finish=sync)


class WriteBehindEngine(MemoryEngine):
    """The memory engine with `flush=async` of a node.

    Args:
        budget: the memory of the node for records, which is that of the memory engine.
        files: the engine of the files.
        schedule: decides when records are written.
    """

    name = MEMORY_ASYNC

    def __init__(self, fs: FileSystem, budget: MemoryBudget, files: Engine, schedule: Schedule) -> None:
        super().__init__(fs, budget)
        self._files = files
        self._schedule = schedule
        self._copies: weakref.WeakSet[FileCopy] = weakref.WeakSet()

    def unwritten(self) -> Unwritten:
        """Return the size of the records that are not on the disk, and the number of stores that cannot be written."""
        copies = self._open_copies()
        return Unwritten(sum(copy.backlog_bytes for copy in copies), sum(copy.writing != "on" for copy in copies))

    def _open_copies(self) -> Iterable[FileCopy]:
        with self._lock:
            return [copy for copy in self._copies if not copy.is_closed]

    def _recovered(self, directory: Path, start: EpochStart, segment_bytes: int) -> Contents | None:
        try:
            return recovered(
                self._files,
                self._fs,
                directory,
                start,
                lambda size_bytes: self._reserve(start.topic_id, size_bytes),
                segment_bytes=segment_bytes,
            )
        except OSError as error:
            raise StorageFailedError(f"{directory} cannot be read: {error}; check the disk") from error

    def _reserve(self, topic_id: bytes, size_bytes: int) -> None:
        taken = self.budget.reserve(topic_id, size_bytes)
        self.budget.release(topic_id, taken - size_bytes)

    def _store(self, directory: Path, contents: Contents, *, segment_bytes: int, is_repairing: bool) -> MemoryStore:
        copy = FileCopy(self._fs, self._files, directory, contents, segment_bytes=segment_bytes)
        with self._lock:
            self._copies.add(copy)
        return WriteBehindStore(
            self._fs,
            directory,
            contents,
            self.budget,
            copy=copy,
            schedule=self._schedule,
            segment_bytes=segment_bytes,
            is_repairing=is_repairing,
        )


def write_behind_engine(volume: Volume, memory: Engine, files: Engine) -> Engine:
    """Return the memory engine with `flush=async` of a node; it shares the memory of the memory engine."""
    assert isinstance(memory, MemoryEngine)
    schedule = WriterThread() if volume.namer is not None else WriteAtOnce()
    return WriteBehindEngine(volume.fs, memory.budget, files, schedule)
