"""Dropped records as a node reports them, and the resulting offsets."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from tidelog.model import NOT_KNOWN, NOT_STORED, Receipt
from tidelog.produce.batches import ColumnChunk, OutgoingBatch
from tidelog.produce.deduplicated_records import DroppedRecords, offsets_of
from tidelog.produce.receipts import ReceiptRange, Receipts
from tidelog_proto.batch.record_batch import columns_of, encode_batch


def shipped(*sizes: int) -> OutgoingBatch:
    chunks = [ColumnChunk(columns_of([b"x"] * size), partition=3, deadline=0.0, size_bytes=size) for size in sizes]
    return OutgoingBatch(chunks, encode_batch(columns_of([b"x"] * sum(sizes)), now_us=1), 0, 0.0)


def receipts_of(batch: OutgoingBatch) -> list[Receipts]:
    return [Receipts([(chunk, chunk.count)]) for chunk in batch.chunks]


def test_flags() -> None:
    assert DroppedRecords(3, b"").flags(3) is not None
    flags = DroppedRecords(2, b"\x05\x00").flags(9)
    assert flags is not None
    assert flags.tolist() == [True, False, True, *[False] * 6]
    assert offsets_of(10, flags).tolist() == [-1, 10, -1, 11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize(
    "drops",
    [DroppedRecords(1, b""), DroppedRecords(1, b"\x01\x00"), DroppedRecords(1, b"\x03"), DroppedRecords(2, b"\x01")],
)
def test_inconsistent_drops_are_unknown(drops: DroppedRecords) -> None:
    assert drops.flags(4) is None


async def test_each_chunk_gets_its_drops() -> None:
    batch = shipped(2, 3, 1)
    batch.succeed(
        100, 7, DroppedRecords(3, b"\x26")
    )  # the second record of the first chunk, the first of the next, and the last
    one, two, three = receipts_of(batch)
    assert list(one) == [Receipt(3, 100, 7), Receipt(3, NOT_STORED, 7)]
    assert [receipt.duplicates for receipt in one] == [0, 1]
    assert [receipt.offset for receipt in two] == [NOT_STORED, 101, 102]
    assert two.ranges == [ReceiptRange(3, 101, 2)]
    assert three.ranges == [ReceiptRange(3, NOT_STORED, 0)]
    assert [each.duplicates for each in (one, two, three)] == [1, 1, 1]
    await asyncio.wait_for(_delivered(batch), 5)


async def _delivered(batch: OutgoingBatch) -> None:
    for chunk in batch.chunks:
        await chunk


def test_unknown_drops_give_unknown_offsets() -> None:
    batch = shipped(2, 2)
    batch.succeed(100, 7, DroppedRecords(3, b""))
    for receipts in receipts_of(batch):
        assert list(receipts) == [Receipt(3, NOT_KNOWN, 7)] * 2
        assert receipts.duplicates == 0
    alone = shipped(4)
    alone.succeed(100, 7, DroppedRecords(3, b""))
    assert receipts_of(alone)[0].duplicates == 3


def test_without_drops_nothing_changes() -> None:
    batch = shipped(2, 1)
    batch.succeed(100, 7)
    assert [receipt.offset for receipts in receipts_of(batch) for receipt in receipts] == [100, 101, 102]
    assert np.array_equal(offsets_of(5, np.zeros(3, np.bool_)), [5, 6, 7])
