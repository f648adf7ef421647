"""A queue of one account's connections that are paused by a quota or limit; they continue one by one, in order.

A connection that continues may exceed the limit again, so the next connection follows `NEXT_S` later, and only if the
account is then within its limits. Waiting connections are not read, so a close by the client is detected through the
kernel's TCP state. (The kernel reports the end of the stream only after the data before it: while that does not fit the
socket's buffer, a closed connection cannot be distinguished from a waiting one.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

NEXT_S: Final = 0.002
"""Minimum time between a connection that continues and the next one."""
STILL_THERE_S: Final = 1.0
"""Interval at which waiting connections are checked for a close by the client."""
NEVER: Final = math.inf
"""Result of `wait_s` for a wait that only a call of `look` ends."""


class Waiter(Protocol):
    """The interface that a `ThrottleQueue` requires of a connection that waits in it."""

    def end_if_gone(self) -> None:
        """Close if the client has closed its side; reading would not detect that, because reading is paused."""


C = TypeVar("C", bound=Waiter)


class ThrottleQueue(Generic[C]):
    """A queue of throttled connections. Belongs to one event loop; has a timer while any connection waits.

    Args:
        wait_s: returns the seconds until the next connection may continue; 0: it may now; `NEVER`: not before `look`
            is called.
        passes: called with the connection that may continue, and the seconds for which it has waited.
    """

    def __init__(self, wait_s: Callable[[], float], passes: Callable[[C, float], None]) -> None:
        self._wait_s = wait_s
        self._passes = passes
        self._since_s: dict[C, float] = {}
        """Start of the wait of each connection, in order of arrival."""
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_s = 0.0
        self._room_for = 0
        """Number of connections that may continue at the next check."""

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return len(self._since_s)

    def wait(self, one: C) -> None:
        """Queue a connection; a connection that is queued already keeps its place."""
        self._since_s.setdefault(one, asyncio.get_running_loop().time())
        if self._timer is None:
            self._look_later(0.0)

    def leave(self, one: C) -> None:
        """Remove a closed connection."""
        self._since_s.pop(one, None)

    def look(self) -> None:
        """Check again soon, because a request ended and one more connection may continue.

        The check is scheduled, not called: a connection that continues may end a request, and so on, with a recursion
        as deep as the number of connections.
        """
        if self._since_s:
            self._room_for += 1
            if self._room_for == 1:
                self._look_later(0.0, at_once=True)

    def open(self) -> None:
        """Resume all connections, because the limit was removed."""
        while self._since_s:
            self._pass_first()

    def _look_later(self, least_s: float, *, at_once: bool = False) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = 0.0 if at_once else max(least_s, min(self._wait_s(), STILL_THERE_S))
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._pass_on)

    def _pass_on(self) -> None:
        self._timer = None
        room_for, self._room_for = max(1, self._room_for), 0
        try:
            while self._since_s and room_for and self._wait_s() <= 0:
                room_for -= 1
                self._pass_first()
            self._drop_closed()
        finally:  # A failing connection must not block the others.
            if self._since_s and not self._room_for:
                self._look_later(NEXT_S)

    def _drop_closed(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + STILL_THERE_S
            for one in list(self._since_s):
                one.end_if_gone()

    def _pass_first(self) -> None:
        one = next(iter(self._since_s))
        waited_s = asyncio.get_running_loop().time() - self._since_s.pop(one)
        self._passes(one, max(0.0, waited_s))
