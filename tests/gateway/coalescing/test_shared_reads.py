"""Concurrent requests for the same records share a read that is sent after they arrived."""

from __future__ import annotations

import asyncio
import time

import pytest

from tidelog.errors import NodeUnreachableError, OffsetOutOfRangeError, TidelogError
from tidelog.model import Fetched
from tidelog_gateway.coalescing.shared_reads import GATHER_S, ReadPosition, ReadResult, SharedReads

PLACE = ReadPosition("orders", 0, 7, 65_536)


class Node:
    """A node that answers each read when the test allows it; its high watermark is the number of the read."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[TidelogError | None]] = []
        self.places: list[ReadPosition] = []
        self.reads = SharedReads(self.read)

    async def read(self, place: ReadPosition) -> Fetched:
        number = len(self.answers)
        self.places.append(place)
        self.answers.append(asyncio.get_running_loop().create_future())
        error = await self.answers[number]
        if error is not None:
            raise error
        return Fetched(batches=[], next_offset=7, log_start_offset=0, high_watermark=number, epoch=1)

    def answer(self, number: int, error: TidelogError | None = None) -> None:
        self.answers[number].set_result(error)

    async def reached(self, reads: int) -> None:
        async with asyncio.timeout(10):
            while len(self.answers) < reads:  # noqa: ASYNC110 - the beginning of a read is not notified
                await asyncio.sleep(0.001)

    def request(self, place: ReadPosition = PLACE) -> asyncio.Task[ReadResult]:
        return asyncio.create_task(self.reads.fetch(place))

    @property
    def is_idle(self) -> bool:
        return not len(self.reads)


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_requests_gather_during_a_read_and_share_the_next_one() -> None:
    node = Node()
    first = node.request()
    await turns()
    others = [node.request() for _ in range(5)]
    await turns()
    assert len(node.answers) == 1, "only the first request arrived before the first read"
    node.answer(0)
    await turns()
    assert len(node.answers) == 2
    late = node.request()
    await turns()
    assert len(node.answers) == 2
    node.answer(1)
    await turns()
    node.answer(2)
    results = await asyncio.gather(first, *others, late)
    assert [result.fetched.high_watermark for result in results] == [0, 1, 1, 1, 1, 1, 2]
    assert len({id(result) for result in results[1:6]}) == 1
    assert node.is_idle


async def test_sequential_requests_have_their_own_reads() -> None:
    node = Node()
    for number in range(3):
        request = node.request()
        await turns()
        node.answer(number)
        assert (await request).fetched.high_watermark == number
    assert node.is_idle


async def test_requests_for_different_records_share_no_read() -> None:
    node = Node()
    places = [PLACE, PLACE._replace(offset=8), PLACE._replace(max_bytes=1), PLACE._replace(topic="other")]
    requests = [node.request(place) for place in places]
    await turns()
    assert node.places == places
    for number in range(4):
        node.answer(number)
    await asyncio.gather(*requests)


async def test_a_slow_read_delays_the_next_one_only_briefly() -> None:
    node = Node()
    slow = node.request()
    await turns()
    began = time.monotonic()
    others = [node.request() for _ in range(3)]
    await node.reached(2)
    assert GATHER_S / 2 <= time.monotonic() - began < 10 * GATHER_S
    node.answer(1)
    assert [result.fetched.high_watermark for result in await asyncio.gather(*others)] == [1, 1, 1]
    node.answer(0)
    await slow
    assert node.is_idle


async def test_all_requests_that_share_a_read_get_its_error() -> None:
    node = Node()
    first = node.request()
    await turns()
    others = [node.request() for _ in range(3)]
    await turns()
    node.answer(0, NodeUnreachableError("the node is away"))
    with pytest.raises(NodeUnreachableError):
        await first
    await turns()
    node.answer(1, OffsetOutOfRangeError("it was deleted"))
    outcomes = await asyncio.gather(*others, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [OffsetOutOfRangeError] * 3
    assert node.is_idle


@pytest.mark.parametrize("sent", [False, True])
async def test_the_others_read_when_the_request_that_sends_the_read_is_cancelled(sent: bool) -> None:
    node = Node()
    first = node.request()
    await turns()
    leader, *others = [node.request() for _ in range(4)]
    await turns()
    if sent:
        node.answer(0)
        await turns()
    before = len(node.answers)
    leader.cancel()
    await turns()
    while not all(other.done() for other in others):
        for answer in node.answers:
            if not answer.done():
                answer.set_result(None)
        await turns()
    numbers = [other.result().fetched.high_watermark for other in others]
    assert min(numbers) >= before, "reads are sent after the requests arrived"
    await first
    assert node.is_idle


async def test_a_cancelled_request_leaves_the_others_their_result() -> None:
    node = Node()
    first = node.request()
    await turns()
    leader, gone, other = [node.request() for _ in range(3)]
    await turns()
    gone.cancel()
    node.answer(0)
    await turns()
    node.answer(1)
    assert [(await each).fetched.high_watermark for each in (first, leader, other)] == [0, 1, 1]
    assert gone.cancelled()
    assert node.is_idle
