"""uvicorn's HTTP/1.1 protocol with what it lacks: a deadline for the head, a cap on connections, problems.

uvicorn bounds neither how long a connection may take to send its head nor how many there are; a few thousand
sockets that send a byte a minute hold its descriptors for ever. The deadline runs from the moment a
connection is idle and begins to send until its head is whole, and again while the rest of a refused body is
thrown away. Who comes when there are too many takes the seat of one that only waits, see `seats.py`.

The two places where uvicorn itself answers (a head that is no HTTP, too many connections) answer with a
problem document here, like everything else.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from tidelog_gateway.framing import StrictConnection, upgrade_fault
from tidelog_gateway.incoming import Budget
from tidelog_gateway.outgoing import Outgoing
from tidelog_gateway.outlet import Outlet
from tidelog_gateway.problems import Problem
from tidelog_gateway.refusals import CONNECTION_LOG, refusal_bytes, tls_log
from tidelog_gateway.seats import Seat, Seats
from tidelog_proto.seldom import SeldomLog
from tidelog_proto.tls_stream import SNIFFED_BYTES, begins_tls


def bounded_protocol(
    *, head_timeout_s: float, seats: Seats, incoming: Budget, outgoing: Outgoing, slow_timeout_s: float
) -> type[asyncio.Protocol]:
    """Return a protocol class for `uvicorn.Config(http=…)` with these limits, and a way out for each connection."""

    class Bounded(BoundedProtocol):
        pass

    Bounded.head_timeout_s = head_timeout_s
    Bounded.seats = seats
    Bounded.incoming = incoming
    Bounded.outgoing = outgoing
    Bounded.slow_timeout_s = slow_timeout_s
    Bounded.tls_log = tls_log()
    return Bounded


class BoundedProtocol(H11Protocol):
    """One HTTP connection. Use `bounded_protocol` to make a class with limits of its own."""

    head_timeout_s: float
    seats: Seats
    incoming: Budget
    outgoing: Outgoing
    slow_timeout_s: float
    tls_log: SeldomLog
    _head_timer: asyncio.TimerHandle | None = None
    _seat: Seat | None = None
    _upgraded = False
    _first: bytes | None = b""
    """What has come before it is known that it is no TLS; None from then on."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._outlet = Outlet(self.outgoing, self.slow_timeout_s)
        # Every request finds it in its scope, and so does the WebSocket that the connection may become.
        state = {**app_state, "incoming": self.incoming, "outlet": self._outlet, "leave_seat": self._leave_seat}
        super().__init__(config, server_state, state, _loop)
        self.logger = CONNECTION_LOG
        self.conn = StrictConnection(h11.SERVER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection, or answer 503 and close when there are too many that are at work."""
        super().connection_made(cast(asyncio.Transport, transport))
        if self.transport.get_extra_info("sslcontext") is not None:
            self._first = None
        self._outlet.connected(self.transport)
        self._seat = self.seats.take(self.client[0] if self.client else "", self._give_way)
        if self._seat is None:
            self._answer_and_close(
                Problem(503, "overloaded", "this gateway has too many connections open: try again", retryable=True)
            )
            return
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take bytes; watch the clock while no request is being answered."""
        if self.transport.is_closing():
            return
        if self._first is not None and self._begins_tls(data):
            self.tls_log.say("somebody speaks TLS to this port, which is plain: this gateway has no tls_cert_file")
            plain = "this port speaks no TLS: begin the address with http:// or ws://"
            self._answer_and_close(Problem(400, "malformed_request", plain))
            return
        super().data_received(data)
        if self.transport.is_closing() or self._upgraded or self._answering():
            self._disarm()
        elif self._head_timer is None:
            self._arm()
        self._tell_seat()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock with the connection."""
        self._disarm()
        self._leave_seat()
        self._outlet.lost()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request of the connection, or handle the one that is here."""
        super().on_response_complete()
        self._tell_seat()

    def resume_writing(self) -> None:
        """Take the news that the client has taken most of what waited."""
        super().resume_writing()
        self._outlet.look()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Stop the clock for good: from here on the connection is a WebSocket's. Or refuse what cannot be one."""
        fault = upgrade_fault(event, self.conn.trailing_data[0])
        if fault is not None:
            self._answer_and_close(Problem(400, "malformed_request", fault))
            return
        self._upgraded = True
        self._disarm()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answer a head that is not HTTP."""
        self._answer_and_close(Problem(400, "malformed_request", msg))

    def _begins_tls(self, data: bytes) -> bool:
        assert self._first is not None
        self._first += data[:SNIFFED_BYTES]
        is_tls = begins_tls(self._first)
        if len(self._first) >= SNIFFED_BYTES:
            self._first = None
        return is_tls

    def _should_upgrade(self) -> bool:
        # RFC 9110, 7.8: HTTP/1.0 has no upgrades, and a request to change to what is not spoken is answered as it is.
        return self.scope["http_version"] == "1.1" and self._get_upgrade() == b"websocket"

    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn's annotation leaves out that there is none at first
        return cycle is not None and not cycle.response_complete

    def _tell_seat(self) -> None:
        """Say whether this connection waits for its client: for a head, or for more of a body."""
        if self._seat is None or self.transport.is_closing():
            return
        is_body_coming = self.conn.their_state is h11.SEND_BODY
        if not self._upgraded and (is_body_coming or not self._answering()):
            self.seats.waits(self._seat, is_heard=is_body_coming)
        else:
            self.seats.works(self._seat)

    def _leave_seat(self) -> None:
        if self._seat is not None:
            self.seats.leave(self._seat)

    def _give_way(self) -> None:
        """Close for somebody else. Who has sent something is told; an answer to nothing would be taken for the next."""
        if self.conn.trailing_data[0] or (self._answering() and not self.cycle.response_started):
            detail = "too many connections are open, and this one has kept the gateway waiting: send this again"
            self._answer_and_close(Problem(503, "overloaded", detail, retryable=True))
        else:
            self._disarm()
            self.transport.close()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # it does not even take that

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.head_timeout_s, self._head_is_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.conn.our_state is h11.IDLE:
            detail = f"the head did not arrive within {self.head_timeout_s:g} s"
            self._answer_and_close(Problem(408, "request_timeout", detail, retryable=True))
        else:
            self.transport.close()

    def _answer_and_close(self, problem: Problem) -> None:
        """Write a whole response past h11, whose state a bad head has spoilt, and close."""
        self._disarm()
        self.transport.write(refusal_bytes(problem))
        self.transport.close()
        self._outlet.look()
