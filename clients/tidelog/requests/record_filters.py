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
        InvalidRequestError: the tag is too long.
    """
    if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
        raise InvalidRequestError(f"a tag of {len(tag.encode())} bytes; it has at most {TAG_BYTES_MAX}")
    return RecordFilter(key, tag) if (key, tag) != (None, None) else None
