"""One client connection: frames in, dispatch, replies out, and everything about it that must stay bounded.

- Requests in flight, in number and in bytes: past the connection's bounds the node stops reading from it.
  Past the *node's* bound a request with an attachment is declined before its memory is taken, and one with a large
  envelope before it can wait with it, with a retriable OVERLOADED. Clients that announce much and do not go on
  sending give way then (`arriving`).
- Replies not yet read: past the bound nothing more is read from the client or pushed to it, and a client that takes
  nothing at all for `write_stall_ms` is cut off; what waits for all clients together is bounded, too (`outgoing`).
- A caller that has sent much waits for its next turn, so that those that send little do not wait (`rounds`).
- What a quota bounds is counted in the account of who the client is; that may have the connection wait (`account`).
- A connection says HELLO first, within `hello_timeout_ms` and in a small frame.

Another node proves who it is instead (`server/handlers/peers.py`), and is then treated otherwise: what it sends one-way
goes to its inbox, and a request that finds no room is declined. Its connection is read whatever is in flight: behind
what is full here there may come the acknowledgements that would empty it.

A frame that breaks the shape of the stream gets an error with correlation id 0, then the connection closes:
nothing after it can be trusted. A request that is merely wrong gets its error and the connection goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

from tidelog_broker.core.peer_auth import Challenge
from tidelog_broker.core.security.login import Login
from tidelog_broker.core.security.session import Session
from tidelog_broker.wire.account import Account
from tidelog_broker.wire.budget import SMALL_ENVELOPE_BYTES, overloaded
from tidelog_broker.wire.coming import Coming
from tidelog_broker.wire.connection_host import ConnectionHost
from tidelog_broker.wire.inbox import Inbox
from tidelog_broker.wire.outgoing import Backlog
from tidelog_broker.wire.pushing import Pushing
from tidelog_broker.wire.request_work import Rest, end_work
from tidelog_broker.wire.rounds import ENVELOPE_WEIGHT, REQUEST_BYTES, Turn
from tidelog_broker.wire.shares import Shares
from tidelog_broker.wire.sockets import sends_no_more, tune
from tidelog_broker.wire.stall_watch import StallWatch, stalled_because
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FORWARDED_IN_FLIGHT_MAX, FRAME_BYTES_MAX_BEFORE_HELLO
from tidelog_proto.printable import printable
from tidelog_proto.tls.certificate_names import names_in
from tidelog_proto.wire.frame_receiver import DECLINED, FrameReceiver
from tidelog_proto.wire.frames import Frame, encode_frame
from tidelog_proto.wire.gathered_write import JOIN_BYTES_MAX, write_parts

log = logging.getLogger(__name__)

SESSION_S_MAX: Final = 30 * 24 * 3600.0
"""After so long even a connection whose credentials last longer begins anew: timers of years are none."""
_NOTHING: Final = memoryview(b"")


class Request:
    """One request being worked on. It is answered exactly once; answering gives its bytes back."""

    __slots__ = ("account", "answered", "attachment", "connection", "end_span", "envelope", "on_answer", "session",
                 "size_bytes", "work_of", "work_us")  # fmt: skip

    def __init__(self, connection: Connection, frame: Frame, size_bytes: int) -> None:
        self.connection = connection
        self.size_bytes = size_bytes
        """Its share of the budgets."""
        self.work_us = 0
        """Its event-loop time in microseconds, while that is counted; see `request_work`."""
        self.work_of: Account | None = None
        self.envelope = frame.envelope
        self.attachment = frame.attachment
        self.session: Session | None = None
        """What its caller may do, once that is known; None where everybody may do everything."""
        self.account: Account | None = None
        """That of the caller for whom a gateway asks, until it is answered; None where the connection's counts."""
        self.answered = False
        self.end_span: Callable[[pb.Envelope], None] | None = None  # where the request has a span
        self.on_answer: Callable[[pb.Envelope], None] | None = None  # told of the answer as it is sent

    @property
    def is_of_node(self) -> bool:
        """Whether another node asks for itself, and not for a caller of its own.

        Where nobody has a name (`auth = none`) it may be for a caller all the same.
        """
        return self.connection.peer_id is not None and not self.envelope.HasField("caller")

    @property
    def payer(self) -> object:
        """By whom turns are shared: the caller's account, or the connection where callers have none."""
        return self.account or self.connection.account or self.connection

    def reply(self, envelope: pb.Envelope, attachments: list[memoryview] | None = None) -> None:
        """Send the answer, with the request's correlation id."""
        assert not self.answered, "a request is answered once"
        self.answered = True
        if self.on_answer is not None:
            self.on_answer(envelope)
        if self.end_span is not None:
            self.end_span(envelope)
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


