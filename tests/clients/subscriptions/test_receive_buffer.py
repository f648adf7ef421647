from __future__ import annotations

import asyncio
import contextlib
import traceback
from typing import Any

import pytest

from tidelog.errors import OverloadedError, UsageError
from tidelog.model import TopicPartition
from tidelog.subscriptions.prefetch import Credit
from tidelog.subscriptions.receive_buffer import ReceiveBuffer
from tidelog.subscriptions.subscription import Prefetched
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch


class Credits:
    """The credit interface of a subscription."""

    def __init__(self) -> None:
        self.given: list[Credit] = []

    def give_back(self, cost: Credit) -> None:
        self.given.append(cost)


def arrived(partition: int, account: Credits | None = None) -> Prefetched:
    batch = RecordBatch.parse(encode_batch(columns_of([b"v"]), now_us=0).to_bytes())
    credit = Credit(1, 10) if account is not None else None
    return Prefetched(TopicPartition("t", partition), batch, account or Credits(), credit)


def buffer(**how: Any) -> ReceiveBuffer:
    return ReceiveBuffer(**how)


async def test_waiter_gets_the_batch_and_credit_is_returned() -> None:
    queue, account = buffer(), Credits()
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    first, second = arrived(0), arrived(1, account)
    queue.prefetched([first, second])
    assert await waiting is first
    assert account.given == []
    assert await queue.take() is second
    assert account.given == [Credit(1, 10)]


async def test_second_waiting_task_is_refused() -> None:
    queue = buffer()
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="another task"):
        await queue.take()
    queue.close()
    assert await waiting is None


async def test_put_back_batch_is_next() -> None:
    queue, account = buffer(), Credits()
    first, second = arrived(0, account), arrived(1)
    queue.prefetched([first, second])
    assert await queue.take() is first
    queue.put_back(first)
    assert await queue.take() is first
    assert await queue.take() is second
    assert account.given == [Credit(1, 10)] * 2
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.put_back(second)
    assert await waiting is second


async def test_error_is_raised_after_earlier_batches() -> None:
    queue = buffer()
    item = arrived(0)
    queue.prefetched([item])
    queue.broken(ValueError("first"))
    queue.broken(ValueError("second"))
    assert await queue.take() is item
    with pytest.raises(ValueError, match="first"):
        await queue.take()


async def test_repeated_error_keeps_its_traceback_size() -> None:
    queue, came = buffer(), ZeroDivisionError("all")

    async def lines_of_next() -> int:
        with pytest.raises(ZeroDivisionError) as raised:
            await queue.take()
        return len(traceback.format_tb(raised.value.__traceback__))

    queue.failed(TopicPartition("t", 0), ZeroDivisionError("one"))
    await lines_of_next()  # the queued error
    assert len({await lines_of_next() for _ in range(5)}) == 1
    with contextlib.suppress(ZeroDivisionError):
        raise came
    queue.broken(came)
    assert len({await lines_of_next() for _ in range(5)}) == 1
    queue.is_suspended = lambda: True
    with pytest.raises(ZeroDivisionError) as raised:
        await queue.wait_while_suspended()
    assert "raise came" in traceback.format_tb(raised.value.__traceback__)[-1], "the origin stays in the traceback"


async def test_dropped_batches_return_their_credit() -> None:
    queue, account = buffer(), Credits()
    kept = arrived(1, account)
    queue.prefetched([arrived(0, account), kept])
    queue.drop([TopicPartition("t", 0)])
    assert account.given == [Credit(1, 10)]
    assert await queue.take() is kept


async def test_nothing_is_delivered_after_a_refused_batch() -> None:
    allowed = iter([True, False])
    queue = buffer(admit=lambda _: next(allowed))
    first = arrived(0)
    for item in (first, arrived(0), arrived(0)):
        queue.prefetched([item])
    assert await queue.take() is first
    with pytest.raises(OverloadedError):
        await queue.take()


async def test_paused_batch_holds_only_its_own_credit() -> None:
    """The last batch of an event carries the credit of all of them, which would be withheld from other partitions."""
    queue, account = buffer(), Credits()
    event = [arrived(0), arrived(0), arrived(0), arrived(0)._replace(lender=account, credit=Credit(4, 4000))]
    size = Credit(1, event[0].batch.header.length)
    queue.prefetched([item._replace(lender=account) for item in event])
    assert await queue.take() is not None
    assert await queue.take() is not None
    assert account.given == []
    first = queue.take_now()
    assert first is not None
    queue.pause(first.where, first, Credit(10, 10_000))
    assert _held(Credit(4, 4000), account) == size.plus(size) == queue.paused_size
    queue.resume(first.where)
    assert await queue.take() is not None
    assert await queue.take() is not None
    assert _held(Credit(4, 4000), account) == Credit(0, 0)


def _held(credit: Credit, account: Credits) -> Credit:
    for given in account.given:
        credit = credit.minus(given)
    return credit
