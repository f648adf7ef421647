"""An outgoing, mutually authenticated connection to another node: one-way messages, requests and their answers.

A one-way message is written at once if the link was idle; messages that closely follow another one gather in an outbox
until the end of the event loop's turn and are written together. Batches are sent as memoryviews, without a copy. The
bytes that are waiting to be sent (the outbox plus the transport's buffer) are bounded, within one message. Past the
bound a one-way message is dropped and counted, because its sender asks again anyway, and a request is refused. A
reserve is kept for messages without batches, so that a stream of batches cannot block acknowledgements.

The other node sends nothing on this connection except answers; see `links` for why a link has one direction.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Final, cast

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.core.peer_auth import Identity, check_certificate, check_reply, hello_of
from tidelog_broker.core.placement.registry import removal
from tidelog_broker.core.replication.outbox import LinkMessage, Outbox, OutgoingEnvelope, alone
from tidelog_broker.wire.handshake_incarnations import HandshakeIncarnations
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
from tidelog_proto.wire.frames import Frame, encode_frame
from tidelog_proto.wire.gathered_write import JOIN_BYTES_MAX, write_parts
from tidelog_proto.wire.pending_requests import PendingRequests, settle

log = logging.getLogger(__name__)

KEPT_BACK_BYTES: Final = 4 * MIB
"""Additional queue bytes for messages without batches."""
RETRY_MS: Final = 50
GATHER_S: Final = 0.0001
"""A message that follows another one within this time is gathered in the outbox."""


class RemovedError(ProtocolError):
    """Raised when a node of this cluster, after proving itself, reports that this node was removed."""


class OneWay:
    """A one-way message with whole batches. It is encoded once, whatever the number of receivers."""

    __slots__ = ("attachment_bytes", "batches", "message", "parts")

    def __init__(self, message: LinkMessage, batches: Sequence[memoryview] = ()) -> None:
        self.message = message
        self.batches = batches
        self.attachment_bytes = sum(map(len, batches)) if batches else 0
        self.parts: Sequence[bytes | memoryview] = ()
        """The frame, once the first link has encoded it; small batches are joined with it."""


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
        """When a message was last written at once."""
        self._requests = PendingRequests(self._loop, self._late)
        self._close_reason = ""

    async def greet(
        self, own: Identity, *, called: str, timeout_s: float, incarnations: HandshakeIncarnations | None = None
    ) -> int:
        """Authenticate both nodes and compare their incarnations; return the other node's incarnation.

        `called` is the expected id of the other node.

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
        """Send a one-way message within this turn of the event loop; drop the message if the queue is full."""
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
            ProtocolError: nothing was sent: EPOCH_CHANGING without a connection, OVERLOADED if the queue is full,
                FRAME_TOO_LARGE.
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
                f"the send queue to node {self.peer_id!r} is full; retry",
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
        """Accept the answers of pending requests; the attachment of any other answer is discarded."""
        if envelope.correlation_id == 0 and attachment_bytes:
            raise ProtocolError(pb.MALFORMED_FRAME, "received an attachment without a request for it")
        return envelope.correlation_id in self._requests.waiting or not attachment_bytes

    def _answered(self, frame: Frame) -> None:
        envelope = frame.envelope
        if envelope.correlation_id == 0:
            if envelope.WhichOneof("kind") != "error":
                raise ProtocolError(pb.MALFORMED_FRAME, "received a message that answers no request")
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
        raise ProtocolError(pb.MALFORMED_FRAME, f"expected a {kind}, got a {answer.WhichOneof('kind')}")


def _error_of(error: pb.Error) -> ProtocolError:
    return ProtocolError(
        error.code if error.code in NATURE else pb.INTERNAL,
        error.message,
        retry_after_ms=error.retry_after_ms,
        log_start_offset=error.log_start_offset,
        high_watermark=error.high_watermark,
        epoch=error.epoch,
    )
