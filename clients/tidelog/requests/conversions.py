"""Checks of arguments, and conversions between wire messages and the client's values. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
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
from tidelog_proto.process.epoch_units import EPOCH, wrong_unit

At = Literal["earliest", "latest"] | datetime | int
"""A point in a log: its start or end, a time, or a time in µs since 1970."""


class NewestOf(NamedTuple):
    """Selects the newest record with a key as the point in a log, in place of an `At`."""

    key: bytes


_PARTITION_MAX: Final = 2**32 - 1
"""The largest partition number of the wire format; nodes check the topic's partition count."""


def checked_topic(name: str) -> str:
    """Return `name` if it is a valid topic name.

    Raises:
        InvalidTopicError: the name breaks a rule.
        InvalidRequestError: the name is not a str.
    """
    return _checked("topic", name, check_topic_name)


def checked_group(name: str) -> str:
    """Return `name` if it is a valid group name.

    Raises:
        InvalidRequestError: the name breaks a rule.
    """
    return _checked("group", name, check_group_name)


def _checked(what: str, name: str, check: Callable[[str], None]) -> str:
    if not isinstance(name, str):
        raise InvalidRequestError(f"a {what}'s name must be a str, got {name!r}")
    try:
        check(name)
    except ProtocolError as error:
        raise error_of_local(error) from error
    return name


def checked_positions(positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Check positions to commit and return a copy of them.

    Raises:
        InvalidRequestError: the argument is not a mapping from partitions to offsets, or a position is out of range.
    """
    if not isinstance(positions, Mapping):
        raise InvalidRequestError(
            f"positions must be a mapping TopicPartition -> next offset to read, got {positions!r}"
        )
    for where, offset in positions.items():
        if not isinstance(where, TopicPartition):
            raise InvalidRequestError(
                f"positions must be a mapping TopicPartition -> next offset to read, got the key {where!r}"
            )
        check_position(where, offset)
    return dict(positions)


def check_position(where: TopicPartition, offset: int) -> None:
    """Check a position to commit.

    Raises:
        InvalidRequestError: the partition or the offset is not an integer, or is out of range.
    """
    if not _is_number(where.partition):
        raise InvalidRequestError(f"a partition of topic {where.topic!r} must be an integer, got {where.partition!r}")
    if not _is_number(offset):
        raise InvalidRequestError(
            f"the offset to commit for {where.topic}/{where.partition} must be an integer, got {offset!r}"
        )
    if not 0 <= offset <= OFFSET_MAX:
        raise InvalidRequestError(
            f"the offset to commit for {where.topic}/{where.partition} must be 0 to {OFFSET_MAX}, got {offset}"
        )
    if not 0 <= where.partition <= _PARTITION_MAX:
        raise InvalidRequestError(
            f"a partition of topic {where.topic!r} must be 0 to {_PARTITION_MAX}, got {where.partition}"
        )


def _is_number(thing: object) -> bool:
    """Return whether an object is an integer, of Python or of a library such as NumPy."""
    return hasattr(thing, "__index__")


def list_offsets_entry(topic_id: bytes, partition: int, at: At | NewestOf) -> pb.ListOffsetsEntry:
    """Return an entry of LIST_OFFSETS.

    Raises:
        InvalidRequestError: `at` is not a point in a log, is a datetime without a time zone, or is a number that looks
            like a time in another unit than µs.
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
        if reason := wrong_unit(at, "microseconds", exact="the datetime"):
            raise InvalidRequestError(f"at: {reason}")
        return pb.ListOffsetsEntry(topic_id=topic_id, partition=partition, timestamp_us=at)
    raise InvalidRequestError(f"a point in a log must be 'earliest', 'latest', a datetime or µs since 1970, got {at!r}")


def microseconds(moment: datetime) -> int:
    """Return µs since 1970.

    Raises:
        InvalidRequestError: the moment has no time zone, so it is ambiguous.
    """
    if moment.tzinfo is None:
        raise InvalidRequestError(
            f"the datetime {moment} has no time zone; pass one with a time zone, such as datetime(..., "
            "tzinfo=timezone.utc)"
        )
    delta = moment - EPOCH
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds


def offset_of(result: pb.ListOffsetsResult, *, by_time: bool) -> Offset:
    """Return the offset of a LIST_OFFSETS result.

    Args:
        by_time: whether the requested point may not exist: a time or the newest record of a key.

    Raises:
        TidelogError: the result is an error.
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
    """Return the positions that were found; topics without a name in `names` were deleted and are omitted.

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
