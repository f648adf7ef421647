"""`GET /v1/topics/{topic}/records`: records of all partitions, stateless and safe to repeat.

The response has the cursor of the next request. With `wait_ms` a reader that has caught up waits for a record in any
partition; the gateway waits with a subscription that ends at the first record.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from tidelog.errors import OverloadedError
from tidelog_gateway.budget.response_reservation import reservation_of
from tidelog_gateway.callers.live_connections import counted, no_room
from tidelog_gateway.context import Gateway, GatewayDep, TopicPath
from tidelog_gateway.offsets import TimestampQuery, parse_timestamp
from tidelog_gateway.problems import Problem, invalid
from tidelog_gateway.reading.partition_route import (
    WAITING_BYTES,
    RecordFilter,
    TopicRecordView,
    check_limits,
    limits_of,
    while_wanted,
)
from tidelog_gateway.reading.response import (
    ANSWERS,
    CAUGHT_UP_HEADER,
    NEXT_CURSOR_HEADER,
    RecordsResponse,
    ValueEncodingQuery,
    body_of,
    media_type_of,
    records_response,
)
from tidelog_gateway.reading.row_selection import row_selection
from tidelog_gateway.reading.topic_cursor import CURSOR_CHARS_MAX, HEADER_CHARS_MAX
from tidelog_gateway.reading.topic_read import Begin, TopicRead
from tidelog_gateway.requests.columns import ColumnsQuery
from tidelog_gateway.requests.content_negotiation import ARROW, JSON
from tidelog_gateway.requests.parameters import KeyEncodingQuery, KeyQuery, TagQuery, parse_key

router = APIRouter(prefix="/v1", tags=["records"])


class TopicRecordsView(BaseModel):
    """Records of all partitions, and the cursor of the next request."""

    records: list[TopicRecordView]
    next_cursor: Annotated[str, Field(description="The `cursor` of the next request.")]
    caught_up: Annotated[bool, Field(description="Whether every partition was read to its end.")]


@router.get(
    "/topics/{topic}/records",
    response_model=TopicRecordsView,
    response_model_exclude_none=True,
    response_class=RecordsResponse,
    responses=ANSWERS,
    summary="Read all partitions",
)
async def read_topic(  # noqa: PLR0917 # query parameters are parameters
    gateway: GatewayDep,
    request: Request,
    topic: TopicPath,
    cursor: Annotated[
        str | None, Query(max_length=CURSOR_CHARS_MAX, description="`next_cursor` of the previous response.")
    ] = None,
    timestamp: TimestampQuery = None,
    from_: Annotated[Literal["earliest", "latest"] | None, Query(alias="from")] = None,
    max_records: Annotated[int | None, Query(ge=1)] = None,
    max_bytes: Annotated[
        int | None, Query(ge=1, description="Maximum payload in bytes; the first record may exceed it.")
    ] = None,
    wait_ms: Annotated[int, Query(ge=0, description="Longest wait for a record at the end of the log.")] = 0,
    key: KeyQuery = None,
    key_encoding: KeyEncodingQuery = "utf8",
    tag: TagQuery = None,
    value_encoding: ValueEncodingQuery = None,
    columns: ColumnsQuery = None,
) -> Response:
    """Read from a cursor, a time, or an end of the log; `from=earliest` by default.

    Records of one partition are in the order of their offsets; records of different partitions have no order. A
    response may be empty although more records follow, for instance with `key` or `tag`: `caught_up` is false then.
    """
    check_limits(gateway, max_records, max_bytes, wait_ms)
    media_type = media_type_of(request, value_encoding)
    if sum(start is not None for start in (cursor, timestamp, from_)) > 1:
        raise invalid([{"parameter": "cursor", "detail": "cursor, timestamp and from exclude each other: send one"}])
    record_filter = RecordFilter(parse_key(key, key_encoding) if key is not None else None, tag)
    begin = Begin(cursor, parse_timestamp(timestamp) if timestamp is not None else from_ or "earliest")
    limits = limits_of(gateway, max_records, max_bytes)
    # Checked here, because an empty topic is not fetched, and only a fetch makes a node check the permission.
    if gateway.caller is not None:
        await gateway.client.security.check("consume", "topic", topic)
    rows = await row_selection(gateway, topic, columns, is_pinned=media_type == ARROW)
    body = body_of(gateway, request, media_type, value_encoding, numbered=True, limits=limits, rows=rows)
    read = await TopicRead.opened(gateway, topic, record_filter, begin, rows)
    await read.take(body)
    wait_until = time.monotonic() + wait_ms / 1000
    while not body.records and read.caught_up and time.monotonic() < wait_until and not gateway.stopping.is_set():
        await _wait(gateway, request, read, wait_until - time.monotonic())
        await read.refresh()
        await read.take(body)
    is_json = media_type == JSON
    next_cursor = read.cursor(CURSOR_CHARS_MAX if is_json else HEADER_CHARS_MAX)
    headers = {NEXT_CURSOR_HEADER: next_cursor, CAUGHT_UP_HEADER: str(read.caught_up).lower()}
    members = {"next_cursor": next_cursor, "caught_up": read.caught_up}
    return await records_response(gateway, body, media_type, members, headers)


async def _wait(gateway: Gateway, request: Request, read: TopicRead, wait_s: float) -> None:
    """Wait until a record arrives after the positions of a read, or the time is over.

    Raises:
        Problem: 429, too many requests wait; 401, 499: as `while_wanted`.
        TidelogError: the log ended the subscription.
    """
    application: Gateway = request.app.state.gateway
    why = no_room(application, gateway)
    if why:
        raise Problem(429, "too_many_streams", why, retryable=True)
    arrived = False

    def arrives(size_bytes: int) -> bool:
        nonlocal arrived
        del size_bytes
        arrived = True
        return False  # The record is dropped, and read again after memory was reserved for it.

    async def first_batch() -> None:
        scope = read.scope
        try:
            async with gateway.client.consumer(
                scope.topic,
                group=None,
                start=dict(read.positions),
                partitions="all",
                prefetch_records=1,
                prefetch_bytes=WAITING_BYTES,
                admit=arrives,
                key=scope.key,
                tag=scope.tag,
            ) as consumer:
                await consumer.next_batch()
        except OverloadedError:
            if not arrived:
                raise

    with counted(application, gateway, gateway.metrics.streams):
        clock = asyncio.timeout(wait_s)
        try:
            async with clock:
                await while_wanted(gateway, reservation_of(request), first_batch())
        except TimeoutError:
            if not clock.expired():
                raise
