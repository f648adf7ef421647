"""Background tasks of a node: referenced while they run, with logged failures, and cancelled when the node stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class Tasks:
    """The running background tasks of one node. Created and used on the event loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that runs a coroutine, and return it; a failure is a bug and is logged."""
        task = self.loop.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def named(self, name: str) -> list[asyncio.Task[None]]:
        """Return the running tasks with a name."""
        return [task for task in self._running if task.get_name() == name]

    async def cancel(self) -> None:
        """Cancel all tasks; return when they have ended."""
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s failed: %r", task.get_name(), error, exc_info=error)
