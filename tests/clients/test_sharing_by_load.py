"""Members with the load assignor at a real node: loads are measured, reported, and balanced."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.clients.sharing import new_topic, reading, until

from tidelog import Client, Group, TopicPartition, sync
from tidelog.cluster.routing import Router
from tidelog_proto import broker_pb2 as pb

pytestmark = pytest.mark.e2e

PARTITIONS = 8
PATIENCE_S = 45.0
"""A target is kept for ten seconds before loads change it; plus time for a busy machine."""


@contextlib.asynccontextmanager
async def feeding(client: Client, topic: str, busy: frozenset[TopicPartition]) -> AsyncIterator[None]:
    """Publish to every partition continuously, and a hundred times as much to busy ones."""

    async def feed() -> None:
        async with client.producer(topic) as producer:
            while True:
                for number in range(PARTITIONS):
                    count = 100 if TopicPartition(topic, number) in busy else 1
                    await producer.send_many([b"x" * 500] * count, partition=number)
                await asyncio.sleep(0.1)

    task = asyncio.create_task(feed())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[pb.GroupHeartbeat]]:
    """Record the heartbeats of each group's members."""
    heard: dict[str, list[pb.GroupHeartbeat]] = defaultdict(list)
    call_owner = Router.call_owner

    async def call(self: Router, partition: TopicPartition, connection: Any, envelope: Any, **options: Any) -> Any:
        if envelope.HasField("group_heartbeat"):
            heard[envelope.group_heartbeat.group].append(envelope.group_heartbeat)
        return await call_owner(self, partition, connection, envelope, **options)

    monkeypatch.setattr(Router, "call_owner", call)
    return heard


async def test_asynchronous_and_blocking_member_reach_equal_load(
    shared_node: str, real: Client, said: dict[str, list[pb.GroupHeartbeat]]
) -> None:
    """One of them selects the load assignor; both measure, and a member of another group reports nothing."""
    topic = await new_topic(real, partitions=PARTITIONS)
    with sync.Client(shared_node) as blocking:
        other = blocking.consumer(topic, group=Group(topic, assignor="load", session_timeout_s=4.0))

        def read_on() -> None:
            for _ in other.batches():
                pass

        task = asyncio.create_task(asyncio.to_thread(read_on))
        by_number = real.consumer(topic, group=Group(f"{topic} by number", session_timeout_s=4.0))
        try:
            consumer = real.consumer(topic, group=Group(topic, session_timeout_s=4.0))
            async with reading(consumer) as first, reading(by_number):
                theirs: Callable[[], frozenset[TopicPartition]] = other.assignment
                mine = first.consumer.assignment
                await until(lambda: len(mine()) == len(theirs()) == PARTITIONS // 2)
                busy, idle = mine(), theirs()
                async with feeding(real, topic, busy):
                    await until(lambda: len(mine() & busy) == len(theirs() & busy) == len(busy) // 2, PATIENCE_S)
                    assert idle <= theirs(), "only busy partitions move"
            told = [{load.partition for load in each.loads} for each in said[topic]]
            assert max(map(len, told)) >= PARTITIONS // 2, "of all its partitions"
            assert said[f"{topic} by number"]
            assert not any(each.loads for each in said[f"{topic} by number"])
        finally:
            await asyncio.to_thread(other.close)
            await task
