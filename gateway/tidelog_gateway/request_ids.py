"""An id for each request, as pure ASGI: in its answer, in problems, and in the log. Chosen here, never by a client."""

from __future__ import annotations

import secrets
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

REQUEST_ID_HEADER: Final = "X-Request-Id"


class RequestIdMiddleware:
    """Gives each request an id."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection of the server."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        await self.app(scope, receive, send if scope["type"] == "websocket" else _with_request_id(send, request_id))


def request_id_of(scope: Scope) -> str:
    """Return the id of a request."""
    return str(scope.get("state", {}).get("request_id", ""))


def _with_request_id(send: Send, request_id: str) -> Send:
    """Return a `send` that adds the request's id to the head of the answer."""
    header = (REQUEST_ID_HEADER.lower().encode(), request_id.encode())

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), header]
        await send(message)

    return send_with_id
