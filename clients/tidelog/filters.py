"""Which records a reader wants, where it does not want all: by key, by tag, or by both. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import InvalidRequestError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import TAG_BYTES_MAX


class RecordFilter(NamedTuple):
    """What must match; None for anything. Nodes leave out the rest, so it never travels."""

    key: bytes | None = None
    tag: str | None = None

    def to_message(self) -> pb.RecordFilter:
        """Return it as the protocol has it."""
        message = pb.RecordFilter()
        if self.key is not None:
            message.key = self.key
        if self.tag is not None:
            message.tag = self.tag
        return message


def record_filter(key: bytes | None, tag: str | None) -> RecordFilter | None:
    """Return the filter for a key and a tag; None for neither.

    Raises:
        InvalidRequestError: one of them is no key, or no tag.
    """
    if key is not None and not isinstance(key, bytes):
        raise InvalidRequestError(f"a key is bytes, not {type(key).__name__}")
    if tag is not None and (not isinstance(tag, str) or len(tag.encode()) > TAG_BYTES_MAX):
        raise InvalidRequestError(f"a tag is a string of at most {TAG_BYTES_MAX} bytes")
    return RecordFilter(key, tag) if (key, tag) != (None, None) else None
