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
    """The subscription, as far as it is given credit back."""

    def __init__(self) -> None:
        self.given: list[Credit] = []

    def give_back(self, cost: Credit) -> None:
        self.given.append(cost)


def arrived(partition: int, account: Credits | None = None) -> Prefetched:
    batch = RecordBatch.parse(encode_batch(columns_of([b"v"]), now_us=0).to_bytes())
    credit = Credit(1, 10) if account is not None else None
    return Prefetched(TopicPartition("t", partition), batch, account or Credits(), credit)


def arrivals(**how: Any) -> ReceiveBuffer:
    return ReceiveBuffer(**how)


async def test_who_waits_gets_what_arrives_and_its_credit_goes_back() -> None:
    queue, account = arrivals(), Credits()
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    first, second = arrived(0), arrived(1, account)
    queue.prefetched([first, second])
    assert await waiting is first
    assert account.given == []
    assert await queue.take() is second
    assert account.given == [Credit(1, 10)]


async def test_only_one_task_waits() -> None:
    queue = arrivals()
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="one task"):
        await queue.take()
    queue.close()
    assert await waiting is None


async def test_what_is_put_back_comes_next_again() -> None:
    queue, account = arrivals(), Credits()
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


async def test_an_error_is_told_behind_what_arrived_before_it() -> None:
    queue = arrivals()
    item = arrived(0)
    queue.prefetched([item])
    queue.broken(ValueError("first"))
    queue.broken(ValueError("second"))
    assert await queue.take() is item
    with pytest.raises(ValueError, match="first"):
        await queue.take()


async def test_an_error_that_is_told_again_and_again_does_not_grow() -> None:
    queue, came = arrivals(), ZeroDivisionError("all")

    async def lines_of_next() -> int:
        with pytest.raises(ZeroDivisionError) as raised:
            await queue.take()
        return len(traceback.format_tb(raised.value.__traceback__))

    queue.failed(TopicPartition("t", 0), ZeroDivisionError("one"))
    await lines_of_next()  # it stood in line
    assert len({await lines_of_next() for _ in range(5)}) == 1
    with contextlib.suppress(ZeroDivisionError):
        raise came
    queue.broken(came)
    assert len({await lines_of_next() for _ in range(5)}) == 1
    queue.is_suspended = lambda: True
    with pytest.raises(ZeroDivisionError) as raised:
        await queue.wait_while_suspended()
    assert "raise came" in traceback.format_tb(raised.value.__traceback__)[-1], "where it came from stays"


async def test_what_is_dropped_gives_its_credit_back() -> None:
    queue, account = arrivals(), Credits()
    kept = arrived(1, account)
    queue.prefetched([arrived(0, account), kept])
    queue.drop([TopicPartition("t", 0)])
    assert account.given == [Credit(1, 10)]
    assert await queue.take() is kept


async def test_behind_what_is_not_admitted_nothing_is_handed_out() -> None:
    allowed = iter([True, False])
    queue = arrivals(admit=lambda _: next(allowed))
    first = arrived(0)
    for item in (first, arrived(0), arrived(0)):
        queue.prefetched([item])
    assert await queue.take() is first
    with pytest.raises(OverloadedError):
        await queue.take()


async def test_what_waits_of_a_paused_partition_holds_credit_for_itself_alone() -> None:
    """The last batch of an event has the credit of them all, which would be kept from the other partitions."""
    queue, account = arrivals(), Credits()
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
