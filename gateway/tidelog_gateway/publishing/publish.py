"""Publishing of records from requests and messages, and their outcomes as the API represents them.

The status is 200 when every record is stored, 207 when some records are not, and the status of the error when all
records fail with the same error. Requests share the caller's producer of the topic: their records join its open batch
as lists, so that many requests gather in one native batch. Records that cannot join the open batch at once, for
instance because the buffer is full, are passed to the producer as columns; but one by one if they are few
(`LOOSE_RECORDS_MAX`), or if only some of them name a partition, because that keeps their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Annotated, Any, Final, Literal

import pyarrow as pa
from pydantic import BaseModel, Field

from tidelog.errors import TidelogError, UnknownTopicError
from tidelog.model import Receipt
from tidelog.produce.producer import Producer
from tidelog.produce.receipts import PendingReceipt, PendingReceipts, PendingRows, ReceiptRange, attach_trace
from tidelog_gateway.coalescing.producers import QueuePlace
from tidelog_gateway.context import Gateway, json_response
from tidelog_gateway.problems import from_error
from tidelog_gateway.records.json_decoding import Records
from tidelog_proto.names import check_topic_name

LOOSE_RECORDS_MAX: Final = 64
"""Maximum number of records that are passed to the producer one by one if they cannot join the open batch at once."""

ANSWER_PART_RECORDS: Final = 1_000
"""Number of outcomes that are converted to results at once, in about a millisecond."""

Outcome = Receipt | TidelogError
"""A record's receipt, or its error."""


class RecordError(BaseModel):
    """The reason why a record failed, or why its outcome is unknown."""

    code: str
    status: int
    detail: str
    retryable: bool


class RecordResult(BaseModel):
    """The partition and offset of one record, or its error."""

    partition: int | None = None
    offset: Annotated[int | None, Field(description="Absent for a record that was dropped as a duplicate.")] = None
    error: RecordError | None = None


class PublishView(BaseModel):
    """One result for each record, in the order of the request."""

    results: Annotated[list[RecordResult], Field(min_length=1)]
    duplicates: Annotated[
        int | None,
        Field(description="Records dropped because their partition has one with the same content; absent: none."),
    ] = None


async def publish(
    gateway: Gateway, topic: str, records: Records, *, surface: Literal["http", "websocket"]
) -> list[Outcome]:
    """Publish records and return the outcome of each, in order.

    Raises:
        TidelogError: all of them failed with the same error.
        ProtocolError: the topic's name is invalid.
    """
    return judged(gateway, await publish_each(gateway, topic, records), surface=surface)


async def publish_each(gateway: Gateway, topic: str, records: Records) -> list[Outcome]:
    """Publish records and return the outcome of each, in order. Calls are accepted in the order in which they begin.

    Raises:
        ProtocolError: the topic's name is invalid.
    """
    check_topic_name(topic)
    async with gateway.producers.use(topic) as place:
        outcomes = await _publish_once(place, records)
        if all(isinstance(outcome, UnknownTopicError) for outcome in outcomes):
            # The topic may have been recreated since the producer was opened. Nothing was written, so a retry is safe.
            await place.again()
            outcomes = await _publish_once(place, records)
    assert len(outcomes) == len(records), "every record has an outcome"
    return outcomes


async def find_topic(gateway: Gateway, topic: str) -> None:
    """Check that a topic exists before its records are read.

    Raises:
        TidelogError: the topic does not exist, or no node answers.
        ProtocolError: the topic's name is invalid.
    """
    check_topic_name(topic)
    async with gateway.producers.use(topic) as place:
        try:
            await place.producer.begin()
        except UnknownTopicError:
            await place.again()
            await place.producer.begin()


def judged(gateway: Gateway, outcomes: list[Outcome], *, surface: Literal["http", "websocket"]) -> list[Outcome]:
    """Count the stored records, and return the outcomes.

    Raises:
        TidelogError: all records failed with the same error.
    """
    stored = sum(1 for outcome in outcomes if not isinstance(outcome, TidelogError))
    gateway.metrics.records_in.tally(surface).inc(stored)
    first = outcomes[0]
    if isinstance(first, TidelogError) and all(_same(first, outcome) for outcome in outcomes):
        raise first
    return outcomes


