"""A node's thread pools for blocking work: one for each kind of work that must not wait for another kind.

ADR 0069 explains their number.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.engine.store import Engine
from tidelog_broker.storage.engines.stores import close_engines
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.hash_memory import HashMemory

JOURNALS: Final = 3
"""Number of journals, each with a thread: for fences, for the partitions' chains of epochs, and for incarnations."""

COMPACTOR_NICENESS: Final = 10
"""The niceness of the thread of compaction passes: while threads compete, it gets a tenth of the time of another."""


class Threads:
    """All thread pools of a node; `close` ends them after their current work, and then closes the storage engines.

    Args:
        io_workers: number of threads for log writes, and of threads for reads.
    """

    def __init__(self, io_workers: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._resources = contextlib.ExitStack()
        self._engines: dict[str, Engine] = {}
        self._resources.callback(close_engines, self._engines)  # Called last, when no thread uses an engine.
        self.io = self._pool("io", io_workers)
        """For writes to the logs, those of one partition in order."""
        self.journals = self._pool("journal", JOURNALS)
        """For journals only: syncing a log may take seconds, and takeovers of other partitions must not wait."""
        self.readers = self._pool("read", io_workers)
        """For reads, which may wait for the disk, and must not delay writes."""
        self.verifiers = self._pool("verify", 1)
        """For verifying batches, which is CPU work only: decompressing a batch may take 10 ms."""
        self.secrets = self._pool("secret", 1)
        """For slow hashes of secrets, a few milliseconds of CPU each."""
        self._syncing = self._workers("ahead", 1)
        self.ahead = Offload(self._syncing, self._loop)
        """For syncs in the background, one at a time, which must not delay appends and takeovers."""
        self.shared_syncs = self._pool("sync", 1)
        """For syncs of the commit log, which partitions share; their appends must not wait for it."""
        self._noting = self._workers("note", 1)
        self.notes = Offload(self._noting, self._loop)
        """For small files of the logs and the steps of a deletion; also used to preallocate and to rename segments."""
        self.compactor = Offload(self._workers("compact", 1, niceness=COMPACTOR_NICENESS), self._loop)
        """For compaction passes, which take long; the event loop has priority on the processors."""
        self._indexing = self._workers("index", 1)

    def may_poll(self) -> bool:
        """Return whether the event loop may poll for messages.

        A polling event loop takes the GIL from a busy worker. To a compaction pass it yields the processor, and gets it
        back at the next tick of the kernel.
        """
        is_writing = self.io.pending or self.journals.pending
        return not (is_writing or self.readers.pending or self.compactor.is_busy)

    def disk(self, fs: FileSystem, hash_memory: HashMemory) -> Disk:
        """Return the file access that all logs share; its background work runs on the pools of this object."""
        return Disk(
            fs=fs,
            preallocator=self._noting,
            syncer=self._syncing,
            namer=self._noting,
            indexer=self._indexing,
            hash_memory=hash_memory,
            engines=self._engines,
        )

    def _pool(self, name: str, count: int) -> Offload:
        return Offload(self._workers(name, count), self._loop)

    def _workers(self, name: str, count: int, *, niceness: int = 0) -> IoWorkers:
        workers = IoWorkers(count, name=name, niceness=niceness)
        self._resources.callback(workers.close)
        return workers

    def close(self) -> None:
        """End the threads, those that were started last first, and close the storage engines."""
        self._resources.close()
