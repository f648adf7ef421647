"""`/v1/groups`: consumer groups, their members and lag; resetting their offsets, and deleting them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from tidelog.groups.admin import ResetTo
from tidelog.model import GroupInfo, GroupMemberInfo, GroupState, Lag, TopicPartition
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import Gateway, GatewayDep, GroupPath, TopicName, json_response
from tidelog_gateway.json_answers import list_response, view_maker
from tidelog_gateway.offsets import parse_timestamp
from tidelog_gateway.problems import invalid
from tidelog_gateway.requests.cursors import CursorQuery, cursor_of, name_in
from tidelog_gateway.requests.first_faults import first_faults
from tidelog_proto.limits import LISTED_PARTITIONS_MAX, PARTITIONS_MAX
from tidelog_proto.names import check_group_name, check_topic_name

router = APIRouter(prefix="/v1", tags=["groups"], route_class=JsonRoute)

LIMIT_MAX = 1000


class PlaceView(BaseModel):
    """A partition."""

    topic: str
    partition: int


class MemberView(BaseModel):
    """A member of a consumer group, its current partitions (`reads`) and its target assignment (`is_to_read`)."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    reads: list[PlaceView]
    is_to_read: list[PlaceView]


class GroupSummaryView(BaseModel):
    """A consumer group."""

    name: str
    state: GroupState
    generation: Annotated[int, Field(description="Generation of the assignment; grows with each rebalance.")]
    members: int
    positions: int
    assignor: str | None
    coordinator: Annotated[str, Field(description="Id of the node that coordinates the group.")]
    last_commit_ms: int | None


class GroupDescriptionView(GroupSummaryView):
    """A consumer group with its members."""

    member_list: list[MemberView]


class GroupsView(BaseModel):
    """A page of groups, in the order of their names."""

    groups: list[GroupSummaryView]
    next_cursor: Annotated[
        str | None, Field(description="Value of the parameter `cursor` for the next page; null on the last page.")
    ]


class LagView(BaseModel):
    """The lag of a group in a partition: offsets after the committed one, without a commit all of the log."""

    topic: str
    partition: int
    next_offset: int | None
    log_start_offset: int
    high_watermark: int
    lag: Annotated[
        int, Field(description="In offsets: an upper bound of the number of records that the group has not read.")
    ]
    commit_timestamp_ms: int | None
    note: Annotated[str | None, Field(description="Metadata committed with the offset; null without metadata.")]
    epoch: Annotated[
        int | None,
        Field(description="Epoch of the record before next_offset; null if no epoch was committed."),
    ]


class LagsView(BaseModel):
    """The lag of a group."""

    group: str
    lag: Annotated[int, Field(description="Sum over the partitions, in offsets.")]
    partitions: list[LagView]


def _places(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in partitions]


_summary_of = view_maker(
    GroupSummaryView,
    GroupInfo,
    members=lambda group: group.member_count,
    positions=lambda group: group.position_count,
)
_view_of_member = view_maker(
    MemberView,
    GroupMemberInfo,
    reads=lambda member: _places(member.reads),
    is_to_read=lambda member: _places(member.is_to_read),
)


def _view_of_lag(row: Lag) -> dict[str, Any]:
    """Return the members of a `LagView`.

    The members are written out, because `view_maker` is slower, and a group may read thousands of partitions.
    """
    return {
        "topic": row.topic,
        "partition": row.partition,
        "next_offset": row.next_offset,
        "log_start_offset": row.log_start_offset,
        "high_watermark": row.high_watermark,
        "lag": row.lag,
        "commit_timestamp_ms": None if row.commit_timestamp_us is None else row.commit_timestamp_us // 1000,
        "note": row.note,
        "epoch": row.epoch,
    }


_PartitionNumber = Annotated[int, Field(ge=0, lt=PARTITIONS_MAX, strict=True)]


