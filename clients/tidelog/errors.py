"""The exceptions of the client: one class hierarchy, with attributes for what programs need to know.

```
TidelogError                      code, retriable, definite, retry_after_ms, done
├── UsageError                    the client was used incorrectly; nothing was sent
│   ├── ClosedError               the client, producer or consumer was closed; see `definite`
│   ├── ForkedError               the object was created before a fork and used in the child
│   ├── WrongEventLoopError       the object belongs to another event loop
│   ├── NotBegunError             the producer has not resolved its topic yet
│   └── SerializationError        a key or value cannot be serialized; no record of the call was accepted
├── BufferFullError               the producer's buffer is full; the record was not accepted
├── NodeUnreachableError          no connection could be opened, or a node does not answer a read; nothing was written
├── ConnectionLostError           the connection was lost or abandoned while an answer was due; the outcome is unknown
├── BadReplyError                 the peer violated the protocol; the outcome is unknown
├── RequestTimeoutError           no answer in time; the outcome is unknown
├── DeliveryTimeoutError          a record's delivery deadline passed
├── OutcomeUnknownError           records may or may not be stored, and a retry could duplicate them
├── StoredOnQuorumError           the records are stored and committed, but perhaps not on all replicas (`acks="all"`)
├── InvalidRequestError           malformed, unknown kind or version, too large, bad arguments
├── AccessError                   UnauthenticatedError, CredentialsExpiredError, ForbiddenError, TicketRefusedError
├── QuotaExceededError            the quota of topics, partitions, groups or connections is used up
├── BatchRefusedError             CorruptBatchError, BatchTooLargeError, UnsupportedBatchError
├── UnknownTopicError, TopicExistsError, InvalidTopicError, UnknownPartitionError
├── OffsetOutOfRangeError         log_start_offset, high_watermark
├── UnknownSubscriptionError
├── SchemaMismatchError, UnknownSchemaError
├── RecordError                   a record does not decode or cannot be a dead letter; topic, partition, offset
├── SequenceError                 SequenceGapError, ProducerFencedError, UnknownProducerError,
│                                 DuplicateOutOfWindowError, ProducerIdSharedError
├── GroupError                    MemberFencedError, GroupNotEmptyError, UnknownGroupError
├── NodeBusyError                 the node cannot serve the request now; nothing was written: NotOwnerError (epoch),
│                                 EpochChangingError, OverloadedError, ShuttingDownError, DiskFullError,
│                                 LimboError, QuorumLostError
├── TimedOutError                 the node exceeded a time limit; the outcome is unknown
└── NodeFailedError               StorageFailedError, InternalError; the outcome is unknown
```

*Retriable*: the same request may succeed later or at another node. *Definite*: nothing was written. Both follow from
the code (`tidelog_proto.errors.NATURE`); for codes of a newer node, from fields of its message. Rejected: a single
class with a code, which an `except` clause cannot select, and a class per situation, which is too many to document.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError, code_name
from tidelog_proto.printable import printable


class TidelogError(Exception):
    """Base class of the client's exceptions.

    Attributes:
        code: a number of `pb.ErrorCode`; 0 for errors that only a client raises.
        retriable: the same request may succeed later or at another node.
        definite: nothing was written; False when the outcome is unknown.
        retry_after_ms: time that the node requests before the next attempt; 0 if it requests none.
        done: for a request about several partitions, the results of the partitions that succeeded, by partition.
        node: the node that returned the error, HOST:PORT; "" if the client raised the error itself.
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
        """The code's name, `CLIENT` for errors that only a client raises."""
        return code_name(self.code) if self.code else "CLIENT"


def _first(*values: bool | None) -> bool:
    return next(value for value in values if value is not None)


class UsageError(TidelogError):
    """The client was used incorrectly; nothing was sent."""

    default_retriable = False
    default_definite = True


class ClosedError(UsageError):
    """The client, producer or consumer was closed. If that ended a request in flight, `definite` is False."""


class ForkedError(UsageError):
    """The client was created before a fork: create a new one in the child."""


class WrongEventLoopError(UsageError):
    """The client was used outside the event loop to which it belongs."""


class NotBegunError(UsageError):
    """The producer has not resolved its topic yet: call `await producer.begin()` first."""


class SerializationError(UsageError):
    """A key or value cannot be serialized; no record of the call was accepted."""


class BufferFullError(TidelogError):
    """The producer's buffer is full, and the record was not accepted: `await producer.ready()` waits for free memory.

    Also raised by `Consumer.commit_soon` when too many commits are pending: `await consumer.commit()` waits for them.
    """

    default_retriable = True
    default_definite = True


