"""The pace of long work in a gateway: pieces that take turns by caller, as long as the client is connected."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection, Request

from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem

Pace = Callable[[], Awaitable[None]]
"""Waits for the turn of the next piece; raises Problem when the answer cannot be delivered any more."""


def pace_of(gateway: Gateway, request: Request) -> Callable[[], Awaitable[None]]:
    """Return what waits for the turn of a request's next piece.

    It raises Problem: 503, the gateway stops; 499, the client has gone, and gets no answer.
    """
    wait = turns_of(gateway, request)

    async def pace() -> None:
        await wait()
        if await request.is_disconnected():
            raise client_gone()

    return pace


def client_gone() -> Problem:
    """Return the error that ends the work for a client that has gone; nobody receives it."""
    return Problem(499, "client_gone", "the client closed the connection before the answer")


def turns_of(gateway: Gateway, connection: HTTPConnection) -> Callable[[], Awaitable[None]]:
    """Return what waits for the next turn of a caller: a principal, or an address where callers are not authenticated.

    It raises Problem: 503, the gateway stops.
    """
    address = "" if connection.client is None else connection.client.host
    caller = address if gateway.caller is None else gateway.caller.principal

    async def wait() -> None:
        await gateway.turns.piece(connection, caller)
        if gateway.stopping.is_set():
            detail = "this gateway is stopping, and nothing was done: send the request again"
            raise Problem(503, "shutting_down", detail, retryable=True)

    return wait
