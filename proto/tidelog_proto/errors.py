"""Error codes of the protocol and their two fixed properties.

*Retriable*: the same request may succeed later or at another node. *Definite*: nothing was written. After an indefinite
error the outcome is unknown, so the request may only be repeated idempotently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.printable import printable


class Nature(NamedTuple):
    """Whether a request may be retried after an error code, and whether its outcome is known."""

    retriable: bool
    definite: bool


_FINAL: Final = Nature(retriable=False, definite=True)
_RETRY: Final = Nature(retriable=True, definite=True)
_UNKNOWN: Final = Nature(retriable=True, definite=False)

NATURE: Final[dict[int, Nature]] = {
    pb.ERROR_CODE_UNSPECIFIED: _UNKNOWN,
    pb.MALFORMED_FRAME: _FINAL,
    pb.UNKNOWN_KIND: _FINAL,
    pb.UNSUPPORTED_VERSION: _FINAL,
    pb.FRAME_TOO_LARGE: _FINAL,
    pb.HELLO_REQUIRED: _FINAL,
    pb.INVALID_REQUEST: _FINAL,
    pb.UNAUTHENTICATED: _FINAL,
    pb.FORBIDDEN: _FINAL,
    pb.CREDENTIALS_EXPIRED: _FINAL,
    pb.CORRUPT_BATCH: _FINAL,
    pb.BATCH_TOO_LARGE: _FINAL,
    pb.UNSUPPORTED_BATCH: _FINAL,
    # The producer reads the topic's schemas, and encodes the records again.
    pb.SCHEMA_MISMATCH: _FINAL,
    pb.UNKNOWN_TOPIC: _FINAL,
    pb.TOPIC_EXISTS: _FINAL,
    pb.INVALID_TOPIC: _FINAL,
    pb.UNKNOWN_PARTITION: _FINAL,
    pb.OFFSET_OUT_OF_RANGE: _FINAL,
    pb.UNKNOWN_SUBSCRIPTION: _FINAL,
    pb.UNKNOWN_SCHEMA: _FINAL,
    # A pipelined batch has a gap before it when the batch before it was refused; the producer resends both in order.
    pb.SEQUENCE_GAP: _RETRY,
    pb.PRODUCER_FENCED: _FINAL,
    pb.UNKNOWN_PRODUCER: _FINAL,
    # The batch was stored earlier, but its offset is no longer remembered.
    pb.DUPLICATE_OUT_OF_WINDOW: Nature(retriable=False, definite=False),
    # Another producer uses this id; records that are resent under a new id are stored once.
    pb.PRODUCER_ID_SHARED: _FINAL,
    pb.NOT_OWNER: _RETRY,
    pb.EPOCH_CHANGING: _RETRY,
    pb.OVERLOADED: _RETRY,
    pb.SHUTTING_DOWN: _RETRY,
    pb.DISK_FULL: _RETRY,
    # A failed write may be partly on disk.
    pb.STORAGE_FAILED: _UNKNOWN,
    pb.TIMED_OUT: _UNKNOWN,
    pb.LIMBO: _RETRY,
    pb.QUORUM_LOST: _RETRY,
    # The batch was committed in an epoch that has ended; some replicas of the epoch may not have it.
    pb.STORED_ON_QUORUM: Nature(retriable=False, definite=False),
    pb.MEMBER_FENCED: _FINAL,
    pb.GROUP_NOT_EMPTY: _FINAL,
    pb.UNKNOWN_GROUP: _FINAL,
    pb.INTERNAL: _UNKNOWN,
    # The gateway authenticates its caller again, and then repeats the request or answers 401.
    pb.TICKET_REFUSED: _RETRY,
    # Only for quotas on the number of objects; requests beyond a rate are delayed instead.
    pb.QUOTA_EXCEEDED: _FINAL,
}

assert set(NATURE) == set(pb.ErrorCode.values()), "every error code has a row"


@dataclass(slots=True)
class ProtocolError(Exception):
    """A refusal with an error code; the connection handler converts it to an `Error` message.

    Attributes:
        code: one of `pb.ErrorCode`.
        message: the fault and the remedy, for people.
        retry_after_ms: a hint for retriable errors; 0 without a hint.
        log_start_offset: with OFFSET_OUT_OF_RANGE, the first readable offset.
        high_watermark: with OFFSET_OUT_OF_RANGE, the end of the readable range.
        epoch: with NOT_OWNER, the epoch that the answering node knows.
        topic_id: the unknown id, with UNKNOWN_TOPIC for a request by id.
    """

    code: pb.ErrorCode
    message: str
    retry_after_ms: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    epoch: int = 0
    topic_id: bytes = b""

    def __str__(self) -> str:
        return f"{code_name(self.code)}: {self.message}"

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later or at another node."""
        return NATURE[self.code].retriable

    @property
    def definite(self) -> bool:
        """Whether it is certain that nothing was written."""
        return NATURE[self.code].definite

    def to_message(self) -> pb.Error:
        """Return the wire message; unprintable characters of its text are escaped."""
        return pb.Error(
            code=self.code,
            message=printable(self.message),
            retriable=self.retriable,
            definite=self.definite,
            retry_after_ms=self.retry_after_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            epoch=self.epoch,
            topic_id=self.topic_id,
        )


def code_name(code: int) -> str:
    """Return a code's name, or `ERROR_<number>` for a code of a newer peer."""
    try:
        return pb.ErrorCode.Name(pb.ErrorCode.ValueType(code))
    except ValueError:
        return f"ERROR_{code}"
