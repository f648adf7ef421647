"""One client connection: frames in, dispatch, replies out, with a limit on every resource that it uses.

- Requests in flight, in number and in bytes: at the connection's limits the node stops reading from it. At the *node's*
  limit a request with an attachment is declined before memory is allocated, and one with a large envelope before it is
  queued, with a retriable OVERLOADED. Clients that announce large frames and stop sending are closed then.
- Unsent replies: at the limit nothing more is read from the client or pushed to it, and a client that reads nothing for
  `write_stall_ms` is closed; the unsent bytes of all clients together are limited too (`send_budget`).
- Read turns: a caller that has sent much waits for its next turn, so that other callers do not wait (`read_turns`).
- Quotas: usage is counted in the client's account, which may pause the connection (`quota_account`).
- HELLO has to be the first request, within `hello_timeout_ms` and in a small frame.

A connection of another node authenticates instead (`server/handlers/peers.py`) and is treated differently: its one-way
messages go to an inbox, and a request that exceeds the budget is declined. No in-flight limit stops the node from
reading, because the next messages may be acknowledgements that end an overload.

A malformed stream is answered by an error with correlation id 0, and the connection closes, because nothing after that
point can be parsed reliably. An invalid request gets its error, and the connection stays open.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from tidelog_broker.core.peer_auth import Challenge
from tidelog_broker.core.security.login import Login
from tidelog_broker.core.security.session import Session
from tidelog_broker.wire.budget import SMALL_ENVELOPE_BYTES, overloaded
from tidelog_broker.wire.caller_shares import CallerShares
from tidelog_broker.wire.connection_host import ConnectionHost, SubscriptionPump
from tidelog_broker.wire.frame_admission import FrameAdmission
from tidelog_broker.wire.one_way import Inbox
from tidelog_broker.wire.quota_account import Account
from tidelog_broker.wire.read_turns import ENVELOPE_WEIGHT, REQUEST_BYTES, TURN_BYTES, ReadTurn, RemainingWork
from tidelog_broker.wire.send_budget import SendBacklog
from tidelog_broker.wire.sockets import peer_has_closed, tune
from tidelog_broker.wire.stall_watch import StallWatch, stall_reason
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FORWARDED_IN_FLIGHT_MAX, FRAME_BYTES_MAX_BEFORE_HELLO
from tidelog_proto.printable import printable
from tidelog_proto.tls.certificate_names import names_in
from tidelog_proto.wire.frame_receiver import DECLINED, FrameReceiver
from tidelog_proto.wire.frames import JOIN_BYTES_MAX, Frame, encode_frame, write_parts

log = logging.getLogger(__name__)

SESSION_S_MAX: Final = 30 * 24 * 3600.0
"""Longest session with credentials that expire, even if they last longer: asyncio timers cannot span years."""
_NOTHING: Final = memoryview(b"")


class Request:
    """A request in progress. It is answered exactly once, which releases its bytes."""

    __slots__ = ("account", "answered", "attachment", "connection", "end_span", "envelope", "on_answer", "session",
                 "size_bytes", "work_us")  # fmt: skip

    def __init__(self, connection: Connection, frame: Frame, size_bytes: int) -> None:
        self.connection = connection
        self.size_bytes = size_bytes
        """Bytes of the request that are counted in the budgets."""
        self.work_us = 0
        """Charged event-loop time in microseconds; see `Server.dispatch`."""
        self.envelope = frame.envelope
        self.attachment = frame.attachment
        self.session: Session | None = None
        """The session of its caller, once known; None if clients are not authenticated."""
        self.account: Account | None = None
        """The account of the gateway's caller while the request is unanswered; None if no gateway sent the request."""
        self.answered = False
        self.end_span: Callable[[pb.Envelope], None] | None = None  # Set if the request has a trace span.
        self.on_answer: Callable[[pb.Envelope], None] | None = None  # Called with the answer when it is sent.

    @property
    def is_of_node(self) -> bool:
        """Whether another node sent the request for itself, not for one of its callers.

        With `auth = none` requests have no caller, so a forwarded client request is indistinguishable from the node's
        own.
        """
        return self.connection.peer_id is not None and not self.envelope.HasField("caller")

    @property
    def payer(self) -> object:
        """The key by which schedulers share turns and slots fairly: the caller's account, or else the connection."""
        return self.account or self.connection.account or self.connection

    def reply(self, envelope: pb.Envelope, attachments: list[memoryview] | None = None) -> None:
        """Send the answer, with the request's correlation id."""
        assert not self.answered, "a request must be answered exactly once"
        self.answered = True
        if self.on_answer is not None:
            self.on_answer(envelope)
        if self.end_span is not None:
            self.end_span(envelope)
        envelope.correlation_id = self.envelope.correlation_id
        self.connection.finish(self, envelope, attachments or ())

    def drop(self) -> None:
        """Release a request that needs no answer."""
        assert not self.answered
        self.answered = True
        self.connection.release(self)

    def fail(self, error: ProtocolError) -> None:
        """Answer with an error."""
        self.reply(pb.Envelope(error=error.to_message()))


