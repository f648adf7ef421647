"""The limits of request bodies: size, time, and memory of the request budget.

The whole body is received before its route runs, and passed on as one message, because nearly every route needs all of
it; errors while the body is received are answered here. Rejected: counting inside `receive`, because frameworks convert
its exceptions into their own 400.

An announced length is checked and reserved before a byte is read; a chunked body is reserved as it grows. The
reservation is returned after the answer, because records made from the body exist until then.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from starlette.types import Receive, Scope

from tidelog_gateway.bodies.content_type import ARROW
from tidelog_gateway.budget.request_budget import Body, BodyReservation, RequestBudget
from tidelog_gateway.context import Gateway
from tidelog_gateway.http1.exchange import Exchange
from tidelog_gateway.problems import Problem
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.limits import KIB
from tidelog_proto.process.buffers import allocate


class BodyLimits:
    """Receives the whole body of a request, within the limits."""

    def __init__(self, settings: GatewaySettings, budget: RequestBudget) -> None:
        self.settings = settings
        self.budget = budget

    def arrival(self, gateway: Gateway | None) -> BodyReservation:
        """Return a new, empty reservation for a body; its user has to end it (`BodyReservation.end`)."""
        return BodyReservation(
            self.budget, _nothing, None if gateway is None or gateway.caller is None else gateway.caller.share
        )

    def take_whole(self, body: Body, arrival: BodyReservation) -> None:
        """Reserve memory for a body that has arrived completely.

        Raises:
            Problem: 413, the body is too large; 429, the request budget is exhausted.
        """
        self._check_size(len(body))
        if body and not arrival.hold_whole(len(body)):
            raise _full()

    def cancelled_by_stop(self, *, unchanged: bool) -> Problem | None:
        """Return the problem for a request that the stop of the process has cancelled; None without a stop."""
        return not_finished(unchanged=unchanged) if self.budget.stopping else None

    async def body(self, scope: Scope, receive: Receive, arrival: BodyReservation) -> Body | None:
        """Return the whole body, empty if the request has none; None if the client disconnected before its end.

        Raises:
            Problem: 408, the body arrived too slowly; 413, it is too large; 422, its length is invalid; 429, the
                request budget is exhausted; 503, the process stops.
        """
        headers = {name: value for name, value in scope["headers"] if name in _BODY_HEADERS}
        if b"transfer-encoding" not in headers and b"content-length" not in headers:
            return b""
        announced = headers.get(b"content-length")
        if announced is not None:
            if not announced.isdigit():
                detail = f"Content-Length must be the body's size in bytes, got {announced[:40].decode('latin-1')!r}"
                raise Problem(422, "invalid_request", detail)
            self._check_size(int(announced))
            _hold(arrival, int(announced))
        exchange: Exchange | None = scope["state"].get("exchange")
        try:
            if announced is not None and exchange is not None:
                is_direct = headers.get(b"content-type") == _ARROW and int(announced) > DIRECT_BYTES
                # A request with the same head may skip this admission only if its admission depends on nothing else:
                # a deadline begins with its own head, a span contains the body, a caller's permission may change, and
                # records have the trace of their request.
                is_repeatable = scope["state"].keys().isdisjoint(_VARIABLE)
                return await self._collect(
                    exchange, arrival, int(announced) if is_direct else None, is_repeatable=is_repeatable
                )
            async with asyncio.timeout(self.settings.body_timeout_s) as clock:
                arrival.give_way = partial(clock.reschedule, 0.0)
                arrival.begin()
                return await self._read(receive, arrival)
        except TimeoutError as error:
            if self.budget.stopping:
                raise not_finished(unchanged=True) from error
            raise Problem(
                408,
                "request_timeout",
                f"the body did not arrive within {self.settings.body_timeout_s:g} s, or arrived too slowly while the "
                "request budget was used up; nothing was changed, send the request again",
                retryable=True,
                headers={"Connection": "close"},
            ) from error
        finally:
            arrival.complete()

    async def _collect(
        self, exchange: Exchange, arrival: BodyReservation, direct_bytes: int | None, *, is_repeatable: bool
    ) -> Body | None:
        """Receive a body from the gateway's own server; with `direct_bytes`, directly into memory of that size.

        Return None if the client disconnected before the body was complete.

        Raises:
            TimeoutError: the body took too long, or load shedding has ended it.
        """
        timer = asyncio.get_running_loop().call_later(self.settings.body_timeout_s, exchange.body_late)
        arrival.give_way = exchange.body_late
        arrival.begin()
        try:
            if direct_bytes is None:
                return await exchange.collect(arrival.received)
            place = allocate(direct_bytes)
            is_complete = await exchange.collect_into(place, arrival.received, is_repeatable=is_repeatable)
            return place if is_complete else None
        finally:
            timer.cancel()

    async def _read(self, receive: Receive, arrival: BodyReservation) -> bytes | None:
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
            arrival.received(size_bytes)
            chunks.append(chunk)
            more = message.get("more_body", False)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def _check_size(self, size_bytes: int) -> None:
        limit_bytes = self.settings.body_bytes_max
        if size_bytes > limit_bytes:
            raise Problem(
                413,
                "body_too_large",
                f"the body has more than {limit_bytes} bytes; send fewer records at a time",
                extra={"limit_bytes": limit_bytes},
            )


_BODY_HEADERS: Final = frozenset({b"content-length", b"content-type", b"transfer-encoding"})
_VARIABLE: Final = frozenset({"gateway", "deadline", "span", "trace"})
"""Keys of a request's state. A request that has one of them is admitted on its own, even if its head is repeated."""
_ARROW: Final = ARROW.encode()
DIRECT_BYTES: Final = 64 * KIB
"""A larger body of columns is received directly into its own buffer."""


def _hold(arrival: BodyReservation, size_bytes: int) -> None:
    """Reserve `size_bytes` for the whole body.

    Raises:
        Problem: 429 when the budget is used up.
    """
    if not arrival.hold(size_bytes):
        raise _full()


def _full() -> Problem:
    """Return the 429 for a body that does not fit into the request budget."""
    return Problem(
        429,
        "overloaded",
        "the request budget, or this caller's share of it, has no room for the body; send the request again later",
        retryable=True,
    )


def not_finished(*, unchanged: bool) -> Problem:
    """Return the problem for a request that was not finished when the process stopped."""
    headers = {"Connection": "close"}
    if unchanged:
        detail = "this gateway is stopping, and nothing was changed; send the request again"
        return Problem(503, "shutting_down", detail, retryable=True, headers=headers)
    detail = (
        "this gateway is stopping before the request was finished, and the request may have been executed; check its "
        "effect before you send it again"
    )
    return Problem(504, "outcome_unknown", detail, headers=headers)


def _nothing() -> None:
    pass
