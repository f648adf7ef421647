"""Every error that the client raises: one tree, attributes instead of text to parse.

```
TidelogError                      code, retriable, definite, retry_after_ms, done
├── UsageError                    the program holds the client wrongly; nothing was sent
│   ├── ClosedError               the client, producer or consumer was closed
│   ├── ForkedError               it was made before a fork and used behind it
│   ├── WrongEventLoopError       it belongs to another event loop
│   ├── NotBegunError             a producer does not know yet where its records go
│   └── SerializationError        a key or value does not serialise; nothing of the call was accepted
├── BufferFullError               a producer has no room for a record just now; it was not accepted
├── NodeUnreachableError          no connection could be made; nothing was sent
├── ConnectionLostError           the connection broke, or was given up, while an answer was due; the outcome is unknown
├── BadReplyError                 what answers does not speak the protocol; the outcome is unknown
├── RequestTimeoutError           no answer in time; the outcome is unknown
├── DeliveryTimeoutError          a record's delivery deadline passed
├── OutcomeUnknownError           records may or may not be stored, and a retry could store them twice
├── StoredOnQuorumError           the records are stored and committed, but perhaps not on all replicas (`acks="all"`)
├── InvalidRequestError           malformed, unknown kind or version, too large, bad arguments
├── AccessError                   UnauthenticatedError, CredentialsExpiredError, ForbiddenError, TicketRefusedError
├── QuotaExceededError            as many topics, connections or others as a quota allows are there
├── BatchRefusedError             CorruptBatchError, BatchTooLargeError, UnsupportedBatchError
├── UnknownTopicError, TopicExistsError, InvalidTopicError, UnknownPartitionError
├── OffsetOutOfRangeError         log_start_offset, high_watermark
├── UnknownSubscriptionError
├── RecordError                   a record does not decode; topic, partition, offset
├── SequenceError                 SequenceGapError, ProducerFencedError, UnknownProducerError,
│                                 DuplicateOutOfWindowError, ProducerIdSharedError
├── GroupError                    MemberFencedError, GroupNotEmptyError, UnknownGroupError
├── NodeBusyError                 not now, or not here; nothing was written: NotOwnerError (epoch),
│                                 EpochChangingError, OverloadedError, ShuttingDownError, DiskFullError,
│                                 LimboError, QuorumLostError
├── TimedOutError                 the node ran out of time; the outcome is unknown
└── NodeFailedError               StorageFailedError, InternalError; the outcome is unknown
```

*Retriable*: the same request may succeed later or elsewhere. *Definite*: nothing was written. Both come from
the code (`tidelog_proto.errors.NATURE`), for codes of a newer node from its own words. Rejected: one class
with a code (an `except` clause could not choose), and a class per situation in the client (nobody could list them).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError, code_name
from tidelog_proto.printable import printable


class TidelogError(Exception):
    """The root of the tree.

    Attributes:
        code: a number of `pb.ErrorCode`; 0 for what only a client knows.
        retriable: the same request may succeed later or elsewhere.
        definite: nothing was written; False when the outcome is unknown.
        retry_after_ms: the node's hint for the next try, 0 for none.
        done: of what was asked of many partitions, by partition, what came of those that were done all the same.
        node: who answered so, HOST:PORT; empty for what the client has found out by itself.
    """

    default_code: ClassVar[int] = pb.ERROR_CODE_UNSPECIFIED
    default_retriable: ClassVar[bool | None] = None
    default_definite: ClassVar[bool | None] = None

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        retriable: bool | None = None,
        definite: bool | None = None,
        retry_after_ms: int = 0,
    ) -> None:
        super().__init__(message)
        self.code = self.default_code if code is None else code
        nature = NATURE.get(self.code, NATURE[pb.ERROR_CODE_UNSPECIFIED])
        self.retriable = _first(retriable, self.default_retriable, nature.retriable)
        self.definite = _first(definite, self.default_definite, nature.definite)
        self.retry_after_ms = retry_after_ms
        self.done: Mapping[int, object] = {}
        self.node = ""

    @property
    def code_name(self) -> str:
        """The code's name, `CLIENT` for what only a client knows."""
        return code_name(self.code) if self.code else "CLIENT"


