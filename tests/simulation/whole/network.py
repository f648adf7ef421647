"""Links between whole nodes: requests, answers and one-way messages that come late, twice, out of order or not at all.

A link is greeted by the shipped handshake and answered by the shipped `Server.dispatch`. Worse than a connection is
that single messages of it are lost, repeated and overtaken; a real one only breaks. Only what makes or deletes a topic
is not repeated: no connection does, nor who asks, and nothing tells a second request from the first that comes late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tests.simulation.whole.loop import Ordered, process_here

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.core.peer_auth import Challenge, Identity
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.security.session import Session
from tidelog_broker.wire.connection import Connection, Request
from tidelog_broker.wire.handshake_incarnations import HandshakeIncarnations
from tidelog_broker.wire.links import _FINAL, Address, Link, LinkEvents, RemovedError, unreachable
from tidelog_broker.wire.one_way import Inbox, LinkMessage
from tidelog_broker.wire.quota_account import Account
from tidelog_broker.wire.read_turns import ReadTurn
from tidelog_broker.wire.send_budget import SendBacklog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import FRAME_BYTES_MAX
from tidelog_proto.wire.frames import Frame

if TYPE_CHECKING:
    from tests.simulation.whole.node_process import NodeProcess

_NEVER_REPEATED = {"topic_create", "topic_delete"}
LOOK_US = (10_000, 200_000)
GREET_TIMEOUT_S = 1.0


class Incoming:
    """The accepting node's end of a connection: the part of `Connection` that handlers and `Peers` use."""

    def __init__(
        self, process: NodeProcess, answer: Callable[[pb.Envelope, bytes], None], broken: Callable[[str], None]
    ) -> None:
        self.process = process
        self.greeted = False
        self.session: Session | None = None
        self.account: Account | None = None
        self.meter: Account | None = None
        self.turn = ReadTurn()
        self.work_us = 0
        self.challenge: Challenge | None = None
        self.inbox: Inbox | None = None
        self.client_id = ""
        self.closed = False
        self.closed_listeners = Ordered()
        self.reading = asyncio.Lock()
        self.backlog = SendBacklog(process.node.broker.bounds.send_budget, cast("Any", self))
        self._answer = answer
        self._broken = broken

    host = ""

    @property
    def peer_id(self) -> str | None:
        return None if self.inbox is None else self.inbox.node_id

    def took(self, size_bytes: int) -> None:
        pass

    def end_if_gone(self) -> None:
        pass

    def certified(self, kind: str) -> list[str]:
        del kind
        return []

    def greet(self, client_id: str, *, frame_bytes_max: int) -> None:
        self.greeted = True
        self.client_id = client_id

    def become_peer(self, inbox: Inbox, *, frame_bytes_max: int) -> None:
        self.inbox = inbox
        self.backlog.become_node()
        self.greet(f"node {inbox.node_id}", frame_bytes_max=frame_bytes_max)

    def take(self, raw: bytes, attachment: bytes) -> None:
        """A request has arrived."""
        if not self.closed:
            frame = Frame(pb.Envelope.FromString(raw), memoryview(bytearray(attachment)))
            self.process.node.server.dispatch(Request(cast("Connection", self), frame, 0))

    def take_message(self, message: LinkMessage, batches: Sequence[bytes]) -> None:
        """A one-way message has arrived."""
        if not self.closed and self.inbox is not None and self.process.node.membership is not None:
            taken = [Batch(unpack_header(data, typed=True), memoryview(data)) for data in batches]
            self.process.node.broker.replication.receive(self.inbox.node_id, message, taken)

    def finish(self, request: Request, envelope: pb.Envelope, attachments: Sequence[memoryview] = ()) -> None:
        if not self.closed:
            self._answer(envelope, b"".join(attachments))

    def release(self, request: Request) -> None:
        """Nothing is counted here."""

    @property
    def is_open(self) -> bool:
        return not self.closed

    @property
    def is_writable(self) -> bool:
        return not self.closed

    async def drained(self) -> None:
        """The connecting node takes all messages."""

    def close(self) -> None:
        self.process.after(1000, self.cut_off)

    def cut_off(self) -> None:
        if not self.closed:
            self.closed = True
            self._broken("the other node has closed the connection")
            for listener in list(self.closed_listeners):
                listener()


