"""Limit of unauthenticated connections: beyond it, the oldest one of the address with the most connections is closed.

Any host may open connections and send little or nothing, so unauthenticated connections are bounded in number, and each
in time (`hello_timeout_ms`) and bytes. A connection beyond the bound is accepted, since refusing it would let one
attacker lock out all clients. Instead the oldest connection of the address with the most connections is closed:
clients send HELLO immediately after connecting, so clients at other addresses are not affected.
"""

from __future__ import annotations

from typing import Protocol


class UnauthenticatedConnection(Protocol):
    """The interface that `UnauthenticatedConnections` requires of a connection."""

    def give_way(self) -> None:
        """Close the connection because the limit is exceeded."""


class UnauthenticatedConnections:
    """The unauthenticated connections of one port, and the choice of those that are closed beyond the limit.

    Args:
        most: maximum number of unauthenticated connections.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._address_of: dict[UnauthenticatedConnection, str] = {}
        self._at: dict[str, dict[UnauthenticatedConnection, None]] = {}
        """The connections of each address, in the order in which they were opened."""

    def __len__(self) -> int:
        """Return the number of unauthenticated connections."""
        return len(self._address_of)

    def came(self, one: UnauthenticatedConnection, address: str) -> int:
        """Add a new connection; return how many were closed for it."""
        self._address_of[one] = address
        self._at.setdefault(address, {})[one] = None
        return self.close_oldest() if len(self) > self._most else 0

    def close_oldest(self) -> int:
        """Close the oldest connection of the address with the most connections; return how many were closed.

        The newest connection of all stays open, so none is closed (0) if there is only one, otherwise one (1).
        """
        if len(self) < 2:
            return 0
        crowd = max(self._at.values(), key=len)
        oldest = next(iter(crowd))
        self.left(oldest)
        oldest.give_way()
        return 1

    def left(self, one: UnauthenticatedConnection) -> None:
        """Stop counting a connection, which is authenticated or closed."""
        address = self._address_of.pop(one, None)
        if address is not None:
            crowd = self._at[address]
            del crowd[one]
            if not crowd:
                del self._at[address]
