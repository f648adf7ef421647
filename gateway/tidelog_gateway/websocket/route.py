"""Handshake of `/v1/ws`: checks of the origin, the subprotocol and the caller.

Browsers allow any page to open a WebSocket to any host, so the `Origin` header is checked here, too
(`origin_check.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from tidelog_gateway.auth.authentication import address_of
from tidelog_gateway.auth.origin_check import refuse_foreign_origin
from tidelog_gateway.budget.connection_slots import ConnectionSlot
from tidelog_gateway.callers.live_connections import counted, no_room
from tidelog_gateway.context import Gateway, gateway_of
from tidelog_gateway.problems import Problem
from tidelog_gateway.protocol.codecs import Codec
from tidelog_gateway.protocol.json_codec import JSON
from tidelog_gateway.protocol.proto_codec import PROTO
from tidelog_gateway.protocol.ws_protocol import CLOSE_TOO_MANY
from tidelog_gateway.requests.parameters import ANY_TEXT
from tidelog_gateway.requests.request_ids import request_id_of
from tidelog_gateway.requests.unsupported import refuse_unknown
from tidelog_gateway.websocket.authentication import authenticate_handshake, authenticate_message
from tidelog_gateway.websocket.connection import Connection

router = APIRouter()

_SHOWN_CHARS: Final = 200

CODECS: Final[dict[str, Codec]] = {codec.subprotocol: codec for codec in (JSON, PROTO)}
"""Subprotocol -> codec."""


@router.get("/v1/ws", include_in_schema=False)
async def without_upgrade() -> Response:
    """Refuse a request without the headers of a WebSocket handshake, which a proxy may have dropped.

    Raises:
        Problem: 426.
    """
    detail = (
        "this path accepts only WebSocket handshakes, and the request has no `Upgrade: websocket` with `Connection: "
        "Upgrade`; if a proxy is in front of the gateway, configure it to forward both headers"
    )
    raise Problem(426, "upgrade_required", detail, headers={"Upgrade": "websocket", "Connection": "Upgrade"})


@router.websocket("/v1/ws")
async def websocket(socket: WebSocket) -> None:
    """Serve one WebSocket."""
    with contextlib.suppress(WebSocketDisconnect):  # The client has disconnected before the answer was sent.
        await _serve(socket, gateway_of(socket))


async def _serve(socket: WebSocket, gateway: Gateway) -> None:
    """Check the handshake, authenticate the caller, and serve the WebSocket."""
    async with contextlib.AsyncExitStack() as using:
        authenticated, problem = None, _refusal(socket, gateway)
        try:
            if problem is None:
                authenticated = await authenticate_handshake(socket, gateway, using)
        except Problem as refused:
            problem = refused
        if problem is not None:
            await _deny(socket, problem)
            return
        await _accept(socket, gateway, authenticated, using)


async def _accept(
    socket: WebSocket, gateway: Gateway, authenticated: Gateway | None, using: contextlib.AsyncExitStack
) -> None:
    codec = _codec_of(socket)
    assert codec is not None
    await socket.accept(codec.subprotocol)
    authenticated = authenticated or await _await_auth(socket, gateway, codec, using)
    if authenticated is None:
        return
    socket.scope["state"]["gateway"] = authenticated  # The access log reads the caller's name from the scope.
    why = no_room(gateway, authenticated)
    if why:
        await _too_many(socket, gateway, why)
        return
    with counted(gateway, authenticated, gateway.metrics.websockets):
        await Connection(socket, authenticated, codec).serve()


async def _await_auth(
    socket: WebSocket, gateway: Gateway, codec: Codec, using: contextlib.AsyncExitStack
) -> Gateway | None:
    """Authenticate the caller by the first message; None if that failed and the WebSocket was closed.

    Unauthenticated WebSockets have a limit of their own. At the limit, the oldest one of the address with the most
    unauthenticated WebSockets is closed, so that callers with credentials can connect.
    """
    slot: ConnectionSlot | None = None
    try:
        async with asyncio.timeout(None) as turn:
            address = address_of(socket.scope)
            slot = gateway.unauthenticated_websockets.take(address, lambda: turn.reschedule(0.0))
            return await authenticate_message(socket, gateway, codec, using)
    except TimeoutError:
        await _too_many(
            socket, gateway, "too many unauthenticated WebSockets: send Authorization in the handshake, or try again"
        )
        return None
    finally:
        if slot is not None:
            gateway.unauthenticated_websockets.release(slot)


async def _too_many(socket: WebSocket, gateway: Gateway, why: str) -> None:
    gateway.metrics.websocket_closes.labels(str(CLOSE_TOO_MANY)).inc()
    await socket.close(CLOSE_TOO_MANY, why)


@router.websocket(f"/{{path:{ANY_TEXT}}}")
async def unknown_path(socket: WebSocket, path: str) -> None:
    """Answer a WebSocket handshake at any other path with a problem document."""
    with contextlib.suppress(WebSocketDisconnect):
        await _deny(socket, Problem(404, "not_found", f"/{path} does not accept WebSockets: connect to /v1/ws"))


def _codec_of(socket: WebSocket) -> Codec | None:
    """Return the codec of the client's first subprotocol that the gateway supports, if any."""
    return next((CODECS[name] for name in socket.scope["subprotocols"] if name in CODECS), None)


def _refusal(socket: WebSocket, gateway: Gateway) -> Problem | None:
    try:
        refuse_foreign_origin(socket.headers, gateway.settings.allowed_origins)
        refuse_unknown(socket.query_params, set())
    except Problem as problem:
        return problem
    if _codec_of(socket) is None:
        offered = socket.scope["subprotocols"]
        offer_text = f"got {', '.join(offered)[:_SHOWN_CHARS]!r}" if offered else "the handshake has none"
        detail = f"Sec-WebSocket-Protocol: {offer_text}; offer {' or '.join(CODECS)}"
        return Problem(400, "unsupported_subprotocol", detail)
    if gateway.stopping.is_set():
        return Problem(503, "shutting_down", "this gateway is stopping: connect again", retryable=True)
    return None


async def _deny(socket: WebSocket, problem: Problem) -> None:
    await socket.send_denial_response(problem.response(request_id_of(socket.scope)))
