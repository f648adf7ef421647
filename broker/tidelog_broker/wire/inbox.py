"""One-way messages from another node: admission, splitting into entries, batch verification and ordered delivery.

A message needs no `Request`, because nothing answers it. All peers share a budget of memory; a message that does not
fit is discarded and counted, and the node that misses it asks again. (Pausing reads instead would delay the
acknowledgements that follow, for which the peer's own full queues may be waiting.)

A batch is delivered with its header parsed and the CRC32C of its body checked, so corruption on a peer's disk or in its
memory does not spread: the entry is dropped and logged, other entries and the connection are not affected. A message
with inconsistent *lengths* cannot come from a correct node and ends the connection. Large messages are verified on a
worker; messages that arrive after one wait until it is verified.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, Final

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.outbox import KINDS_WITH_BATCHES, ONE_WAY_KINDS, SINGLE_KINDS, LinkMessage
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.wire.budget import Budget
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import batch_length, unpack_header
from tidelog_proto.batch.record_batch import crc_checked_body, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_PEER_MESSAGE_MAX, KIB, MIB
from tidelog_proto.wire.frames import Frame, split_attachment

log = logging.getLogger(__name__)

VERIFY_ON_LOOP_BYTES: Final = 256 * KIB
"""Up to this size batches are verified on the event loop, which takes less time than a thread switch."""

VERIFY_FEW_BYTES: Final = 4 * MIB
FEW_BATCHES: Final = 16
"""Up to this size a few batches are verified on the event loop: checksums dominate the cost, they take less time than
copying the batches did, and a thread on the same core saves nothing."""

Received = Callable[[str, LinkMessage, Sequence[Batch]], None]
"""Called with the sender's node id, one message and its verified batches."""

_Outcomes = Sequence[Sequence[Batch] | ProtocolError]


class _ArrivedMessage:
    """A message in progress; `outcomes` holds each entry's batches or error once they are verified."""

    __slots__ = ("attachment_bytes", "entries", "is_long", "outcomes", "parts", "size_bytes")

    def __init__(self, entries: Sequence[LinkMessage], parts: Sequence[memoryview], attachment_bytes: int) -> None:
        self.entries = entries
        self.parts = parts
        self.attachment_bytes = attachment_bytes
        self.size_bytes = attachment_bytes
        """The message's share of the budget."""
        self.is_long = attachment_bytes > VERIFY_ON_LOOP_BYTES and not self._has_few()
        """Whether it is verified on a worker."""
        self.outcomes: _Outcomes | None = None

    def verify(self) -> _Outcomes:
        return [_verified(part) for part in self.parts]

    def _has_few(self) -> bool:
        if self.attachment_bytes > VERIFY_FEW_BYTES:
            return False
        try:
            if len(self.parts) == 1 and batch_length(self.parts[0]) == self.attachment_bytes:
                return True  # a single batch, the common case
            batches = chain.from_iterable(map(iter_batches, self.parts))
            return sum(1 for _ in islice(batches, FEW_BATCHES + 1)) <= FEW_BATCHES
        except ProtocolError:
            return False  # Reported for the entry when it is verified.


