"""Connections that have not said who they are: a bounded number, and who has most of them gives way.

Anybody may open connections and say nothing, or a byte now and then. So they are bounded by number, as each is by time
(`hello_timeout_ms`) and bytes. One too many is not refused: then whoever holds them all would keep everybody out. The
oldest goes instead, of the address that has most of them: a client says HELLO in the moment in which it connects, and
others than that address are not touched, whatever it does.
"""

from __future__ import annotations

from typing import Protocol


class Stranger(Protocol):
    """A connection, as it is seen from here."""

    def give_way(self) -> None:
        """End: there are too many."""


class Strangers:
    """Of one node.

    Args:
        most: so many there may be.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._address_of: dict[Stranger, str] = {}
        self._at: dict[str, dict[Stranger, None]] = {}
        """By address, the oldest first."""

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._address_of)

    def came(self, one: Stranger, address: str) -> int:
        """Take a new one; return how many had to give way for it."""
        self._address_of[one] = address
        self._at.setdefault(address, {})[one] = None
        return self.make_way() if len(self) > self._most else 0

    def make_way(self) -> int:
        """Have one give way that is not the last to come; return how many there was to do so."""
        if len(self) < 2:
            return 0
        crowd = max(self._at.values(), key=len)
        oldest = next(iter(crowd))
        self.left(oldest)
        oldest.give_way()
        return 1

    def left(self, one: Stranger) -> None:
        """It is none any more: it has said who it is, or is gone."""
        address = self._address_of.pop(one, None)
        if address is not None:
            crowd = self._at[address]
            del crowd[one]
            if not crowd:
                del self._at[address]
