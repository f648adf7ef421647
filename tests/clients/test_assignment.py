"""Partitions of a consumer that are changed, paused and resumed while it is read."""

from __future__ import annotations

import asyncio

import pytest
from tests.clients.fake_node import FakeNode
from tests.clients.test_consumer import nothing_comes, numbered, places, publish, take

from tidelog import Client, TopicPartition, intake
from tidelog.errors import (
    InvalidRequestError,
    UnknownPartitionError,
    UnknownTopicError,
)

T0 = TopicPartition("t", 0)
WIDE = [TopicPartition("wide", number) for number in range(4)]


async def test_an_empty_consumer_reads_what_it_is_told_to(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(4))
    await publish(node, *numbered(6, 10), topic="wide", partition=1)
    await client.commit("g", "wide", {1: 4})
    async with client.consumer(group="g") as consumer:
        assert consumer.assignment() == frozenset()
        assert await nothing_comes(consumer)
        await consumer.assign({T0: 3, WIDE[1]: None})
        assert consumer.position() == {T0: 3, WIDE[1]: 4}
        assert sorted(await places(consumer, 3)) == [("t", 0, 3), ("wide", 1, 4), ("wide", 1, 5)]
        await consumer.unassign([WIDE[1]])
        assert consumer.assignment() == consumer.position().keys() == {T0}
        await consumer.assign({WIDE[1]: 5, T0: 2})
        assert sorted(await places(consumer, 3)) == [("t", 0, 2), ("t", 0, 3), ("wide", 1, 5)]
        await consumer.assign({T0: None})
        assert consumer.position()[T0] == 4, "what is read already stays where it is"


async def test_nothing_of_what_is_unassigned_is_handed_out(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(40), batch=10)
    await publish(node, *numbered(40, 100), topic="wide", partition=0, batch=10)
    async with client.consumer(group="g") as consumer:
        await consumer.assign({T0: 0, WIDE[0]: 0})
        first = await anext(consumer)
        gone = TopicPartition(first.topic, first.partition)
        await consumer.unassign([gone])
        assert await consumer.commit() == {}
        rest = [await anext(consumer) for _ in range(40)]
        assert {record.topic for record in rest} == {"t", "wide"} - {gone.topic}
        assert await nothing_comes(consumer)
        await consumer.assign({gone: first.offset})
        assert await anext(consumer) == first


async def test_what_is_not_there_cannot_be_assigned_and_changes_nothing(client: Client) -> None:
    async with client.consumer() as consumer:
        for positions, error in (
            ({T0: 0, TopicPartition("t", 7): 0}, UnknownPartitionError),
            ({T0: 0, TopicPartition("nowhere", 0): 0}, UnknownTopicError),
            ({TopicPartition("t", 7): None}, UnknownPartitionError),
            ({T0: -1}, InvalidRequestError),
        ):
            with pytest.raises(error):
                await consumer.assign(positions)
        assert consumer.assignment() == frozenset()
        with pytest.raises(UnknownPartitionError, match="does not read t/0"):
            await consumer.unassign([T0])
        for change in (consumer.pause, consumer.resume):
            with pytest.raises(UnknownPartitionError, match="does not read t/0"):
                change(T0)


async def test_what_is_unassigned_by_hand_is_not_taken_in_again(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "NEW_PARTITIONS_S", 0.01)
    async with client.consumer("t", "wide") as consumer:
        await consumer.unassign([T0, WIDE[2]])
        node.add_topic("wide", 5)
        await publish(node, b"late", topic="wide", partition=4)
        assert await take(consumer, 1) == [b"late"]
        assert consumer.assignment() == {WIDE[0], WIDE[1], WIDE[3], ("wide", 4)}


async def test_partitions_change_while_a_task_waits(node: FakeNode, client: Client) -> None:
    async with client.consumer() as consumer:
        waiting = asyncio.ensure_future(take(consumer, 2))
        await asyncio.sleep(0.01)
        await consumer.assign({T0: 0})
        await publish(node, b"0")
        await consumer.assign({WIDE[3]: 0})
        await publish(node, b"1", topic="wide", partition=3)
        assert await waiting == [b"0", b"1"]


async def test_a_paused_partition_waits_in_order_and_holds_up_nothing(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(30), batch=5)
    async with client.consumer("t", "wide", prefetch_records=10) as consumer:
        assert await take(consumer, 2) == numbered(2)
        consumer.pause(T0)
        assert consumer.paused() == {T0}
        assert consumer.position()[T0] == 2
        for at in range(10):
            await publish(node, *numbered(4, 100 + 4 * at), topic="wide", partition=at % 4)
        records = [await anext(consumer) for _ in range(40)]
        assert {record.topic for record in records} == {"wide"}
        assert await nothing_comes(consumer)
        await publish(node, *numbered(3, 30))
        consumer.resume(T0)
        assert consumer.paused() == frozenset()
        assert await take(consumer, 31) == numbered(31, 2)


async def test_a_paused_partition_can_be_sought_and_unassigned(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(20), batch=5)
    async with client.consumer("t") as consumer:
        assert await take(consumer, 7) == numbered(7)
        consumer.pause(T0, T0)
        await consumer.seek(0, 3)
        assert await nothing_comes(consumer)
        consumer.resume(T0)
        assert await take(consumer, 17) == numbered(17, 3)
        consumer.pause(T0)
        await consumer.unassign([T0])
        assert consumer.paused() == frozenset()
        await consumer.assign({T0: 18})
        assert await take(consumer, 2) == numbered(2, 18)
