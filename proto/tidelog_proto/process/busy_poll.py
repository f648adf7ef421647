"""Looking for what comes next instead of going to sleep, where it is going to come soon.

A process that waits for a message is put to sleep, its processor after it, and both must be woken again: on a virtual
machine that takes some 35 µs each way, and what runs then finds cold caches. For one record at a time that is a good
half of the whole publish. So who was kept waiting only for a moment the last time looks again and again for a while,
and only then sleeps. The idea is Seastar's (`--idle-poll-time-us`, 200 by default). A moment is twice that while: what
was waited for asleep has taken longer than it will awake, and who counted it as too late would never wake up.

It must not take the processor from anybody else. Between two looks it is offered to whoever wants it, and when somebody
took it, looking ends: on a busy processor nothing falls asleep. Where that happens again and again it is not tried for
a while, for longer each time, since to come last behind everybody who wants the processor takes longer than to be woken
(`_pause_s`); nor where it was looked for in vain again and again. Nor is it begun where messages come far apart, so who
has little to do costs nothing, nor behind a large message, whose copying takes longer than the waking. Rejected:
looking for ever, which burns a core for every idle process; a socket's busy polling, which loopback and most virtual
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
"""What is larger is waited for asleep."""

_SOON: Final = 2
"""In multiples of the time that is looked: what has come by then is looked for the next time."""

CROWDED_S: Final = 50e-6
"""Between two looks lie a few µs, unless somebody else has had the processor, or the interpreter."""

PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.5
"""How long it is not tried where somebody else took the processor, or nothing came: twice as long with each time, half
with each that something came while it was looked for."""


def _always() -> bool:
    return True


class IdlePoll:
    """Keeps one event loop awake between `waits` and `came`, or for `poll_us` at most.

    Args:
        loop: the running event loop.
        poll_us: how long to look; 0: not at all.
        may_poll: asked before each look; False while a thread of this process is at work that is waited for.
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

    def waits(self, size_bytes: int) -> None:
        """Something is waited for from now on, behind a message of so many bytes."""
        now_s = self._since_s = time.perf_counter()
        if self._came_soon and size_bytes <= POLLED_BYTES_MAX and now_s >= self._paused_until_s:
            self._until_s = now_s + self._poll_s
            self._looked_s = now_s
            if not self._is_looking:
                self._is_looking = True
                self._loop.call_soon(self._look)

    def came(self) -> None:
        """It has come."""
        now_s = time.perf_counter()
        self._came_soon = now_s - self._since_s < _SOON * self._poll_s
        if self._is_looking and self._pause_s and now_s < self._until_s:
            self._pause_s = self._pause_s / 2 if self._pause_s > PAUSE_S_MIN else 0.0
        self._until_s = 0.0

    def _look(self) -> None:
        """Be called again in the next turn of the loop, in which it looks at its sockets without sleeping."""
        now_s = time.perf_counter()
        if not self._until_s or not self._may_poll():
            self._is_looking = False
            return
        if now_s >= self._until_s or now_s - self._looked_s > CROWDED_S:
            self._is_looking = False
            self._pause_s = min(max(2 * self._pause_s, PAUSE_S_MIN), PAUSE_S_MAX)
            self._paused_until_s = now_s + self._pause_s
            return
        os.sched_yield()
        self._looked_s = now_s
        self._loop.call_soon(self._look)
