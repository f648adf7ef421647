"""Fair scheduling of long work on an event loop: a little at a time, one caller after the other.

A page of metadata takes the event loop a few milliseconds, a request of 4,096 entries tens or hundreds, and a hundred
clients may each want one at the same moment, or one client a thousand. Published records must not wait for all of
them. So a request waits for a turn before each page (`turn`) or each piece (`piece`) of its work; when the turns of a
while have taken `SLICE_S`, the process does something else for as long as they took. Callers take turns, over all their
connections, so a caller with a thousand questions delays the others by one; and no page is made for a client that does
not read what it was sent before, so what waits for a client is a page beyond the bound, whatever it asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

SLICE_S: Final = 0.002
"""So much work is done in one go; a single page or piece may take longer."""
REST_S_MAX: Final = 0.05
"""After a piece that took long because the whole machine was busy."""
_SLOWER: Final = 3
"""So many times as long as is known may a piece take, on a slower machine or a busy one."""


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


class _Waiting(NamedTuple):
    reader: object
    given: asyncio.Future[None]


class Turns:
    """The queue of one process. All methods are for the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: dict[object, deque[_Waiting]] = {}
        """By caller, the one whose turn is next first."""
        self._working = False
        self._used_s = 0.0
        """Time taken by the turns since the last rest."""
        self._rested_at = 0.0
        self._resting = False
        self._stopped = False

    @contextlib.asynccontextmanager
    async def turn(self, reader: Reader, caller: object = None) -> AsyncIterator[None]:
        """Wait for a turn; what is done in it awaits nothing.

        A connection that is gone has its turn, too: see `is_open`.

        Args:
            reader: the connection that asks.
            caller: by whom turns are shared; the connection unless given.
        """
        while True:
            await reader.drained()
            await self._take(reader, caller)
            if reader.is_writable or not reader.is_open:
                break
            self._done(0.0)
        began_s = time.perf_counter()
        try:
            yield
        finally:
            self._done(time.perf_counter() - began_s)

    async def piece(self, reader: object, caller: object = None, cost_s: float = 0.0) -> None:
        """Wait until the next piece of a long work may be done: what is done from here to the next `await`.

        A connection that is gone, and everything in a process that stops, waits no longer; the caller of this looks
        after it whether the work is still wanted.

        Args:
            reader: the connection that asks.
            caller: by whom turns are shared; the connection unless given.
            cost_s: what the piece is known to take, in seconds; 0: not known.
        """
        await self._take(reader, caller)
        asyncio.get_running_loop().call_soon(self._measure, time.perf_counter(), cost_s)

    def gone(self, reader: object) -> None:
        """Resume the work of a closed connection at once, so that it finds the connection closed and ends."""
        for caller, waiting in list(self._waiting.items()):
            if any(each.reader is reader for each in waiting):
                self._release(caller, [each for each in waiting if each.reader is reader])

    def stop(self) -> None:
        """Let everything go on at once, now and from now on: the process stops."""
        self._stopped = True
        for caller, waiting in list(self._waiting.items()):
            self._release(caller, list(waiting))

    def _release(self, caller: object, released: list[_Waiting]) -> None:
        """Give out turns without marking the queue as busy."""
        left = deque(each for each in self._waiting[caller] if each not in released)
        if left:
            self._waiting[caller] = left
        else:
            del self._waiting[caller]
        for each in released:
            if not each.given.done():
                each.given.set_result(None)

    async def _take(self, reader: object, caller: object) -> None:
        if self._stopped:
            await asyncio.sleep(0)
            return
        now_s = time.perf_counter()
        if not self._working and not self._resting and not self._waiting:
            if now_s - self._rested_at > 2 * SLICE_S:  # it was quiet for a while
                self._used_s, self._rested_at = 0.0, now_s
            self._working = True
            return
        mine = _Waiting(reader, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(reader if caller is None else caller, deque()).append(mine)
        try:
            await mine.given
        except asyncio.CancelledError:
            if mine.given.done() and not mine.given.cancelled():
                self._done(0.0)  # it was given the turn in the moment in which it gave up
            raise

    def _measure(self, began_s: float, cost_s: float) -> None:
        """Count a piece; what others have done since counts, too, so no more than is likely where that is known."""
        took_s = time.perf_counter() - began_s
        self._done(min(max(cost_s, took_s), _SLOWER * cost_s) if cost_s else took_s)

    def _done(self, took_s: float) -> None:
        self._working = False
        self._used_s += took_s
        if self._resting:
            return
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
        """Give the turn to the next caller that waits."""
        while self._waiting and not self._working:
            caller = next(iter(self._waiting))
            questions = self._waiting.pop(caller)
            mine = questions.popleft()
            if questions:
                self._waiting[caller] = questions  # behind the others
            if not mine.given.done():
                self._working = True
                mine.given.set_result(None)
                return
