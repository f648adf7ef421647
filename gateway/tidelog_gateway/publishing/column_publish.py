"""Publishes columns without converting them to rows; the answer has ranges of offsets."""

from __future__ import annotations

from operator import methodcaller
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, Field

from tidelog.errors import TidelogError, UnknownTopicError
from tidelog.produce.receipts import ChunkOutcome
from tidelog_gateway.bodies.arrow_body import ArrowRecords
from tidelog_gateway.coalescing.producers import QueuePlace
from tidelog_gateway.context import Gateway
from tidelog_gateway.problems import from_error
from tidelog_gateway.publishing.publish import RecordError
from tidelog_proto.names import check_topic_name


class RangeView(BaseModel):
    """Consecutive offsets in one partition, from `base_offset` on."""

    partition: int
    base_offset: int
    count: int


class PieceErrorView(BaseModel):
    """Records of one partition that failed, or whose outcome is unknown."""

    partition: int
    count: int
    error: RecordError


class ColumnsView(BaseModel):
    """The answer to columns: the ranges of their offsets. Rows of one partition are stored in their order."""

    records: Annotated[int, Field(description="Number of rows of the request.")]
    ranges: list[RangeView]
    errors: Annotated[
        list[PieceErrorView] | None, Field(description="Errors by partition; absent if every row is stored.")
    ] = None
    duplicates: int | None = None


async def publish_columns(
    gateway: Gateway, topic: str, records: ArrowRecords, partition: int | None
) -> tuple[dict[str, Any], int]:
    """Publish columns, and return the answer (a `ColumnsView`) and its status.

    Raises:
        TidelogError: all records failed; the error of the first one.
        ProtocolError: the topic's name is invalid.
    """
    check_topic_name(topic)
    outcomes: list[ChunkOutcome] | None = None
    if records.are_rows:
        columns: pa.RecordBatch | pa.Table = pa.Table.from_batches(records.batches)
    elif len(records.batches) == 1:
        columns = records.batches[0]
        put = methodcaller("put_columns", columns, partition, records.size_bytes)
        try:
            outcomes = await gateway.producers.store_at_once(topic, put)
        except UnknownTopicError:
            outcomes = None  # The topic was deleted; it may have been recreated.
    else:
        columns = pa.Table.from_batches(records.batches)
    if outcomes is None or isinstance(outcomes[0].error, UnknownTopicError):
        # Nothing is stored: the producer could not accept the columns at once, or the topic was deleted.
        async with gateway.producers.use(topic) as place:
            outcomes = await _publish_once(place, columns, partition)
            if all(isinstance(outcome.error, UnknownTopicError) for outcome in outcomes):
                # As in `publish_each`: the topic may have been recreated, and nothing was written.
                await place.again()
                outcomes = await _publish_once(place, columns, partition)
    if len(outcomes) == 1 and outcomes[0].stored == records.row_count:
        (only,) = outcomes
        gateway.metrics.http_records_in.inc(only.stored)
        stored_range = {"partition": only.partition, "base_offset": only.base_offset, "count": only.stored}
        return {"records": records.row_count, "ranges": [stored_range]}, 200
    stored = sum(outcome.count for outcome in outcomes if outcome.error is None)
    gateway.metrics.http_records_in.inc(stored)
    first = outcomes[0].error
    if first is not None and all(outcome.error is not None for outcome in outcomes):
        raise first
    answer: dict[str, Any] = {
        "records": records.row_count,
        "ranges": [
            {"partition": outcome.partition, "base_offset": outcome.base_offset, "count": outcome.stored}
            for outcome in outcomes
            if outcome.stored
        ],
    }
    errors = [
        {"partition": outcome.partition, "count": outcome.count, "error": from_error(outcome.error).brief()}
        for outcome in outcomes
        if outcome.error is not None
    ]
    duplicates = sum(outcome.duplicates for outcome in outcomes)
    if errors:
        answer["errors"] = errors
    if duplicates:
        answer["duplicates"] = duplicates
    return answer, 207 if errors else 200


async def _publish_once(
    place: QueuePlace, columns: pa.RecordBatch | pa.Table, partition: int | None
) -> list[ChunkOutcome]:
    async with place.accepting() as producer:
        try:
            pending = await producer.enqueue_arrow(columns, partition=partition)
        except TidelogError as error:
            return [ChunkOutcome(partition or 0, columns.num_rows, error=error)]
    return await pending.settled()
