"""Where a client belongs: one process, one event loop."""

from __future__ import annotations

import asyncio
import os

from tidelog.errors import ForkedError, WrongEventLoopError


class LoopAffinity:
    """The process that something was made in, and the event loop that it was first used in."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self, *, bind: bool) -> None:
        """Refuse use elsewhere; `bind`: an event loop runs, and this belongs to it from the first time on.

        Raises:
            ForkedError: this is another process.
            WrongEventLoopError: this is another event loop.
        """
        if os.getpid() != self._pid:
            raise ForkedError("this client was made before a fork: make a new one in the child process")
        if not bind:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise WrongEventLoopError(
                "no event loop runs in this thread; programs that block use tidelog.sync"
            ) from None
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise WrongEventLoopError("this client belongs to another event loop: make one for each loop")
