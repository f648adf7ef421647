"""One budget of bytes for everything that comes in: bodies and messages, while they come and while they are handled.

What is announced is counted before a byte of it is read, and nothing obliges a client to send it. So whoever finds no
room presses: those give way that have sent nothing worth mentioning for `GIVE_WAY_S`, or would take longer than
`WHOLE_WITHIN_S` at their pace, the largest first, until half of the budget is free. While there is room nobody is
hurried by this.

Where it is known whose it is, one caller may have as much as is free: alone half of the budget, two a third each. So
what one has waiting, because his quota is used up, leaves the others room.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelog_gateway.budget.load_shedding import GIVE_WAY_S, PRESS_S, PROGRESS_BYTES

WHOLE_WITHIN_S: Final = 30.0

Body = bytes | memoryview
"""A whole body: of large columns, which Arrow reads where they are, memory that belongs to nobody else."""


class Budget:
    """A number of bytes that may be in use at a time; whoever asks for more than is left is refused."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.stopping = False
        self.coming: set[Arrival] = set()
        self._press_at = 0.0

    def take(self, size_bytes: int) -> bool:
        """Reserve `size_bytes`; False when they are not there, and nothing is reserved then."""
        assert size_bytes >= 0
        if self.used_bytes + size_bytes > self.limit_bytes:
            self._press()
            if self.used_bytes + size_bytes > self.limit_bytes:
                return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return what was reserved."""
        assert 0 <= size_bytes <= self.used_bytes
        self.used_bytes -= size_bytes

    def hurry(self, *, everyone: bool) -> None:
        """Let those give way that do not come on, or everyone: the gateway stops, and waits for nobody's body."""
        self.stopping = True
        now = time.monotonic()
        for arrival in [arrival for arrival in self.coming if everyone or arrival.is_slow(now)]:
            arrival.end()
            arrival.give_way()

    def _press(self) -> None:
        now = time.monotonic()
        if now < self._press_at:
            return
        self._press_at = now + PRESS_S
        slow = [arrival for arrival in self.coming if arrival.held_bytes and arrival.is_slow(now)]
        for arrival in sorted(slow, key=_held, reverse=True):
            if self.used_bytes <= self.limit_bytes // 2:
                return
            arrival.end()
            arrival.give_way()


class Share:
    """What one caller has reserved."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0


class Arrival:
    """Something that comes in, and what it has reserved.

    Args:
        budget: everybody's.
        give_way: called when others need the room; what was reserved is given back already.
        share: the caller's; None where nobody is asked who he is.
    """

    __slots__ = (
        "_arrived_bytes",
        "_budget",
        "_is_shared",
        "_mark_at",
        "_mark_bytes",
        "_share",
        "_since",
        "give_way",
        "held_bytes",
    )

    def __init__(self, budget: Budget, give_way: Callable[[], None], share: Share | None = None) -> None:
        self._share = Share() if share is None else share
        self._is_shared = share is not None
        self.give_way = give_way
        self.held_bytes = 0
        self._budget = budget
        self._arrived_bytes = 0
        self._mark_bytes = 0
        self._mark_at = self._since = 0.0

    def begin(self) -> None:
        """Note that it comes from now on, though nothing may be reserved for it yet."""
        if self not in self._budget.coming:
            self._budget.coming.add(self)
            self._arrived_bytes = self._mark_bytes = 0
            self._mark_at = self._since = time.monotonic()

    def hold(self, size_bytes: int) -> bool:
        """Reserve as much as `size_bytes` in all, or no more than that.

        False when there is no room for it; looking for some may have shown that it is this one that has to give way.
        """
        before_bytes = self.held_bytes
        if size_bytes > before_bytes:
            if self._has_too_much(size_bytes - before_bytes) or not self._budget.take(size_bytes - before_bytes):
                return False
            if self.held_bytes != before_bytes:
                self._budget.give_back(size_bytes - before_bytes)
                return False
            self.begin()
        else:
            self._budget.give_back(self.held_bytes - size_bytes)
        self._share.held_bytes += size_bytes - before_bytes
        self.held_bytes = size_bytes
        if not size_bytes:
            self.whole()
        return True

    def hold_whole(self, size_bytes: int) -> bool:
        """Reserve `size_bytes` for what is all here, of which nothing was reserved before; False: there is no room."""
        if self._has_too_much(size_bytes) or not self._budget.take(size_bytes):
            return False
        self.held_bytes = size_bytes
        self._share.held_bytes += size_bytes
        return True

    def came(self, arrived_bytes: int) -> None:
        """Note how much is here by now."""
        self._arrived_bytes = arrived_bytes
        if arrived_bytes - self._mark_bytes >= PROGRESS_BYTES:
            self._mark_bytes, self._mark_at = arrived_bytes, time.monotonic()

    def whole(self) -> None:
        """All of it is here: it keeps its room and is hurried by nobody."""
        self._budget.coming.discard(self)

    def end(self) -> None:
        """Give everything back."""
        self.whole()
        self._budget.give_back(self.held_bytes)
        self._share.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def _has_too_much(self, more_bytes: int) -> bool:
        others_bytes = self._share.held_bytes - self.held_bytes
        left_bytes = self._budget.limit_bytes - self._budget.used_bytes
        return self._is_shared and others_bytes > 0 and self._share.held_bytes + more_bytes > left_bytes

    def is_slow(self, now: float) -> bool:
        """Whether it does not come on."""
        if now - self._mark_at >= GIVE_WAY_S:
            return True
        coming_s = now - self._since
        return coming_s >= GIVE_WAY_S and self._arrived_bytes * WHOLE_WITHIN_S < self.held_bytes * coming_s


def _held(arrival: Arrival) -> int:
    return arrival.held_bytes
