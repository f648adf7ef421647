"""One-way messages between nodes: gathering and encoding, then admission, verification and ordered delivery.

**Sending.** Messages that are put into an `Outbox` between two calls of `drain` (within one iteration of the event
loop) are sent together. Messages of one kind share an envelope, but two messages of one *partition* are never
reordered: an append that arrives before the decision that permits it would be refused and requested again. A message
therefore joins the newest envelope of its kind unless a later envelope contains a message of its partition.

An envelope is full with `ENTRIES_PER_PEER_MESSAGE_MAX` entries, half of the maximum envelope size, or
`PEER_GROUP_BYTES` of batches. The latter bounds memory: batches that arrive together share one buffer, which any of
them keeps alive. A larger append is sent alone.

**Receiving.** A message needs no `Request`, because nothing answers it. All peers share a budget of memory; a message
that does not fit is discarded and counted, and the node that misses it asks again. (Pausing reads instead would delay
the acknowledgements that follow, for which the peer's own full queues may be waiting.)

A batch is delivered with its header parsed and the CRC32C of its body checked, so corruption on a peer's disk or in its
memory does not spread: the entry is dropped and logged, other entries and the connection are not affected. A message
with inconsistent *lengths* cannot come from a correct node and ends the connection. Large messages are verified on a
worker; messages that arrive after one wait until it is verified.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication.effects import PeerMessage
from tidelog_broker.core.replication.ports import Batch
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.wire.budget import Budget
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import batch_length, crc_checked_body, unpack_header
from tidelog_proto.batch.record_batch import iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    BATCH_BYTES_MAX,
    ENTRIES_PER_PEER_MESSAGE_MAX,
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES_MAX,
    KIB,
    MIB,
    PEER_GROUP_BYTES,
)
from tidelog_proto.wire.frames import Frame, split_attachment

log = logging.getLogger(__name__)

LinkMessage = PeerMessage | pb.ChainDigest
"""One-way messages of a link: messages of replicas, and chain digests."""

ENVELOPE_FILL_BYTES: Final = ENVELOPE_BYTES_MAX // 2
ENTRY_OVERHEAD_BYTES: Final = 6
"""Maximum size of an entry's tag and length in its envelope."""
MESSAGE_BYTES_MAX: Final = ENVELOPE_BYTES_MAX - 64
ATTACHMENT_BYTES_MAX: Final = FRAME_BYTES_MAX - ENVELOPE_BYTES_MAX - 64

_KINDS: Final[dict[type[LinkMessage], str]] = {
    pb.AppendBatch: "append_batch",
    pb.ReplicationAck: "replication_ack",
    pb.PreVote: "pre_vote",
    pb.PreVoteReply: "pre_vote_reply",
    pb.Seal: "seal",
    pb.SealReply: "seal_reply",
    pb.OpenEpoch: "open_epoch",
    pb.OpenEpochReply: "open_epoch_reply",
    pb.MetadataUpdate: "metadata_update",
    pb.EpochStatus: "epoch_status",
    pb.Backfill: "backfill",
    pb.BackfillReply: "backfill_reply",
    pb.ChainDigest: "chain_digests",
}

ONE_WAY_KINDS: Final = frozenset(_KINDS.values())
"""Kinds of envelopes between nodes that are not answered."""

SINGLE_KINDS: Final = frozenset({"backfill_reply"})
"""Kinds that contain one message; the others have `entries`."""

KINDS_WITH_BATCHES: Final = frozenset({"append_batch", "backfill_reply"})
"""Kinds of messages that have batches; each states its part of the envelope's attachment as its `length`."""

assert BATCH_BYTES_MAX <= ATTACHMENT_BYTES_MAX, "a batch of maximum size must fit in a message"


class OutgoingEnvelope(NamedTuple):
    """An envelope to send, with its attachment in parts."""

    envelope: pb.Envelope
    attachment: Sequence[memoryview]
    attachment_bytes: int
    entries: int


class _Group:
    __slots__ = ("attachment", "attachment_bytes", "entries", "kind", "message_bytes")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.entries: list[LinkMessage] = []
        self.attachment: list[memoryview] = []
        self.message_bytes = 0
        self.attachment_bytes = 0

    def has_room(self, message_bytes: int, attachment_bytes: int) -> bool:
        return (
            self.kind not in SINGLE_KINDS
            and len(self.entries) < ENTRIES_PER_PEER_MESSAGE_MAX
            and self.message_bytes + message_bytes <= ENVELOPE_FILL_BYTES
            and self.attachment_bytes + attachment_bytes <= PEER_GROUP_BYTES
        )


