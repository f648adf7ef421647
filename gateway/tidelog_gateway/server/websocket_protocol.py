"""uvicorn's WebSocket protocol, extended by handshake errors, deadlines and bounds.

uvicorn neither answers a handshake that its second parser refuses nor closes the connection. It does not limit the
fragments of a message, and it parses all received bytes at once, which can be tens of thousands of pings or messages.
This class stops parsing after a few pings or messages: reading is paused, and the remaining bytes wait until the
application has taken the messages or a short time has passed. Waiting bytes and incomplete messages are counted in the
request budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn._types import ASGIReceiveEvent
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import CloseCode, Frame
from websockets.http11 import Response
from websockets.server import ServerProtocol
from websockets.typing import StatusLike

from tidelog_gateway.browser_headers import BROWSER_HEADERS
from tidelog_gateway.budget.connection_output import UNSENT_BYTES, ConnectionOutput
from tidelog_gateway.budget.request_budget import BodyReservation
from tidelog_gateway.http1.raw_responses import CONNECTION_LOG, response_bytes
from tidelog_gateway.problems import Problem
from tidelog_proto.limits import KIB

SLICE_BYTES: Final = 4096
"""Number of bytes that `_take_turn` parses between two checks of its limits."""

PINGS_PER_TURN: Final = 16
PINGS_PAUSE_S: Final = 0.05
"""Pause of reading after `PINGS_PER_TURN` pings, as a rate limit."""

UNCOUNTED_BYTES: Final = 16 * KIB
"""Up to this many waiting bytes of a connection are not counted in the request budget, because many connections have a
few for a moment."""

FRAGMENTS_MAX: Final = 1024
"""Maximum number of fragments of one message; browsers send a few per megabyte."""


def bounded_websocket(*, handshake_timeout_s: float) -> type[asyncio.Protocol]:
    """Return a protocol class for `uvicorn.Config(ws=…)` with this handshake timeout."""

    class Bounded(BoundedWebSocket):
        pass

    Bounded.handshake_timeout_s = handshake_timeout_s
    return Bounded


class Handshake(ServerProtocol):
    """Server side of a WebSocket; its error responses have the headers of all other responses."""

    def reject(self, status: StatusLike, text: str) -> Response:
        """Return the response to a refused handshake."""
        response = super().reject(status, text)
        response.headers.update(BROWSER_HEADERS)
        return response


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """Framing of one WebSocket. `bounded_websocket` makes a subclass with a handshake timeout."""

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
        self._outlet: ConnectionOutput = app_state["outlet"]
        self._release_slot: Callable[[], None] = app_state["release_slot"]
        self._arrival = BodyReservation(app_state["incoming"], self._give_way)
        self._taken_bytes = 0
        self._queued_bytes = 0
        self._received = bytearray()
        self._pings = 0
        self._turn_timer: asyncio.TimerHandle | None = None
        self.logger = CONNECTION_LOG
        self.conn = Handshake(
            extensions=self.conn.available_extensions, max_size=config.ws_max_size, logger=CONNECTION_LOG
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection whose handshake was read, and start the handshake timer."""
        super().connection_made(transport)
        self._handshake_timer = self.loop.call_later(self.handshake_timeout_s, self._handshake_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel timers, and release the connection's slot and its share of budgets."""
        self._disarm()
        self._release_slot()
        self._outlet.lost()
        self._arrival.end()
        if self._turn_timer is not None:
            self._turn_timer.cancel()
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        """Called when the transport's buffer has drained; update the output's accounting."""
        super().resume_writing()
        self._outlet.look()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; an invalid handshake is answered with a problem document."""
        if self.transport.is_closing():
            return
        if self.handshake_initiated:
            self._received += data
            self._taken_bytes += len(data)
            if self._turn_timer is None:
                self._take_turn()
            self._count()
            return
        self.conn.receive_data(data)
        if self.conn.parser_exc is None:
            self.handle_events()
        if not self.handshake_initiated:
            self._refuse(
                "the WebSocket's handshake is invalid: it has too many headers, too long ones, or headers that are "
                "not ASCII; send fewer and shorter headers in ASCII"
            )

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message, and resume reading if the queue is empty."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._queued_bytes = 0
            if self._turn_timer is None:
                self._take_turn()
            self._count()
        return message

    def _take_turn(self) -> None:
        """Parse received bytes until a message is complete or `PINGS_PER_TURN` pings were answered."""
        self._turn_timer = None
        self._pings = 0
        while self._received and not self.read_paused and not self.transport.is_closing():
            if self._pings >= PINGS_PER_TURN:
                self._turn_timer = self.loop.call_later(PINGS_PAUSE_S, self._take_turn)
                break
            part = bytes(self._received[:SLICE_BYTES])
            del self._received[:SLICE_BYTES]
            super().data_received(part)
        if self.transport.is_closing():
            self._received.clear()
        elif self._received or self.read_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def send_receive_event_to_app(self) -> None:
        """Put a complete message into the application's queue."""
        self._queued_bytes = sum(map(len, self.frames))
        super().send_receive_event_to_app()

    def _count(self) -> None:
        """Count waiting bytes in the budget, or close the connection if they do not fit."""
        if self.transport.is_closing():
            self._arrival.end()
            return
        waiting_bytes = len(self._received) + len(self.conn.reader.buffer) + self._queued_bytes
        if self.frames:
            waiting_bytes += sum(map(len, self.frames))
        if waiting_bytes <= UNCOUNTED_BYTES:
            waiting_bytes = 0
        if waiting_bytes or self._arrival.held_bytes:
            if not self._arrival.hold(waiting_bytes):
                self._give_way()
            self._arrival.received(self._taken_bytes)

    def _give_way(self) -> None:
        """Close the connection, because the request budget needs its share."""
        self._arrival.end()
        if self.transport.is_closing():
            return
        self.conn.fail(CloseCode.TRY_AGAIN_LATER, "the gateway's request budget is exhausted: connect again and resume")
        self.frames = []
        self._received.clear()
        self.conn.reader.buffer.clear()
        self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Answer a ping, unless the client leaves earlier pongs unread (RFC 6455, 5.5.3 allows to omit some)."""
        self._pings += 1
        if self._outlet.unsent_bytes > UNSENT_BYTES and self.conn.close_rcvd is None:
            self.conn.data_to_send()
            return
        super().handle_ping()
        self._outlet.look()

    def handle_cont(self, event: Frame) -> None:
        """Add a fragment to a message; close the connection if the message has too many."""
        if len(self.frames) < FRAGMENTS_MAX:
            super().handle_cont(event)
        elif not self.transport.is_closing():
            self.conn.fail(
                CloseCode.MESSAGE_TOO_BIG,
                f"a message may have at most {FRAGMENTS_MAX} fragments: send larger fragments",
            )
            self.frames = []
            self.handle_parser_exception()

    def _handshake_is_late(self) -> None:
        self._handshake_timer = None
        if not self.handshake_complete:
            self.transport.abort()

    def _refuse(self, detail: str) -> None:
        self._disarm()
        self.handshake_complete = True
        self.transport.write(response_bytes(Problem(400, "malformed_request", detail)))
        self.transport.close()

    def _disarm(self) -> None:
        if self._handshake_timer is not None:
            self._handshake_timer.cancel()
            self._handshake_timer = None
