"""One client connection: frames in, dispatch, replies out, and everything about it that must stay bounded.

- Requests in flight, in number and in bytes: past the connection's bounds the node stops reading from it.
  Past the *node's* bound a request with an attachment is declined before its memory is taken, and one with a large
  envelope before it can wait with it, with a retriable OVERLOADED.
- Replies not yet read: past the transport's high-water mark nothing more is read from the client or pushed
  to it, and a client that reads nothing at all for `write_stall_ms` is cut off.
- A connection says HELLO first, within `hello_timeout_ms` and in a small frame.

Another node proves who it is instead (`handlers/peers.py`), and is then treated otherwise: what it sends one-way goes
to its inbox, and a request that finds no room is declined. Its connection is read whatever is in flight: behind what
is full here there may come the acknowledgements that would empty it.

A frame that breaks the shape of the stream gets an error with correlation id 0, then the connection closes:
nothing after it can be trusted. A request that is merely wrong gets its error and the connection goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from tidelog_broker.budget import SMALL_ENVELOPE_BYTES, Budget
from tidelog_broker.config import NodeSettings
from tidelog_broker.core.peer_auth import Challenge
from tidelog_broker.inbox import Inbox
from tidelog_broker.metrics import NodeMetrics
from tidelog_broker.sockets import tune
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.frames import Frame, encode_frame
from tidelog_proto.idle_poll import IdlePoll
from tidelog_proto.limits import FORWARDED_IN_FLIGHT_MAX, FRAME_BYTES_MAX_BEFORE_HELLO
from tidelog_proto.receiver import FrameReceiver

log = logging.getLogger(__name__)

WRITE_HIGH_WATER_BYTES: Final = 8 * 1024 * 1024
OVERLOADED_RETRY_MS: Final = 50
_JOIN_BYTES: Final = 16 * 1024
_NOTHING: Final = memoryview(b"")


class Request:
    """One request being worked on. It is answered exactly once; answering gives its bytes back."""

    __slots__ = ("answered", "attachment", "connection", "envelope", "size_bytes")

    def __init__(self, connection: Connection, frame: Frame, size_bytes: int) -> None:
        self.connection = connection
        self.size_bytes = size_bytes
        """Its share of the budgets."""
        self.envelope = frame.envelope
        self.attachment = frame.attachment
        self.answered = False

    def reply(self, envelope: pb.Envelope, attachments: list[memoryview] | None = None) -> None:
        """Send the answer, with the request's correlation id."""
        assert not self.answered, "a request is answered once"
        self.answered = True
        envelope.correlation_id = self.envelope.correlation_id
        self.connection.finish(self, envelope, attachments or ())

    def drop(self) -> None:
        """Be done with a request that has no answer."""
        assert not self.answered
        self.answered = True
        self.connection.release(self)

    def fail(self, error: ProtocolError) -> None:
        """Answer with an error."""
        self.reply(pb.Envelope(error=error.to_message()))


class Host(Protocol):
    """Who a connection belongs to: the server."""

    settings: NodeSettings
    metrics: NodeMetrics
    budget: Budget

    @property
    def idle_poll(self) -> IdlePoll:
        """Told of what comes, on all connections together."""
        ...

    def opened(self, connection: Connection) -> None:
        """A connection was accepted."""

    def closed(self, connection: Connection) -> None:
        """A connection is gone."""

    def dispatch(self, request: Request) -> None:
        """Start work on a request."""


class Pushing(Protocol):
    """A subscription of this connection."""

    def pump(self) -> None:
        """Send what may be sent."""

    def grant(self, *, records: int, size_bytes: int) -> None:
        """Take credit from the client and send what may be sent with it."""

    def stop(self) -> None:
        """Send nothing more."""


