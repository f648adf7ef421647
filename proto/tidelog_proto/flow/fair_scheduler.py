"""Fair scheduling of long work on an event loop, in slices, round robin over callers.

A page of metadata takes a few milliseconds of the event loop, a request of 4,096 entries tens or hundreds, and many
clients may send such requests at once. Published records must not wait for all of them. So a request waits for a turn
before each page (`turn`) or each slice (`next_slice`) of its work; when turns have used `SLICE_S`, the event loop does
other work for as long as they took. Turns are shared by caller over all its connections, so a caller with a thousand
requests delays the others by one turn. No page is encoded for a client that has not read its earlier answers, which
bounds the memory of a client's answers to one page beyond the limit of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Final, Protocol

from tidelog_proto.flow.fair_slots import FairSlots, SlotBounds

SLICE_S: Final = 0.002
"""Time that turns may use before the scheduler pauses; a single page or slice may take longer."""
REST_S_MAX: Final = 0.05
"""Longest pause of the scheduler after a turn that took long because the machine was busy."""
_SLOWER: Final = 3
"""Maximum multiple of its estimated cost that a slice is charged, because its measured time may include other tasks."""


class Reader(Protocol):
    """The interface that `Turns` requires of a connection to which pages are sent."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether the client reads its answers, so that the write buffer is below its limit."""
        ...

    async def drained(self) -> None:
        """Wait until the connection is writable or closed."""


class Turns:
    """The scheduler of one process. All methods are called on the event loop's thread."""

    def __init__(self) -> None:
        self._slots = FairSlots(SlotBounds())
        self._used_s = 0.0
        """Time that turns have used since the scheduler last paused."""
        self._rested_at = 0.0
        self._stopped = False

    @contextlib.asynccontextmanager
    async def turn(self, reader: Reader, caller: object = None) -> AsyncIterator[None]:
        """Wait for a turn. The body of the `async with` must not await for long, because all of its time is charged.

        A closed connection gets its turn as well, so the body checks `is_open`.

        Args:
            caller: the key by which turns are shared; the connection by default.
        """
        key = reader if caller is None else caller
        while True:
            await reader.drained()
            began_s = self._take_now(key)
            if began_s is None:
                began_s = await self._wait(key, reader)
            if reader.is_writable or not reader.is_open:
                break
            if began_s is not None:
                self._done(0.0)
        try:
            yield
        finally:
            if began_s is not None:
                self._done(time.perf_counter() - began_s)

    async def next_slice(self, reader: object, caller: object = None, cost_s: float = 0.0) -> None:
        """Wait for a turn for the next slice of long work, which ends at the caller's next `await`.

        Returns at once for a closed connection and while the process stops; the caller then checks whether the work is
        still needed.

        Args:
            caller: the key by which turns are shared; the connection by default.
            cost_s: estimated time of the slice in seconds; 0 if unknown.
        """
        key = reader if caller is None else caller
        began_s = self._take_now(key)
        if began_s is None:
            began_s = await self._wait(key, reader)
        if began_s is not None:
            asyncio.get_running_loop().call_soon(self._measure, began_s, cost_s)

    def gone(self, reader: object) -> None:
        """Resume the work of a closed connection at once, so that it finds the connection closed and ends."""
        self._slots.release(reader)

    def stop(self) -> None:
        """Stop scheduling because the process stops: all work, waiting and future, continues at once."""
        self._stopped = True
        self._slots.release()

    def _take_now(self, key: object) -> float | None:
        """Take a turn and return its start (`perf_counter`); None if all slots are taken or the scheduler pauses."""
        if self._stopped or not self._slots.take_now(key):
            return None
        now_s = time.perf_counter()
        if now_s - self._rested_at > 2 * SLICE_S:  # after an idle time
            self._used_s, self._rested_at = 0.0, now_s
        return now_s

    async def _wait(self, key: object, reader: object) -> float | None:
        """Wait for a turn and return its start (`perf_counter`); None if the work continues without a turn."""
        if self._stopped:
            await asyncio.sleep(0)
            return None
        return time.perf_counter() if await self._slots.take(key, reader) else None

    def _measure(self, began_s: float, cost_s: float) -> None:
        """Count the time of a slice, at least its estimated cost and at most `_SLOWER` times that.

        The measured time may include other tasks.
        """
        took_s = time.perf_counter() - began_s
        self._done(min(max(cost_s, took_s), _SLOWER * cost_s) if cost_s else took_s)

    def _done(self, took_s: float) -> None:
        self._used_s += took_s
        if self._used_s >= SLICE_S:
            rest_s, self._used_s = min(self._used_s, REST_S_MAX), 0.0
            self._slots.pause()
            asyncio.get_running_loop().call_later(rest_s, self._rested)
        self._slots.give_back(None)

    def _rested(self) -> None:
        self._rested_at = time.perf_counter()
        self._slots.resume()