class ResetBody(BaseModel):
    """The new offsets of a group: exactly one of `to`, `offset` and `timestamp`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    to: Annotated[
        Literal["earliest", "latest"] | None,
        Field(description="earliest: move the offsets to the start of each log; latest: to its end."),
    ] = None
    offset: Annotated[
        int | None,
        Field(ge=0, lt=2**63, description="The new offset in each partition, limited to the bounds of its log."),
    ] = None
    timestamp: Annotated[
        str | None,
        Field(
            max_length=40,
            description="Move the offsets to the first record at or after this time: milliseconds since 1970, or ISO "
            "8601 with a time zone.",
        ),
    ] = None
    topic: Annotated[TopicName | None, Field(description="Move only the offsets of this topic.")] = None
    partitions: (
        Annotated[
            list[_PartitionNumber],
            Field(max_length=LISTED_PARTITIONS_MAX, fail_fast=True),
            first_faults(_PartitionNumber),
        ]
        | None
    ) = None
    dry_run: bool = False


@router.get("/groups", response_model=GroupsView, summary="List groups")
async def list_groups(
    gateway: GatewayDep,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = 100,
    cursor: CursorQuery = None,
) -> Response:
    """Return a page of the groups, in the order of their names."""
    after = "" if cursor is None else name_in(cursor)
    page, more = await gateway.client.groups.page(after=after)
    shown = page[:limit]
    next_cursor = cursor_of(shown[-1].name) if shown and (more or len(page) > limit) else None
    return json_response({"groups": [_summary_of(group) for group in shown], "next_cursor": next_cursor})


@router.get("/groups/{group}", response_model=GroupDescriptionView, summary="Describe a group")
async def describe_group(gateway: GatewayDep, group: GroupPath) -> Response:
    """Return a group with its members."""
    check_group_name(group)
    info = await gateway.client.groups.describe(group)
    return json_response(_summary_of(info) | {"member_list": [_view_of_member(member) for member in info.members]})


@router.delete("/groups/{group}", status_code=204, summary="Delete a group")
async def delete_group(gateway: GatewayDep, group: GroupPath) -> Response:
    """Delete a group that has no members, with its committed offsets."""
    check_group_name(group)
    await gateway.client.groups.delete(group)
    return Response(status_code=204)


@router.get("/groups/{group}/lag", response_model=LagsView, summary="Lag of a group")
async def group_lag(
    gateway: GatewayDep,
    request: Request,
    group: GroupPath,
    topic: Annotated[TopicName | None, Query(description="Only the lag in this topic.")] = None,
) -> Response:
    """Return the lag of a group in each partition of the topics that it reads."""
    if topic is not None:
        check_topic_name(topic)
    return await _lags(gateway, request, group, await gateway.client.groups.lag(group, topic))


@router.post("/groups/{group}/offsets:reset", response_model=LagsView, summary="Move a group's offsets")
async def reset_offsets(gateway: GatewayDep, request: Request, group: GroupPath, body: ResetBody) -> Response:
    """Set the offsets of a group that has no members, and return the new lag; `dry_run` only computes it."""
    check_group_name(group)
    if body.topic is not None:
        check_topic_name(body.topic)
    moved = await gateway.client.groups.reset(
        group, _target(body), topic=body.topic, partitions=body.partitions, dry_run=body.dry_run
    )
    return await _lags(gateway, request, group, moved)


def _target(body: ResetBody) -> ResetTo:
    targets = [each for each in (body.to, body.offset, body.timestamp) if each is not None]
    if len(targets) != 1:
        detail = f"the body must have exactly one of to, offset and timestamp, got {len(targets)} of them"
        raise invalid([{"pointer": "", "detail": detail}])
    if body.timestamp is None:
        return targets[0] if isinstance(targets[0], int) else body.to or "earliest"
    return parse_timestamp(body.timestamp)


async def _lags(gateway: Gateway, request: Request, group: str, rows: Sequence[Lag]) -> Response:
    members = {"group": group, "lag": sum(row.lag for row in rows)}
    return await list_response(gateway, request, members, ("partitions", rows), _view_of_lag)
