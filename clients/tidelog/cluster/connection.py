"""A TCP connection to a node: sends and receives frames, and matches answers to requests.

Built on `FrameReceiver`, an `asyncio.BufferedProtocol` that runs on asyncio and uvloop, without a task of its own.
`request` writes immediately and returns a future, so that the producer can send the batches of many partitions in one
iteration of the event loop and in order; `call` waits until the connection is `ready`. When the connection is closed
(by the peer, by this client, or because of invalid data), every pending request fails with an error whose `definite`
states whether the outcome is known.

A peer can die silently: stopped, or with a cut cable. `silent_s` reports how long an answer has been due without any
byte; `owner_changes.py`, which knows other nodes, acts on it. TCP keep-alive and a limit on unacknowledged bytes let
the kernel close such a connection eventually.
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
from tidelog_proto.hello_features import TYPED_TOPICS
from tidelog_proto.limits import FRAME_BYTES_MAX, FRAME_BYTES_MAX_BEFORE_HELLO, PROTOCOL_VERSION
from tidelog_proto.process.busy_poll import IdlePoll
from tidelog_proto.tls.stream import NotTlsError, TlsError, open_stream
from tidelog_proto.wire.frame_receiver import FrameReceiver
from tidelog_proto.wire.frames import JOIN_BYTES_MAX, Frame, encode_frame, write_parts
from tidelog_proto.wire.name_resolution import connect_to
from tidelog_proto.wire.pending_requests import PendingRequests, settle
from tidelog_proto.wire.pushed_events import PushedEvent, event_of

REQUESTS_IN_FLIGHT_MAX: Final = 1024

WRITE_BUFFER_BYTES_HIGH: Final = 4 * 1024 * 1024
WRITE_BUFFER_BYTES_LOW: Final = 1024 * 1024
UNSUBSCRIBE_TIMEOUT_S: Final = 30.0
QUOTA_TIMEOUT_S: Final = 5.0

KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_EVERY_S: Final = 5
UNACKNOWLEDGED_MS_MAX: Final = 30_000
"""Time after which the kernel closes a connection whose peer does not acknowledge sent bytes (TCP_USER_TIMEOUT).