class NodeUnreachableError(TidelogError):
    """No connection could be opened, so nothing was sent; or a node does not answer a request that only reads."""

    default_retriable = True
    default_definite = True


class ConnectionLostError(TidelogError):
    """The connection was lost while an answer was due, or the request was abandoned because its node was silent."""

    default_retriable = True
    default_definite = False


class BadReplyError(TidelogError):
    """The peer violated the protocol; the connection was closed."""

    default_retriable = True
    default_definite = False


class RequestTimeoutError(TidelogError):
    """No answer arrived in time."""

    default_code = pb.TIMED_OUT


class DeliveryTimeoutError(TidelogError):
    """A record's delivery deadline passed. `definite` is True if the record was certainly not stored.

    If a quota delayed it, `retry_after_ms` is the remaining delay, and the code is OVERLOADED.
    """

    default_code = pb.TIMED_OUT


class OutcomeUnknownError(TidelogError):
    """Records may or may not be stored, and sending them again could duplicate them."""

    default_retriable = False
    default_definite = False


class InvalidRequestError(TidelogError):
    """The request is invalid."""

    default_code = pb.INVALID_REQUEST


class AccessError(TidelogError):
    """Base class of errors of authentication and authorization."""

    default_code = pb.FORBIDDEN


class UnauthenticatedError(AccessError):
    """The credentials are missing or wrong."""

    default_code = pb.UNAUTHENTICATED


class CredentialsExpiredError(AccessError):
    """The client's credentials have expired."""

    default_code = pb.CREDENTIALS_EXPIRED


class ForbiddenError(AccessError):
    """The principal may not perform the operation, or the operation is blocked, for example by a hold on the topic."""


class TicketRefusedError(AccessError):
    """The ticket that a gateway holds for a principal is no longer valid; the gateway must authenticate it again."""

    default_code = pb.TICKET_REFUSED


class BatchRefusedError(TidelogError):
    """A record batch is invalid; other batches of the request are not affected."""

    default_code = pb.CORRUPT_BATCH


class CorruptBatchError(BatchRefusedError):
    """The content of a batch does not match its header or checksum."""


class BatchTooLargeError(BatchRefusedError):
    """A batch (or one record in it) is larger than the limits allow."""

    default_code = pb.BATCH_TOO_LARGE


class UnsupportedBatchError(BatchRefusedError):
    """A batch uses a feature that the node does not support."""

    default_code = pb.UNSUPPORTED_BATCH


class SchemaMismatchError(TidelogError):
    """Records are not rows of a schema that the topic accepts, or the topic has another newest schema than expected."""

    default_code = pb.SCHEMA_MISMATCH


class UnknownSchemaError(TidelogError):
    """The topic has no schema with this number."""

    default_code = pb.UNKNOWN_SCHEMA


class UnknownTopicError(TidelogError):
    """The topic does not exist (any more). `topic_id` is set if the request named an id."""

    default_code = pb.UNKNOWN_TOPIC
    topic_id: bytes = b""


class TopicExistsError(TidelogError):
    """A topic of this name exists already."""

    default_code = pb.TOPIC_EXISTS


class InvalidTopicError(TidelogError):
    """The topic's name or configuration is not allowed."""

    default_code = pb.INVALID_TOPIC


class UnknownPartitionError(TidelogError):
    """The topic has no such partition."""

    default_code = pb.UNKNOWN_PARTITION


class OffsetOutOfRangeError(TidelogError):
    """The offset is outside the readable range `log_start_offset` to `high_watermark`, or its record is lost.

    For a lost record of a topic in memory, `log_start_offset` is the offset of the next record that is left.
    """

    default_code = pb.OFFSET_OUT_OF_RANGE
    log_start_offset: int = 0
    high_watermark: int = 0


class RecordError(TidelogError):
    """A record cannot be deserialized, or cannot be published to the dead-letter topic.

    Attributes:
        topic: the topic's name.
        partition: 0-based.
        offset: offset of the record; a seek to `offset + 1` continues after the record.
    """

    default_retriable = False
    default_definite = True

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling with the additional attributes."""
        factory = partial(type(self), topic=self.topic, partition=self.partition, offset=self.offset)
        return factory, self.args, self.__dict__


class UnknownSubscriptionError(TidelogError):
    """The connection has no subscription with the requested id."""

    default_code = pb.UNKNOWN_SUBSCRIPTION


class SequenceError(TidelogError):
    """Base class of errors of a producer's sequence numbers and epochs."""

    default_code = pb.SEQUENCE_GAP


