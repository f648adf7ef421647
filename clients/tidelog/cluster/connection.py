"""One TCP connection to a node: frames out, frames in, answers matched to requests.

A thin shell around `FrameReceiver`: an `asyncio.BufferedProtocol`, which asyncio and uvloop both run, with no task
of its own. `request` writes at once and returns a future, so that the producer can send many partitions' batches in
one tick and keep their order; `call` is the comfortable form that waits for its turn. What breaks the connection
(the peer, garbage, close) ends every pending request with an error that says whether its outcome is known.

A peer can be gone without a word: stopped, or behind a cut cable. `silent_s` says for how long an answer has been due
and nothing came; what to do about it is decided by who knows of other nodes (`owner_changes.py`). Keep-alive probes and
a bound on unacknowledged bytes let the kernel end such a connection in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from tidelog.auth.authentication_exchange import NO_CREDENTIALS, AuthenticationExchange, Authenticator
from tidelog.cluster.liveness import Liveness, unsent_in_kernel
from tidelog.cluster.throttle import Throttle
from tidelog.errors import (
    AccessError,
    BadReplyError,
    ClosedError,
    ConnectionLostError,
    NodeUnreachableError,
    QuotaExceededError,
    RequestTimeoutError,
    TidelogError,
    error_of,
    error_of_local,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX, FRAME_BYTES_MAX_BEFORE_HELLO, PROTOCOL_VERSION
from tidelog_proto.process.busy_poll import IdlePoll
from tidelog_proto.tls.stream import NotTlsError, TlsError, open_stream
from tidelog_proto.wire.frame_receiver import FrameReceiver
from tidelog_proto.wire.frames import Frame, encode_frame
from tidelog_proto.wire.gathered_write import JOIN_BYTES_MAX, write_parts
from tidelog_proto.wire.name_resolution import connect_to
from tidelog_proto.wire.pending_requests import PendingRequests, settle

REQUESTS_IN_FLIGHT_MAX: Final = 1024

WRITE_BUFFER_BYTES_HIGH: Final = 4 * 1024 * 1024
WRITE_BUFFER_BYTES_LOW: Final = 1024 * 1024
UNSUBSCRIBE_TIMEOUT_S: Final = 30.0
QUOTA_TIMEOUT_S: Final = 5.0

KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_EVERY_S: Final = 5
UNACKNOWLEDGED_MS_MAX: Final = 30_000
"""How long the kernel waits for the peer's kernel; also for a peer that takes no bytes, so not shorter than a stall."""


Address = tuple[str, int]


Answered = Callable[[Frame | TidelogError], None]
"""Called once with what became of a request."""


class Subscriber(Protocol):
    """Who gets the frames that the node pushes for one subscription."""

    def pushed(self, frame: Frame) -> None:
        """Take a MESSAGE_EVENT or SUBSCRIPTION_ENDED."""

    def connection_lost(self, error: TidelogError) -> None:
        """The connection is gone, and the subscription with it."""


