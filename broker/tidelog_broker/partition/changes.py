"""Waiters of a partition: readers wait for records, others for its replica to change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog_proto.errors import ProtocolError


class Changes:
    """See the module. All methods are for the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: set[Callable[[], None]] = set()
        """Called when there may be something new to read, or when readers are to look why not."""
        self._loop = loop
        self._waiters: dict[asyncio.Future[None], None] = {}
        """In the order in which they came."""

    def wake(self) -> None:
        """Tell every listener that there may be something new."""
        for listener in list(self.listeners):
            listener()

    def changed(self, error: ProtocolError | None = None) -> None:
        """Let those go on who wait for the replica to change, or fail them."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                if error is None:
                    waiter.set_result(None)
                else:
                    waiter.set_exception(error)

    async def change(self) -> None:
        """Wait until the replica has changed.

        Raises:
            ProtocolError: DISK_FULL: what would change it finds no space.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
