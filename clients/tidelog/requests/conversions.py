"""Topics, offsets and status between the wire's messages and the client's values; no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from tidelog.errors import InvalidRequestError, error_of, error_of_local
from tidelog.model import (
    Committed,
    Offset,
    TopicPartition,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import OFFSET_MAX
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import check_group_name, check_topic_name

At = Literal["earliest", "latest"] | datetime | int
"""A point in a log: its ends, a time, or that time in µs since 1970."""


class NewestOf(NamedTuple):
    """The newest record of a key, as a point in a log."""

    key: bytes


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITION_MAX: Final = 2**32 - 1
"""What a request has room for; how many a topic has the nodes know."""


def checked_topic(name: str) -> str:
    """Return `name` if a user may give it to a topic.

    Raises:
        InvalidTopicError: it breaks a rule.
        InvalidRequestError: it is no text.
    """
    if not isinstance(name, str):
        raise InvalidRequestError(f"a topic's name is text, not {name!r}")
    try:
        check_topic_name(name)
    except ProtocolError as error:
        raise error_of_local(error) from error
    return name


def checked_group(name: str) -> str:
    """Return `name` if a group may be called that.

    Raises:
        InvalidRequestError: it breaks a rule.
    """
    if not isinstance(name, str):
        raise InvalidRequestError(f"a group's name is text, not {name!r}")
    try:
        check_group_name(name)
    except ProtocolError as error:
        raise error_of_local(error) from error
    return name


def checked_positions(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return a copy of positions to commit, if they are some.

    Raises:
        InvalidRequestError: they are none.
    """
    if not isinstance(positions, Mapping):
        raise InvalidRequestError(f"positions to commit are partition -> next offset to read, not {positions!r}")
    for where, offset in positions.items():
        if not isinstance(where, TopicPartition):
            raise InvalidRequestError(
                f"of which topic is partition {where!r}? positions to commit are TopicPartition(...) -> offset"
            )
        check_position(where, offset)
    return dict(positions)


def check_position(where: TopicPartition, offset: int) -> None:
    """Refuse what is no position: there can be no such partition or offset.

    Raises:
        InvalidRequestError: that is so.
    """
    if not _is_number(where.partition):
        raise InvalidRequestError(f"a partition of {where.topic!r} is a number, not {where.partition!r}")
    if not _is_number(offset):
        raise InvalidRequestError(
            f"an offset to commit for {where.topic}/{where.partition} is a number, not {offset!r}"
        )
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidRequestError(f"{offset} is no offset to commit for {where.topic}/{where.partition}")
    if not 0 <= where.partition <= _PARTITION_MAX:
        raise InvalidRequestError(f"{where.partition} is no partition of {where.topic!r} to commit for")


def _is_number(given: object) -> bool:
    """Whether something is a whole number, of whichever library."""
    return hasattr(given, "__index__")


def list_offsets_entry(topic_id: bytes, partition: int, at: At | NewestOf) -> pb.ListOffsetsEntry:
    """Return one question of LIST_OFFSETS.

    Raises:
        InvalidRequestError: `at` is no point in a log.
    """
    if at == "earliest":
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, earliest=True)
    if at == "latest":
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, latest=True)
    if isinstance(at, NewestOf):
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, latest_of_key=at.key)
    if isinstance(at, datetime):
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, timestamp_us=microseconds(at))
    if type(at) is int:
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, timestamp_us=at)
    raise InvalidRequestError(f"{at!r} is no point in a log; use 'earliest', 'latest', a datetime or µs since 1970")


def microseconds(moment: datetime) -> int:
    """Return µs since 1970.

    Raises:
        InvalidRequestError: the moment has no time zone, so it could be any of 24.
    """
    if moment.tzinfo is None:
        raise InvalidRequestError(f"{moment} has no time zone; use datetime(..., tzinfo=timezone.utc)")
    delta = moment - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def offset_of(result: pb.ListOffsetsResult, *, by_time: bool) -> Offset:
    """Return an answer of LIST_OFFSETS.

    Raises:
        TidelogError: the error that stands in its place.
    """
    if result.HasField("error"):
        raise error_of(result.error)
    return Offset(
        offset=result.offset,
        found=result.found or not by_time,
        timestamp_us=result.timestamp_us,
        log_start_offset=result.log_start_offset,
        high_watermark=result.high_watermark,
    )


def committed_of(results: Iterable[pb.CommittedResult], names: Mapping[bytes, str]) -> list[Committed]:
    """Return the positions that were found; topics without a name in `names` are gone and left out.

    Raises:
        TidelogError: the first error among the results.
    """
    positions: list[Committed] = []
    for result in results:
        if result.HasField("error"):
            raise error_of(result.error)
        if result.found and result.topic_id in names:
            positions.append(
                Committed(
                    topic=names[result.topic_id],
                    partition=result.partition,
                    next_offset=result.next_offset,
                    note=result.note,
                    commit_timestamp_us=result.commit_timestamp_us,
                    epoch=result.record_epoch if result.HasField("record_epoch") else None,
                )
            )
    return positions
