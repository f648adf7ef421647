"""`POST /v1/topics/{topic}/records`: publish JSON records or one raw body.

A body is validated whole before anything of it is sent; what the log then says is reported record by record:
200 when every record is stored, 207 when some are not, and the error itself when all fail for one reason.
Requests share the application's one producer for the topic. The records of a request join the batch that is open there
as lists, so that those of many requests gather in one native batch. Records that exceed a batch, or come while the
buffer is full, are sent as columns, or record by record where only some records name a partition, to keep their order.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from tidelog.errors import TidelogError, UnknownTopicError
from tidelog.model import Receipt
from tidelog.producer import Producer
from tidelog.receipts import PendingReceipt, PendingReceipts, PendingRows, ReceiptRange
from tidelog_gateway.bodies import AT_ONCE_BYTES, records_in
from tidelog_gateway.context import (
    Gateway,
    GatewayDep,
    TopicPath,
    json_response,
    media_type_of,
    now_us,
    require_utf8,
    unsupported_media_type,
)
from tidelog_gateway.pace import pace_of
from tidelog_gateway.problems import from_error, invalid
from tidelog_gateway.producers import Place
from tidelog_gateway.records_in import Records
from tidelog_proto.limits import PARTITIONS_MAX, TAG_BYTES_MAX
from tidelog_proto.names import check_topic_name

router = APIRouter(prefix="/v1", tags=["records"])

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"
KEY_CHARS_MAX: Final = 4096
LOOSE_RECORDS_MAX: Final = 64
"""Up to this many records that cannot join the open batch at once are given to the producer one by one."""

Outcome = Receipt | TidelogError
"""A record's receipt, or why it has none."""


class RecordError(BaseModel):
    """Why one record was not stored (or is not known to be)."""

    code: str
    status: int
    detail: str
    retryable: bool


class RecordResult(BaseModel):
    """One record's place, or its error."""

    partition: int | None = None
    offset: Annotated[int | None, Field(description="Absent for a record that was dropped as a duplicate.")] = None
    error: RecordError | None = None


class PublishView(BaseModel):
    """One result a record, in the order of the request."""

    results: Annotated[list[RecordResult], Field(min_length=1)]
    duplicates: Annotated[
        int | None,
        Field(description="So many were dropped, as their partitions have their content; absent: none."),
    ] = None


_REQUEST_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/JsonBody"},
                "example": {"records": [{"key": "UA", "value": {"flight": 1545}, "value_encoding": "json"}]},
            },
            RAW: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


@router.post(
    "/topics/{topic}/records",
    response_model=PublishView,
    response_model_exclude_none=True,
    responses={207: {"model": PublishView, "description": "Some records were not stored; see each result."}},
    openapi_extra=_REQUEST_BODY,
    summary="Publish records",
)
async def publish_records(  # noqa: PLR0917 # query parameters are parameters
    gateway: GatewayDep,
    topic: TopicPath,
    request: Request,
    key: Annotated[str | None, Query(max_length=KEY_CHARS_MAX, description="Of a raw body.")] = None,
    tag: Annotated[str | None, Query(max_length=TAG_BYTES_MAX, description="Of a raw body.")] = None,
    partition: Annotated[int | None, Query(ge=0, lt=PARTITIONS_MAX, description="Of a raw body.")] = None,
) -> Response:
    """Publish records; each is durable as the topic's configuration says when its result comes."""
    media_type = media_type_of(request)
    body = await request.body()
    if media_type == JSON:
        require_utf8(request)
        if key is not None or tag is not None or partition is not None:
            detail = "key, tag and partition stand in each record of a JSON body, not in the query"
            raise invalid([{"parameter": "key", "detail": detail}])
        if len(body) > AT_ONCE_BYTES:
            await _check_may_publish(gateway, topic)
        records_max = gateway.settings.records_per_request_max
        records = await records_in(body, records_max=records_max, now_us=now_us(), pace=pace_of(gateway, request))
    elif media_type == RAW:
        records = _raw_record(body, key, tag, partition)
    else:
        raise unsupported_media_type(media_type, JSON, RAW)
    outcomes = await publish(gateway, topic, records, surface="http")
    answer, status = answer_of(outcomes)
    return json_response(answer, status)


async def _check_may_publish(gateway: Gateway, topic: str) -> None:
    """Refuse a caller that may not write to a topic, before its body is parsed.

    Raises:
        TidelogError: the caller may not, or no node answers.
    """
    check_topic_name(topic)
    if gateway.caller is not None:
        await gateway.client.security.check("produce", "topic", topic)


def _raw_record(body: bytes, key: str | None, tag: str | None, partition: int | None) -> Records:
    if tag is not None and len(tag.encode()) > TAG_BYTES_MAX:
        raise invalid([{"parameter": "tag", "detail": f"a tag has at most {TAG_BYTES_MAX} bytes"}])
    return Records(
        [body],
        keys=None if key is None else [key.encode()],
        tags=None if tag is None else [tag],
        partitions=None if partition is None else [partition],
    )


async def publish(
    gateway: Gateway, topic: str, records: Records, *, surface: Literal["http", "websocket"]
) -> list[Outcome]:
    """Publish records and return what became of each, in order.

    Raises:
        TidelogError: all of them failed for one reason.
        ProtocolError: the topic's name is none.
    """
    check_topic_name(topic)
    async with gateway.producers.use(topic) as place:
        outcomes = await _publish_once(place, records)
        if all(isinstance(outcome, UnknownTopicError) for outcome in outcomes):
            # Nothing was written. The topic may have been made again, as another topic, behind the producer's back.
            await place.again()
            outcomes = await _publish_once(place, records)
    assert len(outcomes) == len(records), "every record has an outcome"
    return _judged(gateway, outcomes, surface=surface)


