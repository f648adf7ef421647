"""Limits of connections, in total and by address, and the choice of the connection that a new one replaces.

An idle connection waits for its client: for a head, for the rest of a body, or for the next request on a kept-alive
connection. When the limit of its address is reached, a new connection replaces the longest idle connection of the
address. When the total limit is reached, it replaces the longest idle connection of the address with the most idle
ones. Connections that are being answered and WebSockets keep their slots. An IPv6 /64 counts as one address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog_proto.auth.client_address import counted_address

ADDRESS_SHARE: Final = 4
"""Without a configured limit, a single address cannot take the last 1/`ADDRESS_SHARE` of the slots."""


class ConnectionSlot:
    """The slot of one connection, until the connection ends.

    Args:
        network: the part of the client's address that is counted: an IPv4 address, or the /64 of an IPv6 address.
        give_way: called when another connection has taken the slot; closes this connection.
    """

    __slots__ = ("give_way", "is_taken", "network")

    def __init__(self, network: str, give_way: Callable[[], object]) -> None:
        self.network = network
        self.give_way = give_way
        self.is_taken = True


class ConnectionSlots:
    """Assigns slots to connections within the limits, in total and by address; each operation takes constant time.

    Args:
        most: slots in all.
        address_most: slots of one address; 0: unlimited, None: see `ADDRESS_SHARE`.
    """

    def __init__(self, most: int, address_most: int | None = None) -> None:
        self._most = most
        self._address_most = most - most // ADDRESS_SHARE if address_most is None else address_most or most
        self._in_use = 0
        self._in_use_by: dict[str, int] = {}
        self._idle: dict[str, dict[ConnectionSlot, None]] = {}
        """Idle connections by address, the longest waiting first."""
        self._by_idle_count: dict[int, dict[str, None]] = {}
        """Addresses by their number of idle connections."""
        self._largest = 0

    def __len__(self) -> int:
        """Return the number of slots in use."""
        return self._in_use

    def take(self, address: str, give_way: Callable[[], object]) -> ConnectionSlot | None:
        """Return a free slot, or the slot of an idle connection; None when no slot is free or idle."""
        network = counted_address(address)
        if self._in_use_by.get(network, 0) >= self._address_most:
            idle = self._idle.get(network)
        elif self._in_use >= self._most:
            idle = self._idle[next(iter(self._by_idle_count[self._largest]))] if self._largest else None
        else:
            return self._new_slot(network, give_way)
        if not idle:
            return None
        oldest = next(iter(idle))
        self.release(oldest)
        oldest.give_way()
        return self._new_slot(network, give_way)

    def mark_idle(self, slot: ConnectionSlot, *, is_heard: bool = False) -> None:
        """Mark a connection as idle; if its client has sent something (`is_heard`), its idle time begins again."""
        if not slot.is_taken:
            return
        idle = self._idle.setdefault(slot.network, {})
        if slot not in idle:
            idle[slot] = None
            self._recount(slot.network, len(idle) - 1, len(idle))
        elif is_heard:
            del idle[slot]
            idle[slot] = None

    def mark_busy(self, slot: ConnectionSlot) -> None:
        """Mark a connection as busy with a request."""
        idle = self._idle.get(slot.network)
        if idle is None or slot not in idle:
            return
        del idle[slot]
        if not idle:
            del self._idle[slot.network]
        self._recount(slot.network, len(idle) + 1, len(idle))

    def release(self, slot: ConnectionSlot) -> None:
        """Release the slot of a connection; idempotent."""
        if not slot.is_taken:
            return
        self.mark_busy(slot)
        slot.is_taken = False
        self._in_use -= 1
        left = self._in_use_by[slot.network] = self._in_use_by[slot.network] - 1
        if not left:
            del self._in_use_by[slot.network]

    def _new_slot(self, network: str, give_way: Callable[[], object]) -> ConnectionSlot:
        self._in_use += 1
        self._in_use_by[network] = self._in_use_by.get(network, 0) + 1
        slot = ConnectionSlot(network, give_way)
        self.mark_idle(slot)
        return slot

    def _recount(self, network: str, before: int, now: int) -> None:
        if before:
            same = self._by_idle_count[before]
            del same[network]
            if not same:
                del self._by_idle_count[before]
        if now:
            self._by_idle_count.setdefault(now, {})[network] = None
        if now > self._largest or self._largest not in self._by_idle_count:
            self._largest = now  # The count grew by one, or the last address with the largest count lost a connection.
