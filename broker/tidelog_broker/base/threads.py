"""A node's threads for what would make its event loop wait, each pool for work that another one must not wait for.

Why there are as many: ADR 0069.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_broker.storage.segment.disk import Disk
from tidelog_broker.storage.segment.hash_memory import HashMemory

JOURNALS: Final = 3
"""Fences, chains and lives; each has a thread."""


class Threads:
    """See the module; `close` ends them when what they are at is done.

    Args:
        io_workers: threads for the writes to the logs, and as many for reads.
    """

    def __init__(self, io_workers: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._resources = contextlib.ExitStack()
        self.io = self._pool("io", io_workers)
        """For writes to the logs, those of one partition one after the other."""
        self.journals = self._pool("journal", JOURNALS)
        """For the journals alone: syncing a log may take seconds, and no other partition's takeover waits for that."""
        self.readers = self._pool("read", io_workers)
        """For reads: one of what has left the page cache waits for the disk, and no write waits for that."""
        self.verifiers = self._pool("verify", 1)
        """For what is the processor's alone: to unpack a batch may take 10 ms, and it waits for no disk."""
        self.secrets = self._pool("secret", 1)
        """For the slow hashes of secrets, some milliseconds of the processor each, which must delay nothing else."""
        self._syncing = self._workers("ahead", 1)
        self.ahead = Offload(self._syncing, self._loop)
        """For syncs that nobody waits for, so that no append and no takeover does; one at a time."""
        self._noting = self._workers("note", 1)
        self.notes = Offload(self._noting, self._loop)
        """For small files beside the logs, and for what a deletion waits for."""
        self.compactor = self._pool("compact", 1)
        """For passes of compaction, which take their time."""
        self._indexing = self._workers("index", 1)

    def disk(self, fs: FileSystem, hash_memory: HashMemory) -> Disk:
        """Return what the logs share: their head starts run where the like of them does, long apart from short."""
        return Disk(
            fs=fs,
            preallocator=self._noting,
            syncer=self._syncing,
            namer=self._noting,
            indexer=self._indexing,
            hash_memory=hash_memory,
        )

    def _pool(self, name: str, count: int) -> Offload:
        return Offload(self._workers(name, count), self._loop)

    def _workers(self, name: str, count: int) -> IoWorkers:
        workers = IoWorkers(count, name=name)
        self._resources.callback(workers.close)
        return workers

    def close(self) -> None:
        """End the threads, the newest first."""
        self._resources.close()