def _judged(gateway: Gateway, outcomes: list[Outcome], *, surface: Literal["http", "websocket"]) -> list[Outcome]:
    """Count what was stored, and return the outcomes.

    Raises:
        TidelogError: all failed for one reason.
    """
    stored = sum(1 for outcome in outcomes if not isinstance(outcome, TidelogError))
    gateway.metrics.records_in.labels(surface).inc(stored)
    first = outcomes[0]
    if isinstance(first, TidelogError) and all(_same(first, outcome) for outcome in outcomes):
        raise first
    return outcomes


async def publish_at_once(gateway: Gateway, topic: str, records: Records) -> tuple[bytes, int] | None:
    """Publish records that share the open batch of the topic, and return the answer (a `PublishView`) and its status.

    None where `publish` has to: records could not join it at once, and nothing was done; or they have no topic any
    more, and nothing was stored.

    Raises:
        TidelogError, ProtocolError: as `publish`.
    """
    check_topic_name(topic)
    try:
        pending = await gateway.producers.store_at_once(topic, records.rows())
    except UnknownTopicError:
        return None
    if pending is None:
        return None
    place = pending.stored_at()
    if place is not None:
        gateway.metrics.http_records_in.inc(place.count)
        return _stored_answer(place), 200
    outcomes = pending.outcomes()
    if all(isinstance(outcome, UnknownTopicError) for outcome in outcomes):
        return None
    answer, status = answer_of(_judged(gateway, outcomes, surface="http"))
    return bytes(json_response(answer).body), status


def _stored_answer(place: ReceiptRange) -> bytes:
    """Return the answer for records that are stored one behind the other."""
    result = b'{"partition":%d,"offset":%%d}' % place.partition
    offsets = tuple(range(place.base_offset, place.base_offset + place.count))
    return b'{"results":[' + b",".join([result] * place.count) % offsets + b"]}"


async def _publish_once(place: Place, records: Records) -> list[Outcome]:
    partitions = records.partitions or []
    is_mixed = None in partitions and any(number is not None for number in partitions)
    accept = _accept_loose if is_mixed or len(records) <= LOOSE_RECORDS_MAX else _accept_columns
    async with place.accepting() as producer:
        try:
            pending = producer.rows.put(records.rows())
        except TidelogError as error:
            return [error] * len(records)
        outcomes = _rows_outcomes(pending) if pending is not None else await accept(producer, records)
    return await outcomes


async def _rows_outcomes(pending: PendingRows) -> list[Outcome]:
    await pending.settled()
    return pending.outcomes()


def answer_of(outcomes: list[Outcome]) -> tuple[dict[str, Any], int]:
    """Return outcomes as the API shows them (a `PublishView`), and the status: 200 when all are stored, else 207."""
    results: list[dict[str, Any]] = []
    status, duplicates = 200, 0
    for outcome in outcomes:
        if isinstance(outcome, TidelogError):
            status = 207
            results.append({"error": from_error(outcome).brief()})
        else:
            duplicates += outcome.duplicates
            place = {"partition": outcome.partition}
            results.append(place | {"offset": outcome.offset} if outcome.offset >= 0 else place)
    return {"results": results} | ({"duplicates": duplicates} if duplicates else {}), status


async def _accept_loose(producer: Producer, records: Records) -> Awaitable[list[Outcome]]:
    """Hand the records to the producer one by one; they travel with those of other requests."""
    pending: list[PendingReceipt | TidelogError] = []
    for index, value in enumerate(records.values):
        try:
            receipt = await producer.enqueue(
                value,
                key=records.keys[index] if records.keys else None,
                headers=records.headers[index] if records.headers else None,
                tag=records.tags[index] if records.tags else None,
                partition=records.partitions[index] if records.partitions else None,
                timestamp_us=records.timestamps_us[index] if records.timestamps_us else None,
            )
        except TidelogError as error:
            pending.append(error)
        else:
            pending.append(receipt)
    return _loose_outcomes(pending)


async def _loose_outcomes(pending: list[PendingReceipt | TidelogError]) -> list[Outcome]:
    return [await _outcome(each) for each in pending]


async def _outcome(pending: PendingReceipt | TidelogError) -> Outcome:
    if isinstance(pending, TidelogError):
        return pending
    try:
        return await pending
    except TidelogError as error:
        return error


async def _accept_columns(producer: Producer, records: Records) -> Awaitable[list[Outcome]]:
    """Hand the records to the producer as columns, one group for each partition that is asked for."""
    columns = records.columns()
    places: dict[int | None, list[int]] = {}
    for index, number in enumerate(records.partitions or [None] * len(records)):
        places.setdefault(number, []).append(index)
    pending: list[tuple[list[int], PendingReceipts | TidelogError]] = []
    for number, indices in places.items():
        group = columns if len(places) == 1 else columns.take(pa.array(indices))
        try:
            pending.append((indices, await producer.enqueue_arrow(group, partition=number)))
        except TidelogError as error:
            pending.append((indices, error))
    return _columns_outcomes(pending, len(records))


async def _columns_outcomes(
    pending: list[tuple[list[int], PendingReceipts | TidelogError]], count: int
) -> list[Outcome]:
    """Return each record's outcome; a failure is every record's of its group."""
    outcomes: dict[int, Outcome] = {}
    for indices, receipts in pending:
        try:
            if isinstance(receipts, TidelogError):
                raise receipts
            places: list[Outcome] = list(await receipts)
        except TidelogError as error:
            places = [error] * len(indices)
        outcomes.update(zip(indices, places, strict=True))
    return [outcomes[index] for index in range(count)]


def _same(error: TidelogError, outcome: Outcome) -> bool:
    return isinstance(outcome, TidelogError) and type(outcome) is type(error) and outcome.code == error.code
