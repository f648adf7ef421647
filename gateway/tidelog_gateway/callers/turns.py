"""Scheduling of long work in short time slices: callers take turns, and the work ends when its client disconnects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import HTTPConnection, Request

from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import Problem

Pace = Callable[[], Awaitable[None]]
"""Waits for the turn of the next slice of work; raises Problem when the answer can no longer be delivered."""


def pace_of(gateway: Gateway, request: Request) -> Callable[[], Awaitable[None]]:
    """Return a function that waits for the turn of a request's next slice of work.

    The function raises Problem: 503, the gateway stops; 499, the client has disconnected.
    """
    wait = turns_of(gateway, request)

    async def pace() -> None:
        await wait()
        if await request.is_disconnected():
            raise client_gone()

    return pace


def client_gone() -> Problem:
    """Return the error that ends the work for a client that has disconnected; it is not sent."""
    return Problem(499, "client_gone", "the client disconnected before the answer")


def turns_of(gateway: Gateway, connection: HTTPConnection) -> Callable[[], Awaitable[None]]:
    """Return a function that waits for the caller's next time slice.

    A caller is a principal, or without authentication a client address. The function raises Problem: 503, the gateway
    stops.
    """
    address = "" if connection.client is None else connection.client.host
    caller = address if gateway.caller is None else gateway.caller.principal

    async def wait() -> None:
        await gateway.turns.next_slice(connection, caller)
        if gateway.stopping.is_set():
            detail = "this gateway is stopping before it has answered the request; send the request again"
            raise Problem(503, "shutting_down", detail, retryable=True)

    return wait
