"""Outgoing connections from this node to each other node, with reconnection.

A link has one direction: the connection from A to B carries A's one-way messages, A's requests and B's answers; B's own
messages use the connection from B to A. Rejected: one connection for both directions. It saves a socket per pair but
needs a rule for simultaneous connects, and messages on the discarded connection are lost.

A broken link is connected again after 20 ms, then with exponential backoff up to one second and random jitter, so that
nodes do not reconnect in step. The backoff is reset only after a link that lasted for a second. A *refused* connection
is reported separately: the machine answers, so the process has ended. After any other failure (no route, no answer, a
reset) the state of the other node is unknown.

A `Link` is mutually authenticated. It writes a one-way message at once if it was idle; messages that closely follow
another one gather in an outbox until the end of the event loop's iteration and are written together. Batches are sent
as memoryviews, without a copy. The bytes that are waiting to be sent (the outbox plus the transport's buffer) may
exceed their limit by one message at most. Beyond the limit a one-way message is dropped and counted, because its
content is sent or requested again anyway, and a request is refused. A reserve is kept for messages without batches, so
that a stream of batches cannot block acknowledgements.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Protocol, cast

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.core.peer_auth import Identity, check_certificate, check_reply, hello_of
from tidelog_broker.core.placement.registry import removal
from tidelog_broker.wire.handshake_incarnations import HandshakeIncarnations
from tidelog_broker.wire.one_way import LinkMessage, OneWay, Outbox, OutgoingEnvelope, alone
from tidelog_broker.wire.sockets import tune
from tidelog_broker.wire.stall_watch import StallWatch, stall_reason
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError
from tidelog_proto.limits import (
    FORWARDED_IN_FLIGHT_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_BEFORE_HELLO,
    MIB,
    PEER_NONCE_BYTES,
)
from tidelog_proto.tls.certificate_names import names_in
from tidelog_proto.wire.frame_receiver import DECLINED, FrameReceiver
from tidelog_proto.wire.frames import JOIN_BYTES_MAX, Frame, encode_frame, write_parts
from tidelog_proto.wire.name_resolution import connected_socket, over_socket
from tidelog_proto.wire.pending_requests import PendingRequests, settle

log = logging.getLogger(__name__)

Address = tuple[str, int]

FIRST_WAIT_S: Final = 0.02
LONGEST_WAIT_S: Final = 1.0
ATTEMPT_TIMEOUT_S: Final = 3.0
"""Maximum time for connecting and the handshake together."""
FINISH_TIMEOUT_S: Final = 1.0
_FINAL: Final = frozenset({pb.FORBIDDEN, pb.UNAUTHENTICATED})


class LinkEvents(Protocol):
    """Receives changes of the links. Called on the event loop; must not raise."""

    def established(self, node_id: str, incarnation: int) -> None:
        """A link is connected, and the node at the other end has proven this incarnation."""

    def lost(self, node_id: str) -> None:
        """An established link was lost."""

    def refused(self, node_id: str) -> None:
        """Nothing listens at the node's address. Reported at each attempt."""

    def removed(self, why: str) -> None:
        """A proven node of this cluster reports that this node was removed. Reported at each attempt."""


class _Peer:
    """One other node: its address, the current link and the task that maintains it."""

    __slots__ = ("absent", "address", "link", "problem", "task", "turned_away")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.link: Link | None = None
        self.problem: str | None = None
        self.turned_away = False
        self.absent = False
        self.task: asyncio.Task[None] | None = None


