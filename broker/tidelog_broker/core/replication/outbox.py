"""One-way messages on their way to another node: many partitions' messages share an envelope, in order.

Whatever is put in between two `drain`s (the rest of a turn of the event loop) leaves together. Messages of one kind
share an envelope, but two messages of one *partition* are never reordered: an append behind the decision that allows it
would only be refused and asked for again. So a message joins the newest envelope of its kind unless something of its
partition already stands behind that one.

An envelope is full at `ENTRIES_PER_PEER_MESSAGE_MAX` entries, at half of what an envelope may hold, and at
`PEER_GROUP_BYTES` of batches: batches of different partitions that arrive together lie in one buffer, and whoever keeps
one of them keeps them all. A larger append travels alone.
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
"""What goes over a link one-way: what a partition's replica says, and the digests of chains."""

ENVELOPE_FILL_BYTES: Final = ENVELOPE_BYTES_MAX // 2
ENTRY_OVERHEAD_BYTES: Final = 6
"""Tag and length of an entry in its envelope, at most."""
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
"""Kinds of envelopes that nodes send each other without an answer."""

SINGLE_KINDS: Final = frozenset({"backfill_reply"})
"""Those that carry one message; the others have `entries`."""

KINDS_WITH_BATCHES: Final = frozenset({"append_batch", "backfill_reply"})
"""Those whose messages have a `length` of the attachment."""

assert BATCH_BYTES_MAX <= ATTACHMENT_BYTES_MAX, "a largest batch must fit a message"


class OutgoingEnvelope(NamedTuple):
    """An envelope that is ready to be sent, with its attachment in parts."""

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
    """The messages to one node that have not been handed to its connection."""

    __slots__ = ("_groups", "_last_of", "_newest", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        """Messages and batches waiting."""
        self._groups: list[_Group] = []
        self._newest: dict[str, int] = {}
        self._last_of: dict[PartitionKey, int] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def put(self, message: LinkMessage, batches: Sequence[memoryview]) -> None:
        """Queue a message. Sets the `length` of one that has batches.

        Raises:
            ProtocolError: FRAME_TOO_LARGE; whoever made the message is to make smaller ones.
        """
        kind, message_bytes, attachment_bytes = _measured(message, batches)
        key = (message.topic_id, message.partition)
        number = self._newest.get(kind, -1)
        behind = self._last_of.get(key, 0)
        if number < behind or not self._groups[number].has_room(message_bytes, attachment_bytes):
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
        """Yield everything as envelopes, in the order in which they are to be sent; the outbox is empty after that."""
        groups, self._groups = self._groups, []
        self._newest.clear()
        self._last_of.clear()
        self.size_bytes = 0
        for group in groups:
            yield _enveloped(group.kind, group.entries, group.attachment, group.attachment_bytes)


def alone(message: LinkMessage, batches: Sequence[memoryview]) -> OutgoingEnvelope:
    """Return a message as an envelope of its own.

    Raises:
        ProtocolError: as `Outbox.put`.
    """
    kind, _, attachment_bytes = _measured(message, batches)
    return _enveloped(kind, [message], batches, attachment_bytes)


def _measured(message: LinkMessage, batches: Sequence[memoryview]) -> tuple[str, int, int]:
    """Return a message's kind, its bytes in an envelope and those of its batches, which it is told."""
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
            pb.FRAME_TOO_LARGE, f"a {kind} of {message_bytes} bytes with {attachment_bytes} bytes of batches"
        )
    return kind, message_bytes, attachment_bytes


def _enveloped(
    kind: str, entries: Sequence[LinkMessage], attachment: Sequence[memoryview], attachment_bytes: int
) -> OutgoingEnvelope:
    envelope = pb.Envelope()
    message: Any = getattr(envelope, kind)
    if kind in SINGLE_KINDS:
        message.CopyFrom(entries[0])
    else:
        message.entries.extend(entries)
    return OutgoingEnvelope(envelope, attachment, attachment_bytes, len(entries))
