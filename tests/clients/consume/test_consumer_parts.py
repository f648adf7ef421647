from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from tidelog import Client, sync
from tidelog.errors import TidelogError
from tidelog.testing import LocalNode, node

CONSUMERS = 20
PRODUCERS = 50


@pytest.fixture(scope="module")
def running() -> Iterator[LocalNode]:
    with node() as started:
        yield started


def consuming_tasks() -> set[str]:
    names = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in names if name in {"consume", "subscribe", "look at replicas", "end a dropped consumer"}}


async def drop_consumers(client: Client, topic: str, group: str | None) -> None:
    for _ in range(CONSUMERS):
        consumer = client.consumer(topic, group=group, start="earliest")
        assert len(await consumer.poll(1, timeout_s=20.0)) == 1
        del consumer
    gc.collect()


async def test_collected_consumers_end_and_warn(running: LocalNode) -> None:
    topic = running.topic()
    async with running.async_client() as client:
        async with client.producer(topic) as producer:
            await producer.send(b"x")
        with pytest.warns(
            ResourceWarning, match=f"a consumer of {topic} was garbage collected without being closed"
        ) as warned:
            await drop_consumers(client, topic, None)
        assert len(warned) == CONSUMERS
        async with asyncio.timeout(60):
            while consuming_tasks():  # noqa: ASYNC110 - tasks have no event for it
                await asyncio.sleep(0.05)


async def test_collected_member_leaves_its_group(running: LocalNode) -> None:
    topic = running.topic()
    async with running.async_client() as client:
        async with client.producer(topic) as producer:
            await producer.send(b"x")
        members = [client.consumer(topic, group="dropped")]
        assert len(await members[0].poll(1, timeout_s=20.0)) == 1
        assert len((await client.groups.describe("dropped")).members) == 1
        with pytest.warns(ResourceWarning):
            members.clear()
        async with asyncio.timeout(60):
            while (await client.groups.describe("dropped")).members:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.05)


async def test_closed_consumer_does_not_warn(running: LocalNode, recwarn: pytest.WarningsRecorder) -> None:
    topic = running.topic()
    async with running.async_client() as client:
        consumer = client.consumer(topic)
        await consumer.begin()
        await consumer.close()
        del consumer
        kept = client.consumer(topic)
        await kept.begin()
    del kept
    gc.collect()
    assert [str(each.message) for each in recwarn] == []


def test_collected_blocking_consumer_ends_and_warns(running: LocalNode) -> None:
    topic = running.topic()
    with running.client() as client:
        with client.producer(topic) as producer:
            producer.send(b"x")
        assert isinstance(client, sync.Client)
        consumers = [client.consumer(topic, group="blocking")]
        assert len(consumers[0].poll(1, timeout_s=20.0)) == 1

        def drop() -> None:
            consumers.clear()
            gc.collect()

        with pytest.warns(ResourceWarning):
            drop()


async def test_dropped_producers_are_collected_after_delivery(running: LocalNode) -> None:
    topic = running.topic()
    async with running.async_client() as client:
        alive = []
        for number in range(PRODUCERS):
            producer = client.producer(topic)
            await producer.send(b"%d" % number)
            alive.append(weakref.ref(producer))
            del producer
        async with asyncio.timeout(60):
            while sum(reference() is not None for reference in alive) > 1:
                gc.collect()
                await asyncio.sleep(0.05)


async def test_record_of_a_dropped_producer_is_stored(running: LocalNode) -> None:
    topic = running.topic()
    async with running.async_client() as client:
        for number in range(PRODUCERS):
            await client.producer(topic).enqueue(b"%d" % number)
            gc.collect()
    async with running.async_client() as client, client.consumer(topic) as consumer:
        values = {(await anext(consumer)).value for _ in range(PRODUCERS)}
    assert values == {b"%d" % number for number in range(PRODUCERS)}


async def test_unreported_failure_of_a_dropped_producer_is_raised_by_close(running: LocalNode) -> None:
    topic = running.topic()
    client = running.async_client(request_timeout_s=2.0)
    producer = client.producer(topic, delivery_timeout_s=2.0)
    await producer.send(b"x")
    running.delete_topic(topic)
    pending = await producer.enqueue(b"lost")
    async with asyncio.timeout(60):
        while not pending.done():  # noqa: ASYNC110 - awaiting it would report the failure
            await asyncio.sleep(0.05)
    del producer, pending
    gc.collect()
    with pytest.raises(TidelogError):
        await client.close()
