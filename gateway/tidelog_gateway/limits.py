"""The limits on requests, as pure ASGI: body size, body time, and one budget of bytes for everybody.

The middleware takes the whole body before the application runs and hands it over as one message. Every route
needs its body whole anyway, and a fault found while reading is answered here, once, for every route.
Rejected: counting inside `receive`, because frameworks turn what is raised there into their own 400.

A length that is announced is checked and reserved before a byte is read; a chunked body is reserved as it
grows. What is reserved is given back when the answer is out, because until then records made from it live.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog_gateway.problems import Problem
from tidelog_gateway.settings import GatewaySettings

REQUEST_ID_HEADER: Final = "X-Request-Id"


class Budget:
    """A number of bytes that may be in use at a time; whoever asks for more than is left is refused."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Reserve `size_bytes`; False when they are not there, and nothing is reserved then."""
        assert size_bytes >= 0
        if self.used_bytes + size_bytes > self.limit_bytes:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        """Return what was reserved."""
        assert 0 <= size_bytes <= self.used_bytes
        self.used_bytes -= size_bytes


@dataclass(slots=True)
class _Lease:
    """What one request has reserved of the budget."""

    budget: Budget
    size_bytes: int = 0

    def grow_to(self, size_bytes: int) -> None:
        """Reserve up to `size_bytes` in all.

        Raises:
            Problem: 429 when the budget is used up.
        """
        missing = size_bytes - self.size_bytes
        if missing > 0:
            if not self.budget.take(missing):
                raise Problem(
                    429,
                    "overloaded",
                    f"bodies of {self.budget.used_bytes} bytes are being handled, {self.budget.limit_bytes} is the "
                    "limit: send this request again later",
                    retryable=True,
                )
            self.size_bytes = size_bytes

    def end(self) -> None:
        self.budget.give_back(self.size_bytes)
        self.size_bytes = 0


class LimitsMiddleware:
    """Gives each request an id and its whole body, within the limits; answers with a problem past them."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, budget: Budget) -> None:
        self.app = app
        self.settings = settings
        self.budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        if scope["type"] == "websocket":
            await self.app(scope, receive, send)
            return
        lease = _Lease(self.budget)
        try:
            await self._http(scope, receive, _with_request_id(send, request_id), lease)
        finally:
            lease.end()

    async def _http(self, scope: Scope, receive: Receive, send: Send, lease: _Lease) -> None:
        try:
            body = await self._body(scope, receive, lease)
        except Problem as problem:
            await problem.response(scope["state"]["request_id"])(scope, receive, send)
            return
        if body is None:
            return
        await self.app(scope, _replay(body, receive), send)

    async def _body(self, scope: Scope, receive: Receive, lease: _Lease) -> bytes | None:
        """Return the whole body; None when the client went away before it was complete.

        Raises:
            Problem: 408, 413, 422 or 429.
        """
        headers = {name: value for name, value in scope["headers"] if name in _BODY_HEADERS}
        if b"transfer-encoding" not in headers and b"content-length" not in headers:
            return b""
        announced = headers.get(b"content-length")
        if announced is not None:
            if not announced.isdigit():
                raise Problem(422, "invalid_request", "Content-Length is not a number")
            self._check_size(int(announced))
            lease.grow_to(int(announced))
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                return await self._read(receive, lease)
        except TimeoutError as error:
            raise Problem(
                408,
                "request_timeout",
                f"the body did not arrive within {self.settings.body_timeout_s:g} s; nothing was done with it",
                retryable=True,
                headers={"Connection": "close"},
            ) from error

    async def _read(self, receive: Receive, lease: _Lease) -> bytes | None:
        chunks: list[bytes] = []
        size_bytes = 0
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None
            chunk = message.get("body", b"")
            size_bytes += len(chunk)
            self._check_size(size_bytes)
            lease.grow_to(size_bytes)
            chunks.append(chunk)
            more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check_size(self, size_bytes: int) -> None:
        limit_bytes = self.settings.body_bytes_max
        if size_bytes > limit_bytes:
            raise Problem(
                413,
                "body_too_large",
                f"the body has more than {limit_bytes} bytes: send fewer records at a time",
                extra={"limit_bytes": limit_bytes},
            )


_BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})


def _with_request_id(send: Send, request_id: str) -> Send:
    """Return a `send` that adds the request's id to the head of the answer."""
    header = (REQUEST_ID_HEADER.lower().encode(), request_id.encode())

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), header]
        await send(message)

    return send_with_id


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body as one message, then what the server says (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_replayed() -> Message:
        return pending.pop() if pending else await receive()

    return receive_replayed
