"""Connections of one caller that have to wait until it has no debt any more: let through one by one, in order.

Whoever is let through sends, or is sent, something that may make the next debt, so the next one is let through a moment
later, and only if there is none. A client that is gone while nothing is read from it is noticed all the same: its
kernel has said that it sends no more. (It says so behind what it has sent: while that does not fit the socket's buffer,
who is gone cannot be told from who waits.)
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

NEXT_S: Final = 0.002
STILL_THERE_S: Final = 1.0
"""How often it is looked whether those that wait are still there."""
NEVER: Final = math.inf
"""For `wait_s`: until `look`."""


class Waiter(Protocol):
    """A connection, as it is seen from here."""

    def end_if_gone(self) -> None:
        """End, if the client has closed its side: nothing is read, so nothing else would tell."""


C = TypeVar("C", bound=Waiter)


class Gate(Generic[C]):
    """See the module. Belongs to one event loop; has a timer while somebody waits.

    Args:
        wait_s: returns how long nobody may pass, in seconds; 0: now; infinity: until `look`.
        passes: called with who may pass, and for how many seconds it has waited.
    """

    def __init__(self, wait_s: Callable[[], float], passes: Callable[[C, float], None]) -> None:
        self._wait_s = wait_s
        self._passes = passes
        self._since_s: dict[C, float] = {}
        """The one that came first is first."""
        self._timer: asyncio.TimerHandle | None = None
        self._look_at_s = 0.0
        self._room_for = 0
        """How many may pass in one go."""

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._since_s)

    def wait(self, one: C) -> None:
        """Queue a connection; one that waits already keeps its place."""
        self._since_s.setdefault(one, asyncio.get_running_loop().time())
        if self._timer is None:
            self._look_later(0.0)

    def leave(self, one: C) -> None:
        """Forget a connection that is gone."""
        self._since_s.pop(one, None)

    def look(self) -> None:
        """Look again soon: there may be no reason to wait any more; what came to an end makes room for one.

        Not at once: who is let through works, that may come to an end, and so on, as deep as there are connections.
        """
        if self._since_s:
            self._room_for += 1
            if self._room_for == 1:
                self._look_later(0.0, at_once=True)

    def open(self) -> None:
        """Let everybody through: nothing is bounded any more."""
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
            self._look_who_is_gone()
        finally:  # whatever one of them does: the others are not to wait for ever
            if self._since_s and not self._room_for:
                self._look_later(NEXT_S)

    def _look_who_is_gone(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + STILL_THERE_S
            for one in list(self._since_s):
                one.end_if_gone()

    def _pass_first(self) -> None:
        one = next(iter(self._since_s))
        waited_s = asyncio.get_running_loop().time() - self._since_s.pop(one)
        self._passes(one, max(0.0, waited_s))