class Inbox:
    """The one-way messages of one peer's connection.

    Args:
        node_id, incarnation: the authenticated peer.
        received: called with every message.
        budget: bytes that have arrived, or are arriving, and are not delivered; shared by all peers.
        verifiers: worker for large messages; a single thread, so that results keep their order.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        *,
        received: Received,
        budget: Budget,
        verifiers: Offload,
        metrics: NodeMetrics,
    ) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self._received = received
        self._budget = budget
        self._verifiers = verifiers
        self._bytes_in = metrics.peer_bytes_in.tally(node_id)
        self._dropped = metrics.peer_dropped_in.tally(node_id)
        self._waiting: deque[_ArrivedMessage] = deque()
        self._arriving_bytes = 0
        self._closed = False

    def admit(self, size_bytes: int) -> bool:
        """Count a message before memory is allocated for its batches; return False if it is declined.

        Args:
            size_bytes: size of its batches, plus its envelope if that is large (see `budget`).
        """
        if not self._budget.take(size_bytes):
            self._dropped.inc()
            log.warning(
                "dropping %d bytes of batches from node %r, which sends them again: batches of all nodes arrive faster "
                "than this node verifies them, and the rest fills peers_in_flight_bytes; its processor is busy",
                size_bytes,
                self.node_id,
            )
            return False
        self._arriving_bytes = size_bytes
        return True

    def take(self, frame: Frame) -> None:
        """Queue a complete message that was admitted, for verification and delivery.

        Raises:
            ProtocolError: MALFORMED_FRAME or UNKNOWN_KIND; the connection cannot be used further.
        """
        size_bytes = self._arriving_bytes
        assert size_bytes >= len(frame.attachment)
        message = _arrived(frame)
        message.size_bytes = size_bytes
        self._arriving_bytes = 0
        if not (size_bytes or self._waiting or self._closed):
            for entry in message.entries:
                self._hand_on(entry, ())
            return
        self._bytes_in.value += message.attachment_bytes
        if message.is_long:
            self._waiting.append(message)
            self._verifiers.start(0, message.verify, lambda outcomes, error: self._verified(message, outcomes, error))
        elif self._waiting:
            self._waiting.append(message)
        else:
            self._deliver(message)

    def close(self) -> None:
        """Stop delivery: the connection is closed or was replaced."""
        self._closed = True
        self._budget.give_back(self._arriving_bytes)
        self._arriving_bytes = 0

    def _verified(self, message: _ArrivedMessage, outcome: _Outcomes | None, error: BaseException | None) -> None:
        """Record the result of a verification and deliver all messages that are ready."""
        if outcome is None:
            log.error("verifying a message from node %r failed: %r", self.node_id, error, exc_info=error)
            outcome = [ProtocolError(pb.INTERNAL, "verification failed")] * len(message.parts)
        message.outcomes = outcome
        while self._waiting:
            first = self._waiting[0]
            if first.outcomes is None and first.is_long:
                return
            self._waiting.popleft()
            self._deliver(first)

    def _deliver(self, message: _ArrivedMessage) -> None:
        if not self._closed:
            outcome = message.outcomes if message.outcomes is not None else message.verify()
            for index, entry in enumerate(message.entries):
                self._hand_on(entry, outcome[index] if outcome else ())
        if message.size_bytes:
            self._budget.give_back(message.size_bytes)

    def _hand_on(self, entry: LinkMessage, batches: Sequence[Batch] | ProtocolError) -> None:
        if isinstance(batches, ProtocolError):
            self._dropped.inc()
            log.error(
                "dropping batches from node %r for partition %d of topic %s: %s",
                self.node_id,
                entry.partition,
                entry.topic_id.hex(),
                batches,
            )
            return
        try:
            self._received(self.node_id, entry, batches)
        except Exception:  # A bug in the handling of one partition's message must not affect other messages.
            log.exception("processing a %s from node %r failed", type(entry).__name__, self.node_id)


def _arrived(frame: Frame) -> _ArrivedMessage:
    """Split a message into its entries and its attachment into their parts, checking only lengths."""
    kind = frame.envelope.WhichOneof("kind")
    if kind not in ONE_WAY_KINDS:
        raise ProtocolError(pb.UNKNOWN_KIND, f"a {kind} without a correlation id is not a one-way message")
    message: Any = getattr(frame.envelope, kind)
    entries: Sequence[Any] = [message] if kind in SINGLE_KINDS else message.entries
    if len(entries) > ENTRIES_PER_PEER_MESSAGE_MAX:
        raise ProtocolError(
            pb.MALFORMED_FRAME, f"a {kind} has {len(entries)} entries, the limit is {ENTRIES_PER_PEER_MESSAGE_MAX}"
        )
    if kind in KINDS_WITH_BATCHES:
        parts = split_attachment(frame.attachment, [entry.length for entry in entries])
    elif len(frame.attachment):
        raise ProtocolError(pb.MALFORMED_FRAME, f"a {kind} has no attachment, got {len(frame.attachment)} bytes")
    else:
        parts = []
    return _ArrivedMessage(entries, parts, len(frame.attachment))


def _verified(part: memoryview) -> Sequence[Batch] | ProtocolError:
    """Return all batches of one entry, or the error that rejects the entry."""
    if not part:
        return ()
    try:
        header = unpack_header(part)
        if header.length == len(part):  # a single batch, the common case
            crc_checked_body(header, part)
            return (Batch(header, part),)
        batches = []
        for data in iter_batches(part):
            header = unpack_header(data)
            crc_checked_body(header, data)
            batches.append(Batch(header, data))
    except ProtocolError as error:
        return error
    return batches
