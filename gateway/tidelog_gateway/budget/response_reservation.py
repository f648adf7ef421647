"""The reservation of one HTTP answer in the response budget.

The head of an answer is held back until its body is known and fits into the budget. A route with large answers reserves
memory before it asks a node (`reservation_of`), so that the memory in which it builds the answer is counted as well.
Other answers are counted when they are complete: if they do not fit, the answer of a read becomes a 503; the answer of
a change is sent and counted in any case.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Receive

from tidelog_gateway.budget.connection_output import ConnectionOutput

ROOM_WAIT_S: Final = 5.0
"""How long a request waits for memory of the response budget before it is answered with 503."""


class ResponseReservation:
    """The bytes that the answer of one request has reserved."""

    def __init__(self, outlet: ConnectionOutput, receive: Receive) -> None:
        self.reserved_bytes = 0
        self._outlet = outlet
        self._receive = receive

    async def client_gone(self) -> None:
        """Wait until the client has closed the connection; for requests whose body has been received."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reserve(self, size_bytes: int) -> None:
        """Reserve at least `size_bytes` in all.

        Raises:
            Problem: 503, the budget was exhausted for `ROOM_WAIT_S`.
        """
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0:
            await self._outlet.reserve(missing_bytes, ROOM_WAIT_S, self.reserved_bytes)
            self.reserved_bytes = size_bytes

    def fits(self, size_bytes: int) -> bool:
        """Reserve at least `size_bytes` in all if they fit the budget now; return whether they do."""
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0:
            if not self._outlet.take(missing_bytes, self.reserved_bytes):
                return False
            self.reserved_bytes = size_bytes
        return True

    def hold(self, size_bytes: int, *, is_forced: bool) -> bool:
        """Reserve exactly `size_bytes` in all, shedding load if needed; return False if they still do not fit.

        Args:
            is_forced: count the bytes even if they do not fit.
        """
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0 and not self._outlet.take_or_shed(missing_bytes, self.reserved_bytes):
            if not is_forced:
                return False
            self._outlet.take_anyway(missing_bytes)
        self.reserved_bytes = max(self.reserved_bytes, size_bytes)
        self.shrink(size_bytes)
        return True

    def adopt(self, size_bytes: int) -> None:
        """Add `size_bytes` that the connection has already counted."""
        self.reserved_bytes += size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Reduce the reservation to at most `size_bytes`, and return the rest to the budget."""
        surplus_bytes = self.reserved_bytes - size_bytes
        if surplus_bytes > 0:
            self.reserved_bytes = size_bytes
            self._outlet.give_back(surplus_bytes)

    @property
    def is_unneeded(self) -> bool:
        """Whether a small answer may be written without a reservation: nothing is reserved, and nothing is unsent."""
        return not self.reserved_bytes and not self._outlet.unsent_bytes

    def sent_uncounted(self, size_bytes: int) -> None:
        """Count a small answer that was written without a reservation if the kernel has not taken it yet."""
        if self._outlet.unsent_bytes:
            self._outlet.overflowed(size_bytes)

    def sent(self) -> None:
        """Transfer the reservation to the connection, which returns it when the kernel has taken the bytes."""
        size_bytes, self.reserved_bytes = self.reserved_bytes, 0
        self._outlet.sent(size_bytes)


def reservation_of(connection: HTTPConnection) -> ResponseReservation:
    """Return the reservation of the answer to a request."""
    answer = connection.scope["state"]["answer"]
    assert isinstance(answer, ResponseReservation)
    return answer
