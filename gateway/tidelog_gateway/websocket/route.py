"""The handshake of `/v1/ws`: who may open a WebSocket, and in which language.

Browsers let any page open a WebSocket to any host and send the user's cookies along; the `Origin` header is the
only defence, so it is checked. Programs that are no browsers send none.
"""

from __future__ import annotations

import contextlib
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect

from tidelog_gateway.context import Gateway, gateway_of
from tidelog_gateway.problems import Problem
from tidelog_gateway.websocket.connection import Connection
from tidelog_gateway.websocket.ws_protocol import CLOSE_TOO_MANY, SUBPROTOCOL

ANY_ORIGIN: Final = "*"

router = APIRouter()


@router.websocket("/v1/ws")
async def websocket(socket: WebSocket) -> None:
    """Serve one WebSocket."""
    with contextlib.suppress(WebSocketDisconnect):  # the client has left before it was answered
        await _serve(socket, gateway_of(socket))


async def _serve(socket: WebSocket, gateway: Gateway) -> None:
    problem = _refusal(socket, gateway)
    if problem is not None:
        await _deny(socket, problem)
        return
    await socket.accept(SUBPROTOCOL)
    limit = gateway.settings.ws_connections_max
    if gateway.open_websockets >= limit:
        gateway.metrics.websocket_closes.labels(str(CLOSE_TOO_MANY)).inc()
        await socket.close(CLOSE_TOO_MANY, f"{limit} WebSockets are open here: try again later")
        return
    gateway.open_websockets += 1
    gateway.metrics.websockets.inc()
    try:
        await Connection(socket, gateway).serve()
    finally:
        gateway.open_websockets -= 1
        gateway.metrics.websockets.dec()


@router.websocket("/{path:path}")
async def nowhere(socket: WebSocket, path: str) -> None:
    """Refuse WebSockets elsewhere with a problem document."""
    with contextlib.suppress(WebSocketDisconnect):
        await _deny(socket, Problem(404, "not_found", f"no WebSocket is at /{path}; it is at /v1/ws"))


def _refusal(socket: WebSocket, gateway: Gateway) -> Problem | None:
    origin = socket.headers.get("origin")
    if origin is not None and not origin_allowed(
        origin, host=socket.headers.get("host", ""), allowed=gateway.settings.allowed_origins
    ):
        return Problem(403, "forbidden", f"pages of {origin} may not connect; see the setting allowed_origins")
    if SUBPROTOCOL not in socket.scope["subprotocols"]:
        return Problem(422, "invalid_request", f"offer the subprotocol {SUBPROTOCOL} (Sec-WebSocket-Protocol)")
    if gateway.stopping.is_set():
        return Problem(503, "shutting_down", "this gateway is stopping", retryable=True)
    return None


def origin_allowed(origin: str, *, host: str, allowed: list[str]) -> bool:
    """Say whether a page of `origin` may connect: a page of this host, or one that the settings name."""
    if ANY_ORIGIN in allowed or origin in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and parts.netloc == host


async def _deny(socket: WebSocket, problem: Problem) -> None:
    await socket.send_denial_response(problem.response(str(socket.scope["state"].get("request_id", ""))))