def _first(*values: bool | None) -> bool:
    return next(value for value in values if value is not None)


class UsageError(TidelogError):
    """The program holds the client wrongly; nothing was sent."""

    default_retriable = False
    default_definite = True


class ClosedError(UsageError):
    """The client, producer or consumer was closed."""


class ForkedError(UsageError):
    """A client made before a fork is used behind it: make a new one in the child."""


class WrongEventLoopError(UsageError):
    """A client is used from another event loop than its own."""


class NotBegunError(UsageError):
    """A producer does not know yet where its records go: `await producer.begin()` finds it."""


class SerializationError(UsageError):
    """A key or value does not serialise; nothing of the call was accepted."""


class BufferFullError(TidelogError):
    """There is no room for a record just now, and it was not accepted: `await producer.ready()` waits for room.

    Or for what is to be committed soon: `await consumer.commit()` waits.
    """

    default_retriable = True
    default_definite = True


class NodeUnreachableError(TidelogError):
    """No connection could be made, so nothing was sent; or a node that was asked to read something is silent."""

    default_retriable = True
    default_definite = True


class ConnectionLostError(TidelogError):
    """The connection broke while an answer was due, or its node was silent and no longer the owner."""

    default_retriable = True
    default_definite = False


class BadReplyError(TidelogError):
    """What answers does not speak the protocol; the connection was closed."""

    default_retriable = True
    default_definite = False


class RequestTimeoutError(TidelogError):
    """No answer came in time."""

    default_code = pb.TIMED_OUT


class DeliveryTimeoutError(TidelogError):
    """A record's delivery deadline passed. `definite` says whether it is certain that it was not stored.

    Where a quota held it back, `retry_after_ms` says for how much longer, and the code is OVERLOADED.
    """

    default_code = pb.TIMED_OUT


class OutcomeUnknownError(TidelogError):
    """Records may or may not be stored, and sending them again could store them twice."""

    default_retriable = False
    default_definite = False


class InvalidRequestError(TidelogError):
    """The request itself is wrong."""

    default_code = pb.INVALID_REQUEST


class AccessError(TidelogError):
    """The node does not let this client do that."""

    default_code = pb.FORBIDDEN


class UnauthenticatedError(AccessError):
    """The credentials are missing or wrong."""

    default_code = pb.UNAUTHENTICATED


class CredentialsExpiredError(AccessError):
    """What was shown of who this client is has expired."""

    default_code = pb.CREDENTIALS_EXPIRED


class ForbiddenError(AccessError):
    """The credentials do not allow this."""


class TicketRefusedError(AccessError):
    """What a gateway has shown of its caller does not count any more; it asks again who he is."""

    default_code = pb.TICKET_REFUSED


class BatchRefusedError(TidelogError):
    """A record batch is wrong; its neighbours are not touched."""

    default_code = pb.CORRUPT_BATCH


class CorruptBatchError(BatchRefusedError):
    """A batch's bytes contradict each other."""


class BatchTooLargeError(BatchRefusedError):
    """A batch (or one record in it) is larger than the limits allow."""

    default_code = pb.BATCH_TOO_LARGE


class UnsupportedBatchError(BatchRefusedError):
    """A batch uses something that the node does not know."""

    default_code = pb.UNSUPPORTED_BATCH


class UnknownTopicError(TidelogError):
    """There is no such topic (any more). `topic_id` says which, where a node was asked about an id and not a name."""

    default_code = pb.UNKNOWN_TOPIC
    topic_id: bytes = b""


class TopicExistsError(TidelogError):
    """A topic of this name is there already."""

    default_code = pb.TOPIC_EXISTS


class InvalidTopicError(TidelogError):
    """The topic's name or configuration is not allowed."""

    default_code = pb.INVALID_TOPIC


class UnknownPartitionError(TidelogError):
    """The topic has no such partition."""

    default_code = pb.UNKNOWN_PARTITION


class OffsetOutOfRangeError(TidelogError):
    """The offset is not readable: `log_start_offset` <= offset <= `high_watermark` is."""

    default_code = pb.OFFSET_OUT_OF_RANGE
    log_start_offset: int = 0
    high_watermark: int = 0


