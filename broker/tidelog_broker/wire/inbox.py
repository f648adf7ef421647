"""One-way messages as they arrive from a node: admitted, cut into entries, their batches verified, delivered in order.

A message costs no `Request`: nothing answers it. Memory is bounded by a budget that all peers share; what does not fit
is read past and counted, and whoever misses it asks again. (Not reading from the peer instead would hold up the
acknowledgements behind it, for which, perhaps, the peer's own full queues wait.)

A batch is handed on with its header parsed and its body's CRC32C checked, so damage from a peer's disk or memory gets
no further than here: that entry is dropped and said, the others and the connection go on. A message whose *lengths* do
not add up is no mistake that a node of this build makes, and ends the connection. What would take long to verify is
verified on a worker; what arrives behind it waits for its turn.
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
from tidelog_proto.batch.record_batch import body_of, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_PEER_MESSAGE_MAX, KIB, MIB
from tidelog_proto.wire.frames import Frame, split_attachment

log = logging.getLogger(__name__)

VERIFY_ON_LOOP_BYTES: Final = 256 * KIB
"""Up to here batches are verified on the event loop, which takes less than handing them to a thread."""

VERIFY_FEW_BYTES: Final = 4 * MIB
FEW_BATCHES: Final = 16
"""And up to here where they are few: then it is the checksums that take their time, less than the copying did, and a
thread on the same core is no second pair of hands."""

Received = Callable[[str, LinkMessage, Sequence[Batch]], None]
"""Called with the sender's node id, one message and its verified batches."""

_Judged = Sequence[Sequence[Batch] | ProtocolError]


class _Arrived:
    """A message on its way through; `judged` has the batches of each entry once they are verified."""

    __slots__ = ("attachment_bytes", "entries", "is_long", "judged", "parts", "size_bytes")

    def __init__(self, entries: Sequence[LinkMessage], parts: Sequence[memoryview], attachment_bytes: int) -> None:
        self.entries = entries
        self.parts = parts
        self.attachment_bytes = attachment_bytes
        self.size_bytes = attachment_bytes
        """Its share of the budget."""
        self.is_long = attachment_bytes > VERIFY_ON_LOOP_BYTES and not self._has_few()
        """Whether it is verified on a worker."""
        self.judged: _Judged | None = None

    def verify(self) -> _Judged:
        return [_verified(part) for part in self.parts]

    def _has_few(self) -> bool:
        if self.attachment_bytes > VERIFY_FEW_BYTES:
            return False
        try:
            if len(self.parts) == 1 and batch_length(self.parts[0]) == self.attachment_bytes:
                return True  # one, as nearly always
            batches = chain.from_iterable(map(iter_batches, self.parts))
            return sum(1 for _ in islice(batches, FEW_BATCHES + 1)) <= FEW_BATCHES
        except ProtocolError:
            return False  # it is the entry's end, not the message's


class Inbox:
    """What one connection of a peer sends one-way.

    Args:
        node_id, incarnation: the peer, as proven.
        received: gets every message.
        budget: bytes that have arrived, or are arriving, and are not yet handed on; all peers together.
        verifiers: workers for large messages; one thread, so that they come back in order.
        metrics: the node's.
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
        self._waiting: deque[_Arrived] = deque()
        self._arriving_bytes = 0
        self._closed = False

    def admit(self, size_bytes: int) -> bool:
        """Count a message in before memory is taken for its batches, or decline it.

        Args:
            size_bytes: of its batches, and of its envelope where that is not small (see `budget`).
        """
        if not self._budget.admit(size_bytes):
            self._dropped.inc()
            return False
        self._arriving_bytes = size_bytes
        return True

    def take(self, frame: Frame) -> None:
        """Take a whole message that was admitted.

        Raises:
            ProtocolError: MALFORMED_FRAME or UNKNOWN_KIND; nothing behind it on the connection can be trusted.
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
            self._verifiers.start(0, message.verify, lambda judged, error: self._verified(message, judged, error))
        elif self._waiting:
            self._waiting.append(message)
        else:
            self._deliver(message)

    def close(self) -> None:
        """Deliver nothing more: the connection is gone, or another one has replaced it."""
        self._closed = True
        self._budget.give_back(self._arriving_bytes)
        self._arriving_bytes = 0

    def _verified(self, message: _Arrived, judged: _Judged | None, error: BaseException | None) -> None:
        """Go on with what has waited for this."""
        if judged is None:
            log.error("verifying what %r has sent failed: %r", self.node_id, error, exc_info=error)
            judged = [ProtocolError(pb.INTERNAL, "verification failed")] * len(message.parts)
        message.judged = judged
        while self._waiting:
            first = self._waiting[0]
            if first.judged is None and first.is_long:
                return
            self._waiting.popleft()
            self._deliver(first)

    def _deliver(self, message: _Arrived) -> None:
        if not self._closed:
            judged = message.judged if message.judged is not None else message.verify()
            for index, entry in enumerate(message.entries):
                self._hand_on(entry, judged[index] if judged else ())
        if message.size_bytes:
            self._budget.give_back(message.size_bytes)

    def _hand_on(self, entry: LinkMessage, batches: Sequence[Batch] | ProtocolError) -> None:
        if isinstance(batches, ProtocolError):
            self._dropped.inc()
            log.error(
                "batches from %r for partition %d of topic %s are dropped: %s",
                self.node_id,
                entry.partition,
                entry.topic_id.hex(),
                batches,
            )
            return
        try:
            self._received(self.node_id, entry, batches)
        except Exception:  # a bug with one partition's message must not take the others' along
            log.exception("a %s from %r could not be worked on", type(entry).__name__, self.node_id)


def _arrived(frame: Frame) -> _Arrived:
    """Cut a message into its entries and its attachment into their parts, looking at lengths only."""
    kind = frame.envelope.WhichOneof("kind")
    if kind not in ONE_WAY_KINDS:
        raise ProtocolError(pb.UNKNOWN_KIND, f"a {kind} without a correlation id: nodes send none")
    message: Any = getattr(frame.envelope, kind)
    entries: Sequence[Any] = [message] if kind in SINGLE_KINDS else message.entries
    if len(entries) > ENTRIES_PER_PEER_MESSAGE_MAX:
        raise ProtocolError(
            pb.MALFORMED_FRAME, f"a {kind} of {len(entries)} entries; at most {ENTRIES_PER_PEER_MESSAGE_MAX}"
        )
    if kind in KINDS_WITH_BATCHES:
        parts = split_attachment(frame.attachment, [entry.length for entry in entries])
    elif len(frame.attachment):
        raise ProtocolError(pb.MALFORMED_FRAME, f"a {kind} has no attachment, this one has {len(frame.attachment)}")
    else:
        parts = []
    return _Arrived(entries, parts, len(frame.attachment))


def _verified(part: memoryview) -> Sequence[Batch] | ProtocolError:
    """Return the batches of one entry, all of them or none."""
    if not part:
        return ()
    try:
        header = unpack_header(part)
        if header.length == len(part):  # one, as nearly always
            body_of(header, part)
            return (Batch(header, part),)
        batches = []
        for data in iter_batches(part):
            header = unpack_header(data)
            body_of(header, data)
            batches.append(Batch(header, data))
    except ProtocolError as error:
        return error
    return batches
