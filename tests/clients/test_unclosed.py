from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from tidelog import Client, sync
from tidelog.testing import LocalNode, node

CONSUMERS = 20


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


async def test_consumers_that_are_dropped_end_and_warn(running: LocalNode) -> None:
    topic = running.topic()
    async with running.async_client() as client:
        async with client.producer(topic) as producer:
            await producer.send(b"x")
        with pytest.warns(ResourceWarning, match=f"a consumer of {topic} was dropped and not closed") as warned:
            await drop_consumers(client, topic, None)
            gc.collect()
        assert len(warned) == CONSUMERS
        async with asyncio.timeout(60):
            while consuming_tasks():  # noqa: ASYNC110 - tasks tell nobody
                await asyncio.sleep(0.05)


async def test_a_member_that_is_dropped_leaves_its_group(running: LocalNode) -> None:
    topic = running.topic()
    async with running.async_client() as client:
        async with client.producer(topic) as producer:
            await producer.send(b"x")
        member = client.consumer(topic, group="dropped")
        assert len(await member.poll(1, timeout_s=20.0)) == 1
        assert len((await client.groups.describe("dropped")).members) == 1
        with pytest.warns(ResourceWarning):
            del member
            gc.collect()
        async with asyncio.timeout(60):
            while (await client.groups.describe("dropped")).members:
                await asyncio.sleep(0.05)


async def test_a_consumer_that_is_closed_warns_of_nothing(running: LocalNode, recwarn: pytest.WarningsRecorder) -> None:
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


def test_a_blocking_consumer_that_is_dropped_ends_and_warns(running: LocalNode) -> None:
    topic = running.topic()
    with running.client() as client:
        with client.producer(topic) as producer:
            producer.send(b"x")
        assert isinstance(client, sync.Client)
        consumer = client.consumer(topic, group="blocking")
        assert len(consumer.poll(1, timeout_s=20.0)) == 1
        with pytest.warns(ResourceWarning):
            del consumer
            gc.collect()
