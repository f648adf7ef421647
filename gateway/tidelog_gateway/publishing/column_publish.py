"""Publishes columns without making rows of them; the answer has ranges of offsets."""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, Field

from tidelog.errors import TidelogError, UnknownTopicError
from tidelog.produce.receipts import PieceOutcome
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

    records: Annotated[int, Field(description="Rows of the request.")]
    ranges: list[RangeView]
    errors: Annotated[list[PieceErrorView] | None, Field(description="Absent: every row is stored.")] = None
    duplicates: int | None = None


async def publish_columns(
    gateway: Gateway, topic: str, records: ArrowRecords, partition: int | None
) -> tuple[dict[str, Any], int]:
    """Publish columns, and return the answer (a `ColumnsView`) and its status.

    Raises:
        TidelogError: all of them failed; the first one's error.
        ProtocolError: the topic's name is invalid.
    """
    check_topic_name(topic)
    columns = records.batches[0] if len(records.batches) == 1 else pa.Table.from_batches(records.batches)
    pieces = await _published_at_once(gateway, topic, columns, partition)
    if pieces is None:
        async with gateway.producers.use(topic) as place:
            pieces = await _publish_once(place, columns, partition)
            if all(isinstance(piece.error, UnknownTopicError) for piece in pieces):
                # As in `publish_each`: the topic may have been recreated.
                await place.again()
                pieces = await _publish_once(place, columns, partition)
    if len(pieces) == 1 and pieces[0].stored == records.row_count:
        piece = pieces[0]
        gateway.metrics.http_records_in.inc(piece.stored)
        stored_range = {"partition": piece.partition, "base_offset": piece.base_offset, "count": piece.stored}
        return {"records": records.row_count, "ranges": [stored_range]}, 200
    stored = sum(piece.count for piece in pieces if piece.error is None)
    gateway.metrics.http_records_in.inc(stored)
    first = pieces[0].error
    if first is not None and all(piece.error is not None for piece in pieces):
        raise first
    answer: dict[str, Any] = {
        "records": records.row_count,
        "ranges": [
            {"partition": piece.partition, "base_offset": piece.base_offset, "count": piece.stored}
            for piece in pieces
            if piece.stored
        ],
    }
    errors = [
        {"partition": piece.partition, "count": piece.count, "error": from_error(piece.error).brief()}
        for piece in pieces
        if piece.error is not None
    ]
    duplicates = sum(piece.duplicates for piece in pieces)
    if errors:
        answer["errors"] = errors
    if duplicates:
        answer["duplicates"] = duplicates
    return answer, 207 if errors else 200


async def _published_at_once(
    gateway: Gateway, topic: str, columns: pa.RecordBatch | pa.Table, partition: int | None
) -> list[PieceOutcome] | None:
    """Publish columns of one batch if no request waits in the topic's queue.

    Return None if the queue has to be used: they could not be accepted, or the topic was deleted and nothing is stored.
    """
    if isinstance(columns, pa.Table):
        return None
    try:
        pieces = await gateway.producers.store_at_once(topic, lambda appender: appender.put_columns(columns, partition))
    except UnknownTopicError:
        return None
    return None if pieces and isinstance(pieces[0].error, UnknownTopicError) else pieces


async def _publish_once(
    place: QueuePlace, columns: pa.RecordBatch | pa.Table, partition: int | None
) -> list[PieceOutcome]:
    async with place.accepting() as producer:
        try:
            pending = await producer.enqueue_arrow(columns, partition=partition)
        except TidelogError as error:
            return [PieceOutcome(partition or 0, columns.num_rows, error=error)]
    return await pending.settled()