class Connection(asyncio.BufferedProtocol):
    """The shell of a connection. The server makes one per accepted socket."""

    def __init__(self, server: Host) -> None:
        self.server = server
        self.greeted = False
        self.client_id = ""
        self.challenge: Challenge | None = None
        """Set while another node is to prove who it says it is."""
        self.inbox: Inbox | None = None
        """Set when it has."""
        self.pumps: dict[int, Pushing] = {}
        self.closed_listeners: set[Callable[[], None]] = set()
        """Called when the client is gone, for work that would otherwise wait for it."""
        self.reading = asyncio.Lock()
        """Held by the one fetch of this connection that reads."""
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(frame_bytes_max=FRAME_BYTES_MAX_BEFORE_HELLO, admit=self._admit)
        self._idle_poll = server.idle_poll
        self._in_flight_bytes = 0
        self._in_flight_bytes_max = server.settings.connection_in_flight_bytes
        self._requests = 0
        self._requests_max = server.settings.requests_in_flight
        self._arriving_bytes: int | None = None
        """The share in the budgets of the frame that is admitted and not yet a request."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._reading = True
        self._stall_timer: asyncio.TimerHandle | None = None
        self._hello_timer: asyncio.TimerHandle | None = None
        self._unsent_bytes = 0

    # --- transport callbacks ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register, or refuse when the node has all the connections it takes."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(self.server.settings.hello_timeout_ms / 1000, self._hello_is_late)
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything of this connection; work in flight goes on, its answers go nowhere."""
        for timer in (self._stall_timer, self._hello_timer):
            if timer is not None:
                timer.cancel()
        self._transport = None
        self._writable.set()
        if self._arriving_bytes is not None:
            self._give_back(self._arriving_bytes)
            self._arriving_bytes = None
        if self.inbox is not None:
            self.inbox.close()
        for pump in self.pumps.values():
            pump.stop()
        self.pumps.clear()
        for listener in list(self.closed_listeners):
            listener()
        self.server.closed(self)
        if exc is not None:
            log.debug("connection of %r lost: %s", self.client_id, exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base class's signature
        """Give the transport the memory for the next bytes."""
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes and dispatch the requests that are whole."""
        if self._receiver.goes_on(nbytes):
            return
        self._idle_poll.came()
        try:
            for frame in self._receiver.received(nbytes):
                if self.inbox is not None and frame.envelope.correlation_id == 0:
                    self.inbox.take(frame)
                    continue
                size_bytes, self._arriving_bytes = self._arriving_bytes, None
                assert size_bytes is not None, "admitted before it is whole"
                self.server.dispatch(Request(self, frame, size_bytes))
                if self._transport is None:
                    return
        except ProtocolError as error:
            self.abort(error)
            return
        self._idle_poll.waits(nbytes)
        if self._requests >= self._requests_max or self._in_flight_bytes >= self._in_flight_bytes_max:
            self._balance_reading()

    def pause_writing(self) -> None:
        """The client does not keep up with its answers: read nothing more from it, and start the clock."""
        self._writable.clear()
        self._watch_stall()
        self._balance_reading()

    def resume_writing(self) -> None:
        """The client has read: go on."""
        self._writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._balance_reading()
        for pump in list(self.pumps.values()):
            pump.pump()

    # --- for the server and the handlers ---------------------------------------------------------------

    @property
    def peer_id(self) -> str | None:
        """The id of the node at the other end, proven; None for a client."""
        return None if self.inbox is None else self.inbox.node_id

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether the client keeps up: pushed events wait for this."""
        return self._writable.is_set() and self.is_open

    async def drained(self) -> None:
        """Wait until the client has read enough of its answers (or is gone)."""
        await self._writable.wait()

    def greet(self, client_id: str, *, frame_bytes_max: int) -> None:
        """HELLO has been said: lift the small limit."""
        self.greeted = True
        self.client_id = client_id
        self._receiver.frame_bytes_max = frame_bytes_max
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def become_peer(self, inbox: Inbox, *, frame_bytes_max: int) -> None:
        """Another node has proven itself: what it sends one-way goes to `inbox`."""
        assert self.inbox is None
        self.inbox = inbox
        self.greet(f"node {inbox.node_id}", frame_bytes_max=frame_bytes_max)
        if self._transport is not None:
            tune(self._transport.get_extra_info("socket"))

    def finish(self, request: Request, envelope: pb.Envelope, attachments: Sequence[memoryview] = ()) -> None:
        """Answer a request and give its share of the budgets back."""
        try:
            self.send(envelope, attachments)
        except ProtocolError as error:  # the answer fits no frame; that, too, is an answer
            self.send(pb.Envelope(correlation_id=envelope.correlation_id, error=error.to_message()))
        self.release(request)

    def release(self, request: Request) -> None:
        """Give a request's share of the budgets back."""
        request.attachment = _NOTHING
        self._give_back(request.size_bytes)
        if not self._reading:
            self._balance_reading()

    def send(self, envelope: pb.Envelope, attachments: Sequence[memoryview] = ()) -> None:
        """Send a frame; silently nothing when the client is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not attachments:
            transport.write(encode_frame(envelope))
            return
        size_bytes = sum(map(len, attachments))
        head = encode_frame(envelope, size_bytes)
        if size_bytes <= _JOIN_BYTES:
            transport.write(b"".join([head, *attachments]))
        else:
            transport.writelines([head, *attachments])

    def abort(self, error: ProtocolError) -> None:
        """Tell the client what broke the stream, then close."""
        self.server.metrics.connection_errors.inc()
        log.info("closing the connection of %r: %s", self.client_id, error)
        self.send(pb.Envelope(error=error.to_message()))
        self.close()

    def close(self) -> None:
        """Close once what was sent has left, or the client has taken nothing of it for too long."""
        if self._transport is not None:
            self._transport.close()
            if self._stall_timer is None:
                self._watch_stall()

    def cut_off(self) -> None:
        """Close now, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    # --- inside ----------------------------------------------------------------------------------------

    def _admit(self, envelope: pb.Envelope, attachment_bytes: int) -> bool:
        """Count a request in before memory is taken for its attachment, or answer it and decline."""
        size_bytes = attachment_bytes
        if self._receiver.envelope_bytes > SMALL_ENVELOPE_BYTES:
            size_bytes += self._receiver.envelope_bytes
        if self.inbox is not None:
            if envelope.correlation_id == 0:
                return self.inbox.admit(size_bytes)
            left_bytes = self._in_flight_bytes_max - self._in_flight_bytes
            full = self._requests >= FORWARDED_IN_FLIGHT_MAX or bool(self._in_flight_bytes and size_bytes > left_bytes)
        else:
            full = False
        if full or not self.server.budget.admit(size_bytes):
            self.server.metrics.declined.inc()
            error = ProtocolError(
                pb.OVERLOADED,
                "the node has all the requests it can hold; send again",
                retry_after_ms=OVERLOADED_RETRY_MS,
            )
            self.send(pb.Envelope(correlation_id=envelope.correlation_id, error=error.to_message()))
            return False
        self._requests += 1
        self._in_flight_bytes += size_bytes
        self._arriving_bytes = size_bytes
        return True

    def _give_back(self, size_bytes: int) -> None:
        self._requests -= 1
        self._in_flight_bytes -= size_bytes
        self.server.budget.give_back(size_bytes)

    def _balance_reading(self) -> None:
        """Read from the client only while there is room for what it may send.

        What has begun to come is let in: its memory is taken, and nothing else would ever finish it.
        """
        if self._transport is None or self._transport.is_closing():
            return
        has_room = self.inbox is not None or (
            self._requests < self._requests_max and self._in_flight_bytes < self._in_flight_bytes_max
        )
        wanted = self._writable.is_set() and (has_room or self._arriving_bytes is not None)
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _watch_stall(self) -> None:
        """Cut the client off when its backlog has not shrunk for the whole time."""
        assert self._transport is not None
        self._unsent_bytes = self._transport.get_write_buffer_size()
        delay_s = self.server.settings.write_stall_ms / 1000
        self._stall_timer = asyncio.get_running_loop().call_later(delay_s, self._judge_stall)

    def _judge_stall(self) -> None:
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size() < self._unsent_bytes:
            self._watch_stall()
            return
        log.info("client %r has read nothing for %d ms: cut off", self.client_id, self.server.settings.write_stall_ms)
        self.server.metrics.stalled.inc()
        self._transport.abort()

    def _hello_is_late(self) -> None:
        self.abort(ProtocolError(pb.HELLO_REQUIRED, "no HELLO came in time; open a new connection and greet first"))
