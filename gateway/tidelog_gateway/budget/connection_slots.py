"""How many connections there may be, in all and of one address, and who gives way when there are no more.

Thousands of connections that say nothing keep nobody else out. One that waits for its client (for a head, for the rest
of a body, for the next request of a connection that is kept) may be closed for a new one: of the address that has most
of these the one that has waited longest. One that is being answered, or is a WebSocket, keeps its seat. Of IPv6 a whole
/64 counts as one address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog_proto.auth.client_address import counted_address

ADDRESS_SHARE: Final = 4
"""One address leaves a quarter of the connections to the others, unless the settings say how many it may have."""


class Seat:
    """What one connection has, until it leaves.

    Args:
        network: what its address counts as.
        give_way: called when it has lost its seat to another; it closes.
    """

    __slots__ = ("give_way", "is_taken", "network")

    def __init__(self, network: str, give_way: Callable[[], object]) -> None:
        self.network = network
        self.give_way = give_way
        self.is_taken = True


class Seats:
    """See the module; all of it takes the same time however many there are.

    Args:
        most: connections, in all.
        address_most: of one address; 0: as many as there may be, None: a share of them.
    """

    def __init__(self, most: int, address_most: int | None = None) -> None:
        self._most = most
        self._address_most = most - most // ADDRESS_SHARE if address_most is None else address_most or most
        self._taken = 0
        self._taken_of: dict[str, int] = {}
        self._waiting: dict[str, dict[Seat, None]] = {}
        """By address, those first that have waited longest."""
        self._of_size: dict[int, dict[str, None]] = {}
        """The addresses by how many of theirs wait."""
        self._largest = 0

    def __len__(self) -> int:
        """Return how many are taken."""
        return self._taken

    def take(self, address: str, give_way: Callable[[], object]) -> Seat | None:
        """Return a seat, which another may have to give up; None: nobody who has one waits."""
        network = counted_address(address)
        if self._taken_of.get(network, 0) >= self._address_most:
            crowd = self._waiting.get(network)
        elif self._taken >= self._most:
            crowd = self._waiting[next(iter(self._of_size[self._largest]))] if self._largest else None
        else:
            return self._seated(network, give_way)
        if not crowd:
            return None
        oldest = next(iter(crowd))
        self.leave(oldest)
        oldest.give_way()
        return self._seated(network, give_way)

    def waits(self, seat: Seat, *, is_heard: bool = False) -> None:
        """Note that a connection waits for its client; for how long counts anew where it `is_heard` of."""
        if not seat.is_taken:
            return
        crowd = self._waiting.setdefault(seat.network, {})
        if seat not in crowd:
            crowd[seat] = None
            self._resized(seat.network, len(crowd) - 1, len(crowd))
        elif is_heard:
            del crowd[seat]
            crowd[seat] = None

    def works(self, seat: Seat) -> None:
        """Note that a connection waits for its client no more: it has asked for something."""
        crowd = self._waiting.get(seat.network)
        if crowd is None or seat not in crowd:
            return
        del crowd[seat]
        if not crowd:
            del self._waiting[seat.network]
        self._resized(seat.network, len(crowd) + 1, len(crowd))

    def leave(self, seat: Seat) -> None:
        """Note that a connection is gone; doing it again changes nothing."""
        if not seat.is_taken:
            return
        self.works(seat)
        seat.is_taken = False
        self._taken -= 1
        left = self._taken_of[seat.network] = self._taken_of[seat.network] - 1
        if not left:
            del self._taken_of[seat.network]

    def _seated(self, network: str, give_way: Callable[[], object]) -> Seat:
        self._taken += 1
        self._taken_of[network] = self._taken_of.get(network, 0) + 1
        seat = Seat(network, give_way)
        self.waits(seat)
        return seat

    def _resized(self, network: str, before: int, now: int) -> None:
        if before:
            same = self._of_size[before]
            del same[network]
            if not same:
                del self._of_size[before]
        if now:
            self._of_size.setdefault(now, {})[network] = None
        if now > self._largest or self._largest not in self._of_size:
            self._largest = now  # one more, or the last of the largest is one less
