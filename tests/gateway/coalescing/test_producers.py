from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest
from tests.gateway.fake_log import FakeClient, FakeLog, FakeProducer

from tidelog.client import Client
from tidelog.errors import ConnectionLostError
from tidelog_gateway.coalescing.producers import ProducerLimit, Producers


@pytest.fixture
def producers(log: FakeLog) -> Producers:
    return Producers(cast(Client, FakeClient(log)), producer_limit=ProducerLimit(2), delivery_timeout_s=1)


async def used(producers: Producers, topic: str) -> FakeProducer:
    async with producers.use(topic) as place:
        producer = cast(Any, place.producer)
        assert not producer.closed
        return producer  # type: ignore[no-any-return] # the fake client's producer


async def test_each_topic_has_one_producer(producers: Producers, log: FakeLog) -> None:
    assert await used(producers, "a") is await used(producers, "a")
    assert await used(producers, "a") is not await used(producers, "b")
    assert log.producers == 2


async def test_the_least_recently_used_producer_is_closed(producers: Producers) -> None:
    first, second = await used(producers, "a"), await used(producers, "b")
    await used(producers, "a")
    await used(producers, "c")
    assert (first.closed, second.closed, len(producers)) == (False, True, 2)


async def test_a_producer_in_use_is_closed_by_its_last_user(producers: Producers) -> None:
    async with producers.use("a") as outer:
        kept = cast(Any, outer.producer)
        async with producers.use("a"):
            await producers.forget("a")
            assert not kept.closed
        assert not kept.closed
        assert await used(producers, "a") is not kept, "later requests get a new producer"
    assert kept.closed


async def test_forgetting_an_unknown_topic_does_nothing(producers: Producers) -> None:
    await producers.forget("a")
    assert len(producers) == 0


async def test_closing_closes_all_and_logs_lost_records(
    producers: Producers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await used(producers, "a"), await used(producers, "b")

    async def fail() -> None:
        raise ConnectionLostError("gone")

    monkeypatch.setattr(first, "close", fail)
    with caplog.at_level(logging.WARNING):
        await producers.close(within_s=5)
    assert second.closed
    assert "cannot close the producer of topic 'a': gone" in caplog.text


async def test_a_producer_is_forgotten_only_if_it_is_the_current_one(producers: Producers) -> None:
    """Two requests fail with one producer: the second must not close the producer that the first continues with."""
    async with producers.use("a") as first, producers.use("a") as second:
        await producers.forget("a", first.producer)
        async with producers.use("a") as third:
            await producers.forget("a", second.producer)
            assert cast(Any, third.producer) is await used(producers, "a")


async def test_a_waiting_request_is_not_overtaken(producers: Producers, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest = await used(producers, "a")
    await used(producers, "b")
    closing, order = asyncio.Event(), list[str]()
    monkeypatch.setattr(oldest, "close", closing.wait)

    async def request(name: str) -> None:
        async with producers.use("c") as place, place.accepting():
            order.append(name)
            if name == "second":
                closing.set()

    requests = [asyncio.ensure_future(request(name)) for name in ("first", "second")]
    async with asyncio.timeout(20):
        await asyncio.gather(*requests)
    assert order == ["first", "second"]


async def test_a_request_keeps_its_place_with_a_new_producer(producers: Producers) -> None:
    """Three requests began with a producer whose topic is deleted. Each learns it on its own, while others arrive."""
    order = list[str]()
    begun = [asyncio.Event() for _ in range(3)]
    gone = [asyncio.Event() for _ in range(3)]

    async def request(name: str, at: int | None = None) -> None:
        async with producers.use("a") as place:
            async with place.accepting():
                await asyncio.sleep(0)
            if at is None:
                order.append(name)
                return
            begun[at].set()
            await gone[at].wait()
            await place.again()
            async with place.accepting() as producer:
                assert not cast(Any, producer).closed
                await asyncio.sleep(0)
                order.append(name)

    async with asyncio.timeout(20):
        old = [asyncio.ensure_future(request(str(at), at)) for at in range(3)]
        for event in begun:
            await event.wait()
        gone[1].set()
        await asyncio.sleep(0)
        new = [asyncio.ensure_future(request(name)) for name in ("new", "newer")]
        for event in (gone[0], gone[2]):
            for _ in range(20):
                await asyncio.sleep(0)
            event.set()
        await asyncio.gather(*old, *new)
    assert order == ["0", "1", "2", "new", "newer"]


async def test_a_cancelled_request_does_not_block_others(producers: Producers) -> None:
    order = list[str]()

    async def request(name: str) -> None:
        async with producers.use("a") as place, place.accepting():
            order.append(name)

    async with asyncio.timeout(20):
        async with producers.use("a") as place:
            await producers.forget("a", place.producer)
            waiting = [asyncio.ensure_future(request(name)) for name in ("first", "second")]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.sleep(0)
            assert order == []
        await waiting[1]
    assert order == ["second"]


async def test_closing_has_a_timeout(
    producers: Producers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with producers.use("a") as place:
        monkeypatch.setattr(place.producer, "close", asyncio.Event().wait)
    await producers.close(within_s=0.01)
    assert "the outcome of these records is unknown" in caplog.text
