"""Requests that are being received: slow senders are closed when other requests exceed the budget.

The announced size of a frame is counted in the node's budget before memory is allocated, and stays counted until the
frame is complete. A client need not send the rest, so a few clients that announce large frames and send nothing could
hold the whole budget. There is no deadline while the budget is not exhausted. When a request exceeds it, connections
are closed whose frame has been arriving for `SLOW_AFTER_S` at a rate that would take longer than `WHOLE_WITHIN_S`,
largest first, until half of the budget is free.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from tidelog_broker.wire.budget import Budget

SLOW_AFTER_S: Final = 2.0
WHOLE_WITHIN_S: Final = 30.0
LOOK_AGAIN_S: Final = 0.1
"""Minimum time between two checks, because many requests can exceed the budget at the same time."""


class Sender(Protocol):
    """The interface of a connection that is receiving a frame."""

    def announced(self) -> tuple[int, int]:
        """Return how many bytes were announced and counted, and how many of them have arrived."""
        ...

    def close_slow(self) -> None:
        """Close the connection; its counted bytes are given back at once."""


class SlowSenders:
    """All client frames that are not complete.

    Args:
        budget: the budget in which they are counted.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._since_s: dict[Sender, float] = {}
        self._look_at_s = 0.0

    def add(self, sender: Sender) -> None:
        """Register a frame that is being received and is counted in the budget."""
        self._since_s[sender] = asyncio.get_running_loop().time()

    def remove(self, sender: Sender) -> None:
        """Remove a frame that is complete or whose connection is closed."""
        self._since_s.pop(sender, None)

    def make_room(self, size_bytes: int) -> bool:
        """Close slow senders if necessary; return whether `size_bytes` fit now."""
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_AGAIN_S
            slow = [sender for sender, since_s in self._since_s.items() if _is_slow(sender, now_s - since_s)]
            for sender in sorted(slow, key=_announced_bytes, reverse=True):
                if self._budget.in_flight_bytes <= self._budget.bytes_max // 2:
                    break
                sender.close_slow()
        return self._budget.has_room(size_bytes)


def _announced_bytes(sender: Sender) -> int:
    return sender.announced()[0]


def _is_slow(sender: Sender, coming_s: float) -> bool:
    size_bytes, arrived_bytes = sender.announced()
    return coming_s >= SLOW_AFTER_S and arrived_bytes * WHOLE_WITHIN_S < size_bytes * coming_s
