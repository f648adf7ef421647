"""Every HTTP answer within the budget for what goes out, as pure ASGI.

The head of an answer is held back until its body is known and has room. A route whose answers are large waits for
room before it asks a node for anything (`answer_of`), so that what it holds while it builds the answer is counted as
well. Other answers are there already and cannot wait without being counted: one that was only asked for becomes a 503
if there is no room for it, one that says what became of a change is sent in any case, and counted.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Receive

from tidelog_gateway.budget.connection_output import Outlet

ROOM_WAIT_S: Final = 5.0
"""How long a request waits for room before it is answered with 503."""


class Answer:
    """The part of the budget that the answer of one request holds, and whether a task waits for it.

    Args:
        outlet: of the connection.
        receive: the server's.
    """

    def __init__(self, outlet: Outlet, receive: Receive) -> None:
        self.reserved_bytes = 0
        self._outlet = outlet
        self._receive = receive

    async def client_gone(self) -> None:
        """Wait until the client has closed the connection; for requests whose body was taken."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reserve(self, size_bytes: int) -> None:
        """Hold at least `size_bytes`.

        Raises:
            Problem: 503, there was no room for too long.
        """
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0:
            await self._outlet.reserve(missing_bytes, ROOM_WAIT_S, self.reserved_bytes)
            self.reserved_bytes = size_bytes

    def fits(self, size_bytes: int) -> bool:
        """Hold at least `size_bytes` if there is room right now, and say whether there is."""
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0:
            if not self._outlet.take(missing_bytes, self.reserved_bytes):
                return False
            self.reserved_bytes = size_bytes
        return True

    def hold(self, size_bytes: int, *, whatever: bool) -> bool:
        """Hold exactly `size_bytes`, pressing others for it; False when there is no room and `whatever` is false."""
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0 and not self._outlet.take_pressing(missing_bytes, self.reserved_bytes):
            if not whatever:
                return False
            self._outlet.take_anyway(missing_bytes)
        self.reserved_bytes = max(self.reserved_bytes, size_bytes)
        self.shrink(size_bytes)
        return True

    def adopt(self, size_bytes: int) -> None:
        """Hold `size_bytes` more, which the connection has counted already."""
        self.reserved_bytes += size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Hold at most `size_bytes`."""
        surplus_bytes = self.reserved_bytes - size_bytes
        if surplus_bytes > 0:
            self.reserved_bytes = size_bytes
            self._outlet.give_back(surplus_bytes)

    def sent(self) -> None:
        """Leave what is held to the connection, which gives it back when it has left."""
        size_bytes, self.reserved_bytes = self.reserved_bytes, 0
        self._outlet.sent(size_bytes)


def answer_of(connection: HTTPConnection) -> Answer:
    """Return the answer of a request to the application."""
    answer = connection.scope["state"]["answer"]
    assert isinstance(answer, Answer)
    return answer
