"""Requests that have begun to come and are not whole: whoever does not go on gives way when others find no room.

What a frame announces is counted in the node's budget before memory is taken for it, and stays there until the frame
is whole. Nothing obliges a client to send the rest, so a few that announce much and send nothing would have the whole
budget for themselves. There is no deadline while there is room; but where a request finds none, those go whose frame
has been coming for `SLOW_AFTER_S` at a pace at which it would take longer than `WHOLE_WITHIN_S`, the largest first,
until half of the budget is free.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tidelog_broker.wire.budget import Budget

SLOW_AFTER_S: Final = 2.0
WHOLE_WITHIN_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.1
"""Those who find no room ask often: all that is coming is looked at once in this time."""


class Sender(Protocol):
    """A connection on which a frame is coming, as it is seen from here."""

    def announced(self) -> tuple[int, int]:
        """Return how many bytes were announced and counted, and how many of them have come."""
        ...

    def send_too_slowly(self) -> None:
        """Be cut off; what was counted is given back at once."""


class Arriving:
    """All frames of clients that are not whole yet.

    Args:
        budget: in which they are counted.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._since_s: dict[Sender, float] = {}
        self._look_at_s = 0.0

    def begun(self, sender: Sender) -> None:
        """A frame is coming, and counted."""
        self._since_s[sender] = asyncio.get_running_loop().time()

    def ended(self, sender: Sender) -> None:
        """It is whole, or its connection is gone."""
        self._since_s.pop(sender, None)

    def make_room(self, size_bytes: int) -> bool:
        """Cut off who sends too slowly; return whether `size_bytes` fit now."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_AGAIN_S
            slow = [sender for sender, since_s in self._since_s.items() if _is_slow(sender, now_s - since_s)]
            for sender in sorted(slow, key=_announced_bytes, reverse=True):
                if self._budget.in_flight_bytes <= self._budget.bytes_max // 2:
                    break
                sender.send_too_slowly()
        return self._budget.has_room(size_bytes)


def _announced_bytes(sender: Sender) -> int:
    return sender.announced()[0]


def _is_slow(sender: Sender, coming_s: float) -> bool:
    size_bytes, arrived_bytes = sender.announced()
    return coming_s >= SLOW_AFTER_S and arrived_bytes * WHOLE_WITHIN_S < size_bytes * coming_s
