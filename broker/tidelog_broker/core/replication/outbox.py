"""Outgoing one-way messages to another node: messages of many partitions share an envelope, in order.

Messages that are put between two calls of `drain` (within one turn of the event loop) are sent together. Messages of
one kind share an envelope, but two messages of one *partition* are never reordered: an append that arrives before the
decision that permits it would be refused and requested again. A message therefore joins the newest envelope of its kind
unless a later envelope contains a message of its partition.

An envelope is full with `ENTRIES_PER_PEER_MESSAGE_MAX` entries, half of the maximum envelope size, or
`PEER_GROUP_BYTES` of batches. The latter bounds memory: batches that arrive together share one buffer, which any of
them keeps alive. A larger append is sent alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tidelog_broker.core.replication.effects import PeerMessage
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import (
    BATCH_BYTES_MAX,
    ENTRIES_PER_PEER_MESSAGE_MAX,
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES_MAX,
    PEER_GROUP_BYTES,
)

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
"""Kinds whose messages have the `length` of their part of the attachment."""

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
    """Return the kind of a message, its size in an envelope, and that of its batches; sets its `length`."""
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
            f"a {kind} has {message_bytes} bytes and {attachment_bytes} bytes of batches; at most {MESSAGE_BYTES_MAX} "
            f"and {ATTACHMENT_BYTES_MAX} fit in an envelope",
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
