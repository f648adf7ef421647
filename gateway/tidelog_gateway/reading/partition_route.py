"""`GET /v1/topics/{topic}/partitions/{partition}/records`: a stateless fetch that can be repeated.

The answer has the offset to continue at (`next_offset`), so a reader needs no other state. With `wait_ms` the node
waits for records (long polling); the gateway does not poll.

The most frequent format, JSON with the value encoding chosen for each value, is built here; all other formats are built
from columns (`reading`).

The records of a fetch are counted in the response budget before the node is asked. A waiting request reserves little,
so that thousands can wait, since few records arrive at the end of a log at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Coroutine
from functools import partial
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Scope

from tidelog.errors import OffsetOutOfRangeError
from tidelog.model import Fetched
from tidelog_gateway.auth.credentials import credentials_refused
from tidelog_gateway.auth.needed_permission import requiring
from tidelog_gateway.budget.response_reservation import ResponseReservation, reservation_of
from tidelog_gateway.callers.turns import client_gone, turns_of
from tidelog_gateway.coalescing.shared_reads import ReadPosition, ReadResult, Written
from tidelog_gateway.context import Gateway, GatewayDep, PartitionPath, TopicPath
from tidelog_gateway.offsets import TimestampQuery, parse_timestamp
from tidelog_gateway.problems import Problem, from_error, invalid
from tidelog_gateway.reading.body import RecordsBody
from tidelog_gateway.reading.formats import JsonFormat
from tidelog_gateway.reading.response import (
    ANSWERS,
    PARTITION_HEADERS,
    VARY,
    WRITTEN_SHARE,
    RecordsResponse,
    ValueEncodingQuery,
    body_of,
    media_type_of,
    records_response,
)
from tidelog_gateway.reading.row_selection import RowSelection, row_selection
from tidelog_gateway.records.json_encoding import BatchReader, JsonRecords
from tidelog_gateway.records.plain_json import PLAIN_RECORDS_MAX, plain_json
from tidelog_gateway.requests.columns import ColumnsQuery
from tidelog_gateway.requests.content_negotiation import ARROW, JSON
from tidelog_gateway.requests.parameters import KeyEncodingQuery, KeyQuery, TagQuery, parse_key
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.limits import KIB

RECORDS_DEFAULT: Final = 500

NATIVE_BYTES_MIN: Final = 64 * KIB
NATIVE_BYTES_PER_RECORD: Final = 2 * KIB
"""Bytes to request from the node for each record that may be returned: an estimate, so that a request for few records
does not transfer megabytes. If it is too low, the answer has fewer records."""

WAITING_BYTES: Final = 16 * KIB
"""Bytes that a waiting request asks the node for; the request reserves twice as many in the response budget."""

LOOK_S: Final = 1.0
"""How long a request scans the log for matching records, before it answers or, with `wait_ms`, waits; also how long a
read of all partitions of a topic fetches records for one response."""

router = APIRouter(prefix="/v1", tags=["records"])

T = TypeVar("T")


class RecordFilter(NamedTuple):
    """The filter of a fetch; None matches any record."""

    key: bytes | None
    tag: str | None


NO_FILTER: Final = RecordFilter(None, None)


class RecordView(BaseModel):
    """A record. `key_encoding`, `headers` and `tag` are present only when they differ from their default."""

    offset: int
    timestamp_ms: int
    key: str | None
    value: Annotated[
        str | dict[str, Any] | None, Field(description="null is a tombstone; in a typed topic an object, the row.")
    ]
    value_encoding: Annotated[
        Literal["utf8", "base64", "json"],
        Field(description="base64 for values that are not UTF-8, json for the rows of a typed topic."),
    ]
    key_encoding: Literal["base64"] | None = None
    headers: list[list[str | None]] | None = None
    tag: str | None = None


class TopicRecordView(RecordView):
    """A record of a whole topic, with its partition."""

    partition: int


class FetchView(BaseModel):
    """Records, and the offset to continue at."""

    records: list[RecordView]
    next_offset: Annotated[int, Field(description="The next offset to read.")]
    log_start_offset: int
    high_watermark: int


@router.get(
    "/topics/{topic}/partitions/{partition}/records",
    response_model=FetchView,
    response_model_exclude_none=True,
    response_class=RecordsResponse,
    responses=ANSWERS,
    summary="Fetch records",
)
async def fetch_records(  # noqa: PLR0917 # query parameters are parameters
    gateway: GatewayDep,
    request: Request,
    topic: TopicPath,
    partition: PartitionPath,
    offset: Annotated[int | None, Query(ge=0, lt=2**63, description="The first offset to read.")] = None,
    timestamp: TimestampQuery = None,
    from_: Annotated[Literal["earliest", "latest"] | None, Query(alias="from")] = None,
    max_records: Annotated[int | None, Query(ge=1)] = None,
    max_bytes: Annotated[
        int | None, Query(ge=1, description="Maximum payload in bytes; a single record may exceed it.")
    ] = None,
    wait_ms: Annotated[
        int, Query(ge=0, description="Longest wait for a record at the end of the log, in milliseconds.")
    ] = 0,
    key: KeyQuery = None,
    key_encoding: KeyEncodingQuery = "utf8",
    tag: TagQuery = None,
    value_encoding: ValueEncodingQuery = None,
    columns: ColumnsQuery = None,
) -> Response:
    """Read from an offset, a time, or an end of the log; by default `from=earliest`.

    With `key` or `tag` only matching records are returned, possibly none; continue at `next_offset`.
    """
    check_limits(gateway, max_records, max_bytes, wait_ms)
    media_type = media_type_of(request, value_encoding)
    if sum(start is not None for start in (offset, timestamp, from_)) > 1:
        raise invalid(
            [
                {
                    "parameter": "offset",
                    "detail": "is one of several start positions; send only one of offset, timestamp and from",
                }
            ]
        )
    start = offset if offset is not None else await _start(gateway, topic, partition, timestamp, from_)
    record_filter = RecordFilter(parse_key(key, key_encoding) if key is not None else None, tag)
    place = topic, partition, start
    answer = reservation_of(request)
    if media_type == JSON and value_encoding is None and columns is None:
        bounds = Bounds(max_records, max_bytes, wait_ms)
        data = await fetch_json(gateway, answer, place, record_filter, bounds, scope=request.scope)
        return Response(data, headers=VARY, media_type=JSON)
    limits = limits_of(gateway, max_records, max_bytes)
    rows = await row_selection(gateway, topic, columns, is_pinned=media_type == ARROW)
    body = body_of(gateway, request, media_type, value_encoding, numbered=False, limits=limits, rows=rows)
    size_bytes = native_bytes(*limits)
    read = await fetch_matching(
        gateway, answer, place, record_filter, size_bytes=size_bytes, wait_ms=wait_ms, rows=rows
    )
    fetched = read.fetched
    next_offset = await body.take(partition, fetched)
    if body.fault is not None and not body.records:
        raise body.fault.problem({"next_offset": body.fault.offset + 1})
    members = {
        "next_offset": next_offset,
        "log_start_offset": fetched.log_start_offset,
        "high_watermark": fetched.high_watermark,
    }
    headers = {header: str(at) for header, at in zip(PARTITION_HEADERS, members.values(), strict=True)}
    return await records_response(gateway, body, media_type, members, headers)


class Bounds(NamedTuple):
    """The parameters of a fetch with these names; None selects the default."""

    max_records: int | None
    max_bytes: int | None
    wait_ms: int


async def fetch_json(
    gateway: Gateway,
    answer: ResponseReservation,
    place: tuple[str, int, int],
    record_filter: RecordFilter,
    bounds: Bounds,
    *,
    scope: Scope,
) -> bytes:
    """Fetch records from `place` (topic, partition, offset), and return a `FetchView` as JSON.

    Raises:
        Problem: 410 or 422, the offset does not exist; 422, a limit is too large; 503, the answer does not fit the
            response budget.
        TidelogError: as `Client.fetch`.
    """
    max_records, max_bytes, wait_ms = bounds
    check_limits(gateway, max_records, max_bytes, wait_ms)
    records_max, bytes_max = limits_of(gateway, max_records, max_bytes)
    size_bytes = native_bytes(records_max, bytes_max)
    if record_filter != NO_FILTER:
        read = await fetch_matching(gateway, answer, place, record_filter, size_bytes=size_bytes, wait_ms=wait_ms)
        if _has_rows(read.fetched):
            return await _json_of_rows(gateway, answer, place, read.fetched, (records_max, bytes_max), scope=scope)
        return await _json(gateway, answer, read, records_max, bytes_max)
    sizes, partition = gateway.read_sizes, place[:2]
    likely_bytes = sizes.likely(*partition, records_max, size_bytes)
    read = await fetch_matching(gateway, answer, place, record_filter, size_bytes=likely_bytes, wait_ms=wait_ms)
    if likely_bytes < size_bytes and _is_short(read.fetched, records_max):
        read = await fetch_matching(gateway, answer, place, record_filter, size_bytes=size_bytes, wait_ms=wait_ms)
    sizes.note(*partition, read.fetched.batches)
    if _has_rows(read.fetched):
        return await _json_of_rows(gateway, answer, place, read.fetched, (records_max, bytes_max), scope=scope)
    return await _json(gateway, answer, read, records_max, bytes_max)


def _has_rows(fetched: Fetched) -> bool:
    return bool(fetched.batches) and fetched.batches[0].layout is not None


async def _json_of_rows(
    gateway: Gateway,
    answer: ResponseReservation,
    place: tuple[str, int, int],
    fetched: Fetched,
    limits: tuple[int, int],
    *,
    scope: Scope,
) -> bytes:
    """Return the records of a typed topic as a `FetchView` in JSON; rendering takes turns with other requests.

    Raises:
        Problem: 503, the budget was exhausted for too long, or the gateway stops.
    """
    rows = await row_selection(gateway, place[0], None)
    body = RecordsBody(
        JsonFormat("json", numbered=False),
        "json",
        answer,
        turns_of(gateway, HTTPConnection(scope)),
        records_max=limits[0],
        bytes_max=limits[1],
        written_max=gateway.settings.connection_out_bytes_max // WRITTEN_SHARE,
        rows=rows,
    )
    next_offset = await body.take(place[1], fetched)
    members = {
        "next_offset": next_offset,
        "log_start_offset": fetched.log_start_offset,
        "high_watermark": fetched.high_watermark,
    }
    data = await body.finish(members)
    gateway.metrics.http_records_out.inc(body.records)
    return data


def _is_short(fetched: Fetched, records_max: int) -> bool:
    """Return whether a read has fewer records than requested although the log has more."""
    count = sum(map(len, fetched.batches))
    return 0 < count < records_max and fetched.next_offset < fetched.high_watermark


def limits_of(gateway: Gateway, max_records: int | None, max_bytes: int | None) -> tuple[int, int]:
    """Return the limits of an answer: records, and bytes of payload. An argument of None selects the default."""
    settings = gateway.settings
    return max_records or min(RECORDS_DEFAULT, settings.records_per_request_max), max_bytes or settings.fetch_bytes_max


def native_bytes(records_max: int, bytes_max: int) -> int:
    """Return how many bytes to request from a node for an answer with these limits."""
    return min(bytes_max, max(NATIVE_BYTES_MIN, records_max * NATIVE_BYTES_PER_RECORD))


async def _json(
    gateway: Gateway, answer: ResponseReservation, read: ReadResult, records_max: int, bytes_max: int
) -> bytes:
    """Return the records as JSON when they fit the response budget in addition to the fetched records.

    Raises:
        Problem: 503, the budget was exhausted for too long.
    """
    fetched, limits = read.fetched, (records_max, bytes_max)
    held_bytes = sum(batch.header.length for batch in fetched.batches)
    await answer.reserve(held_bytes)
    while True:
        written = read.written.get(limits)
        if written is None:
            written = read.written[limits] = _written(fetched, records_max, bytes_max)
        size_bytes = len(written.data)
        if answer.fits(held_bytes + size_bytes):
            gateway.metrics.http_records_out.inc(written.records)
            return written.data
        # The answer's size is known only now: the answer is discarded, and built again once it fits the budget.
        read.written.pop(limits, None)
        del written
        await answer.reserve(held_bytes + size_bytes)


def check_limits(gateway: Gateway, max_records: int | None, max_bytes: int | None, wait_ms: int) -> None:
    """Refuse limits above those of the settings.

    Raises:
        Problem: 422.
    """
    settings = gateway.settings
    _check_limit("max_records", max_records or 0, settings.records_per_request_max)
    _check_limit("max_bytes", max_bytes or 0, settings.fetch_bytes_max)
    _check_limit("wait_ms", wait_ms, settings.fetch_wait_ms_max)


def _check_limit(parameter: str, value: int, limit: int) -> None:
    if value > limit:
        raise invalid([{"parameter": parameter, "detail": f"must be at most {limit}, got {value}"}])


async def _start(
    gateway: Gateway, topic: str, partition: int, timestamp: str | None, from_: Literal["earliest", "latest"] | None
) -> int:
    at = parse_timestamp(timestamp) if timestamp is not None else from_ or "earliest"
    async with requiring(gateway.client, "consume", topic):
        return (await gateway.client.list_offsets(topic, at, [partition]))[partition].offset


async def fetch_matching(
    gateway: Gateway,
    answer: ResponseReservation,
    place: tuple[str, int, int],
    record_filter: RecordFilter,
    *,
    size_bytes: int,
    wait_ms: int,
    rows: RowSelection | None = None,
) -> ReadResult:
    """Fetch the records of a partition that match a filter.

    Matching records are searched for up to `LOOK_S`; with `wait_ms` one more request then waits up to that long at a
    node. The answer has the end of the searched range in any case. A wait ends when the process stops, the caller's
    credentials end, or the client disconnects.

    Args:
        place: topic, partition, and first offset.
        size_bytes: maximum stored bytes to request from the node.
        rows: selects the fields of rows; None: all.

    Raises:
        Problem: 410 or 422, the offset does not exist; 503, the response budget was exhausted for too long; 401, the
            credentials have ended; 499, the client has disconnected.
    """
    try:
        return await _fetch(gateway, answer, place, record_filter, size_bytes=size_bytes, wait_ms=wait_ms, rows=rows)
    except OffsetOutOfRangeError as error:
        raise _out_of_range(place[2], error) from error


async def _fetch(
    gateway: Gateway,
    answer: ResponseReservation,
    place: tuple[str, int, int],
    record_filter: RecordFilter,
    *,
    size_bytes: int,
    wait_ms: int,
    rows: RowSelection | None,
) -> ReadResult:
    fields = None if rows is None else rows.fields
    fetch = partial(gateway.client.fetch, key=record_filter.key, tag=record_filter.tag, fields=fields)
    look_until = time.monotonic() + (LOOK_S if record_filter != NO_FILTER else math.inf)
    await answer.reserve(2 * size_bytes)
    if record_filter == NO_FILTER and fields is None:
        read = await gateway.reads.fetch(ReadPosition(*place, size_bytes))
    else:
        read = ReadResult(await fetch(*place, max_bytes=size_bytes))
    while (
        not read.fetched.batches
        and place[2] < read.fetched.next_offset < read.fetched.high_watermark
        and time.monotonic() < look_until
    ):
        # The searched range has no matching record: continue after it.
        place = (*place[:2], read.fetched.next_offset)
        read = ReadResult(await fetch(*place, max_bytes=size_bytes))
    if not wait_ms or read.fetched.batches:
        return read
    place = (*place[:2], read.fetched.next_offset)
    size_bytes = min(size_bytes, WAITING_BYTES)
    answer.shrink(2 * size_bytes)
    waiting = fetch(*place, max_bytes=size_bytes, min_bytes=1, wait_ms=wait_ms)
    return ReadResult(await while_wanted(gateway, answer, waiting) or await fetch(*place, max_bytes=size_bytes))


async def while_wanted(gateway: Gateway, answer: ResponseReservation, work: Coroutine[Any, Any, T]) -> T | None:
    """Await `work`, a long wait, and return its result; None if the process stops first.

    Raises:
        Problem: 401, the credentials have ended; 499, the client has disconnected.
    """
    waiting, leaving = asyncio.ensure_future(work), asyncio.ensure_future(answer.client_gone())
    ends = [gateway.stopping] if gateway.caller is None else [gateway.stopping, gateway.caller.ended]
    tasks: list[asyncio.Future[Any]] = [waiting, leaving, *(asyncio.ensure_future(event.wait()) for event in ends)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        if leaving.done():
            raise client_gone()
    finally:
        for each in tasks:
            each.cancel()
    if gateway.caller is not None and gateway.caller.over is not None:
        raise credentials_refused(gateway.caller.over)
    return None


def _written(fetched: Fetched, records_max: int, bytes_max: int) -> Written:
    """Return records within the limits as a `FetchView`."""
    parts: list[bytes] = []
    count = 0
    next_offset = fetched.next_offset
    for batch in fetched.batches:
        if parts and (count >= records_max or bytes_max <= 0):
            next_offset = batch.base_offset
            break
        rows = _whole_plain(batch, records_max - count, bytes_max)
        reader = None
        if rows is None:
            reader = BatchReader(batch)
            rows = reader.take(records_max - count, bytes_max)
        parts.append(rows.data[1:-1])
        count += rows.records
        bytes_max -= rows.payload_bytes
        if reader is not None and len(reader):
            next_offset = reader.next_offset
            break
    places = b'"next_offset":%d,"log_start_offset":%d,"high_watermark":%d' % (
        next_offset,
        fetched.log_start_offset,
        fetched.high_watermark,
    )
    return Written(b'{"records":[%b],%b}' % (b",".join(parts), places), count)


def _whole_plain(batch: RecordBatch, records_max: int, bytes_max: int) -> JsonRecords | None:
    """Return all records of a small plain batch within the limits; None for other batches."""
    if len(batch) > min(records_max, PLAIN_RECORDS_MAX) or batch.header.body_length > bytes_max:
        return None
    return plain_json(batch)


def _out_of_range(offset: int, error: OffsetOutOfRangeError) -> Problem:
    """Return 410 for a deleted offset, 422 for one that does not exist yet; both have the bounds."""
    problem = from_error(error)
    if offset > error.high_watermark:
        problem.status = 422
    return problem
