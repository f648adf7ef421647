"""Busy polling of the event loop while a message is expected soon, as an alternative to sleeping.

A process that waits for a message sleeps, and so does its processor; waking both takes some 35 µs each way on a virtual
machine, and leaves cold caches. That is about half the latency of publishing a single record. So when the last wait
was short (at most twice the polling time: a sleeping wait takes longer than a polling one), the next wait polls for up
to `poll_us` before it sleeps. Seastar does the same (`--idle-poll-time-us`, 200 by default).

Polling must not take the processor from other threads and processes. Between two polls the processor is yielded, and
when another task used it, polling ends. If polling ends repeatedly for this reason or without a message, polling pauses
for exponentially longer (`_pause_s`), because on a busy processor a process that yields waits longer than one that
wakes up: up to 4 ms, until a tick of the kernel. The pause is also at least `PAUSE_FACTOR` times as long as the yield
took. Waits after a large message do not poll either: copying it takes longer than waking up. Rejected: polling
without a bound, which uses a core in every idle process; busy polling of the socket, which loopback and most virtual
devices lack.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final

POLL_US_DEFAULT: Final = 500
POLL_US_MAX: Final = 10_000
POLLED_BYTES_MAX: Final = 16 * 1024
"""Size of a message above which the next wait does not poll."""

_SOON: Final = 2
"""Factor of the polling time: after a wait of at most this multiple, the next wait polls."""

PROCESSOR_CONTENDED_S: Final = 50e-6
"""Time between two polls above which another task must have used the processor or the GIL."""

PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.5
"""Bounds of the pause after another task used the processor, or after polling without a message: doubled each time,
halved after each message that arrived while polling."""

PAUSE_FACTOR: Final = 100
"""Minimum pause after another task used the processor, as a multiple of the time that it used it."""


def _always() -> bool:
    return True


class IdlePoll:
    """Keeps one event loop awake between `waits` and `came`, for at most `poll_us`.

    Args:
        poll_us: how long to poll; 0 disables polling.
        may_poll: called before each poll; returns False while a thread of this process does work that the event loop
            waits for.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, poll_us: int, *, may_poll: Callable[[], bool] = _always
    ) -> None:
        self._loop = loop
        self._poll_s = poll_us / 1e6
        self._may_poll = may_poll
        self._since_s = 0.0
        self._looked_s = 0.0
        self._until_s = 0.0
        self._came_soon = False
        self._is_looking = False
        self._pause_s = 0.0
        self._paused_until_s = 0.0

    def waits(self, size_bytes: int, came_s: float | None = None) -> None:
        """Start a wait for a message, after one of `size_bytes` bytes.

        Args:
            came_s: the time (`perf_counter`) at which that message arrived; None if `came` was called for it.
        """
        now_s = time.perf_counter()
        if came_s is not None:
            self._came_soon = came_s - self._since_s < _SOON * self._poll_s
            if self._is_looking and self._pause_s and came_s < self._until_s:
                self._pause_s = self._pause_s / 2 if self._pause_s > PAUSE_S_MIN else 0.0
            self._until_s = 0.0
        self._since_s = now_s
        if self._came_soon and size_bytes <= POLLED_BYTES_MAX and now_s >= self._paused_until_s:
            self._until_s = now_s + self._poll_s
            self._looked_s = now_s
            if not self._is_looking:
                self._is_looking = True
                self._loop.call_soon(self._look)

    def came(self, came_s: float | None = None) -> None:
        """End the wait: the message has arrived.

        Args:
            came_s: the time (`perf_counter`) at which the message arrived; by default now.
        """
        if came_s is None:
            came_s = time.perf_counter()
        self._came_soon = came_s - self._since_s < _SOON * self._poll_s
        if self._is_looking and self._pause_s and came_s < self._until_s:
            self._pause_s = self._pause_s / 2 if self._pause_s > PAUSE_S_MIN else 0.0
        self._until_s = 0.0

    def _look(self) -> None:
        """Poll once: schedule another iteration of the event loop, which checks its sockets without sleeping."""
        now_s = time.perf_counter()
        if not self._until_s or not self._may_poll():
            self._is_looking = False
            return
        if now_s >= self._until_s or now_s - self._looked_s > PROCESSOR_CONTENDED_S:
            self._is_looking = False
            self._pause(now_s, PAUSE_S_MIN)
            return
        os.sched_yield()
        self._looked_s = time.perf_counter()
        lost_s = self._looked_s - now_s
        if lost_s > PROCESSOR_CONTENDED_S:
            self._is_looking = False
            self._pause(self._looked_s, PAUSE_FACTOR * lost_s)
            return
        self._loop.call_soon(self._look)

    def _pause(self, now_s: float, least_s: float) -> None:
        """Do not poll for twice as long as at the last time, and at least for `least_s`; at most `PAUSE_S_MAX`."""
        self._pause_s = min(max(2 * self._pause_s, least_s), PAUSE_S_MAX)
        self._paused_until_s = now_s + self._pause_s
