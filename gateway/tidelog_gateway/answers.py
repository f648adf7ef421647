"""Every HTTP answer within the budget for what goes out, as pure ASGI.

The head of an answer is held back until its body is known and has room. A route whose answers are large waits for
room before it asks a node for anything (`answer_of`), so that what it holds while it builds the answer is counted as
well. Other answers are there already and cannot wait without being counted: one that was only asked for becomes a 503
if there is no room for it, one that says what became of a change is sent in any case, and counted.
"""

from __future__ import annotations

from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog_gateway.outgoing import Outgoing
from tidelog_gateway.outlet import Outlet, no_room

ROOM_WAIT_S: Final = 5.0
"""How long a request waits for room before it is answered with 503."""

_READING: Final = frozenset({"GET", "HEAD"})


class Answer:
    """What one request's answer holds of the budget."""

    def __init__(self, outlet: Outlet) -> None:
        self.reserved_bytes = 0
        self._outlet = outlet

    async def reserve(self, size_bytes: int) -> None:
        """Hold at least `size_bytes`.

        Raises:
            Problem: 503, there was no room for too long.
        """
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0:
            await self._outlet.reserve(missing_bytes, ROOM_WAIT_S)
            self.reserved_bytes = size_bytes

    def fits(self, size_bytes: int) -> bool:
        """Hold at least `size_bytes` if there is room right now, and say whether there is."""
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0:
            if not self._outlet.take(missing_bytes):
                return False
            self.reserved_bytes = size_bytes
        return True

    def hold(self, size_bytes: int, *, whatever: bool) -> bool:
        """Hold exactly `size_bytes`, pressing others for it; False when there is no room and `whatever` is false."""
        missing_bytes = size_bytes - self.reserved_bytes
        if missing_bytes > 0 and not self._outlet.take_pressing(missing_bytes):
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


class AnswersMiddleware:
    """Sends answers when there is room for them."""

    def __init__(self, app: ASGIApp, outgoing: Outgoing, slow_timeout_s: float) -> None:
        self.app = app
        self.outgoing = outgoing
        self.slow_timeout_s = slow_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        # Servers other than the gateway's own bound what they hold themselves, or do not.
        outlet = state.get("outlet") or Outlet(self.outgoing, self.slow_timeout_s)
        answer = state["answer"] = Answer(outlet)
        try:
            await self.app(scope, receive, _bounded(scope, receive, send, answer))
        finally:
            answer.shrink(0)


def _bounded(scope: Scope, receive: Receive, send: Send, answer: Answer) -> Send:
    """Return a `send` that waits for room; when there is none it sends a 503 instead."""
    head: Message | None = None
    refused = False

    async def send_bounded(message: Message) -> None:
        nonlocal head, refused
        if message["type"] == "http.response.start":
            head = message
            return
        if refused:
            return
        size_bytes = len(message.get("body", b""))
        if not answer.hold(size_bytes, whatever=head is None or scope["method"] not in _READING):
            refused = True
            request_id = str(scope["state"].get("request_id", ""))
            problem = no_room()
            problem.headers["X-Request-Id"] = request_id
            await problem.response(request_id)(scope, receive, send)
            return
        if head is not None:
            begun, head = head, None
            await send(begun)
        await send(message)
        answer.sent()

    return send_bounded
