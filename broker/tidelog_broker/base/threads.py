"""A node's threads for what would make its event loop wait, each pool for work that another one must not wait for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from tidelog_broker.base.offload import Offload
from tidelog_broker.storage.io.workers import IoWorkers

JOURNALS: Final = 2
"""Fences and chains; each has a thread."""


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
        self.ahead = self._pool("ahead", 1)
        """For syncs that nobody waits for, so that no append and no takeover does; one at a time."""
        self.notes = self._pool("note", 1)
        """For small files beside the logs, and for what a deletion waits for."""
        self.verifiers = self._pool("verify", 1)
        self.compactor = self._pool("compact", 1)
        """For passes of compaction, which take their time."""

    def _pool(self, name: str, count: int) -> Offload:
        workers = IoWorkers(count, name=name)
        self._resources.callback(workers.close)
        return Offload(workers, self._loop)

    def close(self) -> None:
        """End the threads, the newest first."""
        self._resources.close()
