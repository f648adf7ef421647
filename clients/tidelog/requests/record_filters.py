"""Filters of records by key or tag. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import InvalidRequestError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import TAG_BYTES_MAX


class RecordFilter(NamedTuple):
    """The key and tag that a record must have; None matches all. Nodes filter, so other records are not sent."""

    key: bytes | None = None
    tag: str | None = None

    def to_message(self) -> pb.RecordFilter:
        """Return the filter as a protobuf message."""
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
        raise InvalidRequestError(f"a tag must have at most {TAG_BYTES_MAX} bytes, got {len(tag.encode())}")
    return RecordFilter(key, tag) if (key, tag) != (None, None) else None
