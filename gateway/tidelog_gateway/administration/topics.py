"""`/v1/topics`: create, list, describe, alter, delete."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request
from starlette.responses import Response

from tidelog.model import NextDeletion, Partition, StoredEpochs, Topic
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import Gateway, GatewayDep, TopicName, TopicPath, json_response
from tidelog_gateway.history.history import History
from tidelog_gateway.json_answers import list_response, view_maker
from tidelog_gateway.problems import invalid
from tidelog_gateway.requests.cursors import CursorQuery, cursor_of, name_in
from tidelog_proto.names import check_topic_name
from tidelog_proto.topic_settings import ALTERABLE, DESCRIBED, OTHER_NAME_PATTERN, TOPIC_SETTINGS, TopicSetting

PAGE_MAX: Final = 1000

router = APIRouter(prefix="/v1/topics", tags=["topics"], route_class=JsonRoute)


def _type_of(setting: TopicSetting) -> Any:
    """Return the type of a setting in a body, with its range, choices and description."""
    if setting.kind is int:
        return Annotated[int, Field(ge=setting.minimum, le=setting.maximum, description=setting.help)]
    if setting.others:
        return Annotated[str, Field(pattern=f"^{OTHER_NAME_PATTERN}$", max_length=64, description=setting.help)]
    return Annotated[_stored_type(setting), Field(description=setting.help)]


def _optional(names: Iterable[str]) -> dict[str, Any]:
    return {name: (_type_of(TOPIC_SETTINGS[name]) | None, None) for name in names}


def _stored_type(setting: TopicSetting) -> Any:
    return Literal[tuple(setting.choices)] if setting.choices and not setting.others else setting.kind


if TYPE_CHECKING:
    _Settings = BaseModel
    _DescribedSettings = BaseModel
else:
    _Settings = create_model(
        "TopicSettings", __config__=ConfigDict(extra="forbid", strict=True), **_optional(ALTERABLE)
    )
    _DescribedSettings = create_model(
        "DescribedSettings", **{name: (_stored_type(TOPIC_SETTINGS[name]), ...) for name in DESCRIBED}
    )


class TopicCreate(_Settings):
    """A new topic. Settings that are missing or null get the node's defaults."""

    name: TopicName


class TopicAlter(_Settings):
    """Changes to a topic. Settings that are missing or null do not change; `partitions` can only be raised."""


class NextDeletionView(BaseModel):
    """The segment of a partition that retention deletes next: its oldest segment."""

    below: Annotated[int, Field(description="Offset after the segment's last record: all lower offsets are deleted.")]
    size_bytes: int
    at_ms: Annotated[int | None, Field(description="When the segment's newest record expires; null: no limit by time.")]
    bytes_more: Annotated[
        int | None, Field(description="Bytes to append until the segment is deleted; null: no limit by size.")
    ]


class StoredEpochsView(BaseModel):
    """Consecutive epochs of a partition that are stored in the same way."""

    first: int
    last: int
    engine: Annotated[
        str,
        Field(
            description="Storage engine: segment, memory, rocksdb, or another one. segment-shared: segment with "
            "file_model=shared. memory-async: memory with flush=async."
        ),
    ]


class PartitionView(BaseModel):
    """One partition of a described topic."""

    partition: int
    owner: str
    epoch: int
    placement: list[str]
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    state: str
    oldest_append_ms: Annotated[
        int | None, Field(description="Append time of the oldest record; null if the partition is empty.")
    ]
    newest_append_ms: int | None
    next_deletion: Annotated[
        NextDeletionView | None,
        Field(description="The segment that retention deletes next; null if retention deletes nothing."),
    ]
    unindexed_bytes: Annotated[int, Field(description="Bytes that are not indexed yet, which searches scan.")]
    stored: Annotated[
        list[StoredEpochsView],
        Field(description="How the owner stores the epochs of the log, oldest first; empty if it does not answer."),
    ]


_view_of_deletion = view_maker(NextDeletionView, NextDeletion)
_view_of_epochs = view_maker(StoredEpochsView, StoredEpochs)


def _view_of_partition(partition: Partition) -> dict[str, Any]:
    """Return the members of a `PartitionView`.

    The members are written out, because `view_maker` is slower, and a topic may have thousands of partitions.
    """
    following = partition.next_deletion
    return {
        "partition": partition.partition,
        "owner": partition.owner,
        "epoch": partition.epoch,
        "placement": list(partition.placement),
        "log_start_offset": partition.log_start_offset,
        "high_watermark": partition.high_watermark,
        "size_bytes": partition.size_bytes,
        "state": partition.state,
        "oldest_append_ms": partition.oldest_append_us // 1000 or None,
        "newest_append_ms": partition.newest_append_us // 1000 or None,
        "next_deletion": None if following is None else _view_of_deletion(following),
        "unindexed_bytes": partition.unindexed_bytes,
        "stored": [_view_of_epochs(one) for one in partition.stored],
    }


class TopicView(_DescribedSettings):
    """A topic and its configuration."""

    name: str
    topic_id: Annotated[str, Field(description="32 hexadecimal digits; a recreated topic has another id.")]
    partitions: int


class TopicDetail(TopicView):
    """A topic with the state of its partitions."""

    partition_states: list[PartitionView]


