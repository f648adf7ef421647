"""Notification of a partition's readers about new records, and of waiters about changes of its replica."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidelog_proto.errors import ProtocolError


class ChangeNotifier:
    """Notifies readers of one partition about new records, and waiters about changes of its replica.

    All methods are for the event loop's thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.listeners: set[Callable[[], None]] = set()
        """Called when there may be new records, or when readers must check why no records arrive."""
        self._loop = loop
        self._waiters: dict[asyncio.Future[None], None] = {}
        """The waiters for a change of the replica, in the order of their arrival."""

    def wake(self) -> None:
        """Call every listener: there may be new records."""
        for listener in list(self.listeners):
            listener()

    def changed(self, error: ProtocolError | None = None) -> None:
        """Resume the waiters for a change of the replica, or fail them with an error."""
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
            ProtocolError: DISK_FULL: there is no space for the change.
        """
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)