class Connection(asyncio.BufferedProtocol):
    """A greeted connection. Made by `connect`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, *, idle_poll_us: int = 0) -> None:
        self.address = address
        self.greeting = pb.HelloReply()
        self.lost = loop.create_future()
        self._loop = loop
        self._idle_poll = IdlePoll(loop, idle_poll_us)
        self._receiver = FrameReceiver(frame_bytes_max=FRAME_BYTES_MAX_BEFORE_HELLO, admit=_admit)
        self._transport: asyncio.Transport | None = None
        self._error: TidelogError | None = None
        self._requests = PendingRequests(loop, self._late)
        self._heard_at = loop.time()
        self._subscribers: dict[int, Subscriber] = {}
        self._subscription_id = 0
        self._writable = True
        self._waiting: list[asyncio.Future[None]] = []
        self._when_writable: list[Callable[[], None]] = []
        self.liveness: Liveness | None = None
        """Notices that the node is gone while the connection stands; None: requests wait for their time-out."""
        self.throttle: Throttle | None = None
        """What the node has said of this client's quota; None while it has said nothing."""
        self.count_throttled: Callable[[float], None] = lambda _: None
        """Told by how many seconds this client is delayed more."""

    def greeted(self, greeting: pb.HelloReply) -> None:
        """The node has introduced itself: its frames may now have their full size."""
        self.greeting = greeting
        if greeting.produce_bytes:
            self._throttled().greeted(greeting.produce_bytes)
        self._receiver.frame_bytes_max = FRAME_BYTES_MAX

    # ------------------------------------------------------------------------------------------- requests

    @property
    def name(self) -> str:
        """Its node, as HOST:PORT."""
        return _name(self.address)

    @property
    def closed(self) -> bool:
        """Whether the connection is gone or going, also where asyncio has yet to say so."""
        return self._error is not None or (self._transport is not None and self._transport.is_closing())

    @property
    def ready(self) -> bool:
        """Whether a request can be written right now."""
        return self._writable and len(self._requests.waiting) < REQUESTS_IN_FLIGHT_MAX and not self.closed

    @property
    def quiet_s(self) -> float:
        """For how long nothing at all has come, in seconds."""
        return self._loop.time() - self._heard_at

    @property
    def unsent_bytes(self) -> int:
        """How much was written that the other side's kernel has not taken."""
        if self._transport is None:
            return 0
        in_kernel = unsent_in_kernel(self._transport.get_extra_info("socket"))
        return self._transport.get_write_buffer_size() + in_kernel

    @property
    def silent_s(self) -> float:
        """For how long an answer has been due while nothing at all came, in seconds; 0 when nothing is due."""
        due_at = self._requests.due_at
        return 0.0 if due_at is None else max(0.0, min(self.quiet_s, self._loop.time() - due_at))

    def request(
        self,
        envelope: pb.Envelope,
        attachment: Sequence[Any] = (),
        *,
        attachment_bytes: int = 0,
        timeout_s: float,
        wait_s: float = 0.0,
    ) -> asyncio.Future[Frame]:
        """As `ask`, with the future of the answer instead of a callback."""
        future: asyncio.Future[Frame] = self._loop.create_future()
        self.ask(
            envelope,
            attachment,
            attachment_bytes=attachment_bytes,
            timeout_s=timeout_s,
            wait_s=wait_s,
            answered=partial(settle, future),
        )
        return future

    def ask(
        self,
        envelope: pb.Envelope,
        attachment: Sequence[Any] = (),
        *,
        attachment_bytes: int = 0,
        timeout_s: float,
        wait_s: float = 0.0,
        answered: Answered,
    ) -> None:
        """Write a request now.

        Args:
            envelope: with a kind; its correlation id is set here.
            attachment: parts (anything with the buffer protocol) that are sent behind it.
            attachment_bytes: the sum of their lengths.
            timeout_s: after this the answer is a RequestTimeoutError.
            wait_s: how long the node was asked to hold the answer back; part of `timeout_s`.
            answered: called where the answer is received, without a turn of the loop in between; it must not raise.

        Raises:
            TidelogError: the connection is gone, or the frame breaks a limit; nothing was sent.
        """
        if self.closed:
            why = self._error or "the connection broke"
            raise NodeUnreachableError(f"the connection to {_name(self.address)} is closed: {why}")
        envelope.correlation_id = self._requests.last_id + 1
        self._write(envelope, attachment, attachment_bytes)
        self._requests.add(answered, timeout_s=timeout_s, wait_s=wait_s)
        self._idle_poll.waits(attachment_bytes)

    async def call(self, envelope: pb.Envelope, *, timeout_s: float, wait_s: float = 0.0) -> Frame:
        """Send a request as soon as there is room and return its answer.

        Raises:
            TidelogError: what the node answered, or what became of the connection.
        """
        while not self.ready and not self.closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await asyncio.wait_for(waiter, timeout_s)
            except TimeoutError:
                raise RequestTimeoutError(
                    f"{_name(self.address)} took nothing for {timeout_s:g} s; nothing was sent", definite=True
                ) from None
        answer = self.request(envelope, timeout_s=timeout_s, wait_s=wait_s)
        return await self.outcome(str(envelope.WhichOneof("kind")), answer, wait_s=wait_s)

    async def outcome(self, kind: str, answer: asyncio.Future[Frame], *, wait_s: float = 0.0) -> Frame:
        """Return the answer to a request of a kind that was written, unless the node is lost meanwhile.

        Raises:
            TidelogError: as `call`.
        """
        return await (answer if self.liveness is None else self.liveness.watch(kind, answer, wait_s=wait_s))

    def send(self, envelope: pb.Envelope) -> None:
        """Write a message that has no answer. A closed connection swallows it: its loss is reported elsewhere."""
        if not self.closed:
            self._write(envelope, (), 0)

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `ready` is worth asking again (or the connection is gone)."""
        self._when_writable.append(callback)

    def new_subscription_id(self) -> int:
        """Return a subscription id that this connection has not used."""
        self._subscription_id += 1
        return self._subscription_id

    def subscribe(self, subscription_id: int, subscriber: Subscriber) -> None:
        """Hand on what the node pushes for a subscription."""
        self._subscribers[subscription_id] = subscriber

    def unsubscribe(self, subscription_id: int) -> None:
        """End a subscription: tell the node, and drop what it still pushes."""
        if self._subscribers.pop(subscription_id, None) is not None and not self.closed:
            envelope = pb.Envelope(unsubscribe=pb.Unsubscribe(subscription_id=subscription_id))
            self.request(envelope, timeout_s=UNSUBSCRIBE_TIMEOUT_S)  # whatever the answer is, nothing is left to do

    def close(self, error: TidelogError | None = None) -> None:
        """Close; whatever is pending ends with `error`."""
        if self._error is None:
            self._error = error or ClosedError("the connection was closed by this client", definite=False)
        if self._transport is None:
            self._set_lost(self._error)
        elif error is not None or self._transport.get_write_buffer_size():
            self._transport.abort()  # a peer that does not read must not hold this side up
        else:
            self._transport.close()
        self._finish(self._error)

    # ------------------------------------------------------------------------------------------- protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio calls this when the connection stands."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH, low=WRITE_BUFFER_BYTES_LOW)
        _detect_dead_peers(self._transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the signature is asyncio's
        """Asyncio asks where to receive to."""
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Asyncio says that `nbytes` were received."""
        if self._error is not None:
            return
        self._heard_at = self._loop.time()
        if self._receiver.goes_on(nbytes):
            return
        self._idle_poll.came()
        try:
            whole = self._receiver.whole(nbytes)
            if whole is not None:
                self._handle(whole)
                return
            for frame in self._receiver.received(nbytes):
                self._handle(frame)
        except ProtocolError as error:
            self.close(BadReplyError(f"{_name(self.address)} does not speak Tidelog's protocol: {error}"))

    def pause_writing(self) -> None:
        """Asyncio says that the write buffer is full."""
        self._writable = False

    def resume_writing(self) -> None:
        """Asyncio says that there is room again."""
        self._writable = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio says that the connection is gone."""
        if self._error is None:
            why = f": {exc}" if exc else ""
            self._error = ConnectionLostError(f"{_name(self.address)} closed the connection{why}")
        self._transport = None  # asyncio's cannot always be asked anything any more
        self._set_lost(self._error)
        self._finish(self._error)

    # ------------------------------------------------------------------------------------------ internals

    def _write(self, envelope: pb.Envelope, attachment: Sequence[Any], attachment_bytes: int) -> None:
        assert self._transport is not None, "requests follow connection_made"
        try:
            head = encode_frame(envelope, attachment_bytes)
        except ProtocolError as error:
            raise error_of_local(error) from error
        if attachment_bytes > JOIN_BYTES_MAX:
            write_parts(self._transport, [head, *attachment])
        else:
            self._transport.write(b"".join([head, *attachment]))

    def _handle(self, frame: Frame) -> None:
        envelope = frame.envelope
        correlation_id = envelope.correlation_id
        if envelope.throttle_ms:
            self._throttled().heard(envelope, envelope.throttle_ms)
        if correlation_id == 0:
            self._push(frame)
            return
        pending = self._requests.waiting.pop(correlation_id, None)
        if pending is None:
            if correlation_id > self._requests.last_id:
                raise ProtocolError(pb.MALFORMED_FRAME, f"an answer to request {correlation_id}, which was never made")
            return  # the answer to a request that timed out
        is_error = frame.envelope.WhichOneof("kind") == "error"
        pending.answered(error_of(frame.envelope.error, self.name) if is_error else frame)
        if len(self._requests.waiting) == REQUESTS_IN_FLIGHT_MAX - 1:
            self._wake()

    def _throttled(self) -> Throttle:
        if self.throttle is None:
            count = lambda more_s: self.count_throttled(more_s)  # noqa: E731, PLW0108 - it is set later
            self.throttle = Throttle(self._loop, self.name, count, ask=self._ask_how_long)
        return self.throttle

    def _ask_how_long(self) -> None:
        """Ask what the client's quota is by now: another HELLO changes nothing else."""
        again = pb.Envelope(hello=pb.Hello(version=PROTOCOL_VERSION))
        with contextlib.suppress(TidelogError):  # then it is gone, and whoever waits looks for another one
            self.ask(again, timeout_s=QUOTA_TIMEOUT_S, answered=self._told_how_long)

    def _told_how_long(self, answer: Frame | TidelogError) -> None:
        if not isinstance(answer, TidelogError):
            self._throttled().greeted(answer.envelope.hello_reply.produce_bytes)
            self._throttled().heard(answer.envelope, answer.envelope.throttle_ms)

    def _push(self, frame: Frame) -> None:
        kind = frame.envelope.WhichOneof("kind")
        if kind == "error":  # the node says why it is about to close
            self.close(self._ended_by(error_of(frame.envelope.error, self.name)))
            return
        if kind == "message_event":
            subscriber = self._subscribers.get(frame.envelope.message_event.subscription_id)
        elif kind == "subscription_ended":
            subscriber = self._subscribers.get(frame.envelope.subscription_ended.subscription_id)
        else:
            raise ProtocolError(pb.UNKNOWN_KIND, f"a push of kind {kind}")
        if subscriber is not None:
            subscriber.pushed(frame)

    def _ended_by(self, error: TidelogError) -> TidelogError:
        """Return what pending requests end with.

        That a session ended says nothing of what was under way: it may have been done. Who is still welcome connects
        anew with what it has to show by now; who is not hears that there. Before there is a session, it is final.
        """
        if not self.greeting.node_id:
            return error
        if isinstance(error, AccessError):
            return ConnectionLostError(f"{self.name} ended the session: {error}")
        error.definite = False  # it speaks of the connection, not of what was asked before on it
        return error

    def _late(self, timeout_s: float) -> TidelogError:
        return RequestTimeoutError(f"no answer from {_name(self.address)} within {timeout_s:g} s")

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        callbacks, self._when_writable = self._when_writable, []
        for callback in callbacks:
            callback()

    def _finish(self, error: TidelogError) -> None:
        self._requests.end(error)
        subscribers, self._subscribers = self._subscribers, {}
        for subscriber in subscribers.values():
            subscriber.connection_lost(error)
        self._wake()
        if self.throttle is not None:
            self.throttle.close()

    def _set_lost(self, error: TidelogError) -> None:
        if not self.lost.done():
            self.lost.set_result(error)