class FiguresView(BaseModel):
    """Sums over the partitions of a topic, from the last sample."""

    records: Annotated[
        int,
        Field(
            description="Number of offsets from log start to high watermark, of all partitions: an upper bound of the "
            "number of records, because compacted and invisible records have offsets, too."
        ),
    ]
    end_offsets: Annotated[int, Field(description="Sum of the high watermarks.")]
    size_bytes: Annotated[int, Field(description="Bytes of one copy of each partition.")]
    idle: Annotated[int, Field(description="Number of partitions that are not open; the sums leave them out.")]
    unavailable: Annotated[int, Field(description="Number of partitions that accept no records.")]
    under_replicated: Annotated[int, Field(description="Number of partitions with an incomplete or missing copy.")]
    records_per_s: Annotated[float | None, Field(description="Records per second over the last 30 s; null: unknown.")]
    bytes_per_s: Annotated[
        float | None, Field(description="Growth rate of the size; negative if more is deleted than appended.")
    ]


class ListedTopicView(TopicView):
    """A topic in a list."""

    figures: Annotated[
        FiguresView | None,
        Field(description="Sums over the partitions, with `figures=true`; null: the topic has not been sampled."),
    ] = None


class TopicPage(BaseModel):
    """A page of topics in the order of their names."""

    topics: list[ListedTopicView]
    next_cursor: Annotated[
        str | None, Field(description="Value of the parameter `cursor` for the next page; null on the last page.")
    ]
    figures_ms: Annotated[
        int | None, Field(description="Time of the sample; null: not requested, or no sample yet.")
    ] = None


@router.post("", status_code=201, response_model=TopicDetail, summary="Create a topic")
async def create_topic(gateway: GatewayDep, request: Request, body: TopicCreate) -> Response:
    """Create a topic; 409 if the name exists."""
    check_topic_name(body.name)
    await gateway.client.create_topic(**body.model_dump())
    topic = await gateway.client.topic(body.name)
    response = await _detail(gateway, request, topic)
    response.status_code = 201
    response.headers["Location"] = f"/v1/topics/{body.name}"
    return response


@router.get("", response_model=TopicPage, summary="List topics")
async def list_topics(
    gateway: GatewayDep,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 100,
    cursor: CursorQuery = None,
    figures: Annotated[
        bool, Query(description="Whether to return sums over the partitions, which are sampled every few seconds.")
    ] = False,
) -> Response:
    """Return a page of the topics, in the order of their names.

    Topics that are created or deleted meanwhile do not disturb the paging.
    """
    after = "" if cursor is None else name_in(cursor)
    page, more = await gateway.client.topic_page(after=after, limit=limit)
    next_cursor = cursor_of(page[-1].name) if more else None
    if not figures:
        return json_response({"topics": [view_of(topic) for topic in page], "next_cursor": next_cursor})
    history = History() if gateway.sampler is None else gateway.sampler.history
    views = [view_of(topic) | {"figures": _figures_view(history, topic)} for topic in page]
    sampled_ms = history.times_ms[-1] if history.times_ms else None
    return json_response({"topics": views, "next_cursor": next_cursor, "figures_ms": sampled_ms})


@router.get("/{topic}", response_model=TopicDetail, summary="Describe a topic")
async def describe_topic(gateway: GatewayDep, request: Request, topic: TopicPath) -> Response:
    """Describe a topic with the offsets, sizes and owners of its partitions."""
    return await _detail(gateway, request, await gateway.client.topic(topic))


@router.patch("/{topic}", response_model=TopicDetail, summary="Alter a topic")
async def alter_topic(gateway: GatewayDep, request: Request, topic: TopicPath, body: TopicAlter) -> Response:
    """Change a topic's configuration; settings that are absent or null do not change."""
    changes = {name: value for name, value in body.model_dump().items() if value is not None}
    if not changes:
        detail = f"the body changes no setting; set at least one of {', '.join(TopicAlter.model_fields)}"
        raise invalid([{"pointer": "", "detail": detail}])
    await gateway.client.alter_topic(topic, **changes)
    return await _detail(gateway, request, await gateway.client.topic(topic))


@router.delete("/{topic}", status_code=204, summary="Delete a topic")
async def delete_topic(gateway: GatewayDep, topic: TopicPath) -> Response:
    """Delete a topic and its records."""
    await gateway.client.delete_topic(topic)
    await gateway.producers.forget(topic)
    return Response(status_code=204)


def view_of(topic: Topic) -> dict[str, Any]:
    """Return a topic as the API represents it."""
    return {
        "name": topic.name,
        "topic_id": topic.topic_id.hex(),
        "partitions": topic.partition_count,
        **{name: getattr(topic, name) for name in DESCRIBED},
    }


def _figures_view(history: History, topic: Topic) -> dict[str, Any] | None:
    figures = history.newest.get(topic.name)
    if figures is None or figures.topic_id != topic.topic_id:
        return None
    rate = history.rate(topic.name)
    return {
        "records": figures.records,
        "end_offsets": figures.end_offsets,
        "size_bytes": figures.size_bytes,
        "idle": figures.idle,
        "unavailable": figures.unavailable,
        "under_replicated": figures.under_replicated,
        "records_per_s": rate and rate.records_per_s,
        "bytes_per_s": rate and rate.bytes_per_s,
    }


async def _detail(gateway: Gateway, request: Request, topic: Topic) -> Response:
    states = ("partition_states", topic.partitions)
    return await list_response(gateway, request, view_of(topic), states, _view_of_partition)
