"""Binding of a client to one process and one event loop."""

from __future__ import annotations

import asyncio
import os

from tidelog.errors import ForkedError, WrongEventLoopError


class LoopAffinity:
    """Checks that an object is used only in the process that created it and in the event loop that first used it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self, *, bind: bool) -> None:
        """Refuse use in another process; with `bind`, also use outside an event loop or in another one.

        Raises:
            ForkedError: the current process is not the one that created the object.
            WrongEventLoopError: no event loop is running, or not the one in which the object was first used.
        """
        if os.getpid() != self._pid:
            raise ForkedError("this client was created before a fork; create a new one in the child process")
        if not bind:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongEventLoopError(
                "no event loop is running in this thread; in blocking programs use tidelog.sync"
            ) from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise WrongEventLoopError("this client belongs to another event loop; create one client for each loop")
