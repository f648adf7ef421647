"""Options of `Client.fetch`: size, waiting, filters and projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from tidelog.errors import InvalidRequestError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import schema_of
from tidelog_proto.batch.header import COLUMN_FLAGS
from tidelog_proto.filters.expression_messages import BoundFilter
from tidelog_proto.process.epoch_units import wrong_unit

FETCH_BYTES_DEFAULT: Final = 8 * 1024 * 1024

_FLAGS: Final = {schema_of(1 << bit).names[0]: 1 << bit for bit in range(COLUMN_FLAGS.bit_length())}
"""Flag of each wire column, by name."""
WIRE_COLUMNS: Final = tuple(_FLAGS)


class FetchOptions(TypedDict, total=False):
    """The arguments of `Client.fetch` except the position; documented there."""

    max_bytes: int
    min_bytes: int
    wait_ms: int
    key: bytes | None
    tag: str | None
    where: BoundFilter | None
    columns: Sequence[str] | None
    fields: Sequence[str | int] | None
    since_us: int | None
    until_us: int | None
    end_offset: int | None
    nearest: bool
    topic_id: bytes


def projection_message(
    columns: Sequence[str] | None, since_us: int | None, until_us: int | None, end_offset: int | None
) -> pb.Projection | None:
    """Return the wire message of the columns and range that a reader needs; None if no argument limits them.

    Raises:
        InvalidRequestError: a column does not exist, or a time is not in microseconds.
    """
    if columns is None and since_us is None and until_us is None and end_offset is None:
        return None
    if unknown := [name for name in columns or () if name not in _FLAGS]:
        raise InvalidRequestError(f"unknown columns {', '.join(map(repr, unknown))}; known are: {', '.join(_FLAGS)}")
    for name, bound_us in (("since_us", since_us), ("until_us", until_us)):
        if bound_us is not None and (reason := wrong_unit(bound_us, "microseconds")):
            raise InvalidRequestError(f"{name}: {reason}; or omit {name} to get batches of all times")
    message = pb.Projection(columns=COLUMN_FLAGS if columns is None else sum({_FLAGS[name] for name in columns}))
    if since_us is not None:
        message.from_us = since_us
    if until_us is not None:
        message.until_us = until_us
    if end_offset is not None:
        message.end_offset = end_offset
    return message
