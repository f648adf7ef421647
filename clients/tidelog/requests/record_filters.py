"""Filters of records by key or tag. No I/O."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.errors import InvalidRequestError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.filters.expression_messages import BoundFilter, message_of_filter
from tidelog_proto.limits import TAG_BYTES_MAX


class RecordFilter(NamedTuple):
    """The key and tag that a record must have; None matches all. Nodes filter, so other records are not sent.

    `where` only narrows what is sent: its reader filters again.
    """

    key: bytes | None = None
    tag: str | None = None
    where: BoundFilter | None = None

    def to_message(self) -> pb.RecordFilter:
        """Return the filter as a protobuf message."""
        message = pb.RecordFilter()
        if self.key is not None:
            message.key = self.key
        if self.tag is not None:
            message.tag = self.tag
        if self.where is not None:
            message.where.CopyFrom(message_of_filter(self.where))
        return message


def check_key(key: object) -> None:
    """Check the key to look for.

    Raises:
        TypeError: the key is not bytes.
    """
    if isinstance(key, str):
        raise TypeError(f"key must be bytes, got str: {key!r}; pass {key.encode(errors='replace')!r}")
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, got {type(key).__name__}: {key!r}; encode it as its producer does")


def record_filter(key: bytes | None, tag: str | None, where: BoundFilter | None = None) -> RecordFilter | None:
    """Return the filter for a key, a tag and a condition on rows; None for none of them.

    Raises:
        TypeError: the key is not bytes, or the tag is not text.
        InvalidRequestError: the tag is too long.
    """
    if key is not None:
        check_key(key)
    if not (tag is None or isinstance(tag, str)):
        raise TypeError(f"tag must be str, got {type(tag).__name__}: {tag!r}")
    if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
        raise InvalidRequestError(f"a tag must have at most {TAG_BYTES_MAX} bytes, got {len(tag.encode())}")
    found = RecordFilter(key, tag, where)
    return None if found == RecordFilter() else found
