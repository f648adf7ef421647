"""A limit of bytes that many holders share; beyond it, holders without progress are closed, the largest first.

A budget counts announced and waiting bytes before memory is allocated for them. Its four users decide which bytes are
admitted and which holders are slow: the request and response budgets of a node and of a gateway.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

SEARCH_INTERVAL_S: Final = 0.1
"""Minimum time between two searches for slow senders; many requests can exceed the budget at the same time."""
WHOLE_WITHIN_S: Final = 30.0
"""A sender is slow if its request would take longer than this at its rate."""


class Holder(Protocol):
    """The interface that a `ByteBudget` requires of a connection whose bytes it counts."""

    @property
    def held_bytes(self) -> int:
        """Bytes that are counted for the connection."""
        ...

    def cut(self) -> None:
        """Close the connection, which returns its bytes at once or soon."""


class Sender(Holder, Protocol):
    """The interface that `SlowSenders` requires of a connection on which a request is arriving."""

    def is_slow(self, now_s: float) -> bool:
        """Return whether the rest of the request arrives too slowly, or not at all."""
        ...


class ByteBudget:
    """A count of bytes with a limit.

    Attributes:
        bytes_max: the limit.
        used_bytes: the counted bytes, which may exceed the limit (`take_anyway`).
    """

    __slots__ = ("bytes_max", "used_bytes")

    def __init__(self, bytes_max: int) -> None:
        assert bytes_max > 0
        self.bytes_max = bytes_max
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Count bytes if they fit; return whether they do: 0 bytes always fit, and any number fits an empty budget."""
        before = self.used_bytes
        if before and size_bytes and before + size_bytes > self.bytes_max:
            return False
        self.used_bytes = before + size_bytes
        return True

    def take_anyway(self, size_bytes: int) -> None:
        """Count bytes without checking the limit."""
        self.used_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Release counted bytes."""
        assert 0 <= size_bytes <= self.used_bytes, "released more bytes than were counted"
        self.used_bytes -= size_bytes

    def close_largest(self, slow: Iterable[Holder], until_bytes: int | None = None) -> None:
        """Close slow holders, the largest first, until at most `until_bytes` are used; by default half of the limit."""
        more_bytes = self.used_bytes - (self.bytes_max // 2 if until_bytes is None else until_bytes)
        for holder in sorted(slow, key=_held_bytes, reverse=True):
            if more_bytes <= 0:
                return
            more_bytes -= holder.held_bytes
            holder.cut()


class SlowSenders:
    """The requests that are being received and counted in a budget; slow ones are closed when others exceed the budget.

    The announced size of a request is counted until the request is complete, although its client may never send the
    rest. As long as the budget is not exhausted, slow senders are not closed.

    Attributes:
        receiving: the connections on which a request is arriving; they add and remove themselves.
    """

    def __init__(self, budget: ByteBudget) -> None:
        self.receiving: dict[Sender, None] = {}
        self._budget = budget
        self._search_at_s = 0.0

    def make_room(self, now_s: float) -> None:
        """Close slow senders; does nothing within `SEARCH_INTERVAL_S` of the last search."""
        if now_s >= self._search_at_s:
            self._search_at_s = now_s + SEARCH_INTERVAL_S
            self._budget.close_largest([each for each in self.receiving if each.held_bytes and each.is_slow(now_s)])


def arrives_slowly(size_bytes: int, arrived_bytes: int, receiving_s: float) -> bool:
    """Return whether a request will take longer than `WHOLE_WITHIN_S` at its rate since its start."""
    return arrived_bytes * WHOLE_WITHIN_S < size_bytes * receiving_s


def _held_bytes(holder: Holder) -> int:
    return holder.held_bytes