async def publish_at_once(gateway: Gateway, topic: str, records: Records) -> tuple[bytes, int] | None:
    """Publish records in the open batch of the topic, and return the answer (a `PublishView`) and its status.

    Return None if `publish` has to be used: the records cannot join the batch at once, or the topic was deleted; in
    both cases nothing was stored.

    Raises:
        TidelogError, ProtocolError: as `publish`.
    """
    check_topic_name(topic)
    try:
        pending = await gateway.producers.store_at_once(topic, lambda appender: appender.put(records.rows()))
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
    answer, status = answer_of(judged(gateway, outcomes, surface="http"))
    return bytes(json_response(answer).body), status


def _stored_answer(place: ReceiptRange) -> bytes:
    """Return the answer for records with consecutive offsets."""
    result = b'{"partition":%d,"offset":%%d}' % place.partition
    offsets = tuple(range(place.base_offset, place.base_offset + place.count))
    return b'{"results":[' + b",".join([result] * place.count) % offsets + b"]}"


async def _publish_once(place: QueuePlace, records: Records) -> list[Outcome]:
    partitions = records.partitions or []
    is_mixed = None in partitions and any(number is not None for number in partitions)
    accept = _accept_loose if is_mixed or len(records) <= LOOSE_RECORDS_MAX else _accept_columns
    async with place.accepting() as producer:
        try:
            pending = producer.bulk_appender.put(records.rows())
        except TidelogError as error:
            return [error] * len(records)
        outcomes = _rows_outcomes(pending) if pending is not None else await accept(producer, records)
    return await outcomes


async def _rows_outcomes(pending: PendingRows) -> list[Outcome]:
    await pending.settled()
    return pending.outcomes()


def answer_of(outcomes: list[Outcome]) -> tuple[dict[str, Any], int]:
    """Return outcomes as a `PublishView`, and the status: 200 when all are stored, else 207."""
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


async def large_answer_of(outcomes: list[Outcome]) -> tuple[dict[str, Any], int]:
    """Return the same as `answer_of`; other requests run between the parts of many outcomes."""
    results: list[dict[str, Any]] = []
    status, duplicates = 200, 0
    for first in range(0, len(outcomes), ANSWER_PART_RECORDS):
        if first:
            await asyncio.sleep(0)
        part, part_status = answer_of(outcomes[first : first + ANSWER_PART_RECORDS])
        results += part["results"]
        duplicates += part.get("duplicates", 0)
        status = max(status, part_status)
    return {"results": results} | ({"duplicates": duplicates} if duplicates else {}), status


async def _accept_loose(producer: Producer, records: Records) -> Awaitable[list[Outcome]]:
    """Pass the records to the producer one by one; they share batches with those of other requests."""
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
            attach_trace(receipt)
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
    """Pass the records to the producer as columns, in one group for each requested partition."""
    columns = records.columns()
    await asyncio.sleep(0)  # lets other requests run between the steps of a large publish
    places: dict[int | None, list[int]] = {}
    for index, number in enumerate(records.partitions or [None] * len(records)):
        places.setdefault(number, []).append(index)
    pending: list[tuple[list[int], PendingReceipts | TidelogError]] = []
    for number, indices in places.items():
        group = columns if len(places) == 1 else columns.take(pa.array(indices))
        try:
            receipts = await producer.enqueue_arrow(group, partition=number)
            attach_trace(receipts)
            pending.append((indices, receipts))
        except TidelogError as error:
            pending.append((indices, error))
    return _columns_outcomes(pending, len(records))


async def _columns_outcomes(
    pending: list[tuple[list[int], PendingReceipts | TidelogError]], count: int
) -> list[Outcome]:
    """Return each record's outcome; an error applies to all records of its group."""
    outcomes: dict[int, Outcome] = {}
    for indices, receipts in pending:
        await asyncio.sleep(0)
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
