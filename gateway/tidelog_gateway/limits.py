"""The limits on requests, as pure ASGI: body size, body time, and room in the budget for what comes in.

The middleware takes the whole body before the application runs and hands it over as one message. Every route
needs its body whole anyway, and a fault found while reading is answered here, once, for every route.
Rejected: counting inside `receive`, because frameworks turn what is raised there into their own 400.

A length that is announced is checked and reserved before a byte is read; a chunked body is reserved as it
grows. What is reserved is given back when the answer is out, because until then records made from it live.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidelog_gateway.context import Gateway
from tidelog_gateway.incoming import Arrival, Budget, Share
from tidelog_gateway.problems import Problem
from tidelog_gateway.request_ids import request_id_of
from tidelog_gateway.settings import GatewaySettings


class LimitsMiddleware:
    """Gives each request its whole body, within the limits; answers with a problem past them."""

    def __init__(self, app: ASGIApp, settings: GatewaySettings, budget: Budget) -> None:
        self.app = app
        self.settings = settings
        self.budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        arrival = Arrival(self.budget, _nothing, _share_of(scope))
        try:
            await self._http(scope, receive, send, arrival)
        finally:
            arrival.end()

    async def _http(self, scope: Scope, receive: Receive, send: Send, arrival: Arrival) -> None:
        answered = body = None

        async def send_noted(message: Message) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            body = await self._body(scope, receive, arrival)
            if body is not None:
                await self.app(scope, _replay(body, receive), send_noted)
        except Problem as raised:
            problem = raised
        except asyncio.CancelledError:
            # A stop whose time is over cancels requests. What has its head already is cut off as it is.
            if not self.budget.stopping:
                raise
            if answered:
                return
            problem = _not_finished(unchanged=body is None or scope["method"] in _READING)
        else:
            return
        await problem.response(request_id_of(scope))(scope, receive, send)

    async def _body(self, scope: Scope, receive: Receive, arrival: Arrival) -> bytes | None:
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
            _hold(arrival, int(announced))
        try:
            async with asyncio.timeout(self.settings.body_timeout_s) as clock:
                arrival.give_way = partial(clock.reschedule, 0.0)
                arrival.begin()
                return await self._read(receive, arrival)
        except TimeoutError as error:
            if self.budget.stopping:
                raise _not_finished(unchanged=True) from error
            raise Problem(
                408,
                "request_timeout",
                f"the body did not arrive within {self.settings.body_timeout_s:g} s, or so slowly that it had to give "
                "way to others; nothing was done with it",
                retryable=True,
                headers={"Connection": "close"},
            ) from error
        finally:
            arrival.whole()

    async def _read(self, receive: Receive, arrival: Arrival) -> bytes | None:
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
            _hold(arrival, max(size_bytes, arrival.held_bytes))
            arrival.came(size_bytes)
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


_READING: Final = frozenset({"GET", "HEAD"})
_BODY_HEADERS: Final = frozenset({b"content-length", b"transfer-encoding"})


def _hold(arrival: Arrival, size_bytes: int) -> None:
    """Reserve up to `size_bytes` in all.

    Raises:
        Problem: 429 when the budget is used up.
    """
    if not arrival.hold(size_bytes):
        raise Problem(
            429,
            "overloaded",
            "bodies and messages of as many bytes as there may be are being handled: send this request again later",
            retryable=True,
        )


def _not_finished(*, unchanged: bool) -> Problem:
    """Return what is said of a request that the end of the process overtakes."""
    headers = {"Connection": "close"}
    if unchanged:
        detail = "this gateway is stopping, and nothing was done: send the request again"
        return Problem(503, "shutting_down", detail, retryable=True, headers=headers)
    detail = "this gateway is stopping, and the answer did not come in time: whether anything was done is not known"
    return Problem(504, "outcome_unknown", detail, headers=headers)


def _share_of(scope: Scope) -> Share | None:
    """Return the share of who sends a request, None where nobody is asked."""
    gateway: Gateway | None = scope.get("state", {}).get("gateway")
    return None if gateway is None or gateway.caller is None else gateway.caller.share


def _nothing() -> None:
    pass


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body as one message, then what the server says (a disconnect)."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_replayed() -> Message:
        return pending.pop() if pending else await receive()

    return receive_replayed
