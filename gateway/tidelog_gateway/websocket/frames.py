"""uvicorn's WebSocket protocol with what it lacks: an answer to every handshake, deadlines, bounds.

uvicorn leaves a handshake that its second parser does not take unanswered and the connection open for ever. It
collects the fragments of a message without counting them, and empty ones cost the sender nothing.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame

from tidelog_gateway.problems import Problem
from tidelog_gateway.refusals import CONNECTION_LOG, refusal_bytes

FRAGMENTS_MAX: Final = 1024
"""Fragments of one message; browsers send a few for each megabyte."""


def bounded_websocket(*, handshake_timeout_s: float) -> type[asyncio.Protocol]:
    """Return a protocol class for `uvicorn.Config(ws=…)` with these limits."""

    class Bounded(BoundedWebSocket):
        pass

    Bounded.handshake_timeout_s = handshake_timeout_s
    return Bounded


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """One WebSocket's bytes. Use `bounded_websocket` to make a class with limits of its own."""

    handshake_timeout_s: float
    _handshake_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = CONNECTION_LOG
        self.conn.logger = CONNECTION_LOG

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection whose handshake has been read."""
        super().connection_made(transport)
        self._handshake_timer = self.loop.call_later(self.handshake_timeout_s, self._handshake_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock with the connection."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; a handshake that is none is answered like every other."""
        if self.transport.is_closing():
            return
        if self.handshake_initiated:
            super().data_received(data)
            return
        self.conn.receive_data(data)
        if self.conn.parser_exc is None:
            self.handle_events()
        if not self.handshake_initiated:
            self._refuse("the WebSocket's handshake is not valid: too many headers, too long ones, or not ASCII")

    def handle_cont(self, event: Frame) -> None:
        """Take a fragment of a message, unless there are too many."""
        if len(self.frames) < FRAGMENTS_MAX:
            super().handle_cont(event)
        elif not self.transport.is_closing():
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {FRAGMENTS_MAX} fragments")
            self.frames = []
            self.handle_parser_exception()

    def _handshake_is_late(self) -> None:
        self._handshake_timer = None
        if not self.handshake_complete:
            self.transport.abort()

    def _refuse(self, detail: str) -> None:
        self._disarm()
        self.handshake_complete = True
        self.transport.write(refusal_bytes(Problem(400, "malformed_request", detail)))
        self.transport.close()

    def _disarm(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