class RecordError(TidelogError):
    """A record is not what a consumer's deserialiser takes.

    Attributes:
        topic: its topic's name.
        partition: 0-based.
        offset: its own; reading goes on behind it after a seek to `offset + 1`.
    """

    default_retriable = False
    default_definite = True

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it cross to another process, which needs more than its text."""
        made = partial(type(self), topic=self.topic, partition=self.partition, offset=self.offset)
        return made, self.args, self.__dict__


class UnknownSubscriptionError(TidelogError):
    """The connection has no such subscription."""

    default_code = pb.UNKNOWN_SUBSCRIPTION


class SequenceError(TidelogError):
    """The producer's sequence does not continue what the node has."""

    default_code = pb.SEQUENCE_GAP


class SequenceGapError(SequenceError):
    """A batch before this one is missing."""


class ProducerFencedError(SequenceError):
    """A newer incarnation of this producer has taken over."""

    default_code = pb.PRODUCER_FENCED


class UnknownProducerError(SequenceError):
    """The node no longer remembers this producer."""

    default_code = pb.UNKNOWN_PRODUCER


class DuplicateOutOfWindowError(SequenceError):
    """Its numbers were stored, so long ago that nobody remembers where: by an earlier attempt, so it is stored.

    Where two producers share an id it may have been the other one's batch; `definite` is False.
    """

    default_code = pb.DUPLICATE_OUT_OF_WINDOW


class ProducerIdSharedError(SequenceError):
    """Another producer has stored records under this one's id and numbers, as in a copied machine: these are not."""

    default_code = pb.PRODUCER_ID_SHARED


class NodeBusyError(TidelogError):
    """Not now, or not here; nothing was written."""

    default_code = pb.OVERLOADED


class NotOwnerError(NodeBusyError):
    """Another node owns the partition; `epoch` is what the answering node knows."""

    default_code = pb.NOT_OWNER
    epoch: int = 0


class EpochChangingError(NodeBusyError):
    """The partition is between two owners."""

    default_code = pb.EPOCH_CHANGING


class OverloadedError(NodeBusyError):
    """The node's bounded queues are full."""


class ShuttingDownError(NodeBusyError):
    """The node is stopping."""

    default_code = pb.SHUTTING_DOWN


class DiskFullError(NodeBusyError):
    """The node has no room; retention or an operator has to make some."""

    default_code = pb.DISK_FULL


class LimboError(NodeBusyError):
    """The replica repairs itself and serves nothing meanwhile."""

    default_code = pb.LIMBO


class QuorumLostError(NodeBusyError):
    """Too few replicas are alive to write."""

    default_code = pb.QUORUM_LOST


class TimedOutError(TidelogError):
    """The node ran out of time."""

    default_code = pb.TIMED_OUT


class StoredOnQuorumError(TidelogError):
    """The records are stored and committed, and whether all replicas hold them is not known; send them no more."""

    default_code = pb.STORED_ON_QUORUM


class GroupError(TidelogError):
    """Something about a consumer group."""

    default_code = pb.GROUP_NOT_EMPTY


class MemberFencedError(GroupError):
    """This consumer is no member of its group any more, or the partition is another member's: nothing was committed."""

    default_code = pb.MEMBER_FENCED


class GroupNotEmptyError(GroupError):
    """The group has members, so that nobody else commits for it, and it cannot be deleted."""

    default_code = pb.GROUP_NOT_EMPTY


class UnknownGroupError(GroupError):
    """There is no such group."""

    default_code = pb.UNKNOWN_GROUP


class QuotaExceededError(TidelogError):
    """There are as many topics, partitions, groups or connections of this caller as its quota allows."""

    default_code = pb.QUOTA_EXCEEDED


class NodeFailedError(TidelogError):
    """The node failed in the middle."""

    default_code = pb.INTERNAL


class StorageFailedError(NodeFailedError):
    """The node's disk failed."""

    default_code = pb.STORAGE_FAILED


class InternalError(NodeFailedError):
    """The node has a bug; its log says more."""


