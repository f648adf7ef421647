"""Fair scheduling of long work on an event loop, in slices, round robin over callers.

A page of metadata takes a few milliseconds of the event loop, a request of 4,096 entries tens or hundreds, and many
clients may send such requests at once. Published records must not wait for all of them. So a request waits for a turn
before each page (`turn`) or each slice (`next_slice`) of its work; when turns have used `SLICE_S`, the event loop does
other work for as long as they took. Turns are shared by caller over all its connections, so a caller with a thousand
requests delays the others by one. No page is encoded for a client that has not read its earlier answers, which bounds
the
memory of a client's answers to one page beyond the limit of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

SLICE_S: Final = 0.002
"""Time that turns may use before a rest; a single page or slice may take longer."""
REST_S_MAX: Final = 0.05
"""Longest rest after a turn that took long because the machine was busy."""
_SLOWER: Final = 3
"""Factor by which a slice may exceed its known cost on a slow or busy machine."""


class Reader(Protocol):
    """A connection that receives answers."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether the client reads its answers, so that the write buffer has room."""
        ...

    async def drained(self) -> None:
        """Wait until the connection is writable or closed."""


class _Waiting(NamedTuple):
    reader: object
    given: asyncio.Future[None]


class Turns:
    """The scheduler of one process. All methods are called on the event loop's thread."""

    def __init__(self) -> None:
        self._waiting: dict[object, deque[_Waiting]] = {}
        """Waiting requests by caller, the next caller first."""
        self._working = False
        self._used_s = 0.0
        """Time that turns have used since the last rest."""
        self._rested_at = 0.0
        self._resting = False
        self._stopped = False

    @contextlib.asynccontextmanager
    async def turn(self, reader: Reader, caller: object = None) -> AsyncIterator[None]:
        """Wait for a turn. The body of the `async with` must not await.

        A closed connection gets its turn as well: check `is_open`.

        Args:
            reader: the connection of the request.
            caller: the key by which turns are shared; the connection by default.
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

    async def next_slice(self, reader: object, caller: object = None, cost_s: float = 0.0) -> None:
        """Wait for a turn for the next slice of long work, which ends at the caller's next `await`.

        Returns at once for a closed connection and while the process stops; the caller then checks whether the work is
        still needed.

        Args:
            reader: the connection of the request.
            caller: the key by which turns are shared; the connection by default.
            cost_s: estimated time of the slice in seconds; 0 if unknown.
        """
        await self._take(reader, caller)
        asyncio.get_running_loop().call_soon(self._measure, time.perf_counter(), cost_s)

    def gone(self, reader: object) -> None:
        """Resume the work of a closed connection at once, so that it finds the connection closed and ends."""
        for caller, waiting in list(self._waiting.items()):
            if any(each.reader is reader for each in waiting):
                self._release(caller, [each for each in waiting if each.reader is reader])

    def stop(self) -> None:
        """Stop scheduling: all work, waiting and future, continues at once because the process stops."""
        self._stopped = True
        for caller, waiting in list(self._waiting.items()):
            self._release(caller, list(waiting))

    def _release(self, caller: object, released: list[_Waiting]) -> None:
        """Resume waiting work without marking the scheduler as busy."""
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
            if now_s - self._rested_at > 2 * SLICE_S:  # the scheduler was idle before
                self._used_s, self._rested_at = 0.0, now_s
            self._working = True
            return
        mine = _Waiting(reader, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(reader if caller is None else caller, deque()).append(mine)
        try:
            await mine.given
        except asyncio.CancelledError:
            if mine.given.done() and not mine.given.cancelled():
                self._done(0.0)  # the turn was granted before the cancellation
            raise

    def _measure(self, began_s: float, cost_s: float) -> None:
        """Count the slice. of a slice, limited by its known cost, because other tasks may have run in the meantime."""
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
        """Grant the turn to the next waiting caller."""
        while self._waiting and not self._working:
            caller = next(iter(self._waiting))
            questions = self._waiting.pop(caller)
            mine = questions.popleft()
            if questions:
                self._waiting[caller] = questions  # the caller's next request waits for the other callers
            if not mine.given.done():
                self._working = True
                mine.given.set_result(None)
                return