class Links:
    """The outgoing connections to all other nodes. `update_peers` starts them, `close` ends them.

    Args:
        queue_bytes: limit of the bytes that are waiting to be sent to one node.
        incarnations: the known incarnations of all nodes; None disables the comparison.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        events: LinkEvents,
        queue_bytes: int,
        metrics: NodeMetrics,
        tls: NodeTls,
        incarnations: HandshakeIncarnations | None,
    ) -> None:
        self._identity = identity
        self._incarnations = incarnations
        self._tls = tls
        self._events = events
        self._queue_bytes = queue_bytes
        self._metrics = metrics
        self._peers: dict[str, _Peer] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def connected(self) -> frozenset[str]:
        """The nodes that have an established link."""
        return frozenset(node_id for node_id, peer in self._peers.items() if peer.link is not None)

    def problem(self, node_id: str) -> str | None:
        """Return why there is no link to a node, for an operator; None if it is connected or unknown."""
        peer = self._peers.get(node_id)
        return None if peer is None else peer.problem

    def is_absent(self, node_id: str) -> bool:
        """Return whether the last connection attempt was refused because nothing listens at the node's address."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.absent

    def refusals(self) -> dict[Address, str]:
        """Return the reasons of nodes that permanently reject this one, by address; a retry does not help."""
        return {peer.address: peer.problem or "" for peer in self._peers.values() if peer.turned_away}

    def update_peers(self, addresses: Mapping[str, Address]) -> None:
        """Keep links to exactly these nodes; an entry for this node itself is ignored."""
        targets = {node_id: address for node_id, address in addresses.items() if node_id != self._identity.node_id}
        for node_id, peer in list(self._peers.items()):
            if targets.get(node_id) != peer.address:
                del self._peers[node_id]
                self._end(node_id, peer)
        if self._closed:
            return
        for node_id, address in targets.items():
            if node_id not in self._peers:
                peer = self._peers[node_id] = _Peer(address)
                peer.task = asyncio.get_running_loop().create_task(self._keep(node_id, peer), name=f"link to {node_id}")

    def send(self, to: Sequence[str], message: LinkMessage, batches: Sequence[memoryview] = ()) -> None:
        """Send a one-way message to nodes, with whole batches if any; it is dropped without an error if that fails.

        Messages of one partition that arrive, arrive in order. Sets the `length` of a message with batches. The caller
        must not change the message or the batches' bytes afterwards.
        """
        one_way = OneWay(message, batches)
        for node_id in to:
            peer = self._peers.get(node_id)
            if peer is None or peer.link is None:
                self._metrics.peer_dropped_out.tally(node_id).inc()
            else:
                peer.link.send(one_way)

    def request(
        self, node_id: str, envelope: pb.Envelope, attachment: Sequence[memoryview] = (), *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        """Write a request to a node now and return the future of its answer.

        Raises:
            ProtocolError: raised at once if nothing was sent (EPOCH_CHANGING without a link, OVERLOADED,
                FRAME_TOO_LARGE); set on the future: the error that the node answered, or TIMED_OUT, with an unknown
                outcome, if the link broke or no answer arrived in time.
        """
        peer = self._peers.get(node_id)
        if peer is None or peer.link is None:
            raise unreachable(node_id)
        return peer.link.request(envelope, attachment, timeout_s=timeout_s)

    async def running_incarnation(self, node_id: str, address: Address, *, timeout_s: float) -> int | None:
        """Return the incarnation of the node that currently answers at its address.

        0 if the node does not run there: the port is closed, or another node answers. None if that is unknown, for
        example because no node answered in time or there is no route.
        """
        link = Link(node_id, queue_bytes=self._queue_bytes, metrics=self._metrics)
        try:
            async with asyncio.timeout(timeout_s):
                await self._call(link, address)
                return await link.running_incarnation(self._identity, called=node_id, timeout_s=timeout_s)
        except ConnectionRefusedError:
            return 0
        except ProtocolError as error:
            return 0 if error.code in _FINAL else None
        except (OSError, UnicodeError, TimeoutError):
            return None
        finally:
            link.close("request answered")

    def reconnect(self, node_id: str) -> None:
        """Close the link to a node and open a new one, which may reach another incarnation of that node."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.link is not None:
            peer.link.close("a later start of the node was reported")

    async def close(self) -> None:
        """Close all links; queued messages have a second to be sent."""
        self._closed = True
        links = [peer.link for peer in self._peers.values() if peer.link is not None]
        await asyncio.gather(*(link.finish(FINISH_TIMEOUT_S) for link in links))
        self.update_peers({})
        await asyncio.gather(*self._ending, return_exceptions=True)

    # ---------------------------------------------------------------------------------------------- internals

    def _end(self, node_id: str, peer: _Peer) -> None:
        assert peer.task is not None
        self._ending.add(peer.task)
        peer.task.add_done_callback(self._ending.discard)
        peer.task.cancel()
        if peer.link is not None:
            self._gone(node_id, peer, "the node's address has changed or the node was removed")

    def _gone(self, node_id: str, peer: _Peer, why: str) -> None:
        link, peer.link = peer.link, None
        if link is not None:
            link.close(why)
            self._events.lost(node_id)

    async def _keep(self, node_id: str, peer: _Peer) -> None:
        """Connect, wait until the link breaks, and reconnect."""
        loop = asyncio.get_running_loop()
        wait_s = FIRST_WAIT_S
        while True:
            try:
                link, incarnation = await self._connect(node_id, peer.address)
            except ConnectionRefusedError as error:
                peer.turned_away, peer.absent = False, True
                self._note(node_id, peer, f"{_name(peer.address)} refused the connection: {error}")
                self._events.refused(node_id)
            except (ProtocolError, OSError, UnicodeError, TimeoutError) as error:
                what = str(error) or f"no answer within {ATTEMPT_TIMEOUT_S:g} s"
                peer.turned_away = isinstance(error, ProtocolError) and error.code in _FINAL
                peer.absent = False
                self._note(node_id, peer, f"{_name(peer.address)}: {what}")
                if isinstance(error, RemovedError):
                    self._events.removed(error.message)
            else:
                since_s = loop.time()
                self._established(node_id, peer, link, incarnation)
                why = await link.lost
                self._gone(node_id, peer, why)
                self._note(node_id, peer, why)
                if loop.time() - since_s >= LONGEST_WAIT_S:
                    wait_s = FIRST_WAIT_S
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _established(self, node_id: str, peer: _Peer, link: Link, incarnation: int) -> None:
        peer.link = link
        peer.problem = None
        peer.turned_away = peer.absent = False
        self._metrics.peer_connects.tally(node_id).inc()
        log.info("connected to node %r at %s", node_id, _name(peer.address))
        self._events.established(node_id, incarnation)

    def _note(self, node_id: str, peer: _Peer, problem: str) -> None:
        """Log a problem once, however often the attempt is repeated."""
        if problem != peer.problem:
            peer.problem = problem
            log.warning("no link to node %r: %s", node_id, problem)

    async def _connect(self, node_id: str, address: Address) -> tuple[Link, int]:
        """Connect and authenticate.

        Raises:
            ConnectionRefusedError: nothing listens at any of the host's addresses.
            OSError, TimeoutError, UnicodeError, ProtocolError: any other failure.
        """
        link = Link(node_id, queue_bytes=self._queue_bytes, metrics=self._metrics)
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                await self._call(link, address)
                incarnation = await link.greet(
                    self._identity, called=node_id, timeout_s=ATTEMPT_TIMEOUT_S, incarnations=self._incarnations
                )
                return link, incarnation
        except BaseException as error:
            link.close(str(error))
            raise

    async def _call(self, link: Link, address: Address) -> None:
        """Connect a link, with TLS if nodes use it."""
        connected = await connected_socket(*address, prepare=tune)
        await self._tls.call(
            link,
            address[0],
            timeout_s=ATTEMPT_TIMEOUT_S,
            connect=lambda protocol: over_socket(protocol, connected),
        )


def _name(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


KEPT_BACK_BYTES: Final = 4 * MIB
"""Additional queue bytes for messages without batches."""
RETRY_MS: Final = 50
GATHER_S: Final = 0.0001
"""A message that follows another one within this time is gathered in the outbox."""


class RemovedError(ProtocolError):
    """Raised when a node of this cluster, after proving itself, reports that this node was removed."""


class Link(asyncio.BufferedProtocol):
    """An outgoing connection. `greet` authenticates it; it is usable until `lost` is done.

    Args:
        peer_id: the expected node at the other end; `greet` verifies it.
        queue_bytes: limit of the bytes that are waiting to be sent.
    """

    def __init__(self, peer_id: str, *, queue_bytes: int, metrics: NodeMetrics) -> None:
        self.peer_id = peer_id
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = self._loop.create_future()
        """Future of the reason for which the connection was lost."""
        self._queue_bytes = queue_bytes
        self._bytes_out = metrics.peer_bytes_out.tally(peer_id)
        self._dropped = metrics.peer_dropped_out.tally(peer_id)
        self._receiver = FrameReceiver(frame_bytes_max=FRAME_BYTES_MAX_BEFORE_HELLO, admit=self._admit)
        self.get_buffer = self._receiver.buffer  # type: ignore[method-assign]  # a call less for each chunk
        self._transport: asyncio.Transport | None = None
        self._stall_watch: StallWatch | None = None
        self._outbox = Outbox()
        self._left_s = 0.0
        """Time (`perf_counter`) at which a message was last written at once, without the outbox."""
        self._requests = PendingRequests(self._loop, self._late)
        self._close_reason = ""

    async def greet(
        self, own: Identity, *, called: str, timeout_s: float, incarnations: HandshakeIncarnations | None = None
    ) -> int:
        """Authenticate both nodes, and compare their incarnations if `incarnations` is given.

        Args:
            called: the expected id of the other node, whose incarnation is returned.

        Raises:
            ProtocolError: one node rejects the other, or the other end does not answer as a node does.
            RemovedError: the cluster has removed this node.
            StaleDirectoryError: the other node has proven that this node's directory is an older copy, or has noted
                that this node withdraws its incarnation for such a reason.
        """
        hello = hello_of(own, os.urandom(PEER_NONCE_BYTES))
        answer = (await self.request(pb.Envelope(peer_hello=hello), timeout_s=timeout_s)).envelope
        _expect(answer, "peer_hello_reply")
        proof = check_reply(own, called, hello, answer.peer_hello_reply)
        peer_id, incarnation = answer.peer_hello_reply.node_id, answer.peer_hello_reply.incarnation
        check_certificate(own, peer_id, self.certified())
        if incarnations is not None:
            proof.incarnations.CopyFrom(incarnations.offer(peer_id))
        welcome = (await self.request(pb.Envelope(peer_proof=proof), timeout_s=timeout_s)).envelope
        _expect(welcome, "peer_welcome")
        if welcome.peer_welcome.removed:
            raise RemovedError(pb.FORBIDDEN, removal(own.node_id))
        if incarnations is not None:
            reply = welcome.peer_welcome
            if reply.withdrawn:
                raise incarnations.withdrawal_noted(peer_id)
            if reply.HasField("later_incarnation"):
                raise incarnations.refuted(peer_id, reply.later_incarnation, in_use=reply.in_use)
            await incarnations.register(peer_id, incarnation, reply.incarnations)
        self._receiver.frame_bytes_max = FRAME_BYTES_MAX
        return incarnation

    async def running_incarnation(self, own: Identity, *, called: str, timeout_s: float) -> int:
        """Return the proven incarnation of the node that answers; the connection is not usable for anything else.

        Raises:
            ProtocolError: see `greet`.
        """
        hello = hello_of(own, os.urandom(PEER_NONCE_BYTES))
        answer = (await self.request(pb.Envelope(peer_hello=hello), timeout_s=timeout_s)).envelope
        _expect(answer, "peer_hello_reply")
        check_reply(own, called, hello, answer.peer_hello_reply)
        return answer.peer_hello_reply.incarnation

    def certified(self) -> list[str]:
        """Return the node ids in the certificate of the other end."""
        return names_in(None if self._transport is None else self._transport.get_extra_info("peercert"), "node")

    # ------------------------------------------------------------------------------------------------ sending

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that are waiting to be sent."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._outbox.size_bytes + unsent

    def send(self, one_way: OneWay) -> None:
        """Send a one-way message within this iteration of the event loop; drop it if it exceeds the queue's limit."""
        bound = self._queue_bytes + (0 if one_way.batches else KEPT_BACK_BYTES)
        transport, gathered_bytes = self._transport, self._outbox.size_bytes
        if (
            transport is None
            or transport.is_closing()
            or gathered_bytes + transport.get_write_buffer_size() + one_way.attachment_bytes > bound
        ):
            self._dropped.inc()
            return
        try:
            if gathered_bytes:
                self._outbox.put(one_way.message, one_way.batches)
                return
            now_s = time.perf_counter()
            if now_s - self._left_s >= GATHER_S:
                self._left_s = now_s
                parts, attachment_bytes = one_way.parts, one_way.attachment_bytes
                if not parts:
                    head = encode_frame(alone(one_way.message, one_way.batches).envelope, attachment_bytes)
                    parts = (head, *one_way.batches)
                    if attachment_bytes <= JOIN_BYTES_MAX:
                        parts = (b"".join(parts),)
                    one_way.parts = parts
                self._bytes_out.value += attachment_bytes
                if len(parts) == 1:
                    transport.write(parts[0])
                else:
                    write_parts(transport, parts)
                return
            self._outbox.put(one_way.message, one_way.batches)
            self._loop.call_soon(self.flush)
        except ProtocolError:
            log.exception("dropping a message to node %r that could not be encoded", self.peer_id)
            self._dropped.inc()

    def flush(self) -> None:
        """Hand all messages of the outbox to the transport."""
        transport = self._transport if self._is_open else None
        for outgoing in self._outbox.drain():
            if transport is None:
                self._dropped.inc(outgoing.entries)
            else:
                self._write(transport, outgoing)

    def _write(self, transport: asyncio.Transport, outgoing: OutgoingEnvelope) -> None:
        size_bytes = outgoing.attachment_bytes
        head = encode_frame(outgoing.envelope, size_bytes)
        if size_bytes:
            self._bytes_out.value += size_bytes
            _write(transport, [head, *outgoing.attachment], len(head) + size_bytes)
        else:
            transport.write(head)

    def request(
        self, envelope: pb.Envelope, attachment: Sequence[memoryview] = (), *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        """Write a request now and return the future of its answer.

        Args:
            envelope: the request; this method sets its correlation id.
            attachment: parts that are sent after the envelope, without a copy.
            timeout_s: the future fails after this time.

        The future fails with the ProtocolError that the other node answered, or with TIMED_OUT (retriable, outcome
        unknown) if no answer arrived.

        Raises:
            ProtocolError: nothing was sent: EPOCH_CHANGING without a connection, OVERLOADED if too many requests or
                bytes wait for the node, FRAME_TOO_LARGE.
        """
        if not self._is_open:
            raise unreachable(self.peer_id)
        assert self._transport is not None
        size_bytes = sum(map(len, attachment))
        if (
            len(self._requests.waiting) >= FORWARDED_IN_FLIGHT_MAX
            or self.waiting_bytes + size_bytes > self._queue_bytes
        ):
            raise ProtocolError(
                pb.OVERLOADED,
                f"{len(self._requests.waiting)} requests to node {self.peer_id!r} wait for answers, and "
                f"{self.waiting_bytes + size_bytes:,} bytes wait to be sent; the limits are {FORWARDED_IN_FLIGHT_MAX} "
                f"requests and {self._queue_bytes:,} bytes (peer_queue_bytes); retry",
                retry_after_ms=RETRY_MS,
            )
        envelope.correlation_id = self._requests.last_id + 1
        head = encode_frame(envelope, size_bytes)
        _write(self._transport, [head, *attachment], len(head) + size_bytes)
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._requests.add(partial(settle, future), timeout_s=timeout_s)
        return future

    def close(self, why: str) -> None:
        """Close the connection and drop the queued messages; pending requests fail."""
        self._close_reason = self._close_reason or why
        if self._transport is not None:
            self._transport.abort()

    async def finish(self, timeout_s: float) -> None:
        """Close after the queue has been sent, or when the timeout expires."""
        self.flush()
        if self._transport is not None:
            self._close_reason = self._close_reason or "this node is stopping"
            self._transport.close()
            await asyncio.wait([self.lost], timeout=timeout_s)
            self.close("this node is stopping")

    # --------------------------------------------------------------------------------------- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the stall watch of the new connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._stall_watch = StallWatch(transport.get_extra_info("socket"), lambda: self.close(stall_reason()))

    def buffer_updated(self, nbytes: int) -> None:
        """Parse received bytes and resolve the pending requests; close the link on any frame that is not an answer."""
        try:
            for frame in self._receiver.received(nbytes):
                if frame is not DECLINED:
                    self._answered(frame)
        except ProtocolError as error:
            self.close(f"node {self.peer_id!r} violates the protocol: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the pending requests; their outcome is unknown."""
        self._transport = None
        if self._stall_watch is not None:
            self._stall_watch.stop()
        why = self._close_reason or (str(exc) if exc is not None else "the other side closed the connection")
        what = f"the connection to node {self.peer_id!r} broke: {why}; the outcome is unknown"
        self._requests.end(ProtocolError(pb.TIMED_OUT, what))
        self.flush()
        if not self.lost.done():
            self.lost.set_result(why)

    # ---------------------------------------------------------------------------------------------- internals

    def _admit(self, envelope: pb.Envelope, attachment_bytes: int) -> bool:
        """Return False to discard the attachment of a frame that does not answer a pending request.

        Raises:
            ProtocolError: MALFORMED_FRAME for an attachment without a correlation id.
        """
        if envelope.correlation_id == 0 and attachment_bytes:
            what = f"received {envelope.WhichOneof('kind')!r} with an attachment, but without a correlation id"
            raise ProtocolError(pb.MALFORMED_FRAME, f"{what}; only answers may have an attachment")
        return envelope.correlation_id in self._requests.waiting or not attachment_bytes

    def _answered(self, frame: Frame) -> None:
        envelope = frame.envelope
        if envelope.correlation_id == 0:
            if (kind := envelope.WhichOneof("kind")) != "error":
                what = f"received {kind!r} without a correlation id; only errors may be sent without one"
                raise ProtocolError(pb.MALFORMED_FRAME, what)
            self.close(str(_error_of(envelope.error)))
            return
        pending = self._requests.waiting.pop(envelope.correlation_id, None)
        if pending is not None:
            pending.answered(_error_of(envelope.error) if envelope.WhichOneof("kind") == "error" else frame)

    def _late(self, timeout_s: float) -> ProtocolError:
        return ProtocolError(pb.TIMED_OUT, f"no answer from node {self.peer_id!r} within {timeout_s:g} s")


def unreachable(peer_id: str) -> ProtocolError:
    """Return the error of a request to a node without a link; nothing was sent."""
    return ProtocolError(
        pb.EPOCH_CHANGING, f"node {peer_id!r} is not reachable from this node; retry", retry_after_ms=RETRY_MS
    )


def _write(transport: asyncio.Transport, parts: Sequence[bytes | memoryview], size_bytes: int) -> None:
    if size_bytes <= JOIN_BYTES_MAX:
        transport.write(b"".join(parts))
    else:
        write_parts(transport, parts)


def _expect(answer: pb.Envelope, kind: str) -> None:
    if answer.WhichOneof("kind") != kind:
        raise ProtocolError(pb.MALFORMED_FRAME, f"received the answer {answer.WhichOneof('kind')!r}; expected {kind!r}")


def _error_of(error: pb.Error) -> ProtocolError:
    return ProtocolError(
        error.code if error.code in NATURE else pb.INTERNAL,
        error.message,
        retry_after_ms=error.retry_after_ms,
        log_start_offset=error.log_start_offset,
        high_watermark=error.high_watermark,
        epoch=error.epoch,
    )