CLASS_OF_CODE: Final[dict[int, type[TidelogError]]] = {
    pb.MALFORMED_FRAME: InvalidRequestError,
    pb.UNKNOWN_KIND: InvalidRequestError,
    pb.UNSUPPORTED_VERSION: InvalidRequestError,
    pb.FRAME_TOO_LARGE: InvalidRequestError,
    pb.HELLO_REQUIRED: InvalidRequestError,
    pb.INVALID_REQUEST: InvalidRequestError,
    pb.UNAUTHENTICATED: UnauthenticatedError,
    pb.CREDENTIALS_EXPIRED: CredentialsExpiredError,
    pb.FORBIDDEN: ForbiddenError,
    pb.CORRUPT_BATCH: CorruptBatchError,
    pb.BATCH_TOO_LARGE: BatchTooLargeError,
    pb.UNSUPPORTED_BATCH: UnsupportedBatchError,
    pb.UNKNOWN_TOPIC: UnknownTopicError,
    pb.TOPIC_EXISTS: TopicExistsError,
    pb.INVALID_TOPIC: InvalidTopicError,
    pb.UNKNOWN_PARTITION: UnknownPartitionError,
    pb.OFFSET_OUT_OF_RANGE: OffsetOutOfRangeError,
    pb.UNKNOWN_SUBSCRIPTION: UnknownSubscriptionError,
    pb.SEQUENCE_GAP: SequenceGapError,
    pb.PRODUCER_FENCED: ProducerFencedError,
    pb.UNKNOWN_PRODUCER: UnknownProducerError,
    pb.DUPLICATE_OUT_OF_WINDOW: DuplicateOutOfWindowError,
    pb.PRODUCER_ID_SHARED: ProducerIdSharedError,
    pb.NOT_OWNER: NotOwnerError,
    pb.EPOCH_CHANGING: EpochChangingError,
    pb.OVERLOADED: OverloadedError,
    pb.SHUTTING_DOWN: ShuttingDownError,
    pb.DISK_FULL: DiskFullError,
    pb.STORAGE_FAILED: StorageFailedError,
    pb.TIMED_OUT: TimedOutError,
    pb.LIMBO: LimboError,
    pb.STORED_ON_QUORUM: StoredOnQuorumError,
    pb.QUORUM_LOST: QuorumLostError,
    pb.MEMBER_FENCED: MemberFencedError,
    pb.GROUP_NOT_EMPTY: GroupNotEmptyError,
    pb.UNKNOWN_GROUP: UnknownGroupError,
    pb.INTERNAL: InternalError,
    pb.TICKET_REFUSED: TicketRefusedError,
    pb.QUOTA_EXCEEDED: QuotaExceededError,
}
"""Codes that are not here (of a newer node) become plain `TidelogError`s."""


def error_of(message: pb.Error, node: str = "") -> TidelogError:
    """Return the error that `message` of a node (HOST:PORT) stands for, ready to be raised."""
    known = message.code in NATURE
    cls = CLASS_OF_CODE.get(message.code, TidelogError)
    error = cls(
        printable(message.message) or code_name(message.code),
        code=message.code,
        retriable=None if known else message.retriable,
        definite=None if known else message.definite,
        retry_after_ms=message.retry_after_ms,
    )
    if isinstance(error, OffsetOutOfRangeError):
        error.log_start_offset = message.log_start_offset
        error.high_watermark = message.high_watermark
    if isinstance(error, NotOwnerError):
        error.epoch = message.epoch
    if isinstance(error, UnknownTopicError):
        error.topic_id = message.topic_id
    error.node = node
    return error


def told(error: TidelogError) -> str:
    """Return what the log says of an error: its text, and which node has answered so."""
    return f"{error} (says {error.node})" if error.node else str(error)


def error_of_local(error: ProtocolError) -> TidelogError:
    """Return the error for a refusal that was raised on this side, before anything was sent."""
    return error_of(error.to_message())


def error_of_read(error: ProtocolError, topic: str, partition: int, offset: int) -> TidelogError:
    """Return the error for a batch that came from a node and cannot be read; `offset`: where it begins."""
    message = error.to_message()
    message.message = f"topic {topic!r}, partition {partition}, offset {offset}: {message.message}"
    return error_of(message)
