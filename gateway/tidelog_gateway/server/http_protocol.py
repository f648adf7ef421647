"""An HTTP/1.1 connection under uvicorn's server, with a deadline for each head, limited connections, and problems.

uvicorn's own protocols limit neither the time of a head nor the number of connections: a few thousand clients that send
a byte a minute would occupy its descriptors forever. The deadline of the first head begins with the connection, that
of a later head with its first byte. A deadline also runs while the rest of a refused body is discarded. A connection
over the limit replaces an idle one, see `connection_slots.py`.

One request is read at a time: bytes of later requests are not parsed until the current request is answered.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr
from uvicorn.server import ServerState

from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.connection_slots import ConnectionSlot, ConnectionSlots
from tidelog_gateway.budget.request_budget import BodyReservation, RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.http1.body_receiver import BodyReceiver
from tidelog_gateway.http1.chunks import ChunkedBody
from tidelog_gateway.http1.early_body import EarlyBody, RepeatedHead
from tidelog_gateway.http1.exchange import Exchange
from tidelog_gateway.http1.head import (
    CHUNKED,
    FIELDS_KEPT_BYTES,
    HEAD_BYTES_MAX,
    Head,
    HeadError,
    HeadParser,
    early_fault,
    upgrade_fault,
)
from tidelog_gateway.http1.raw_responses import response_bytes, tls_log
from tidelog_gateway.http1.request_scope import scope_of
from tidelog_gateway.problems import Problem
from tidelog_proto.process.log_rate_limit import RateLimitedLog
from tidelog_proto.tls.stream import SNIFFED_BYTES, begins_tls

FIRST_REQUEST_S: Final = 1.0
"""How long a stop waits at most for the first request of a connection, and for the rest of a head."""
NEXT_REQUEST_S: Final = 0.05
"""How long a stop waits for the next request of a connection that has had one: long enough to read what has arrived."""


def http_protocol_class(
    *,
    head_timeout_s: float,
    slots: ConnectionSlots,
    incoming: RequestBudget,
    outgoing: ResponseBudget,
    slow_timeout_s: float,
    body_timeout_s: float,
) -> type[asyncio.Protocol]:
    """Return a protocol class for `uvicorn.Config(http=…)` with these limits."""

    class Bounded(HttpConnection):
        pass

    Bounded.head_timeout_s = head_timeout_s
    Bounded.slots = slots
    Bounded.incoming = incoming
    Bounded.outgoing = outgoing
    Bounded.slow_timeout_s = slow_timeout_s
    Bounded.body_timeout_s = body_timeout_s
    Bounded.tls_log = tls_log()
    return Bounded


class HttpConnection(asyncio.Protocol):
    """Reads the requests of one HTTP connection, and runs the application for each.

    `http_protocol_class` makes a subclass with the limits.
    """

    head_timeout_s: float
    slots: ConnectionSlots
    incoming: RequestBudget
    outgoing: ResponseBudget
    slow_timeout_s: float
    body_timeout_s: float
    tls_log: RateLimitedLog
    transport: asyncio.Transport
    flow: FlowControl

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self._config = config
        self._server_state = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._outlet = ConnectionOutput(self.outgoing, self.slow_timeout_s)
        # Part of the ASGI state of each request, and of the WebSocket that the connection may become.
        self._state = {
            **app_state,
            "incoming": self.incoming,
            "outlet": self._outlet,
            "release_slot": self._release_slot,
        }
        self._exchange: Exchange | None = None
        self._pending = b""
        """Received bytes that are not parsed yet: a part of a head, or bytes after the current request."""
        self._looked_bytes = 0
        self._heads = HeadParser()
        self._length = 0
        """Number of missing bytes of a body with Content-Length."""
        self._chunks: ChunkedBody | None = None
        self._receiver: BodyReceiver | None = None
        """The transport's protocol while bodies are received directly into memory; otherwise None."""
        self._was_diverted = False
        """Whether the body of the current request was received directly into memory."""
        self._raw_head = b""
        """The head of the last request with a body that was incomplete when its head was parsed."""
        self._repeated: RepeatedHead | None = None
        """The head of the last request whose body was received directly into memory.

        If the next request has the same head, its body is received before the request begins (`early_body`).
        """
        self._early: EarlyBody | None = None
        """The body that is being received before its request begins; None otherwise."""
        self._early_timer: asyncio.TimerHandle | None = None
        self._early_until_s = 0.0
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_since_s: float | None = None
        """When the connection began to wait for its next request; None while a request is handled."""
        self._slot: ConnectionSlot | None = None
        self._upgraded = False
        self._is_stopping = False
        self._first: bytes | None = b""
        """The first received bytes, until they are known not to begin TLS; then None."""

    # ------------------------------------------------------------------------------------------- the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a new connection; answer 503 and close it when there is no slot."""
        self.transport = cast(asyncio.Transport, transport)
        self._server_state.connections.add(cast(Any, self))
        self.flow = FlowControl(self.transport)
        self._client, self._server = get_remote_addr(self.transport), get_local_addr(self.transport)
        self._scheme = "http"
        if self.transport.get_extra_info("sslcontext") is not None:
            self._first, self._scheme = None, "https"
        self._outlet.connected(self.transport)
        self._slot = self.slots.take(self._client[0] if self._client else "", self._give_way)
        if self._slot is None:
            detail = (
                "all connections of this gateway, or of this client address, are in use (connections_max, "
                "address_connections_max); try again later"
            )
            self._answer_and_close(Problem(503, "overloaded", detail, retryable=True))
            return
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the deadline runs while no request is being answered."""
        if self.transport.is_closing():
            return
        repeated = self._repeated
        if repeated is not None and not self._pending and self._receive_early(repeated, data):
            return
        if self._first is not None and self._begins_tls(data):
            self.tls_log.say(
                "a client speaks TLS to this port, which is plain HTTP; set tls_cert_file, or use http:// in the "
                "client's URL"
            )
            plain = "this port does not use TLS; use a URL with http:// or ws://"
            self._answer_and_close(Problem(400, "malformed_request", plain))
            return
        self._idle_since_s = None
        self._pending = self._pending + data if self._pending else data
        self._read()
        if self.transport.is_closing() or self._upgraded or self._answering():
            self._disarm()
        elif self._head_timer is None and (self._pending or self._body_is_coming()):
            self._arm()
        self._report_idle()

    def eof_received(self) -> None:
        """Let the transport close, because a client that has closed its sending side is not answered."""

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - as the event loop calls it
        """Cancel all timers of the connection, and release its slot."""
        self._server_state.connections.discard(cast(Any, self))
        self._disarm()
        self._end_idling()
        self._begin_without_body()
        if self._early_timer is not None:
            self._early_timer.cancel()
        self._release_slot()
        self._outlet.lost()
        if self._exchange is not None:
            self._exchange.disconnect()
        self.flow.resume_writing()
        self._pending = b""

    def pause_writing(self) -> None:
        """Pause answers: the client reads too slowly."""
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Resume answers: the client has read most of the buffer."""
        self.flow.resume_writing()
        self._outlet.look()

    def shutdown(self) -> None:
        """Close the connection because the process stops: after the answer, if a request is handled or may be arriving.

        A client that gets no answer cannot know whether its request was executed, so a connection whose request may
        have been sent, but was not read yet, is not closed at once.
        """
        self._is_stopping = True
        self._begin_without_body()
        if self._exchange is not None and not self._exchange.response_complete:
            self._exchange.keep_alive = False
            return
        wait_s = NEXT_REQUEST_S
        if self._exchange is None or self._pending:
            wait_s = min(FIRST_REQUEST_S, 0.5 * float(self._config.timeout_graceful_shutdown or 0))
        # uvloop calls timers and callbacks before it reads sockets: the second callback runs after the next read.
        self._loop.call_later(wait_s, self._end_idle_soon)

    def _end_idle_soon(self) -> None:
        self._loop.call_soon(self._loop.call_soon, self._end_idle)

    def _end_idle(self) -> None:
        self._begin_without_body()
        if not self._upgraded and not self._answering():
            self.transport.close()

    # ----------------------------------------------------------------------------------------- for the exchange

    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of every answer."""
        return self._server_state.default_headers

    def resume_reading(self) -> None:
        """Resume reading, unless the last received bytes begin the next request, which has to wait."""
        if not self._pending or self._body_is_coming():
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Wait for the next request of the connection, or handle the one that has been received."""
        self._server_state.total_requests += 1
        if self._receiver is not None and not self._was_diverted:
            self._receive_by_itself()
        self._was_diverted = False
        if not self.transport.is_closing():
            if self.flow.read_paused:
                self.flow.resume_reading()
            if self._pending:
                self._loop.call_soon(self._read_on)
            else:
                self._idle_since_s = self._loop.time()
                if self._idle_timer is None:
                    self._idle_timer = self._loop.call_later(self._config.timeout_keep_alive, self._look_idle)
        self._report_idle()

    # ------------------------------------------------------------------------------------------------- requests

    def _read_on(self) -> None:
        if self._pending and not self.transport.is_closing():
            self.data_received(b"")

    def _read(self) -> None:
        """Parse the received bytes: a body, and the next request when the one before is answered."""
        try:
            while self._pending and not self._upgraded and not self.transport.is_closing():
                if self._body_is_coming():
                    self._read_body()
                elif self._answering():
                    self.flow.pause_reading()
                    return
                elif not self._read_head():
                    return
        except HeadError as error:
            problem = Problem(400, "malformed_request", str(error), headers={"Connection": "close"})
            if self._exchange is None or not self._body_is_coming():
                self._answer_and_close(problem)
            # The request was refused already: the client would take another answer for that to its next request.
            elif self._exchange.response_complete:
                self.transport.close()
            else:
                self._length, self._chunks, self._pending = 0, None, b""
                self._exchange.body_failed(problem)

    def _read_head(self) -> bool:
        """Parse a head and begin to answer; return False if it is incomplete."""
        pending = self._pending
        end = pending.find(b"\r\n\r\n", max(0, self._looked_bytes - 3)) + 4
        if end < 4 or end > HEAD_BYTES_MAX:
            self._looked_bytes = len(pending)
            fault = early_fault(pending)
            if fault is not None:
                raise HeadError(fault)
            return False
        self._looked_bytes = 0
        raw, self._pending = pending[:end], pending[end:]
        head = self._heads.parse(raw)
        # RFC 9110, 7.8: HTTP/1.0 has no upgrades, and a request to upgrade to another protocol is answered over HTTP.
        if head.upgrade == b"websocket" and head.version == "1.1":
            self._become_websocket(head)
            return False
        self._begin(head, raw)
        return True

    def _begin(self, head: Head, raw: bytes) -> None:
        length, body = head.length, None
        if length == CHUNKED:
            self._chunks = ChunkedBody()
        elif length <= len(self._pending):
            # A body that has arrived completely is passed on as one message.
            body, self._pending = self._pending[:length], self._pending[length:]
        else:
            self._length = length
            self._raw_head = raw if len(raw) <= FIELDS_KEPT_BYTES else b""
            if self._receiver is not None:
                # Until the application takes the body, its parts would otherwise arrive in buffers of a head's size.
                self.flow.pause_reading()
        self._begin_task(head, body)

    def _begin_task(self, head: Head, body: bytes | memoryview | None, early: EarlyBody | None = None) -> None:
        """Begin to handle a request, with its body if that is complete."""
        state = self._state.copy()
        if body is not None:
            state["body"] = body
        if early is not None:
            state["began_s"], state["arrival"] = early.began_s, early.arrival
            state["head_notes"] = early.repeated.notes
            scope = early.repeated.new_scope()
        else:
            scope = scope_of(head, server=self._server, client=self._client, scheme=self._scheme)
        scope["state"] = state
        self._exchange = exchange = Exchange(
            scope,
            self,
            keep_alive=head.keep_alive and not self._is_stopping,
            expects_continue=head.expects_continue,
            more_body=body is None,
            early_arrival=None if early is None else early.arrival,
        )
        state["exchange"] = exchange
        app: Any = self._config.loaded_app
        task = self._loop.create_task(exchange.run(app))
        task.add_done_callback(self._server_state.tasks.discard)
        self._server_state.tasks.add(task)

    def _read_body(self) -> None:
        if self._chunks is not None:
            part = self._chunks.feed(self._pending)
            is_last = self._chunks.done
            self._pending = b""
            if is_last:
                self._pending, self._chunks = self._chunks.rest, None
        else:
            part, self._pending = self._pending[: self._length], self._pending[self._length :]
            self._length -= len(part)
            is_last = not self._length
        exchange = self._exchange
        assert exchange is not None
        if exchange.response_complete:  # The request was refused, so the rest of its body is discarded.
            return
        if exchange.body_came(part, is_last=is_last) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def divert_body(self, place: memoryview) -> None:
        """Receive the rest of a body of known length directly into memory, and report each part to the exchange."""
        assert len(place) == self._length
        self._was_diverted = True
        if self._receiver is None:
            self._receiver = BodyReceiver(self)
            self._set_protocol(self._receiver)
        self._receiver.divert(place)

    def body_received(self, size_bytes: int) -> None:
        """Note a part of a diverted body."""
        self._length -= size_bytes
        is_last = not self._length
        early, exchange = self._early, self._exchange
        if early is not None:
            if is_last:
                self._early = None
                early.arrival.complete()
                self._begin_task(early.repeated.head, early.place, early)
                if self._slot is not None:
                    self.slots.mark_busy(self._slot)
                return
            early.received(size_bytes)
        elif exchange is not None and not exchange.response_complete:
            exchange.body_filled(size_bytes, is_last=is_last)
        self._report_idle()

    def end_diversion(self) -> None:
        """Receive the next bytes by `data_received` again, also if a diverted body is incomplete."""
        if self._length:
            self._receive_by_itself()  # the rest is discarded, in large parts
        elif self._receiver is not None:
            self._receiver.end_diversion()

    def _receive_by_itself(self) -> None:
        """Remove the receiver of bodies."""
        if self._receiver is not None:
            self._receiver = None
            if not self.transport.is_closing():
                self._set_protocol(self)

    def _set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.transport.pause_reading()  # Pausing and resuming makes the event loop use the new protocol's type.
        self.transport.set_protocol(protocol)
        if not self.flow.read_paused:
            self.transport.resume_reading()

    # ---------------------------------------------------------------------------------- bodies before their request

    def repeat_diversion(self) -> None:
        """Receive the bodies of further requests with the current head before the requests begin."""
        raw = self._raw_head
        if not raw or (self._repeated is not None and self._repeated.raw == raw):
            return
        head = self._heads.parse(raw)
        if head.keep_alive and not head.expects_continue:
            scope = scope_of(head, server=self._server, client=self._client, scheme=self._scheme)
            self._repeated = RepeatedHead(head, raw, scope, {})

    def _receive_early(self, repeated: RepeatedHead, data: bytes) -> bool:
        """Receive the body of a request that repeats the head.

        Return False, with nothing done, if the data is not such a request, or the request budget is exhausted.
        """
        head = repeated.head
        if not data.startswith(repeated.raw):
            return False
        part = data[len(repeated.raw) :]
        if head.length <= len(part) or self._length or self._chunks is not None or self._answering():
            return False
        arrival = BodyReservation(self.incoming, self._early_is_late)
        if not arrival.hold(head.length):
            return False
        if self._head_timer is not None:
            self._disarm()
        self._idle_since_s = None
        self._early = early = EarlyBody(repeated, arrival, part)
        self._length = head.length - len(part)
        self.divert_body(early.place[len(part) :])
        if self._slot is not None:
            self.slots.mark_idle(self._slot, is_heard=True)
        self._early_until_s = self._loop.time() + self.body_timeout_s
        if self._early_timer is None:
            self._early_timer = self._loop.call_later(self.body_timeout_s, self._look_early)
        return True

    def _look_early(self) -> None:
        """Time out a body; the timer is not moved with each body, see `_look_idle`."""
        self._early_timer = None
        if self._early is None:
            return
        left_s = self._early_until_s - self._loop.time()
        if left_s > 0:
            self._early_timer = self._loop.call_later(left_s, self._look_early)
        else:
            self._early_is_late()

    def _early_is_late(self) -> None:
        """Begin the request of an incomplete body, which is answered with 408."""
        self._begin_without_body()
        if self._exchange is not None:
            self._exchange.body_late()

    def _begin_without_body(self) -> None:
        """Begin the request of an incomplete body, so that the application receives the rest or refuses it."""
        early, self._early = self._early, None
        if early is None:
            return
        early.arrival.end()
        self._receive_by_itself()
        self._begin_task(self._heads.parse(early.repeated.raw), None)
        if self._exchange is not None:
            self._exchange.body_came(bytes(early.place[: early.arrived_bytes]), is_last=False)

    def _become_websocket(self, head: Head) -> None:
        """Transfer the connection to a WebSocket protocol, without a deadline; refuse an invalid handshake."""
        fault = upgrade_fault(head, self._pending)
        if fault is not None:
            raise HeadError(fault)
        self._upgraded = True
        self._receive_by_itself()
        self._disarm()
        self._server_state.connections.discard(cast(Any, self))
        lines = [b"%b %b HTTP/1.1\r\n" % (head.method, head.target)]
        lines += [b"%b: %b\r\n" % field for field in head.headers]
        make = cast(Any, self._config.ws_protocol_class)
        protocol = make(config=self._config, server_state=self._server_state, app_state=self._state)
        protocol.connection_made(self.transport)
        protocol.data_received(b"".join([*lines, b"\r\n"]))
        self.transport.set_protocol(protocol)

    def _body_is_coming(self) -> bool:
        return self._length > 0 or self._chunks is not None

    def _answering(self) -> bool:
        return self._early is not None or (self._exchange is not None and not self._exchange.response_complete)

    def _begins_tls(self, data: bytes) -> bool:
        assert self._first is not None
        self._first += data[:SNIFFED_BYTES]
        is_tls = begins_tls(self._first)
        if len(self._first) >= SNIFFED_BYTES:
            self._first = None
        return is_tls

    # ------------------------------------------------------------------------------------------- slots and timers

    def _report_idle(self) -> None:
        """Report whether this connection waits for its client: for a head, or for more of a body."""
        if self._slot is None or self.transport.is_closing():
            return
        exchange = self._exchange
        is_body_coming = self._length > 0 or self._chunks is not None
        if not self._upgraded and (is_body_coming or exchange is None or exchange.response_complete):
            self.slots.mark_idle(self._slot, is_heard=is_body_coming)
        else:
            self.slots.mark_busy(self._slot)

    def _release_slot(self) -> None:
        if self._slot is not None:
            self.slots.release(self._slot)

    def _give_way(self) -> None:
        """Close because another connection takes the slot; answer 503 if a request was begun and nothing was changed.

        Without a request, the client would take the answer for the answer to its next request. A request with a
        streamed body gets no answer, because a 503 means that nothing was stored, and parts of the body may be.
        """
        self._begin_without_body()
        exchange = self._exchange if self._answering() else None
        is_unanswered = exchange is not None and not exchange.response_started
        if (self._pending or is_unanswered) and not (exchange is not None and exchange.is_streamed):
            detail = (
                "another connection needed the slot of this one, which waited for its client (connections_max, "
                "address_connections_max); send the request again"
            )
            self._answer_and_close(Problem(503, "overloaded", detail, retryable=True))
        else:
            self._disarm()
            self.transport.close()
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # the client does not read the answer

    def _arm(self) -> None:
        self._head_timer = self._loop.call_later(self.head_timeout_s, self._head_is_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_idling(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _look_idle(self) -> None:
        """Close if no request has come for too long.

        The timer is not moved with each request, which would cost more, but set again here.
        """
        self._idle_timer = None
        if self._idle_since_s is None:
            return
        left_s = self._idle_since_s + self._config.timeout_keep_alive - self._loop.time()
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._look_idle)
        else:
            self.transport.close()

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._body_is_coming():  # The timer was set for the rest of a refused body.
            self.transport.close()
        else:
            detail = (
                f"the request's head did not arrive completely within {self.head_timeout_s:g} s; send the request again"
            )
            self._answer_and_close(Problem(408, "request_timeout", detail, retryable=True))

    def _answer_and_close(self, problem: Problem) -> None:
        """Write a complete response without an exchange, which an invalid head does not have, and close.

        An answer that has begun is truncated.
        """
        self._disarm()
        if not (self._answering() and self._exchange is not None and self._exchange.response_started):
            self.transport.write(response_bytes(problem))
        self.transport.close()
        self._outlet.look()
