"""`/v1/topics/{topic}/offsets` and `/v1/groups/{group}/offsets`: bounds of partitions, committed offsets of groups."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final, Literal, Protocol

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tidelog.errors import OffsetOutOfRangeError
from tidelog.model import Committed, Offset
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import (
    Gateway,
    GatewayDep,
    GroupPath,
    PartitionPath,
    TopicName,
    TopicPath,
    json_response,
)
from tidelog_gateway.json_answers import PART_ITEMS, list_response
from tidelog_gateway.problems import from_error, invalid
from tidelog_gateway.requests.first_faults import first_faults
from tidelog_proto.limits import (
    ENTRIES_PER_REQUEST_MAX,
    NOTE_BYTES_MAX,
    PARTITIONS_MAX,
    TIMESTAMP_MS_MAX,
)
from tidelog_proto.names import check_topic_name
from tidelog_proto.process.epoch_units import EPOCH, wrong_unit, zoned_time

TIMESTAMP_DIGITS_MAX: Final = 20
"""Maximum number of digits of a timestamp that is parsed as a number. A present time in nanoseconds has 19; it is
parsed, so that the error can name the unit."""

router = APIRouter(prefix="/v1", tags=["offsets"], route_class=JsonRoute)

TimestampQuery = Annotated[
    str | None,
    Query(
        max_length=40,
        description="Return the first record at or after this time: milliseconds since 1970, or ISO 8601 with a time "
        "zone.",
    ),
]


class OffsetView(BaseModel):
    """A partition's log bounds, and with the parameter `timestamp` the first record at or after that time."""

    partition: int
    log_start_offset: int
    high_watermark: int
    next_offset: int
    found: Annotated[
        bool,
        Field(
            description="Whether a record at or after `timestamp` exists; if not, next_offset is the end of the log."
        ),
    ]
    timestamp_ms: Annotated[
        int | None, Field(description="With `timestamp`: the timestamp of the record at next_offset.")
    ]


class OffsetsView(BaseModel):
    """The bounds of every partition."""

    topic: str
    offsets: list[OffsetView]


class CommitItem(BaseModel):
    """An offset to commit."""

    model_config = ConfigDict(extra="forbid", strict=True)

    topic: TopicName
    partition: Annotated[int, Field(ge=0, lt=PARTITIONS_MAX)]
    next_offset: Annotated[int, Field(ge=0, lt=2**63)]
    note: Annotated[str, Field(max_length=NOTE_BYTES_MAX)] = ""


class CommitBody(BaseModel):
    """Offsets to commit; a lower offset than the committed one is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    offsets: Annotated[
        list[CommitItem],
        Field(min_length=1, max_length=ENTRIES_PER_REQUEST_MAX, fail_fast=True),
        first_faults(CommitItem),
    ]


class CommittedView(BaseModel):
    """A committed offset."""

    topic: str
    partition: int
    next_offset: int
    note: str
    commit_timestamp_ms: int
    epoch: Annotated[
        int | None,
        Field(description="Epoch of the record before next_offset; null if no epoch was committed."),
    ]


def committed_view(item: Committed) -> dict[str, Any]:
    """Return the members of a `CommittedView`.

    They are written out, because `view_maker` is slower, and a group may have offsets of thousands of partitions.
    """
    return {
        "topic": item.topic,
        "partition": item.partition,
        "next_offset": item.next_offset,
        "note": item.note,
        "commit_timestamp_ms": item.commit_timestamp_us // 1000,
        "epoch": item.epoch,
    }


class GroupView(BaseModel):
    """The committed offsets of a group."""

    group: str
    offsets: list[CommittedView]


@router.get("/topics/{topic}/offsets", response_model=OffsetsView, summary="Offsets of every partition")
async def topic_offsets(
    gateway: GatewayDep, request: Request, topic: TopicPath, timestamp: TimestampQuery = None
) -> Response:
    """Return each partition's log bounds, and with `timestamp` the offset of the first record at or after it."""
    partitions = (await gateway.client.topic(topic)).partitions
    offsets = await _offsets(gateway, topic, timestamp, [partition.partition for partition in partitions])
    view = partial(_view, by_time=timestamp is not None)
    return await list_response(gateway, request, {"topic": topic}, ("offsets", offsets), view)


@router.get(
    "/topics/{topic}/partitions/{partition}/offsets", response_model=OffsetView, summary="Offsets of one partition"
)
async def partition_offsets(
    gateway: GatewayDep, topic: TopicPath, partition: PartitionPath, timestamp: TimestampQuery = None
) -> Response:
    """Return the partition's log bounds, and with `timestamp` the offset of the first record at or after it."""
    offsets = await _offsets(gateway, topic, timestamp, [partition])
    return json_response(_view(offsets[0], by_time=timestamp is not None))


