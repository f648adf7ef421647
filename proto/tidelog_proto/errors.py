"""The numbered errors of the protocol: what each code means for whoever gets it.

Two facts are fixed per code and travel with every error. *Retriable*: the same request may succeed later
or elsewhere. *Definite*: nothing was written; an indefinite error leaves the outcome unknown, and only an
idempotent retry may follow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.printable import printable


class Nature(NamedTuple):
    """What a code says about a retry and about the outcome."""

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
    pb.UNKNOWN_TOPIC: _FINAL,
    pb.TOPIC_EXISTS: _FINAL,
    pb.INVALID_TOPIC: _FINAL,
    pb.UNKNOWN_PARTITION: _FINAL,
    pb.OFFSET_OUT_OF_RANGE: _FINAL,
    pb.UNKNOWN_SUBSCRIPTION: _FINAL,
    # A gap is what a pipelined batch sees when the one before it was refused: send again, in order.
    pb.SEQUENCE_GAP: _RETRY,
    pb.PRODUCER_FENCED: _FINAL,
    pb.UNKNOWN_PRODUCER: _FINAL,
    # Stored long ago, but the offset is no longer remembered.
    pb.DUPLICATE_OUT_OF_WINDOW: Nature(retriable=False, definite=False),
    # Another producer has used the number: what is sent again under another id is stored once.
    pb.PRODUCER_ID_SHARED: _FINAL,
    pb.NOT_OWNER: _RETRY,
    pb.EPOCH_CHANGING: _RETRY,
    pb.OVERLOADED: _RETRY,
    pb.SHUTTING_DOWN: _RETRY,
    pb.DISK_FULL: _RETRY,
    # The disk may or may not hold what was being written when it failed.
    pb.STORAGE_FAILED: _UNKNOWN,
    pb.TIMED_OUT: _UNKNOWN,
    pb.LIMBO: _RETRY,
    pb.QUORUM_LOST: _RETRY,
    # Stored and committed in an epoch that has ended; only that all of its replicas hold it cannot be said.
    pb.STORED_ON_QUORUM: Nature(retriable=False, definite=False),
    pb.MEMBER_FENCED: _FINAL,
    pb.GROUP_NOT_EMPTY: _FINAL,
    pb.UNKNOWN_GROUP: _FINAL,
    pb.INTERNAL: _UNKNOWN,
    # The gateway asks who its caller is once more, and goes on or tells him.
    pb.TICKET_REFUSED: _RETRY,
    # Of what there is; what is too much in a second is delayed, and no error.
    pb.QUOTA_EXCEEDED: _FINAL,
}

assert set(NATURE) == set(pb.ErrorCode.values()), "every error code has a row"


@dataclass(slots=True)
class ProtocolError(Exception):
    """A refusal with a number, raised where the fault is found and turned into an `Error` at the boundary.

    Attributes:
        code: one of `pb.ErrorCode`.
        message: what happened and what to do next, for a person.
        retry_after_ms: a hint for retriable errors; 0 for none.
        log_start_offset: with OFFSET_OUT_OF_RANGE, the first readable offset.
        high_watermark: with OFFSET_OUT_OF_RANGE, the end of the readable range.
        epoch: with NOT_OWNER, the epoch that the answering node knows.
        topic_id: with UNKNOWN_TOPIC about an id, that id.
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
        """Whether the same request may succeed later or elsewhere."""
        return NATURE[self.code].retriable

    @property
    def definite(self) -> bool:
        """Whether it is certain that nothing was written."""
        return NATURE[self.code].definite

    def to_message(self) -> pb.Error:
        """Return the error as it travels: what a caller has chosen of its message breaks no line."""
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
    """Return a code's name; codes of a newer peer get their number."""
    try:
        return pb.ErrorCode.Name(pb.ErrorCode.ValueType(code))
    except ValueError:
        return f"ERROR_{code}"