class Connection(asyncio.BufferedProtocol):
    """The shell of a connection. The server makes one per accepted socket."""

    shares: Shares | None = None
    """Set when a gateway has asked on it for one of its callers."""

    def __init__(self, server: ConnectionHost) -> None:
        self.server = server
        self.greeted = False
        self.greeting = False
        """Whether who the client is is being looked at."""
        self.client_id = self.software = ""
        self.login: Login | None = None
        """Set while a client is to prove that it knows a password."""
        self.session: Session | None = None
        """Who the client is, where it has to say so."""
        self.account: Account | None = None
        """Who the client is to quotas, once it has said HELLO; it sets this, and what follows."""
        self.meter: Account | None = None
        """The same, if a quota bounds anything by time."""
        self._held = False
        """Whether its account has it wait."""
        self._own_turn = Turn()
        """While it has no account; see `rounds`."""
        self._awaits_turn = self._has_begun = False
        """Whether it waits for its caller's turn; whether a frame has begun with what is being taken."""
        self._received: Iterator[Frame] | None = None
        """What was received and is taken when it goes on."""
        self.rest = Rest()  # of the request that was taken last; no later request is taken before it is done
        self._session_timer: asyncio.TimerHandle | None = None
        self.challenge: Challenge | None = None
        """Set while another node is to prove who it says it is."""
        self.inbox: Inbox | None = None
        """Set when it has."""
        self.backlog = Backlog(server.outgoing, self)
        """What waits to be sent to it."""
        self._stall_watch: StallWatch | None = None
        self.pumps: dict[int, Pushing] = {}
        self.followed = 0
        """Partitions that they follow."""
        self.closed_listeners: set[Callable[[], None]] = set()
        """Called when the client is gone, for work that would otherwise wait for it."""
        self.reading = asyncio.Lock()
        """Held by the one fetch of this connection that reads."""
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver(
            frame_bytes_max=FRAME_BYTES_MAX_BEFORE_HELLO, admit=self._admit, gather=self._gather
        )
        self._idle_poll = server.idle_poll
        self._in_flight_bytes = 0
        self._in_flight_bytes_max = server.settings.connection_in_flight_bytes
        self.work_us = 0
        """Event-loop time of its unanswered requests, in microseconds."""
        self._requests = 0
        self._requests_max = server.settings.requests_in_flight
        self._coming = Coming(server.budget, server.arriving, self._arrived_bytes, self._sends_too_slowly)
        self._has_room = asyncio.Event()
        self._keeps_up = self._reading = True
        self._hello_timer: asyncio.TimerHandle | None = None

    # --- transport callbacks ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register, or refuse when the node has all the connections it takes."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self.server.outgoing.connection_bytes_max)
        loop = asyncio.get_running_loop()
        self._hello_timer = loop.call_later(self.server.settings.hello_timeout_ms / 1000, self._hello_is_late)
        self.server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget everything of this connection; work in flight goes on, its answers go nowhere."""
        if self._hello_timer is not None:
            self._hello_timer.cancel()
        if self._session_timer is not None:
            self._session_timer.cancel()
        if self._stall_watch is not None:
            self._stall_watch.stop()
        self._transport = self._received = None
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

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the base class's signature
        """Give the transport the memory for the next bytes."""
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Take received bytes and dispatch the requests that are whole, until it is held or had its turn.

        Those behind are taken when it goes on: then there are 0 bytes more.
        """
        frames, self._received, self._has_begun = self._received, None, False
        if frames is None:
            if self._receiver.goes_on(nbytes):
                return
            if self._receiver.discards:
                self.took(nbytes)
            frames = self._receiver.received(nbytes)
        if nbytes:
            self._idle_poll.came()
        if self._turn.is_over and not self._receiver.is_amid:  # what has begun to come is let in
            self._await_turn(frames)
            return
        try:
            for frame in frames:
                is_long = self.inbox is None and self._receiver.envelope_bytes > SMALL_ENVELOPE_BYTES
                if is_long and not self._has_begun and self._turn.is_over:
                    # It is here, but its work is long: of all connections that have one, the next turn takes one.
                    self._await_turn(chain((frame,), frames))
                    return
                self._take(frame)
                if self._transport is None:
                    return
                if not self.rest.is_done(self._turn) or (self._receiver.left_bytes and self._turn.is_over):
                    self._await_turn(frames)
                    return
                if self._held:
                    self._received = frames
                    break
        except ProtocolError as error:
            self.abort(error)
            return
        if nbytes:
            self._idle_poll.waits(nbytes)
        if self._coming.size_bytes is not None and self.inbox is None:
            self._coming.watch()
        if self._held or self._requests >= self._requests_max or self._in_flight_bytes >= self._in_flight_bytes_max:
            self._balance_reading()

    def _take(self, frame: Frame) -> None:
        if frame is DECLINED:
            return
        if self.inbox is not None and frame.envelope.correlation_id == 0:
            self.inbox.take(frame)
        else:
            self.server.dispatch(Request(self, frame, self._coming.whole()))

    def pause_writing(self) -> None:
        """The client does not keep up with its answers. Not each release of asyncio tells of that: see `outgoing`."""
        self.backlog.look()

    def resume_writing(self) -> None:
        """The client has read: go on."""
        self.backlog.look()
        if self.backlog.has_room():
            self.has_room_again()

    # --- what waits to be sent -------------------------------------------------------------------------

    def unsent(self) -> int:
        """Return the size of the transport's buffer in bytes; 0 when the connection is gone."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def changed(self) -> None:
        """More or less waits than before: read nothing from a client that does not keep up with its answers."""
        mark_bytes = self.server.outgoing.connection_bytes_max
        keeps_up = self.backlog.unsent_bytes <= (mark_bytes if self._keeps_up else mark_bytes // 4)
        if keeps_up != self._keeps_up:
            self._keeps_up = keeps_up
            self._balance_reading()

    def has_room_again(self) -> None:
        """Send on what waited for room."""
        self._has_room.set()
        for pump in list(self.pumps.values()):
            pump.pump()

    def hold(self) -> None:
        """Take nothing behind the request that is being taken: the account has a debt."""
        self._held = True
        self._balance_reading()

    def read_on(self) -> None:
        """Go on: the account has no debt any more."""
        self._held = False
        self._go_on()

    @property
    def _turn(self) -> Turn:
        return self._own_turn if self.account is None else self.account.turn

    def took(self, size_bytes: int) -> None:
        """Count what was taken of it in its caller's turn of reading, weighed."""
        self.server.rounds.took(self._turn, size_bytes)

    def _await_turn(self, frames: Iterator[Frame]) -> None:
        """Read nothing for a moment, nor take what was received: what others have sent is taken first."""
        self._received = frames
        self._awaits_turn = True
        self.server.rounds.wait(self._turn, self)
        self._balance_reading()

    def take_turn(self) -> None:
        """Go on: those that have sent less have had their turn."""
        if not self.rest.is_done(self._turn):  # also while it is held: what is begun is answered
            self.server.rounds.wait(self._turn, self)
            return
        self._awaits_turn = False
        self._go_on()

    def _go_on(self) -> None:
        if self._held or self._awaits_turn:  # it is called again when neither holds any more
            return
        if self._received is not None:
            self.buffer_updated(0)
        self._balance_reading()

    def end_if_gone(self) -> None:
        """Close, if the client has closed its side while nothing is read from it."""
        if self._transport is not None and sends_no_more(self._transport.get_extra_info("socket")):
            self.cut_off()

    def take_too_little(self, stalled_s: float) -> None:
        """Cut the client off: it has taken nothing for so long, and something waits for it."""
        if self._transport is not None:
            log.info("client %r has read nothing for %.1f s: cut off", self.client_id, stalled_s)
            self.server.metrics.stalled.inc()
            self._transport.abort()

    # --- what is coming --------------------------------------------------------------------------------

    def _arrived_bytes(self) -> int:
        return self._receiver.arrived_bytes

    def _sends_too_slowly(self, size_bytes: int, come_bytes: int) -> None:
        log.info("client %r sent %d of %d bytes, others find no room: cut off", self.client_id, come_bytes, size_bytes)
        self.server.metrics.stalled.inc()
        self.cut_off()
        self._forget_coming()

    def _forget_coming(self) -> None:
        """Give back what is counted for a frame that will never be whole."""
        size_bytes = self._coming.forget()
        if size_bytes is not None:
            self._give_back(size_bytes)

    def _gather(self, size_bytes: int) -> None:
        """Count a large envelope while it comes.

        Raises:
            ProtocolError: OVERLOADED, too many of those have come without room.
        """
        if self.inbox is None and not self._coming.gather(size_bytes):
            self.server.metrics.declined.inc()
            raise overloaded()

    # --- for the server and the handlers ---------------------------------------------------------------

    @property
    def peer_id(self) -> str | None:
        """The id of the node at the other end, proven; None for a client."""
        return None if self.inbox is None else self.inbox.node_id

    def certificate(self) -> Mapping[str, Any] | None:
        """Return the certificate that the other end has shown, verified; None: none."""
        shown: Mapping[str, Any] | None = None
        if self._transport is not None:
            shown = self._transport.get_extra_info("peercert")
        return shown

    def certified(self, kind: str) -> list[str]:
        """Return the names of a kind (see `certificate_names`) that the certificate of the other end vouches for."""
        return names_in(self.certificate(), kind)

    @property
    def host(self) -> str:
        """The address at the other end; empty when the connection is gone."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return name[0] if isinstance(name, tuple) else ""

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of its requests that came, or are coming, and are not answered."""
        return self._in_flight_bytes

    @property
    def requests_in_flight(self) -> int:
        """How many those are."""
        return self._requests

    @property
    def is_open(self) -> bool:
        """Whether anything can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether there is room for more: the client keeps up, and the node's memory allows it.

        If not, its pumps are called when there is.
        """
        return self.is_open and self.backlog.has_room()

    async def drained(self) -> None:
        """Wait until there is room for more (or the client is gone)."""
        while self.is_open and not self.backlog.has_room():
            self._has_room.clear()
            await self._has_room.wait()

    def greet(self, client_id: str, software: str, *, frame_bytes_max: int) -> None:
        """HELLO has been said: lift the small limit."""
        self.greeted = True
        self.server.greeted(self)
        self.client_id, self.software = printable(client_id), printable(software)
        self._receiver.frame_bytes_max = frame_bytes_max
        if self._hello_timer is not None:
            self._hello_timer.cancel()
            self._hello_timer = None

    def begin_session(self, session: Session, now_us: int) -> None:
        """The client has shown who it is; the connection ends with what it has shown."""
        self.session = session
        if session.expires_us:
            left_s = min((session.expires_us - now_us) / 1e6, SESSION_S_MAX)
            self._session_timer = asyncio.get_running_loop().call_later(left_s, self._session_is_over)

    def _session_is_over(self) -> None:
        self.abort(ProtocolError(pb.CREDENTIALS_EXPIRED, "the credentials have expired: connect with newer ones"))

    def become_peer(self, inbox: Inbox, *, frame_bytes_max: int) -> None:
        """Another node has proven itself: what it sends one-way goes to `inbox`."""
        assert self.inbox is None
        self.inbox = inbox
        self.backlog.become_node()
        self.greet(f"node {inbox.node_id}", "a node", frame_bytes_max=frame_bytes_max)
        if self._transport is not None:
            connected = self._transport.get_extra_info("socket")
            tune(connected)
            self._stall_watch = StallWatch(connected, self._stalled)

    def finish(self, request: Request, envelope: pb.Envelope, attachments: Sequence[memoryview] = ()) -> None:
        """Answer a request and give its share of the budgets back."""
        if self.meter is not None:
            envelope.throttle_ms = self.meter.throttle_ms(request.envelope.WhichOneof("kind") or "")
        if request.account is not None and request.account.limits.has_rates:
            envelope.caller_throttle_ms = request.account.throttle_ms(request.envelope.WhichOneof("kind") or "")
        try:
            self.send(envelope, attachments)
        except ProtocolError as error:  # the answer fits no frame; that, too, is an answer
            self.send(pb.Envelope(correlation_id=envelope.correlation_id, error=error.to_message()))
        self.release(request)

    def release(self, request: Request) -> None:
        """Give a request's share of the budgets back."""
        request.attachment = _NOTHING
        end_work(request)
        if self.shares is not None:
            self.shares.give_back(request)
        self._give_back(request.size_bytes)
        if not self._reading:
            self._balance_reading()

    def send(self, envelope: pb.Envelope, attachments: Sequence[memoryview] = ()) -> None:
        """Send a frame; silently nothing when the client is gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if not attachments:
            head = encode_frame(envelope)
            transport.write(head)
            self.backlog.wrote(len(head))
            return
        size_bytes = sum(map(len, attachments))
        head = encode_frame(envelope, size_bytes)
        if size_bytes <= JOIN_BYTES_MAX:
            transport.write(b"".join([head, *attachments]))
        else:
            write_parts(transport, [head, *attachments])
        self.backlog.wrote(len(head) + size_bytes)

    def abort(self, error: ProtocolError) -> None:
        """Tell the client what broke the stream, then close."""
        self.server.metrics.connection_errors.inc()
        log.info("closing the connection of %r: %s", self.client_id, error)
        self.send(pb.Envelope(error=error.to_message()))
        self.close()

    def give_way(self) -> None:
        """Close: there are too many connections that have not said who they are."""
        why = "too many connections wait for their HELLO: greet sooner"
        self.send(pb.Envelope(error=ProtocolError(pb.OVERLOADED, why, retry_after_ms=1000).to_message()))
        self.close()

    def close(self) -> None:
        """Close once what was sent has left, or the client has taken nothing of it for too long."""
        if self._transport is not None:
            self._transport.close()

    def cut_off(self) -> None:
        """Close now, whatever is still to be sent."""
        if self._transport is not None:
            self._transport.abort()

    # --- inside ----------------------------------------------------------------------------------------

    def _admit(self, envelope: pb.Envelope, attachment_bytes: int) -> bool:
        """Count a request in before memory is taken for its attachment, or answer it and decline.

        In the turn it counts either way, without the attachment that is declined: that counts while it is read past.
        """
        self._has_begun = True
        is_admitted = self._let_in(envelope, attachment_bytes)
        weight = REQUEST_BYTES + ENVELOPE_WEIGHT * self._receiver.envelope_bytes
        self.took(weight + attachment_bytes if is_admitted else weight)
        return is_admitted

    def _let_in(self, envelope: pb.Envelope, attachment_bytes: int) -> bool:
        self._coming.gathered()
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
            if self.meter is not None:
                self.meter.came(self, size_bytes)
        if full or not self._coming.has_room_for(size_bytes):
            self.server.metrics.declined.inc()
            self.send(pb.Envelope(correlation_id=envelope.correlation_id, error=overloaded().to_message()))
            return False
        self._requests += 1
        self._in_flight_bytes += size_bytes
        self._coming.size_bytes = size_bytes
        account = self.account
        if account is not None:
            account.in_flight_bytes += size_bytes
            if size_bytes and account.in_flight_bytes >= account.in_flight_bytes_max:
                account.filled_up(self, size_bytes)
        return True

    def _give_back(self, size_bytes: int) -> None:
        self._requests -= 1
        self._in_flight_bytes -= size_bytes
        self.server.budget.give_back(size_bytes)
        account = self.account
        if account is not None:
            account.in_flight_bytes -= size_bytes
            if account.holds and size_bytes:
                account.made_room()

    def _balance_reading(self) -> None:
        """Read from the client only while there is room for what it may send.

        What has begun to come is let in: its memory is taken, and nothing else would ever finish it.
        """
        if self._transport is None or self._transport.is_closing():
            return
        has_room = self.inbox is not None or (
            self._requests < self._requests_max and self._in_flight_bytes < self._in_flight_bytes_max
        )
        may_go_on = has_room and not self._held and not self._awaits_turn
        is_coming = self._coming.size_bytes is not None and self._received is None
        wanted = self._keeps_up and (may_go_on or is_coming)
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _stalled(self) -> None:
        log.warning("the connection of %s is given up: %s", self.client_id, stalled_because())
        self.cut_off()

    def _hello_is_late(self) -> None:
        self.abort(ProtocolError(pb.HELLO_REQUIRED, "no HELLO came in time; open a new connection and greet first"))