class Outgoing:
    """The connecting node's end of a connection: does the same as a `Link`."""

    greet: Any = Link.greet
    running_incarnation: Any = Link.running_incarnation

    def __init__(self, caller: NodeProcess, called: NodeProcess, peer_id: str) -> None:
        self.caller = caller
        self.called = called
        self.peer_id = peer_id
        self.why = ""
        self.broken: Callable[[], None] = lambda: None
        self._receiver = _Receiver()
        self._correlation_id = 0
        self._pending: dict[int, tuple[asyncio.Future[Frame], asyncio.TimerHandle]] = {}
        self.incoming = Incoming(called, self._answer, lambda why: caller.after(1000, lambda: self.close(why)))
        caller.links.append(self)

    def certified(self) -> list[str]:
        return []

    @property
    def stands(self) -> bool:
        return not self.why

    def request(
        self, envelope: pb.Envelope, attachment: Sequence[memoryview] = (), *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        """Send a request; it may be lost, or handled twice, see the module."""
        if self.why:
            raise unreachable(self.peer_id)
        loop = self.caller.loop
        self._correlation_id += 1
        number = envelope.correlation_id = self._correlation_id
        raw, data = envelope.SerializeToString(), b"".join(attachment)
        future: asyncio.Future[Frame] = loop.create_future()
        late = ProtocolError(pb.TIMED_OUT, f"{self.peer_id!r} has not answered; the outcome is unknown")
        self._pending[number] = (future, loop.call_later(timeout_s, self._fail, number, late))
        kind = envelope.WhichOneof("kind")
        self._send(
            self.caller,
            self.called,
            lambda: self.incoming.take(raw, data),
            surely=kind in {"peer_hello", "peer_proof"},
            once=kind in _NEVER_REPEATED,
        )
        return future

    def send(self, message: LinkMessage, batches: Sequence[memoryview]) -> None:
        """Send a one-way message."""
        kind, raw, copies = type(message), message.SerializeToString(), [bytes(batch) for batch in batches]
        self._send(
            self.caller,
            self.called,
            lambda: self.incoming.take_message(kind.FromString(raw), copies),
        )

    def close(self, why: str) -> None:
        """Break; pending requests have no outcome."""
        if self.why:
            return
        self.why = why
        for number in list(self._pending):
            self._fail(number, ProtocolError(pb.TIMED_OUT, f"the link to {self.peer_id!r} broke: {why}"))
        self.called.after(1000, self.incoming.cut_off)
        self.broken()

    def _send(
        self,
        sender: NodeProcess,
        receiver: NodeProcess,
        arrive: Callable[[], None],
        *,
        surely: bool = False,
        once: bool = False,
    ) -> None:
        if not self.why:
            sender.world.send(sender, receiver, lambda: receiver.run(arrive), surely=surely, once=once)

    def _answer(self, envelope: pb.Envelope, attachment: bytes) -> None:
        raw = envelope.SerializeToString()
        greeting = envelope.WhichOneof("kind") in {"peer_hello_reply", "peer_welcome"}
        self._send(self.called, self.caller, lambda: self._answered(raw, attachment), surely=greeting)

    def _answered(self, raw: bytes, attachment: bytes) -> None:
        envelope = pb.Envelope.FromString(raw)
        future, timer = self._pending.pop(envelope.correlation_id, (None, None))
        if future is None or timer is None:
            return
        timer.cancel()
        if future.done():
            return
        if envelope.HasField("error"):
            said = envelope.error
            future.set_exception(ProtocolError(said.code, said.message))
        else:
            future.set_result(Frame(envelope, memoryview(attachment)))

    def _fail(self, number: int, error: ProtocolError) -> None:
        future, timer = self._pending.pop(number)
        timer.cancel()
        if not future.done():
            future.set_exception(error)
            future.exception()  # also if no task waits


class _Receiver:
    frame_bytes_max = FRAME_BYTES_MAX


class _Peer:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.link: Outgoing | None = None
        self.problem: str | None = None
        self.turned_away = False
        self.absent = False
        self.task: asyncio.Task[None] | None = None


class SimLinks:
    """In place of `links.Links`."""

    def __init__(
        self,
        identity: Identity,
        *,
        events: LinkEvents,
        queue_bytes: int,
        metrics: NodeMetrics,
        tls: NodeTls,
        incarnations: HandshakeIncarnations,
    ) -> None:
        self._identity = identity
        self._incarnations = incarnations
        self._events = events
        self._process = process_here()
        self._peers: dict[str, _Peer] = {}
        self._closed = False

    @property
    def connected(self) -> frozenset[str]:
        return frozenset(node_id for node_id, peer in self._peers.items() if peer.link is not None)

    def problem(self, node_id: str) -> str | None:
        peer = self._peers.get(node_id)
        return None if peer is None else peer.problem

    def is_absent(self, node_id: str) -> bool:
        peer = self._peers.get(node_id)
        return peer is not None and peer.absent

    def refusals(self) -> dict[Address, str]:
        return {peer.address: peer.problem or "" for peer in self._peers.values() if peer.turned_away}

    def update_peers(self, addresses: Mapping[str, Address]) -> None:
        wanted = {node_id: address for node_id, address in addresses.items() if node_id != self._identity.node_id}
        for node_id, peer in list(self._peers.items()):
            if wanted.get(node_id) != peer.address:
                del self._peers[node_id]
                if peer.task is not None:
                    peer.task.cancel()
                self._gone(node_id, peer, "the node's address has changed or the node was removed")
        for node_id, address in sorted(wanted.items()):
            if node_id not in self._peers and not self._closed:
                peer = self._peers[node_id] = _Peer(address)
                peer.task = self._process.loop.create_task(self._keep(node_id, peer))

    def send(self, to: Sequence[str], message: LinkMessage, batches: Sequence[memoryview] = ()) -> None:
        for node_id in to:
            peer = self._peers.get(node_id)
            if peer is not None and peer.link is not None:
                peer.link.send(message, batches)

    def request(
        self, node_id: str, envelope: pb.Envelope, attachment: Sequence[memoryview] = (), *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        peer = self._peers.get(node_id)
        if peer is None or peer.link is None:
            raise unreachable(node_id)
        return peer.link.request(envelope, attachment, timeout_s=timeout_s)

    async def running_incarnation(self, node_id: str, address: Address, *, timeout_s: float) -> int | None:
        called = self._process.world.listening(address)
        if called is None:
            return 0
        if not self._process.world.reaches(self._process, called):
            return None
        link = Outgoing(self._process, called, node_id)
        try:
            return int(await link.running_incarnation(self._identity, called=node_id, timeout_s=timeout_s))
        except ProtocolError as error:
            return 0 if error.code in _FINAL else None
        finally:
            link.close("asked")

    def reconnect(self, node_id: str) -> None:
        peer = self._peers.get(node_id)
        if peer is not None and peer.link is not None:
            peer.link.close("a later start of the node was reported")

    async def close(self) -> None:
        self._closed = True
        self.update_peers({})

    def _gone(self, node_id: str, peer: _Peer, why: str) -> None:
        link, peer.link = peer.link, None
        peer.problem = why
        if link is not None:
            link.broken = lambda: None
            link.close(why)
            self._events.lost(node_id)

    async def _keep(self, node_id: str, peer: _Peer) -> None:
        """Create the link, check now and then whether it exists, create it again."""
        random = self._process.world.clock.random
        while True:
            called = self._process.world.listening(peer.address)
            reached = called is not None and self._process.world.reaches(self._process, called)
            if peer.link is not None:
                if peer.link.why or peer.link.called is not called or (not reached and random.random() < 0.3):
                    self._gone(node_id, peer, peer.link.why or "the connection broke")
            elif called is None:
                peer.absent = True
                peer.turned_away, peer.problem = False, "it refuses connections"
                self._events.refused(node_id)
            elif reached:
                peer.absent = False
                await self._connect(node_id, peer, called)
            await asyncio.sleep(random.randint(*LOOK_US) / 1e6)

    async def _connect(self, node_id: str, peer: _Peer, called: NodeProcess) -> None:
        link = Outgoing(self._process, called, node_id)
        try:
            incarnation = await link.greet(
                self._identity, called=node_id, timeout_s=GREET_TIMEOUT_S, incarnations=self._incarnations
            )
        except ProtocolError as error:
            link.close(str(error))
            peer.turned_away, peer.problem = error.code in _FINAL, str(error)
            if isinstance(error, RemovedError):
                self._events.removed(error.message)
            return
        peer.link, peer.problem, peer.turned_away = link, None, False
        link.broken = lambda: self._gone(node_id, peer, link.why) if peer.link is link else None
        self._events.established(node_id, incarnation)