async def connect(
    address: Address,
    *,
    client_id: str,
    software: str,
    timeout_s: float,
    idle_poll_us: int = 0,
    authenticator: Authenticator = NO_CREDENTIALS,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Connect to a node and exchange greetings; see `IdlePoll` for `idle_poll_us`.

    Args:
        address: of the node.
        client_id: what the node's log calls the client.
        software: the same, of what it runs.
        timeout_s: for all of it.
        idle_poll_us: see `IdlePoll`.
        authenticator: how the client shows who it is.
        tls: how the connection is encrypted; None: it is not.

    Raises:
        NodeUnreachableError: refused, unresolvable, or nothing that greets back in time.
        InvalidRequestError, AccessError: the node does not want this client.
    """
    loop = asyncio.get_running_loop()
    hello = pb.Hello(version=PROTOCOL_VERSION, client_id=client_id, software=software)
    exchange = await _begin_exchange(authenticator, timeout_s)
    hello.credentials.CopyFrom(exchange.credentials)
    connection = Connection(loop, address, idle_poll_us=idle_poll_us)
    try:
        async with asyncio.timeout(timeout_s):
            await open_stream(
                connection,
                tls,
                address[0],
                timeout_s=timeout_s,
                connect=lambda protocol: connect_to(protocol, *address),
            )
            frame = await connection.request(pb.Envelope(hello=hello), timeout_s=timeout_s)
            if frame.envelope.WhichOneof("kind") == "hello_challenge":
                hello.credentials.CopyFrom(await exchange.answer(frame.envelope.hello_challenge))
                frame = await connection.request(pb.Envelope(hello=hello), timeout_s=timeout_s)
            if frame.envelope.WhichOneof("kind") == "hello_reply":
                exchange.check(frame.envelope.hello_reply)
    except TlsError as error:
        why = f"no encrypted connection to {_name(address)}: {error}"
        if isinstance(error, NotTlsError):
            why += "; connect without TLS, or to another port"
        connection.close(NodeUnreachableError(why))
        raise NodeUnreachableError(why) from error
    except (OSError, TimeoutError, UnicodeError) as error:
        connection.close(NodeUnreachableError(f"{_name(address)}: {error}"))
        what = str(error) or f"no connection within {timeout_s:g} s"
        raise NodeUnreachableError(f"cannot connect to {_name(address)}: {what}; is the node running?") from error
    except (BadReplyError, ConnectionLostError, RequestTimeoutError) as error:
        connection.close(error)
        raise NodeUnreachableError(f"no greeting from {_name(address)}: {error}") from error
    except QuotaExceededError as error:  # of connections: a moment later there may be fewer
        connection.close()
        error.retriable = True
        raise
    except BaseException:
        connection.close()
        raise
    if frame.envelope.WhichOneof("kind") != "hello_reply" or frame.envelope.hello_reply.version != PROTOCOL_VERSION:
        bad = BadReplyError(f"{_name(address)} answered the greeting with something else")
        connection.close(bad)
        raise bad
    connection.greeted(frame.envelope.hello_reply)
    return connection


async def _begin_exchange(authenticator: Authenticator, timeout_s: float) -> AuthenticationExchange:
    """Return what is to be exchange. It is got before a connection is made, which would have to wait for it."""
    try:
        async with asyncio.timeout(timeout_s):
            return await authenticator.shown()
    except TimeoutError:
        raise NodeUnreachableError(f"no credentials to connect with were given within {timeout_s:g} s") from None


def _admit(envelope: pb.Envelope, attachment_bytes: int) -> bool:  # noqa: ARG001 - the receiver's interface
    """Take every attachment: what a node sends is what this client asked for, bounded by its requests and credits."""
    return True


def _detect_dead_peers(sock: socket.socket | None) -> None:
    """Let the kernel notice a peer machine that is gone without a word."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX),
    ):
        if hasattr(socket, name):  # Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _name(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