class SequenceGapError(SequenceError):
    """The node does not have the producer's previous batch in this partition, so it has not stored this one."""


class ProducerFencedError(SequenceError):
    """A newer instance of this producer has taken over."""

    default_code = pb.PRODUCER_FENCED


class UnknownProducerError(SequenceError):
    """The node has no state of this producer any more."""

    default_code = pb.UNKNOWN_PRODUCER


class DuplicateOutOfWindowError(SequenceError):
    """An earlier attempt has stored a batch with this sequence number, but the node no longer knows its offsets.

    If two producers share an id, the stored batch may be the other producer's, so `definite` is False.
    """

    default_code = pb.DUPLICATE_OUT_OF_WINDOW


class ProducerIdSharedError(SequenceError):
    """These records are not stored, because another producer with the same id has used their sequence numbers.

    Two producers have the same id if a machine with a running producer was cloned.
    """

    default_code = pb.PRODUCER_ID_SHARED


class NodeBusyError(TidelogError):
    """The node cannot serve the request now; nothing was written."""

    default_code = pb.OVERLOADED


class NotOwnerError(NodeBusyError):
    """Another node owns the partition, or none is known to; `epoch` is the highest that the answering node knows."""

    default_code = pb.NOT_OWNER
    epoch: int = 0


class EpochChangingError(NodeBusyError):
    """The ownership of the partition is changing."""

    default_code = pb.EPOCH_CHANGING


class OverloadedError(NodeBusyError):
    """A bounded queue or a memory budget of the node is full, or the consumer's argument `admit` refused a batch."""


class ShuttingDownError(NodeBusyError):
    """The node is shutting down."""

    default_code = pb.SHUTTING_DOWN


class DiskFullError(NodeBusyError):
    """The node's disk is full; retention or an operator must free space."""

    default_code = pb.DISK_FULL


class LimboError(NodeBusyError):
    """The node's replica is halted, for example because its log is damaged; it takes no records until repaired."""

    default_code = pb.LIMBO


class QuorumLostError(NodeBusyError):
    """Too few replicas are alive to write."""

    default_code = pb.QUORUM_LOST


class TimedOutError(TidelogError):
    """The node exceeded a time limit."""

    default_code = pb.TIMED_OUT


class StoredOnQuorumError(TidelogError):
    """The records are stored and committed, but perhaps not on all replicas; do not send them again."""

    default_code = pb.STORED_ON_QUORUM


class GroupError(TidelogError):
    """Base class of consumer group errors."""

    default_code = pb.GROUP_NOT_EMPTY


class MemberFencedError(GroupError):
    """The consumer is no longer in its group, or another member owns the partition; the position was not committed."""

    default_code = pb.MEMBER_FENCED


class GroupNotEmptyError(GroupError):
    """The group has members: only they may commit, and the group cannot be deleted."""

    default_code = pb.GROUP_NOT_EMPTY


class UnknownGroupError(GroupError):
    """The group does not exist."""

    default_code = pb.UNKNOWN_GROUP


class QuotaExceededError(TidelogError):
    """The principal's quota of topics, partitions, groups or connections is used up."""

    default_code = pb.QUOTA_EXCEEDED


class NodeFailedError(TidelogError):
    """The node failed while processing the request."""

    default_code = pb.INTERNAL


class StorageFailedError(NodeFailedError):
    """The node's disk failed."""

    default_code = pb.STORAGE_FAILED


class InternalError(NodeFailedError):
    """The node has a bug; its log has details."""


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
    pb.SCHEMA_MISMATCH: SchemaMismatchError,
    pb.UNKNOWN_SCHEMA: UnknownSchemaError,
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
"""Error code -> exception class; codes that are missing here, of a newer node, become plain `TidelogError`s."""


def error_of(message: pb.Error, node: str = "") -> TidelogError:
    """Return the exception for a node's error message; `node` is its HOST:PORT."""
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


def describe_error(error: TidelogError) -> str:
    """Return the text of an error for logs, with the node that returned it."""
    return f"{error} (from {error.node})" if error.node else str(error)


def told(error: TidelogError) -> str:
    """Return `describe_error(error)`; kept because the name is public."""
    return describe_error(error)


def error_of_local(error: ProtocolError) -> TidelogError:
    """Return the exception for a protocol violation detected before sending."""
    return error_of(error.to_message())


def error_of_read(error: ProtocolError, topic: str, partition: int, offset: int) -> TidelogError:
    """Return the exception for a received batch that cannot be read; `offset` is its base offset."""
    message = error.to_message()
    message.message = f"topic {topic!r}, partition {partition}, offset {offset}: {message.message}"
    return error_of(message)
