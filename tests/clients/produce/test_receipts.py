from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import OverloadedError
from tidelog.produce.batches import Delivery
from tidelog.produce.open_batch import OpenBatch
from tidelog.produce.receipts import PendingReceipt, PendingReceipts, ReceiptRange, Receipts


def delivered(partition: int, base_offset: int) -> Delivery:
    delivery = Delivery(partition)
    delivery.succeed(base_offset, 9)
    return delivery


def test_ranges_and_records() -> None:
    receipts = Receipts([(delivered(2, 10), 3), (delivered(0, 5), 2)])
    assert receipts.ranges == [ReceiptRange(2, 10, 3), ReceiptRange(0, 5, 2)]
    assert [tuple(each) for each in receipts.ranges] == [(2, 10, 3), (0, 5, 2)]
    assert [(each.partition, each.offset) for each in receipts] == [(2, 10), (2, 11), (2, 12), (0, 5), (0, 6)]
    assert receipts[-1] == (0, 6, 9)
    assert [each.offset for each in receipts[1:4]] == [11, 12, 5]
    assert len(Receipts([])) == 0
    for index in (5, -6):
        with pytest.raises(IndexError):
            receipts[index]


@given(st.lists(st.permutations(range(6)), min_size=1, max_size=3))
def test_receipts_of_keyed_inputs_follow_the_input_order(permutations: list[list[int]]) -> None:
    orders = [pa.array(permutation, pa.uint64()) for permutation in permutations]
    receipts = Receipts([(delivered(0, 0), 6 * len(permutations))], orders)
    for chunk, permutation in enumerate(permutations):
        for place, index in enumerate(permutation):
            assert receipts[6 * chunk + index].offset == 6 * chunk + place


async def test_pending_receipts_may_be_awaited_again_and_by_many() -> None:
    delivery, batch = Delivery(3), OpenBatch(deadline=0.0, timestamped=False)
    pending = PendingReceipt(batch, 2)

    async def wait() -> int:
        return (await pending).offset

    waiting = [asyncio.ensure_future(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    assert not pending.done()
    batch.set_delivery(delivery)
    assert not pending.done()
    delivery.succeed(40, 0)
    assert pending.done()
    assert [await waiting[1], await waiting[2], (await pending).offset] == [42, 42, 42]


async def test_many_records_raise_first_failure_and_note_acknowledged_count() -> None:
    failed, other = Delivery(1), Delivery(2)
    failed.fail(OverloadedError("full"))
    other.fail(OverloadedError("later"))
    pending = PendingReceipts([(delivered(0, 0), 5), (failed, 2), (other, 1)], None)
    assert pending.done()
    for _ in range(2):
        with pytest.raises(OverloadedError, match="full") as caught:
            await pending
        assert caught.value.__notes__ == ["5 of the call's 8 records were acknowledged"]


async def test_unawaited_failure_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    delivery = Delivery(0)
    delivery.fail(OverloadedError("full"))
    del delivery
    await asyncio.sleep(0)
    assert caplog.records == []
