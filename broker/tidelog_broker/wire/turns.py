"""Work that answers large questions, in turns: a little at a time, connection by connection.

A page of metadata takes the event loop a few milliseconds, and a hundred clients may each want one at the same moment,
or one client a thousand. Published records must not wait for all of them. So who makes a page waits for its turn; when
the turns of a while have taken `SLICE_S`, the node does something else for as long as they took. Connections take
turns, so that one with a thousand questions delays the others by one page; and nobody's page is made while its client
does not take what it was sent before, so that what waits for a client is a page beyond the bound, whatever it asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Protocol

SLICE_S: Final = 0.002
"""So much work is done in one go; a single piece of it may take longer."""
REST_S_MAX: Final = 0.05
"""After a piece that took long because the whole machine was busy."""


class Reader(Protocol):
    """A connection."""

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether the client takes what it is sent."""
        ...

    async def drained(self) -> None:
        """Wait until it does, or is gone."""


class Turns:
    """Of one node."""

    def __init__(self) -> None:
        self._waiting: dict[Reader, deque[asyncio.Future[None]]] = {}
        """By connection, the one whose turn is next first."""
        self._working = False
        self._used_s = 0.0
        """What the turns since the last rest have taken."""
        self._rested_at = 0.0
        self._resting = False

    @contextlib.asynccontextmanager
    async def turn(self, reader: Reader) -> AsyncIterator[None]:
        """Wait for a turn of this connection; what is done in it awaits nothing.

        A connection that is gone has its turn, too: see `is_open`.
        """
        while True:
            await reader.drained()
            await self._take(reader)
            if reader.is_writable or not reader.is_open:
                break
            self._done(0.0)
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._done(time.perf_counter() - began_s)

    async def _take(self, reader: Reader) -> None:
        now_s = time.perf_counter()
        if not self._working and not self._resting and not self._waiting:
            if now_s - self._rested_at > 2 * SLICE_S:  # it was quiet for a while
                self._used_s, self._rested_at = 0.0, now_s
            self._working = True
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(reader, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._done(0.0)  # it was given the turn in the moment in which it gave up
            raise

    def _done(self, took_s: float) -> None:
        self._working = False
        self._used_s += took_s
        if self._used_s < SLICE_S:
            self._next()
            return
        self._resting = True
        rest_s, self._used_s = min(self._used_s, REST_S_MAX), 0.0
        asyncio.get_running_loop().call_later(rest_s, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._rested_at = time.perf_counter()
        if not self._working:
            self._next()

    def _next(self) -> None:
        """Give the turn to the next connection that waits."""
        while self._waiting:
            reader = next(iter(self._waiting))
            questions = self._waiting.pop(reader)
            mine = questions.popleft()
            if questions:
                self._waiting[reader] = questions  # behind the others
            if not mine.done():
                self._working = True
                mine.set_result(None)
                return
