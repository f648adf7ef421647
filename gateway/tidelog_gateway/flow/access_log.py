"""The access log: a JSON object for each HTTP request and each WebSocket, written to standard output when it ends.

The middleware is the outermost one, so that requests refused by limits or authentication also have a line. A failure
before a request exists (an invalid HTTP head, a connection over the limit) has no line. The query and header fields
other than `User-Agent` are not logged, since they may hold credentials. Lines are queued (ADR 0130): when the reader of
standard output is too slow, lines are dropped and counted by `tidelog_gateway_log_dropped_total`; requests are not
delayed.
"""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH_CHARS_MAX: Final = 500
"""Maximum length of a logged path; a longer path is truncated and ends with `…`."""
AGENT_CHARS_MAX: Final = 200


class AccessLogMiddleware:
    """ASGI middleware that writes a line of the access log when a request or WebSocket ends."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or WebSocket, and log it."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        connection = _LoggedConnection(receive, send)
        state = scope.setdefault("state", {})
        # Without the exchange, fast paths send their answers through `send`, which counts them.
        state.pop("exchange", None)
        connection.bytes_in = len(state.get("body") or b"")
        began = datetime.now(UTC)
        began_s = time.monotonic()
        outlet = state.get("outlet")
        before_bytes = 0 if outlet is None else outlet.pushed_bytes
        try:
            await self.app(scope, connection.receive, connection.send)
        finally:
            if outlet is not None:
                connection.bytes_out += outlet.pushed_bytes - before_bytes
            line = _fields(scope, connection)
            line["time"] = began.isoformat(timespec="milliseconds").replace("+00:00", "Z")
            line["duration_ms"] = round(1000 * (time.monotonic() - began_s), 3)
            sys.stdout.write(orjson.dumps(line, option=orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE).decode())
            sys.stdout.flush()


class _LoggedConnection:
    """Counts the bytes of a request or WebSocket, and records its status and close code."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.bytes_in = 0
        self.bytes_out = 0
        self.status: int | None = None
        """Status of the HTTP answer; None if the client disconnected before it."""
        self.close_code: int | None = None
        """Close code of a WebSocket; None without a close frame."""

    async def receive(self) -> Message:
        message = await self._receive()
        match message["type"]:
            case "http.request":
                self.bytes_in += len(message.get("body", b""))
            case "websocket.receive":
                self.bytes_in += _length(message)
            case "websocket.disconnect":
                self.close_code = self.close_code or message.get("code")
        return message

    async def send(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start" | "websocket.http.response.start":
                self.status = message["status"]
            case "http.response.body" | "websocket.http.response.body":
                self.bytes_out += len(message.get("body", b""))
            case "websocket.accept":
                self.status = 101
            case "websocket.send":
                self.bytes_out += _length(message)
            case "websocket.close":
                self.close_code = message.get("code", 1000)
        await self._send(message)


def _length(message: Message) -> int:
    """Return the size of a WebSocket's message in bytes, or in characters for text."""
    return len(message.get("bytes") or b"") or len(message.get("text") or "")


def _fields(scope: Scope, connection: _LoggedConnection) -> dict[str, Any]:
    """Return the fields of a log line."""
    state = scope.get("state", {})
    caller = getattr(state.get("gateway"), "caller", None)
    client = scope.get("client")
    agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
    described: dict[str, Any] = {
        "event": "access",
        "request_id": state.get("request_id"),
        "protocol": scope["type"],
        "path": _cut(scope["path"], PATH_CHARS_MAX),
        "route": _route_of(scope),
        "client": client[0] if client else None,
        "principal": None if caller is None else caller.principal,
        "user_agent": _cut(agent.decode("latin-1"), AGENT_CHARS_MAX),
        "bytes_in": connection.bytes_in,
        "bytes_out": connection.bytes_out,
        "status": connection.status,
    }
    if scope["type"] == "http":
        return described | {"method": scope["method"]}
    return described | {"close_code": connection.close_code}


def _route_of(scope: Scope) -> str | None:
    """Return the template of the path; None without a route."""
    request = scope.get("state", {}).get("request")
    fast_path_route = request.route if request is not None and request.route != "none" else None
    return getattr(scope.get("route"), "path", fast_path_route)


def _cut(text: str, chars_max: int) -> str:
    cut = text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"
    return cut.encode("utf-8", "replace").decode()
