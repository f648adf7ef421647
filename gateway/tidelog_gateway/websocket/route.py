"""The handshake of `/v1/ws`: who may open a WebSocket, and in which language.

Browsers let any page open a WebSocket to any host, so the `Origin` header is checked here, too (`origin_check.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from tidelog_gateway.any_text import ANY_TEXT
from tidelog_gateway.auth.authentication import address_of
from tidelog_gateway.auth.origin_check import refuse_foreign_origin
from tidelog_gateway.budget.connection_slots import ConnectionSlot
from tidelog_gateway.context import Gateway, gateway_of
from tidelog_gateway.live_connections import counted, no_room
from tidelog_gateway.problems import Problem
from tidelog_gateway.request_ids import request_id_of
from tidelog_gateway.unsupported import refuse_unknown
from tidelog_gateway.websocket.authentication import of_first_message, of_head
from tidelog_gateway.websocket.codecs import Codec
from tidelog_gateway.websocket.connection import Connection
from tidelog_gateway.websocket.json_codec import JSON
from tidelog_gateway.websocket.proto_codec import PROTO
from tidelog_gateway.websocket.ws_protocol import CLOSE_TOO_MANY

router = APIRouter()

_SHOWN_CHARS: Final = 200

CODECS: Final[dict[str, Codec]] = {codec.subprotocol: codec for codec in (JSON, PROTO)}
"""Subprotocol -> codec."""


@router.get("/v1/ws", include_in_schema=False)
async def without_upgrade() -> Response:
    """Refuse a request that does not ask for a WebSocket, or whose proxy has dropped the fields that do.

    Raises:
        Problem: 426.
    """
    detail = (
        "this path takes WebSocket handshakes alone, and the request has no `Upgrade: websocket` with `Connection: "
        "Upgrade`; a proxy in front of the gateway has to pass both on"
    )
    raise Problem(426, "upgrade_required", detail, headers={"Upgrade": "websocket", "Connection": "Upgrade"})


@router.websocket("/v1/ws")
async def websocket(socket: WebSocket) -> None:
    """Serve one WebSocket."""
    with contextlib.suppress(WebSocketDisconnect):  # the client has left before it was answered
        await _serve(socket, gateway_of(socket))


async def _serve(socket: WebSocket, gateway: Gateway) -> None:
    """Serve a WebSocket as that of its caller, who is known by the head of its handshake, or says so first of all."""
    async with contextlib.AsyncExitStack() as using:
        shown, problem = None, _refusal(socket, gateway)
        try:
            if problem is None:
                shown = await of_head(socket, gateway, using)
        except Problem as refused:
            problem = refused
        if problem is not None:
            await _deny(socket, problem)
            return
        await _accepted(socket, gateway, shown, using)


async def _accepted(
    socket: WebSocket, gateway: Gateway, shown: Gateway | None, using: contextlib.AsyncExitStack
) -> None:
    codec = _codec_of(socket)
    assert codec is not None
    await socket.accept(codec.subprotocol)
    known = shown or await _asked(socket, gateway, codec, using)
    if known is None:
        return
    socket.scope["state"]["gateway"] = known  # where it is of a request, too: the access log names the caller
    why = no_room(gateway, known)
    if why:
        await _too_many(socket, gateway, why)
        return
    with counted(gateway, known, gateway.metrics.websockets):
        await Connection(socket, known, codec).serve()


async def _asked(socket: WebSocket, gateway: Gateway, codec: Codec, using: contextlib.AsyncExitStack) -> Gateway | None:
    """Wait for who this is; None: it was told why not, and closed.

    Those who have not said it have a bound of their own, and past it the oldest gives way, of the address that has most
    of them: so they keep nobody away, whether he says it in the head of his handshake or here.
    """
    slot: ConnectionSlot | None = None
    try:
        async with asyncio.timeout(None) as turn:
            address = address_of(socket.scope)
            slot = gateway.unauthenticated_websockets.take(address, lambda: turn.reschedule(0.0))
            return await of_first_message(socket, gateway, codec, using)
    except TimeoutError:
        await _too_many(socket, gateway, "too many have yet to say who they are: send Authorization, or try again")
        return None
    finally:
        if slot is not None:
            gateway.unauthenticated_websockets.release(slot)


async def _too_many(socket: WebSocket, gateway: Gateway, why: str) -> None:
    gateway.metrics.websocket_closes.labels(str(CLOSE_TOO_MANY)).inc()
    await socket.close(CLOSE_TOO_MANY, why)


@router.websocket(f"/{{path:{ANY_TEXT}}}")
async def nowhere(socket: WebSocket, path: str) -> None:
    """Refuse WebSockets elsewhere with a problem document."""
    with contextlib.suppress(WebSocketDisconnect):
        await _deny(socket, Problem(404, "not_found", f"no WebSocket is at /{path}; it is at /v1/ws"))


def _codec_of(socket: WebSocket) -> Codec | None:
    """Return the codec of the first subprotocol that the client offers and the gateway speaks."""
    return next((CODECS[name] for name in socket.scope["subprotocols"] if name in CODECS), None)


def _refusal(socket: WebSocket, gateway: Gateway) -> Problem | None:
    try:
        refuse_foreign_origin(socket.headers, gateway.settings.allowed_origins)
        refuse_unknown(socket.query_params, set())
    except Problem as problem:
        return problem
    if _codec_of(socket) is None:
        offered = socket.scope["subprotocols"]
        shown = f"got {', '.join(offered)[:_SHOWN_CHARS]!r}" if offered else "the handshake has none"
        detail = f"Sec-WebSocket-Protocol: {shown}; offer {' or '.join(CODECS)}"
        return Problem(400, "unsupported_subprotocol", detail)
    if gateway.stopping.is_set():
        return Problem(503, "shutting_down", "this gateway is stopping", retryable=True)
    return None


async def _deny(socket: WebSocket, problem: Problem) -> None:
    await socket.send_denial_response(problem.response(request_id_of(socket.scope)))
