"""Bodies of answers, made of one batch."""

from __future__ import annotations

import asyncio

import pyarrow as pa

from tidelog.model import Fetched
from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.budget.response_reservation import ResponseReservation
from tidelog_gateway.reading.body import RecordsBody
from tidelog_gateway.reading.formats import format_for
from tidelog_gateway.reading.values import ValueEncoding
from tidelog_proto.batch.header import Codec, stamp_owner
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.limits import MIB

PARTITION = 3


def batch_of(columns: pa.RecordBatch, *, base_offset: int = 0, codec: Codec = Codec.NONE) -> RecordBatch:
    """Return a batch as a node sends it."""
    data = bytearray(encode_batch(columns, now_us=1_000_000, codec=codec).to_bytes())
    stamp_owner(data, base_offset=base_offset, append_timestamp_us=0, epoch=0, owner_incarnation=1, previous_digest=0)
    return RecordBatch.parse(bytes(data))


def answer_alone() -> ResponseReservation:
    """Return an answer with much room, to a client that stays."""
    return ResponseReservation(ConnectionOutput(ResponseBudget(64 * MIB, 64 * MIB), 30), asyncio.Event().wait)  # type: ignore[arg-type]


def records_body(
    media_type: str,
    encoding: ValueEncoding | None = None,
    *,
    numbered: bool = False,
    records_max: int = 10_000,
    bytes_max: int = 8 * MIB,
    written_max: int = 64 * MIB,
    answer: ResponseReservation | None = None,
) -> RecordsBody:
    """Return a body that nothing was written to."""
    answer = answer or answer_alone()

    async def pace() -> None:
        await asyncio.sleep(0)

    record_format = format_for(media_type, encoding, numbered=numbered)
    return RecordsBody(
        record_format, encoding, answer, pace, records_max=records_max, bytes_max=bytes_max, written_max=written_max
    )


def fetched_of(*batches: RecordBatch) -> Fetched:
    """Return batches as a fetch brings them."""
    end = batches[-1].end_offset
    return Fetched(list(batches), end, 0, end, 0)


async def body_of(batch: RecordBatch, media_type: str, encoding: ValueEncoding | None = None) -> bytes:
    """Return the whole body of one batch."""
    body = records_body(media_type, encoding)
    await body.take(PARTITION, fetched_of(batch))
    assert body.fault is None
    return await body.finish({"next_offset": 0})