@router.get("/groups/{group}/offsets", response_model=GroupView, summary="Committed offsets of a group")
async def group_offsets(
    gateway: GatewayDep,
    request: Request,
    group: GroupPath,
    topic: Annotated[TopicName | None, Query(description="Only this topic.")] = None,
) -> Response:
    """Return the committed offsets of a group, by topic and partition."""
    if topic is not None:
        check_topic_name(topic)
    committed = await committed_of(gateway, group, topic)
    return await list_response(gateway, request, {"group": group}, ("offsets", committed), committed_view)


@router.put(
    "/groups/{group}/offsets",
    response_model=GroupView,
    summary="Commit offsets for a group",
)
async def commit_offsets(gateway: GatewayDep, request: Request, group: GroupPath, body: CommitBody) -> Response:
    """Commit offsets, and return the offsets that are committed now in these partitions.

    A returned offset is higher than the given one if a higher one was already committed. The answer is sent when the
    commit is durable.
    """
    held = await commit_positions(gateway, group, body.offsets)
    return await list_response(gateway, request, {"group": group}, ("offsets", held), committed_view)


class Position(Protocol):
    """An offset to commit by `commit_positions`, such as a `CommitItem`."""

    topic: str
    partition: int
    next_offset: int
    note: str


async def commit_positions(gateway: Gateway, group: str, positions: Sequence[Position]) -> list[Committed]:
    """Commit offsets for a group and return the committed ones, in the order of topics and partitions.

    Raises:
        Problem: 422, a partition is repeated, or an offset is above the end of its log.
        ProtocolError: a topic's name is invalid.
        TidelogError: as `Client.commit`.
    """
    by_topic: dict[tuple[str, str], dict[int, int]] = defaultdict(dict)
    seen: set[tuple[str, int]] = set()
    checked: set[str] = set()
    for index, item in enumerate(positions):
        if index % PART_ITEMS == PART_ITEMS - 1:
            await asyncio.sleep(0)  # other requests run between the parts of a long list
        if item.topic not in checked:
            check_topic_name(item.topic)
            checked.add(item.topic)
        if (item.topic, item.partition) in seen:
            detail = f"{item.topic} partition {item.partition} is given twice; send each partition once"
            raise invalid([{"pointer": f"/offsets/{index}", "detail": detail}])
        seen.add((item.topic, item.partition))
        by_topic[item.topic, item.note][item.partition] = item.next_offset
    held: list[Committed] = []
    for (topic, note), offsets in by_topic.items():
        held += (await commit(gateway, group, topic, offsets, note=note)).values()
    held.sort(key=_place)
    return held


async def commit(
    gateway: Gateway, group: str, topic: str, offsets: Mapping[int, int], *, note: str
) -> dict[int, Committed]:
    """Commit offsets of a topic for a group and return the committed ones.

    Raises:
        Problem: 422 with the bounds for an offset above the end of the log.
        TidelogError: as `Client.commit`.
    """
    try:
        return await gateway.client.commit(group, topic, offsets, note=note)
    except OffsetOutOfRangeError as error:
        problem = from_error(error)
        problem.status = 422
        raise problem from error


async def committed_of(gateway: Gateway, group: str, topic: str | None) -> list[Committed]:
    """Return the committed offsets of a group, ordered by topic and partition."""
    committed = await gateway.client.committed(group, topic)
    return sorted(committed, key=_place)


def parse_timestamp(text: str, parameter: str = "timestamp") -> datetime:
    """Parse a time in milliseconds since 1970 or in ISO 8601 with a time zone.

    Args:
        text: the time.
        parameter: name of the query parameter in the error.

    Raises:
        Problem: 422, the text has neither form, is out of range, or probably has another unit, such as seconds.
    """
    if text.isascii() and text.isdigit() and len(text) <= TIMESTAMP_DIGITS_MAX:
        if reason := wrong_unit(int(text), "milliseconds", exact="the ISO 8601 text"):
            raise invalid([{"parameter": parameter, "detail": reason}])
        if int(text) <= TIMESTAMP_MS_MAX:
            return EPOCH + timedelta(milliseconds=int(text))
    moment = zoned_time(text)
    if moment is None:
        detail = (
            f"must be milliseconds since 1970, or ISO 8601 with a time zone such as 2013-01-01T00:00:00Z, got {text!r}"
        )
        raise invalid([{"parameter": parameter, "detail": detail}])
    return moment


async def _offsets(
    gateway: Gateway, topic: str, timestamp: str | None, partitions: list[int]
) -> list[tuple[int, Offset]]:
    at: Literal["latest"] | datetime = "latest" if timestamp is None else parse_timestamp(timestamp)
    offsets = await gateway.client.list_offsets(topic, at, partitions)
    return sorted(offsets.items())


def _view(numbered: tuple[int, Offset], *, by_time: bool) -> dict[str, Any]:
    partition, offset = numbered
    return {
        "partition": partition,
        "log_start_offset": offset.log_start_offset,
        "high_watermark": offset.high_watermark,
        "next_offset": offset.offset,
        "found": offset.found if by_time else True,
        "timestamp_ms": offset.timestamp_us // 1000 if by_time and offset.found else None,
    }


def _place(item: Committed) -> tuple[str, int]:
    return item.topic, item.partition