It also applies to a peer that only stops reading, so it must be longer than a stall that a node may have.
"""


Address = tuple[str, int]


Answered = Callable[[Frame | TidelogError], None]
"""Called once with the outcome of a request."""


class Subscriber(Protocol):
    """Receives the frames that a node pushes for one subscription, and the loss of their connection."""

    def pushed(self, event: PushedEvent) -> None:
        """Handle a MESSAGE_EVENT of the subscription."""

    def ended(self, ended: pb.SubscriptionEnded) -> None:
        """Handle the end of a partition of the subscription."""

    def connection_lost(self, error: TidelogError) -> None:
        """End the subscription, because its connection is lost."""


class Connection(asyncio.BufferedProtocol):
    """Sends requests to one node, and passes answers and pushed frames to callbacks and subscribers.

    Created by `connect`, which also exchanges HELLO.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, *, idle_poll_us: int = 0) -> None:
        self.address = address
        self.greeting = pb.HelloReply()
        self.lost = loop.create_future()
        self._loop = loop
        self._idle_poll = IdlePoll(loop, idle_poll_us)
        self._polls = idle_poll_us > 0
        # All attachments are admitted: this client's requests and credits bound their sizes.
        self._receiver = FrameReceiver(frame_bytes_max=FRAME_BYTES_MAX_BEFORE_HELLO)
        self.get_buffer = self._receiver.buffer  # type: ignore[method-assign]  # saves a call for each frame
        self._transport: asyncio.Transport | None = None
        self._error: TidelogError | None = None
        self._requests = PendingRequests(loop, self._timeout_error)
        self._heard_at = loop.time()
        self._subscribers: dict[int, Subscriber] = {}
        self._subscription_id = 0
        self._writable = True
        self._waiting: list[asyncio.Future[None]] = []
        self._when_writable: list[Callable[[], None]] = []
        self.liveness: Liveness | None = None
        """Detects a dead node while the connection is open; None: requests wait for their time-out."""
        self.throttle: Throttle | None = None
        """Delays publishes according to the quota of this client; None until the node reports a quota."""
        self.count_throttled: Callable[[float], None] = lambda _: None
        """Called with the seconds by which the delay that the node's quota requires has grown."""

    def greeted(self, greeting: pb.HelloReply) -> None:
        """Store the node's HELLO reply and allow frames of full size."""
        self.greeting = greeting
        if greeting.produce_bytes:
            self._throttled().greeted(greeting.produce_bytes)
        self._receiver.frame_bytes_max = FRAME_BYTES_MAX

    # ------------------------------------------------------------------------------------------- requests

    @property
    def name(self) -> str:
        """The node as HOST:PORT."""
        return _name(self.address)

    @property
    def closed(self) -> bool:
        """Whether the connection is closed or closing; it may be closing before asyncio calls `connection_lost`."""
        return self._error is not None or (self._transport is not None and self._transport.is_closing())

    @property
    def ready(self) -> bool:
        """Whether a request can be written immediately."""
        return (
            self._writable
            and self._error is None
            and len(self._requests.waiting) < REQUESTS_IN_FLIGHT_MAX
            and (self._transport is None or not self._transport.is_closing())
        )

    @property
    def quiet_s(self) -> float:
        """Seconds since the last byte was received."""
        return self._loop.time() - self._heard_at

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were written and that the peer's kernel has not acknowledged."""
        if self._transport is None:
            return 0
        in_kernel = unsent_in_kernel(self._transport.get_extra_info("socket"))
        return self._transport.get_write_buffer_size() + in_kernel

    @property
    def silent_s(self) -> float:
        """Seconds for which an answer has been due without any byte received; 0 if no answer is due."""
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
        """Write a request as `ask` does, and return the future of its answer."""
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
        """Write a request immediately.

        Args:
            envelope: the request; its correlation id is set here.
            attachment: buffers that are sent after the envelope.
            attachment_bytes: total length of the attachment.
            timeout_s: time without an answer after which the outcome is a RequestTimeoutError.
            wait_s: how long the node was asked to hold the answer back; included in `timeout_s`.
            answered: called once with the answer, or with the error instead of an answer; must not raise.

        Raises:
            TidelogError: the connection is closed, or the frame exceeds a limit; nothing was sent.
        """
        if self._error is not None or (self._transport is not None and self._transport.is_closing()):
            why = self._error or "it was lost"
            raise NodeUnreachableError(f"the connection to {_name(self.address)} is closed: {why}")
        envelope.correlation_id = self._requests.last_id + 1
        self._write(envelope, attachment, attachment_bytes)
        self._requests.add(answered, timeout_s=timeout_s, wait_s=wait_s)
        if self._polls:
            self._idle_poll.waits(attachment_bytes)

    async def call(self, envelope: pb.Envelope, *, timeout_s: float, wait_s: float = 0.0) -> Frame:
        """Send a request as soon as the connection is `ready`, and return its answer.

        Raises:
            TidelogError: the node's error, or the reason why the connection ended.
        """
        while not self.ready and not self.closed:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            try:
                await asyncio.wait_for(waiter, timeout_s)
            except TimeoutError:
                is_full = len(self._requests.waiting) >= REQUESTS_IN_FLIGHT_MAX
                why = f"left {REQUESTS_IN_FLIGHT_MAX} earlier requests unanswered" if is_full else "accepted no data"
                raise RequestTimeoutError(
                    f"the request was not sent: for {timeout_s:g} s, {self.name} {why}", definite=True
                ) from None
        answer = self.request(envelope, timeout_s=timeout_s, wait_s=wait_s)
        return await self.outcome(str(envelope.WhichOneof("kind")), answer, wait_s=wait_s)

    async def outcome(self, kind: str, answer: asyncio.Future[Frame], *, wait_s: float = 0.0) -> Frame:
        """Return the answer to a request that was written, or fail when the node is lost.

        Raises:
            TidelogError: as `call`.
        """
        return await (answer if self.liveness is None else self.liveness.watch(kind, answer, wait_s=wait_s))

    def send(self, envelope: pb.Envelope) -> None:
        """Write a message that has no answer.

        On a closed connection the message is dropped; `connection_lost` reports the loss.
        """
        if not self.closed:
            self._write(envelope, (), 0)

    def when_ready(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when `ready` may have changed or the connection is lost."""
        self._when_writable.append(callback)

    def new_subscription_id(self) -> int:
        """Return a subscription id that is unused on this connection."""
        self._subscription_id += 1
        return self._subscription_id

    def subscribe(self, subscription_id: int, subscriber: Subscriber) -> None:
        """Route pushed frames of a subscription to a subscriber."""
        self._subscribers[subscription_id] = subscriber

    def unsubscribe(self, subscription_id: int) -> None:
        """End a subscription at the node, and drop frames that it still pushes."""
        if self._subscribers.pop(subscription_id, None) is not None and not self.closed:
            envelope = pb.Envelope(unsubscribe=pb.Unsubscribe(subscription_id=subscription_id))
            self.request(envelope, timeout_s=UNSUBSCRIBE_TIMEOUT_S)  # the answer is irrelevant

    def close(self, error: TidelogError | None = None) -> None:
        """Close the connection; pending requests fail with `error`, by default a ClosedError."""
        if self._error is None:
            self._error = error or ClosedError("the connection was closed by this client", definite=False)
        if self._transport is None:
            self._set_lost(self._error)
        elif error is not None or self._transport.get_write_buffer_size():
            self._transport.abort()  # A graceful close would wait for a peer that does not read.
        else:
            self._transport.close()
        self._finish(self._error)

    # ------------------------------------------------------------------------------------------- protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement `asyncio.BaseProtocol`: the connection is established."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_HIGH, low=WRITE_BUFFER_BYTES_LOW)
        _detect_dead_peers(self._transport.get_extra_info("socket"))

    def buffer_updated(self, nbytes: int) -> None:
        """Implement `asyncio.BufferedProtocol`: process `nbytes` received bytes."""
        if self._error is not None:
            return
        self._heard_at = self._loop.time()
        if self._receiver.incomplete is not None and self._receiver.goes_on(nbytes):
            return
        if self._polls:
            self._idle_poll.came()
        try:
            if self._subscribers:
                event = self._receiver.event(nbytes)
                if event is not None:
                    subscriber = self._subscribers.get(event[0])
                    if subscriber is not None:
                        subscriber.pushed(event)
                    return
            whole = self._receiver.whole(nbytes)
            if whole is not None:
                self._handle(whole)
                return
            for frame in self._receiver.received(nbytes):
                self._handle(frame)
        except ProtocolError as error:
            self.close(BadReplyError(f"{_name(self.address)} violated Tidelog's protocol: {error}"))

    def pause_writing(self) -> None:
        """Implement `asyncio.BaseProtocol`: the write buffer is full."""
        self._writable = False

    def resume_writing(self) -> None:
        """Implement `asyncio.BaseProtocol`: the write buffer has room again."""
        self._writable = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement `asyncio.BaseProtocol`: the connection is closed."""
        if self._error is None:
            why = f": {exc}" if exc else ""
            self._error = ConnectionLostError(f"{_name(self.address)} closed the connection{why}")
        self._transport = None  # A closed transport of asyncio may raise on any call.
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
            kind = envelope.WhichOneof("kind")
            if kind == "message_event":
                event = envelope.message_event
                subscriber = self._subscribers.get(event.subscription_id)
                if subscriber is not None:
                    subscriber.pushed(event_of(event, frame.attachment))
            else:
                self._push(kind, frame)
            return
        pending = self._requests.waiting.pop(correlation_id, None)
        if pending is None:
            if correlation_id > self._requests.last_id:
                raise ProtocolError(
                    pb.MALFORMED_FRAME, f"received an answer to request {correlation_id}, which was never sent"
                )
            return  # Ignored: the request has timed out.
        is_error = frame.envelope.WhichOneof("kind") == "error"
        pending.answered(error_of(frame.envelope.error, self.name) if is_error else frame)
        if len(self._requests.waiting) == REQUESTS_IN_FLIGHT_MAX - 1:
            self._wake()

    def _throttled(self) -> Throttle:
        if self.throttle is None:
            count = lambda more_s: self.count_throttled(more_s)  # noqa: E731, PLW0108 - it is set later
            self.throttle = Throttle(self._loop, self.name, count, ask=self._ask_quota)
        return self.throttle

    def _ask_quota(self) -> None:
        """Ask the node for the client's current quota by another HELLO, which changes nothing else."""
        again = pb.Envelope(hello=pb.Hello(version=PROTOCOL_VERSION))
        with contextlib.suppress(TidelogError):  # If the connection is closed, its waiters are resumed anyway.
            self.ask(again, timeout_s=QUOTA_TIMEOUT_S, answered=self._quota_answered)

    def _quota_answered(self, answer: Frame | TidelogError) -> None:
        if not isinstance(answer, TidelogError):
            self._throttled().greeted(answer.envelope.hello_reply.produce_bytes)
            self._throttled().heard(answer.envelope, answer.envelope.throttle_ms)

    def _push(self, kind: str | None, frame: Frame) -> None:
        """Process a pushed frame other than a MESSAGE_EVENT."""
        if kind == "error":  # The reason why the node is about to close the connection.
            self.close(self._ended_by(error_of(frame.envelope.error, self.name)))
            return
        if kind != "subscription_ended":
            raise ProtocolError(
                pb.UNKNOWN_KIND,
                f"received {kind!r} without a correlation id; only message_event, subscription_ended and error may "
                "omit it",
            )
        ended = frame.envelope.subscription_ended
        subscriber = self._subscribers.get(ended.subscription_id)
        if subscriber is not None:
            subscriber.ended(ended)

    def _ended_by(self, error: TidelogError) -> TidelogError:
        """Return the error of pending requests when the node closes the connection with `error`.

        The end of a session leaves their outcome unknown. A retry reconnects with current credentials and gets the
        node's decision. Before the session began, the error is final.
        """
        if not self.greeting.node_id:
            return error
        if isinstance(error, AccessError):
            return ConnectionLostError(f"{self.name} ended the session: {error}")
        error.definite = False  # The error is about the connection, not about the pending requests.
        return error

    def _timeout_error(self, timeout_s: float) -> TidelogError:
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
    """Connect to a node, authenticate and exchange HELLO.

    Args:
        client_id: name of the client in the node's logs.
        software: name and version of the client software, for the node's logs.
        timeout_s: time limit of connecting and of the HELLO exchange together.
        idle_poll_us: see `IdlePoll`.
        tls: TLS context; None for no encryption.

    Raises:
        NodeUnreachableError: the connection is refused, the host name cannot be resolved, the TLS handshake fails, no
            HELLO reply arrives in time, or the function that returns the credentials fails.
        BadReplyError: the node answers HELLO with another message or version.
        InvalidRequestError: the credentials are missing or unusable.
        TidelogError: the node refuses this client; an AccessError if because of its credentials.
    """
    loop = asyncio.get_running_loop()
    hello = pb.Hello(version=PROTOCOL_VERSION, client_id=client_id, software=software, features=[TYPED_TOPICS])
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
        why = f"TLS handshake with {_name(address)} failed: {error}"
        if isinstance(error, NotTlsError):
            why += "; connect without TLS or to another port"
        connection.close(NodeUnreachableError(why))
        raise NodeUnreachableError(why) from error
    except (OSError, TimeoutError, UnicodeError) as error:
        connection.close(NodeUnreachableError(f"{_name(address)}: {error}"))
        what = str(error) or f"no connection within {timeout_s:g} s"
        raise NodeUnreachableError(
            f"cannot connect to {_name(address)}: {what}; is the node running, and is the address correct?"
        ) from error
    except (BadReplyError, ConnectionLostError, RequestTimeoutError) as error:
        connection.close(error)
        raise NodeUnreachableError(
            f"no HELLO reply from {_name(address)}: {error}; is it a Tidelog node, and does it require TLS?"
        ) from error
    except QuotaExceededError as error:  # The quota of connections is exhausted; a retry succeeds once another closes.
        connection.close()
        error.retriable = True
        raise
    except BaseException:
        connection.close()
        raise
    if frame.envelope.WhichOneof("kind") != "hello_reply" or frame.envelope.hello_reply.version != PROTOCOL_VERSION:
        bad = BadReplyError(
            f"{_name(address)} answered HELLO with another message or version; is it a Tidelog node "
            f"of a supported release?"
        )
        connection.close(bad)
        raise bad
    connection.greeted(frame.envelope.hello_reply)
    return connection


async def _begin_exchange(authenticator: Authenticator, timeout_s: float) -> AuthenticationExchange:
    """Begin the authentication exchange; done before connecting, so that no open connection waits for credentials."""
    try:
        async with asyncio.timeout(timeout_s):
            return await authenticator.shown()
    except TimeoutError:
        raise NodeUnreachableError(
            f"the function that provides the credentials did not return within {timeout_s:g} s; make it return sooner, "
            "for example from a cache, or raise request_timeout_s if it is below 10 s"
        ) from None


def _detect_dead_peers(sock: socket.socket | None) -> None:
    """Enable TCP keep-alive and TCP_USER_TIMEOUT, to detect a dead peer machine."""
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_EVERY_S),
        ("TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS_MAX),
    ):
        if hasattr(socket, name):  # only Linux has all of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _name(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
