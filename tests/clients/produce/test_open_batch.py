from __future__ import annotations

import asyncio

import pytest
from tests.clients.produce.test_record_partitioning import PARTITIONS, batch_of

from tidelog.errors import OverloadedError
from tidelog.produce.accumulator import split_by_partition, to_chunk
from tidelog.produce.open_batch import CLOSED_TO_DIRECT, OpenBatch, closed_batch, record_size_bytes
from tidelog.produce.receipts import PendingReceipt


def test_record_size_counts_all_fields() -> None:
    bare = record_size_bytes(None, None, None, None)
    assert record_size_bytes(b"12", b"3", None, "45") == bare + 5
    assert record_size_bytes(None, None, [("ab", b"c"), ("d", None)], None) == 3 * bare + 4


def test_late_columns_are_padded() -> None:
    batch = OpenBatch(deadline=0.0, timestamped=True)
    batch.add(b"a", None, None, None, None, 1)
    batch.add(b"b", b"k", [("h", b"x")], "t", 3, 2)
    assert batch.add(b"c", None, None, None, None, 3) == 2
    batch.pad_columns()
    assert batch.keys == [None, b"k", None]
    assert batch.headers == [(), [("h", b"x")], ()]
    assert batch.tags == [None, "t", None]
    assert batch.partitions == [None, 3, None]
    assert batch.timestamps_us == [1, 2, 3]


def test_closed_batch_has_no_space() -> None:
    assert closed_batch().remaining_bytes < 0


async def test_waiter_of_undrained_batch_gets_outcome_and_counts_as_awaiting() -> None:
    batch = batch_of((b"a", 0), (b"b", 1), (b"c", 0))
    waiting = [asyncio.ensure_future(PendingReceipt(batch, number)) for number in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    batch.pad_columns()
    first, second = split_by_partition(batch, PARTITIONS, lambda: 0).chunks
    assert first.watched
    first.succeed(10, 5)
    second.fail(OverloadedError("full"))
    assert (await waiting[2]) == (0, 11, 5)
    with pytest.raises(OverloadedError):
        await waiting[1]


def last(*_: object) -> None:
    pass


def test_callbacks_follow_their_records() -> None:
    batch = batch_of((b"a", 1), (b"b", 0), (b"c", 1))
    batch.set_callback(0, print)
    batch.set_callback(1, None)
    batch.set_callback(2, last)
    batch.pad_columns()
    first, second = split_by_partition(batch, PARTITIONS, lambda: 0).chunks
    assert first.callbacks == [None]
    assert second.callbacks == [print, last]
    other = batch_of((None, None))
    other.set_callback(0, print)
    other.pad_columns()
    assert to_chunk(other, 0, full=False).callbacks == [print]


def test_closing_to_direct_appends_returns_unused_memory() -> None:
    batch = OpenBatch(deadline=0.0, timestamped=False)
    batch.reserve(100)
    batch.remaining_bytes -= 30
    batch.add(b"v", None, None, None, None, None)
    assert (batch.size_bytes, batch.count) == (30, 1)
    assert batch.close_to_direct() == 70
    assert (batch.remaining_bytes, batch.size_bytes, batch.close_to_direct()) == (CLOSED_TO_DIRECT, 30, 0)