class Outbox:
    """Messages to one node that have not been passed to its connection yet."""

    __slots__ = ("_groups", "_last_of", "_newest", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        """Size of the queued messages and batches."""
        self._groups: list[_Group] = []
        self._newest: dict[str, int] = {}
        self._last_of: dict[PartitionKey, int] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def put(self, message: LinkMessage, batches: Sequence[memoryview]) -> None:
        """Queue a message, and set its `length` if it has batches.

        Raises:
            ProtocolError: FRAME_TOO_LARGE if the message does not fit in an envelope.
        """
        kind, message_bytes, attachment_bytes = _kind_and_sizes(message, batches)
        key = (message.topic_id, message.partition)
        number = self._newest.get(kind, -1)
        earliest = self._last_of.get(key, 0)
        if number < earliest or not self._groups[number].has_room(message_bytes, attachment_bytes):
            number = self._newest[kind] = len(self._groups)
            self._groups.append(_Group(kind))
        self._last_of[key] = number
        group = self._groups[number]
        group.entries.append(message)
        group.attachment += batches
        group.message_bytes += message_bytes
        group.attachment_bytes += attachment_bytes
        self.size_bytes += message_bytes + attachment_bytes

    def drain(self) -> Iterator[OutgoingEnvelope]:
        """Yield all messages as envelopes in sending order, and empty the outbox."""
        groups, self._groups = self._groups, []
        self._newest.clear()
        self._last_of.clear()
        self.size_bytes = 0
        for group in groups:
            yield _envelope_of(group.kind, group.entries, group.attachment, group.attachment_bytes)


def alone(message: LinkMessage, batches: Sequence[memoryview]) -> OutgoingEnvelope:
    """Return a message as an envelope of its own.

    Raises:
        ProtocolError: FRAME_TOO_LARGE if the message does not fit in an envelope.
    """
    kind, _, attachment_bytes = _kind_and_sizes(message, batches)
    envelope = pb.Envelope()
    filled: Any = getattr(envelope, kind)
    if kind in SINGLE_KINDS:
        filled.CopyFrom(message)
    else:
        filled.entries.append(message)
    return OutgoingEnvelope(envelope, batches, attachment_bytes, 1)


def _kind_and_sizes(message: LinkMessage, batches: Sequence[memoryview]) -> tuple[str, int, int]:
    """Set the `length` of a message of `KINDS_WITH_BATCHES`; return its kind, its size, and the size of its batches."""
    kind = _KINDS[type(message)]
    attachment_bytes = 0
    if kind in KINDS_WITH_BATCHES:
        attachment_bytes = sum(map(len, batches))
        assert isinstance(message, pb.AppendBatch | pb.BackfillReply)
        message.length = attachment_bytes
    else:
        assert not batches, f"a {kind} has no batches"
    message_bytes = message.ByteSize() + ENTRY_OVERHEAD_BYTES
    if message_bytes > MESSAGE_BYTES_MAX or attachment_bytes > ATTACHMENT_BYTES_MAX:
        raise ProtocolError(
            pb.FRAME_TOO_LARGE,
            f"a message {kind!r} has {message_bytes} bytes (limit {MESSAGE_BYTES_MAX}), and its batches have "
            f"{attachment_bytes} bytes (limit {ATTACHMENT_BYTES_MAX})",
        )
    return kind, message_bytes, attachment_bytes


def _envelope_of(
    kind: str, entries: Sequence[LinkMessage], attachment: Sequence[memoryview], attachment_bytes: int
) -> OutgoingEnvelope:
    envelope = pb.Envelope()
    message: Any = getattr(envelope, kind)
    if kind in SINGLE_KINDS:
        message.CopyFrom(entries[0])
    else:
        message.entries.extend(entries)
    return OutgoingEnvelope(envelope, attachment, attachment_bytes, len(entries))


class OneWay:
    """A one-way message, with whole batches if its kind has any; acknowledgements, for example, have none.

    It is encoded once for all links that send it alone. A link that gathers it in its `Outbox` encodes it for itself.
    """

    __slots__ = ("attachment_bytes", "batches", "message", "parts")

    def __init__(self, message: LinkMessage, batches: Sequence[memoryview] = ()) -> None:
        self.message = message
        self.batches = batches
        self.attachment_bytes = sum(map(len, batches)) if batches else 0
        self.parts: Sequence[bytes | memoryview] = ()
        """The frame, once the first link has encoded it; small batches are joined with it."""


VERIFY_ON_LOOP_BYTES: Final = 256 * KIB
"""Up to this size batches are verified on the event loop, which takes less time than a thread switch."""

FEW_BATCHES: Final = 16
"""Maximum number of batches for which `VERIFY_FEW_BYTES` applies."""

VERIFY_FEW_BYTES: Final = 4 * MIB
"""Up to this size, at most `FEW_BATCHES` batches are verified on the event loop. Their cost is dominated by checksums,
which take less time than copying the batches did, and a thread on the same core would save nothing."""

Received = Callable[[str, LinkMessage, Sequence[Batch]], None]
"""Called with the sender's node id, one message and its verified batches."""

_Outcomes = Sequence[Sequence[Batch] | ProtocolError]


class _WaitingMessage:
    """A message that waits for its verification on a worker, or for that of an earlier message."""

    __slots__ = ("entries", "is_long", "outcomes", "parts", "size_bytes")

    def __init__(
        self, entries: Sequence[LinkMessage], parts: Sequence[memoryview], size_bytes: int, *, is_long: bool
    ) -> None:
        self.entries = entries
        self.parts = parts
        self.size_bytes = size_bytes
        """Bytes of the message that are counted in the budget."""
        self.is_long = is_long
        """Whether the message is verified on a worker."""
        self.outcomes: _Outcomes | None = None
        """Each entry's batches or error; None before the verification."""

    def verify(self) -> _Outcomes:
        return list(map(_verified, self.parts))


class Inbox:
    """Verifies the one-way messages that arrive on one peer's connection, and delivers them in order.

    Args:
        node_id, incarnation: the authenticated peer.
        received: called with every message whose batches, if any, are intact.
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
        self._waiting: deque[_WaitingMessage] = deque()
        self._arriving_bytes = 0
        self._closed = False

    def admit(self, size_bytes: int) -> bool:
        """Count a message before memory is allocated for its batches; return False if it is declined.

        Args:
            size_bytes: size of its batches, plus its envelope if that is large (see `budget`).
        """
        budget = self._budget
        if budget.used_bytes + size_bytes <= budget.bytes_max:
            budget.used_bytes += size_bytes
        elif not budget.take(size_bytes):
            self._dropped.inc()
            log.warning(
                "dropping %d bytes of batches from node %r, which this node requests again later: the batches that it "
                "has yet to verify and write have reached the limit peers_in_flight_bytes; check the load of this "
                "node's processor and disk",
                size_bytes,
                self.node_id,
            )
            return False
        self._arriving_bytes = size_bytes
        return True

    def take(self, frame: Frame) -> None:
        """Verify and deliver a complete message that was admitted, or queue it if that has to happen later.

        Raises:
            ProtocolError: MALFORMED_FRAME or UNKNOWN_KIND; the connection cannot be used further.
        """
        attachment, size_bytes = frame.attachment, self._arriving_bytes
        attachment_bytes = len(attachment)
        assert size_bytes >= attachment_bytes
        kind = frame.envelope.WhichOneof("kind")
        if kind not in ONE_WAY_KINDS:
            raise ProtocolError(
                pb.UNKNOWN_KIND,
                f"node {self.node_id!r} sent a message of kind {kind or 'unknown'} without a correlation id; only "
                "one-way messages may omit it",
            )
        message: Any = getattr(frame.envelope, kind)
        entries: Sequence[Any] = (message,) if kind in SINGLE_KINDS else message.entries
        if len(entries) > ENTRIES_PER_PEER_MESSAGE_MAX:
            raise ProtocolError(
                pb.MALFORMED_FRAME,
                f"node {self.node_id!r} sent {kind!r} with {len(entries)} entries; the limit is "
                f"{ENTRIES_PER_PEER_MESSAGE_MAX}",
            )
        parts: Sequence[memoryview] = ()
        if kind in KINDS_WITH_BATCHES:
            if len(entries) == 1 and entries[0].length == attachment_bytes:
                parts = (attachment,)  # the common case
            else:
                parts = split_attachment(attachment, [entry.length for entry in entries])
        elif attachment_bytes:
            raise ProtocolError(
                pb.MALFORMED_FRAME,
                f"node {self.node_id!r} sent {kind!r} with an attachment of {attachment_bytes} bytes; this kind of "
                "message must not have one",
            )
        self._arriving_bytes = 0
        self._bytes_in.value += attachment_bytes
        is_long = attachment_bytes > VERIFY_ON_LOOP_BYTES and not _are_few(parts, attachment_bytes)
        if is_long or self._waiting:
            self._queue(_WaitingMessage(entries, parts, size_bytes, is_long=is_long))
            return
        outcomes = list(map(_verified, parts)) if attachment_bytes and not self._closed else ()
        self._deliver(entries, outcomes, size_bytes)

    def close(self) -> None:
        """Stop delivery: the connection is closed or was replaced."""
        self._closed = True
        self._budget.give_back(self._arriving_bytes)
        self._arriving_bytes = 0

    def _queue(self, message: _WaitingMessage) -> None:
        self._waiting.append(message)
        if message.is_long:
            self._verifiers.start(0, message.verify, lambda outcomes, error: self._verified(message, outcomes, error))

    def _verified(self, message: _WaitingMessage, outcomes: _Outcomes | None, error: BaseException | None) -> None:
        """Record the result of a verification and deliver all messages that are ready."""
        if outcomes is None:
            log.error(
                "verifying batches from node %r failed, so they are dropped: %r", self.node_id, error, exc_info=error
            )
            outcomes = [ProtocolError(pb.INTERNAL, "verification failed")] * len(message.parts)
        message.outcomes = outcomes
        while self._waiting:
            first = self._waiting[0]
            if first.outcomes is None:
                if first.is_long:
                    return
                first.outcomes = () if self._closed else first.verify()
            self._waiting.popleft()
            self._deliver(first.entries, first.outcomes, first.size_bytes)

    def _deliver(self, entries: Sequence[LinkMessage], outcomes: _Outcomes, size_bytes: int) -> None:
        """Pass each entry with its batches to the receiver, and return the message's share of the budget.

        Args:
            outcomes: each entry's batches or error; empty: no entry has batches.
        """
        if not self._closed:
            for index, entry in enumerate(entries):
                batches = outcomes[index] if outcomes else ()
                if isinstance(batches, ProtocolError):
                    self._drop(entry, batches)
                    continue
                try:
                    self._received(self.node_id, entry, batches)
                except Exception:  # A bug in the handling of one partition's message must not affect other messages.
                    log.exception(
                        "skipping a message %s from node %r, because processing it raised an error",
                        type(entry).__name__,
                        self.node_id,
                    )
        if size_bytes:
            self._budget.used_bytes -= size_bytes

    def _drop(self, entry: LinkMessage, error: ProtocolError) -> None:
        self._dropped.inc()
        log.error(
            "dropping batches from node %r for partition %d of the topic with id %s: %s",
            self.node_id,
            entry.partition,
            entry.topic_id.hex(),
            error,
        )


def _are_few(parts: Sequence[memoryview], size_bytes: int) -> bool:
    """Return whether parts are small enough, with few enough batches, to verify them on the event loop."""
    if size_bytes > VERIFY_FEW_BYTES:
        return False
    try:
        if len(parts) == 1 and batch_length(parts[0]) == size_bytes:
            return True  # a single batch, the common case
        batches = chain.from_iterable(map(iter_batches, parts))
        return sum(1 for _ in islice(batches, FEW_BATCHES + 1)) <= FEW_BATCHES
    except ProtocolError:
        return False  # Reported for the entry when it is verified.


def _verified(part: memoryview) -> Sequence[Batch] | ProtocolError:
    """Return all batches of one entry, or the error that rejects the entry."""
    if not part:
        return ()
    try:
        header = unpack_header(part, typed=True)
        if header.length == len(part):  # a single batch, the common case
            crc_checked_body(header, part)
            return (Batch(header, part),)
        batches = []
        for data in iter_batches(part):
            header = unpack_header(data, typed=True)
            crc_checked_body(header, data)
            batches.append(Batch(header, data))
    except ProtocolError as error:
        return error
    return batches
