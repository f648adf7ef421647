"""`DELETE /v1/topics/{topic}/partitions/{partition}/records`: delete all records before an offset or a time."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from tidelog.errors import OffsetOutOfRangeError
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import GatewayDep, PartitionPath, TopicPath, json_response
from tidelog_gateway.offsets import parse_timestamp
from tidelog_gateway.problems import from_error, invalid

router = APIRouter(prefix="/v1", tags=["records"], route_class=JsonRoute)


class DeletedView(BaseModel):
    """The new start of a partition's log."""

    partition: int
    log_start_offset: Annotated[int, Field(description="The first readable offset.")]


@router.delete(
    "/topics/{topic}/partitions/{partition}/records", response_model=DeletedView, summary="Delete old records"
)
async def delete_records(
    gateway: GatewayDep,
    topic: TopicPath,
    partition: PartitionPath,
    before_offset: Annotated[
        int | None,
        Query(ge=0, lt=2**63, description="Records before this offset are deleted; at most the high watermark."),
    ] = None,
    before_timestamp: Annotated[
        str | None,
        Query(
            max_length=40,
            description="Milliseconds since 1970, or ISO 8601 with a time zone. All records before the first record at "
            "or after this time are deleted.",
        ),
    ] = None,
) -> Response:
    """Delete all records before an offset or a time; idempotent. The answer is sent when the deletion is durable."""
    if (before_offset is None) == (before_timestamp is None):
        given = "neither" if before_offset is None else "both"
        detail = f"send either before_offset or before_timestamp, got {given}"
        raise invalid([{"parameter": "before_offset", "detail": detail}])
    before = parse_timestamp(before_timestamp, "before_timestamp") if before_timestamp is not None else before_offset
    assert before is not None
    try:
        starts = await gateway.client.delete_records(topic, before, [partition])
    except OffsetOutOfRangeError as error:
        problem = from_error(error)
        # Not the 410 of a read: the records at this offset are not gone, but do not exist yet.
        problem.status = 422
        raise problem from error
    return json_response({"partition": partition, "log_start_offset": starts[partition]})