class Connection(asyncio.BufferedProtocol):
    """A connection of a client or a node. The server makes one per accepted socket."""

    shares: CallerShares | None = None
    """Set once a gateway has sent a request for one of its callers."""
    peer_id: str | None = None
    """The id of the authenticated node at the other end; None for a client."""
    reads_typed = False
    """Whether the client reads typed batches, as it has announced in HELLO."""

    def __init__(self, server: ConnectionHost) -> None:
        self.server = server
        self.greeted = False
        self.greeting = False
        """Whether HELLO is being processed."""
        self.client_id = self.software = ""
        self.login: Login | None = None
        """Set while a password exchange is in progress."""
        self.session: Session | None = None
        """The authenticated client; None if clients are not authenticated."""
        self.account: Account | None = None
        """The account for quotas; `Account.join` sets it after HELLO, as it does the next attributes."""
        self.meter: Account | None = None
        """The same account if it has rate quotas; None otherwise."""
        self._held = False
        """Whether the account has paused this connection."""
        self.turn = ReadTurn()
        """The read turn of the connection's caller, or one of its own as long as it has no account."""
        self._awaits_turn = self._has_begun = self._stays = False
        """Whether the connection waits for its caller's read turn; whether a frame has begun in the data that is being
        parsed; whether received data is parsed when the connection continues."""
        self._kept: Frame | None = None
        """A complete frame that is processed before the received data, once the connection continues."""
        self.rest = RemainingWork()  # Work of the last request; the next one is not dispatched before it is done.
        self._session_timer: asyncio.TimerHandle | None = None
        self.challenge: Challenge | None = None
        """Set while another node has to prove its identity."""
        self.inbox: Inbox | None = None
        """Receives the one-way messages of another node; set once that node has proven its identity."""
        self.backlog = SendBacklog(server.send_budget, self)
        """Bytes that are waiting to be sent."""
        self._stall_watch: StallWatch | None = None
        self.pumps: dict[int, SubscriptionPump] = {}
        self.followed = 0
        """Number of partitions that the connection's subscriptions follow."""
        self.closed_listeners: set[Callable[[], None]] = set()
        """Called when the connection is lost, to end work that would wait for the client."""
        self.reading = asyncio.Lock()
        """Held by the one fetch, subscription or lookup by key of this connection that reads."""
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(
            frame_bytes_max=FRAME_BYTES_MAX_BEFORE_HELLO, admit=self._admit, gather=self._gather
        )
        self.get_buffer = self._receiver.buffer  # type: ignore[method-assign]  # a call less for each chunk
        self._idle_poll = server.idle_poll
        self._in_flight_bytes_max = server.settings.connection_in_flight_bytes
        self.work_us = 0
        """Event-loop time of the connection's unanswered requests, in microseconds."""
        self._requests = self._in_flight_bytes = 0
        self._requests_max = server.settings.requests_in_flight
        self._admission = FrameAdmission(server.budget, server.slow_senders, self._arrived_bytes, self._close_slow)
        self._has_room = asyncio.Event()
        self._keeps_up = self._reading = True
        self._hello_timer: asyncio.TimerHandle | None = None

    # --- transport callbacks ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; the server closes one if the limit is exceeded."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self.server.send_budget.connection_bytes_max)
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(self.server.settings.hello_timeout_ms / 1000, self._hello_is_late)
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all state of the connection; requests in progress continue, their answers are discarded."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._session_timer is not None:
            self._session_timer.cancel()
        if self._stall_watch is not None:
            self._stall_watch.stop()
        self._transport = self._kept = None
        self._stays = False
        self.rest.drop()
        self.backlog.end()
        self._has_room.set()
        self._forget_coming()
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

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes and dispatch complete requests, until the connection is held or its turn is over.

        The remaining frames are processed when it continues, by a call with 0 bytes.
        """
        came_s = time.perf_counter()
        receiver, frame = self._receiver, self._kept
        self._kept, self._stays, self._has_begun = None, False, False
        try:
            if receiver.incomplete is not None:  # A frame that has begun is received to its end.
                frame = receiver.take(nbytes)
                if frame is None:
                    return
            else:
                if receiver.discard_bytes:
                    self.took(nbytes)
                if self.turn.taken_bytes >= TURN_BYTES:
                    receiver.arrived(nbytes)
                    self._await_turn(frame)
                    frame = None
                elif frame is None:
                    frame = receiver.take(nbytes)
            while frame is not None:
                inbox = self.inbox
                is_long = inbox is None and receiver.envelope_bytes > SMALL_ENVELOPE_BYTES
                if is_long and not self._has_begun and self.turn.taken_bytes >= TURN_BYTES:
                    # Complete, but expensive: each turn processes one such request over all connections of the caller.
                    self._await_turn(frame)
                    break
                if inbox is not None and frame.envelope.correlation_id == 0 and frame is not DECLINED:
                    inbox.take(frame)
                elif frame is not DECLINED:
                    self.server.dispatch(Request(self, frame, self._admission.whole()))
                if self._transport is None:
                    break
                if (self.rest.request is not None and not self.rest.is_done(self.turn)) or (
                    receiver.left_bytes and self.turn.taken_bytes >= TURN_BYTES
                ):
                    self._await_turn(None)
                    break
                if self._held:
                    self._stays = True
                    break
                frame = receiver.take() if receiver.left_bytes else None
        except ProtocolError as error:
            if nbytes:
                self._idle_poll.came(came_s)
            self.abort(error)
            return
        if self._awaits_turn or self._transport is None:
            if nbytes:
                self._idle_poll.came(came_s)
            return
        if nbytes:
            self._idle_poll.waits(nbytes, came_s)
        if self._admission.size_bytes is not None and self.inbox is None:
            self._admission.watch()
        if self._held or self._requests >= self._requests_max or self._in_flight_bytes >= self._in_flight_bytes_max:
            self._balance_reading()

    def pause_writing(self) -> None:
        """Check the unsent bytes, because the client is slow to read. Not every asyncio release calls this method."""
        self.backlog.look()

    def resume_writing(self) -> None:
        """Resume sending: the client has read."""
        self.backlog.look()
        if self.backlog.has_room():
            self.has_room_again()

    # --- unsent bytes ----------------------------------------------------------------------------------

    def unsent(self) -> int:
        """Return the size of the transport's buffer in bytes; 0 when the connection is lost."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def changed(self) -> None:
        """Stop reading from a client that does not read its answers; resume when it has caught up."""
        mark_bytes = self.server.send_budget.connection_bytes_max
        keeps_up = self.backlog.unsent_bytes <= (mark_bytes if self._keeps_up else mark_bytes // 4)
        if keeps_up != self._keeps_up:
            self._keeps_up = keeps_up
            self._balance_reading()

    def has_room_again(self) -> None:
        """Resume subscriptions that wait for room."""
        self._has_room.set()
        for pump in list(self.pumps.values()):
            pump.pump()

    def hold(self) -> None:
        """Stop reading after the current request, because the account has exceeded a quota or limit."""
        self._held = True
        self._balance_reading()

    def read_on(self) -> None:
        """Resume reading, because the account is within its quotas and limits again."""
        self._held = False
        self._go_on()

    def took(self, size_bytes: int) -> None:
        """Charge weighted bytes to the read turn of the connection's caller."""
        turn = self.turn
        if turn.taken_bytes + size_bytes < TURN_BYTES:
            turn.taken_bytes += size_bytes
        else:
            self.server.read_turns.took(turn, size_bytes)

    def _await_turn(self, frame: Frame | None) -> None:
        """Pause reading until the caller's next turn, and keep a complete frame until then."""
        self._kept = frame
        self._stays = self._awaits_turn = True
        self.server.read_turns.wait(self.turn, self)
        self._balance_reading()

    def take_turn(self) -> None:
        """Continue in a new turn."""
        # A request that has begun is answered, even while the account pauses the connection.
        if not self.rest.is_done(self.turn):
            self.server.read_turns.wait(self.turn, self)
            return
        self._awaits_turn = False
        self._go_on()

    def _go_on(self) -> None:
        if self._held or self._awaits_turn:  # `take_turn` or `read_on` is called again when neither applies.
            return
        if self._stays:
            self.buffer_updated(0)
        self._balance_reading()

    def end_if_gone(self) -> None:
        """Close if the client has closed its side while reading is paused."""
        if self._transport is not None and peer_has_closed(self._transport.get_extra_info("socket")):
            self.cut_off()

    def close_stalled(self, stalled_s: float) -> None:
        """Close the connection: the client has read nothing for too long."""
        if self._transport is not None:
            log.info(
                "closing the connection of client %r: it has not read its replies for %.1f s", self.client_id, stalled_s
            )
            self.server.metrics.stalled.inc()
            self._transport.abort()

    # --- incoming frames -------------------------------------------------------------------------------

    def _arrived_bytes(self) -> int:
        return self._receiver.arrived_bytes

    def _close_slow(self, size_bytes: int, come_bytes: int) -> None:
        progress = f"{come_bytes} of {size_bytes} bytes received"
        log.info(
            "closing the connection of slow client %r: %s, and the request budget (node_in_flight_bytes) is exhausted",
            self.client_id,
            progress,
        )
        self.server.metrics.stalled.inc()
        self.cut_off()
        self._forget_coming()

    def _forget_coming(self) -> None:
        """Release the bytes of a frame that will not be completed."""
        size_bytes = self._admission.forget()
        if size_bytes is not None:
            self._give_back(size_bytes)

    def _gather(self, size_bytes: int) -> None:
        """Count a large envelope while it arrives.

        Raises:
            ProtocolError: OVERLOADED, too many large envelopes exceed the budget.
        """
        if self.inbox is None and not self._admission.gather(size_bytes):
            self.server.metrics.declined.inc()
            raise overloaded()

    # --- for the server and the handlers ---------------------------------------------------------------

    def certificate(self) -> Mapping[str, Any] | None:
        """Return the verified certificate of the other end; None without a certificate, TLS or a connection."""
        certificate: Mapping[str, Any] | None = None
        if self._transport is not None:
            certificate = self._transport.get_extra_info("peercert")
        return certificate

    def certified(self, kind: str) -> list[str]:
        """Return the names of a kind (see `certificate_names`) in the certificate of the other end."""
        return names_in(self.certificate(), kind)

    @property
    def host(self) -> str:
        """The address at the other end; empty when the connection is lost."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return name[0] if isinstance(name, tuple) else ""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the connection's requests that are arriving or unanswered."""
        return self._in_flight_bytes

    @property
    def requests_in_flight(self) -> int:
        """Number of the connection's requests that are arriving or unanswered."""
        return self._requests

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether a reply may be sent now: the client keeps up, and the node's budget allows it.

        If not, the connection's subscriptions pause until it may.
        """
        return self.is_open and self.backlog.has_room()

    async def drained(self) -> None:
        """Wait until a reply may be sent, or the connection is lost."""
        while self.is_open and not self.backlog.has_room():
            self._has_room.clear()
            await self._has_room.wait()

    def greet(self, client_id: str, software: str, *, frame_bytes_max: int) -> None:
        """Complete HELLO: store the client's names and lift the small frame limit."""
        self.greeted = True
        self.server.greeted(self)
        self.client_id, self.software = printable(client_id), printable(software)
        self._receiver.frame_bytes_max = frame_bytes_max
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def begin_session(self, session: Session, now_us: int) -> None:
        """Set the authenticated session; credentials that expire end the connection, at most `SESSION_S_MAX` later."""
        self.session = session
        if session.expires_us:
            left_s = (session.expires_us - now_us) / 1e6
            why = "the credentials have expired; reconnect with valid credentials"
            if left_s > SESSION_S_MAX:
                left_s = SESSION_S_MAX
                why = f"it has lasted for {SESSION_S_MAX / 86_400:.0f} days, the maximum; reconnect"
            self._session_timer = asyncio.get_running_loop().call_later(left_s, self._session_is_over, why)

    def _session_is_over(self, why: str) -> None:
        self.abort(ProtocolError(pb.CREDENTIALS_EXPIRED, f"the session has ended, because {why}"))

    def become_peer(self, inbox: Inbox, *, frame_bytes_max: int) -> None:
        """Mark the connection as an authenticated node's; its one-way messages go to `inbox`."""
        assert self.inbox is None
        self.inbox, self.peer_id = inbox, inbox.node_id
        self.backlog.become_node()
        self.greet(f"node {inbox.node_id}", "a node", frame_bytes_max=frame_bytes_max)
        if self._transport is not None:
            connected = self._transport.get_extra_info("socket")
            tune(connected)
            self._stall_watch = StallWatch(connected, self._stalled)

    def finish(self, request: Request, envelope: pb.Envelope, attachments: Sequence[memoryview] = ()) -> None:
        """Answer a request and release its share of the budgets."""
        if self.meter is not None:
            envelope.throttle_ms = self.meter.throttle_ms(request.envelope.WhichOneof("kind") or "")
        if request.account is not None and request.account.limits.has_rates:
            envelope.caller_throttle_ms = request.account.throttle_ms(request.envelope.WhichOneof("kind") or "")
        try:
            self.send(envelope, attachments)
        except ProtocolError as error:  # The answer exceeds the frame limit, so this error is the answer.
            self.send(pb.Envelope(correlation_id=envelope.correlation_id, error=error.to_message()))
        self.release(request)

    def release(self, request: Request) -> None:
        """Release a request's share of the budgets."""
        request.attachment = _NOTHING
        if self.shares is not None:
            self.shares.give_back(request)
        work_us, request.work_us = request.work_us, 0
        if work_us:
            self.work_us -= work_us
            if self.account is not None:
                self.account.work_us -= work_us
                if self.account.holds:
                    self.account.made_room()
        self._give_back(request.size_bytes)
        if not self._reading:
            self._balance_reading()

    def send(self, envelope: pb.Envelope, attachments: Sequence[memoryview] = ()) -> None:
        """Send a frame; do nothing if the connection is closed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        size_bytes = sum(map(len, attachments)) if attachments else 0
        head = encode_frame(envelope, size_bytes)
        if not size_bytes:
            transport.write(head)
        elif size_bytes <= JOIN_BYTES_MAX:
            transport.write(b"".join([head, *attachments]))
        else:
            write_parts(transport, [head, *attachments])
        backlog = self.backlog
        if backlog.unsent_bytes or transport.get_write_buffer_size():
            backlog.wrote(len(head) + size_bytes)
        else:  # Only counted: all of it was sent at once, and no earlier data was unsent.
            backlog.written_bytes += len(head) + size_bytes

    def abort(self, error: ProtocolError) -> None:
        """Send the error that ends the stream, then close."""
        self.server.metrics.connection_errors.inc()
        log.info("closing the connection of %r: %s", self.client_id or self.host, error)
        self.send(pb.Envelope(error=error.to_message()))
        self.close()

    def give_way(self) -> None:
        """Close the connection, because too many connections have not completed HELLO."""
        why = "too many connections have not completed HELLO; reconnect and send HELLO at once"
        self.send(pb.Envelope(error=ProtocolError(pb.OVERLOADED, why, retry_after_ms=1000).to_message()))
        self.close()

    def close(self) -> None:
        """Close once all data is sent, or the client has read nothing for too long."""
        if self._transport is not None:
            self._transport.close()

    def cut_off(self) -> None:
        """Close now and discard unsent data."""
        if self._transport is not None:
            self._transport.abort()

    # --- internals -------------------------------------------------------------------------------------

    def _admit(self, envelope: pb.Envelope, attachment_bytes: int) -> bool:
        """Count a request before memory is allocated for its attachment, or answer it with OVERLOADED and return False.

        The read turn is charged in both cases; the attachment of a declined request is charged while it is discarded.
        """
        self._has_begun = True
        envelope_bytes = self._receiver.envelope_bytes
        size_bytes = attachment_bytes
        if envelope_bytes > SMALL_ENVELOPE_BYTES:
            size_bytes += envelope_bytes
        if self._admission.gathering_bytes:
            self._admission.gathered()
        if self.inbox is not None and envelope.correlation_id == 0:
            is_admitted = not size_bytes or self.inbox.admit(size_bytes)
        elif (not size_bytes and self.inbox is None and self.meter is None) or self._has_room_for(size_bytes):
            self._requests += 1
            self._in_flight_bytes += size_bytes
            self._admission.size_bytes = size_bytes
            account = self.account
            if account is not None and size_bytes:
                account.in_flight_bytes += size_bytes
                if account.in_flight_bytes >= account.in_flight_bytes_max:
                    account.filled_up(self, size_bytes)
            is_admitted = True
        else:
            self.server.metrics.declined.inc()
            self.send(pb.Envelope(correlation_id=envelope.correlation_id, error=overloaded().to_message()))
            is_admitted = False
        turn = self.turn
        taken_bytes = REQUEST_BYTES + ENVELOPE_WEIGHT * envelope_bytes + (attachment_bytes if is_admitted else 0)
        if turn.taken_bytes + taken_bytes < TURN_BYTES:
            turn.taken_bytes += taken_bytes
        else:
            self.server.read_turns.took(turn, taken_bytes)
        return is_admitted

    def _has_room_for(self, size_bytes: int) -> bool:
        """Return whether the limits allow a request; if so, count its bytes in the node's budget.

        The account's rate counts the bytes of a client's request in either case.
        """
        if self.inbox is not None:
            left_bytes = self._in_flight_bytes_max - self._in_flight_bytes
            if self._requests >= FORWARDED_IN_FLIGHT_MAX or (self._in_flight_bytes and size_bytes > left_bytes):
                return False
        elif self.meter is not None:
            self.meter.came(self, size_bytes)
        budget = self.server.budget
        if budget.used_bytes + size_bytes <= budget.bytes_max:
            budget.used_bytes += size_bytes
            return True
        return not size_bytes or self._admission.has_room_for(size_bytes)

    def _give_back(self, size_bytes: int) -> None:
        self._requests -= 1
        self._in_flight_bytes -= size_bytes
        if size_bytes:
            self.server.budget.used_bytes -= size_bytes
        account = self.account
        if account is not None:
            account.in_flight_bytes -= size_bytes
            if account.holds and size_bytes:
                account.made_room()

    def _balance_reading(self) -> None:
        """Pause or resume reading, depending on whether the limits allow more requests.

        A frame that has begun is received to its end: its memory is allocated, and nothing else would release it.
        """
        if self._transport is None or self._transport.is_closing():
            return
        has_room = self.inbox is not None or (
            self._requests < self._requests_max and self._in_flight_bytes < self._in_flight_bytes_max
        )
        may_go_on = has_room and not self._held and not self._awaits_turn
        is_coming = self._admission.size_bytes is not None and not self._stays
        may_read = self._keeps_up and (may_go_on or is_coming)
        if may_read != self._reading:
            self._reading = may_read
            if may_read:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _stalled(self) -> None:
        log.warning("closing the connection of %s: %s", self.client_id, stall_reason())
        self.cut_off()

    def _hello_is_late(self) -> None:
        within_s = self.server.settings.hello_timeout_ms / 1000
        self.abort(
            ProtocolError(
                pb.HELLO_REQUIRED, f"HELLO did not complete within {within_s:g} s; reconnect and send HELLO first"
            )
        )
