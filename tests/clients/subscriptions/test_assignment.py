"""Assignment changes, pause and resume of a running consumer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from tests.clients.consume.test_consumer import nothing_comes, numbered, places, publish, take
from tests.clients.fake_cluster import FakeCluster, running_cluster
from tests.clients.fake_node import FakeNode

from tidelog import Client, TopicPartition
from tidelog.cluster.connection_pool import ConnectionPool, Identity
from tidelog.cluster.routing import Router
from tidelog.consume import topic_discovery
from tidelog.errors import (
    InvalidRequestError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_options import ConsumerOptions
from tidelog.subscriptions.load_meter import LoadMeter

T0 = TopicPartition("t", 0)
WIDE = [TopicPartition("wide", number) for number in range(4)]


async def test_empty_consumer_reads_assigned_partitions(node: FakeNode, client: Client) -> None:
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
        assert consumer.position()[T0] == 4, "partitions that are read keep their positions"


async def test_unassigned_partitions_are_not_delivered(node: FakeNode, client: Client) -> None:
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


async def test_assigning_unknown_partitions_changes_nothing(client: Client) -> None:
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


async def test_manually_unassigned_partition_is_not_added_again(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_discovery, "NEW_PARTITIONS_S", 0.01)
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


async def test_paused_partition_keeps_order_and_does_not_delay_others(node: FakeNode, client: Client) -> None:
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


async def test_paused_partition_can_be_sought_and_unassigned(node: FakeNode, client: Client) -> None:
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


# ------------------------------------------------------------------------------------------ several nodes


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running_cluster() as cluster:
        yield cluster


async def test_prefetch_is_bounded_over_all_nodes(cluster: FakeCluster) -> None:
    arrived: list[int] = []

    def admit(size_bytes: int) -> bool:
        arrived.append(size_bytes)
        return True

    async with Client(cluster.bootstrap) as client:
        producer = client.producer("wide")
        sent = [b"%03d" % number + bytes(997) for number in range(180)]
        for number, value in enumerate(sent):
            await producer.send(value, partition=number % 3)
        async with client.consumer("wide", prefetch_bytes=30_000, admit=admit) as consumer:
            await asyncio.gather(*(node.received("subscribe") for node in cluster.nodes))
            await asyncio.sleep(0.2)
            assert 15_000 < sum(arrived) < 30_000 + 3 * 1_500, "one additional batch per node"
            seen = [(await anext(consumer)).value for _ in sent]
        assert sorted(seen) == sent


@pytest.mark.parametrize("seed", range(4))
async def test_records_are_read_once_and_in_order_across_changes(cluster: FakeCluster, seed: int) -> None:
    """Partitions are unassigned, assigned, paused, sought and moved between nodes while records arrive."""
    draw, count = random.Random(seed), 300
    parts = [TopicPartition("wide", number) for number in range(3)]
    async with Client(cluster.bootstrap) as client, client.consumer(prefetch_records=30) as consumer:
        await consumer.assign(dict.fromkeys(parts, 0))

        async def publish(partition: int) -> None:
            producer = client.producer("wide")
            for at in range(0, count, 10):
                await producer.send_many(numbered(10, at), partition=partition)

        publishing = [asyncio.ensure_future(publish(where.partition)) for where in parts]
        seen = dict.fromkeys(parts, 0)
        while sum(seen.values()) < 3 * count:
            for record in await consumer.poll(draw.randint(1, 40), timeout_s=0.1):
                where = TopicPartition(record.topic, record.partition)
                assert (record.offset, record.value) == (seen[where], b"%d" % seen[where])
                seen[where] += 1
            where = draw.choice(parts)
            match draw.randrange(8):
                case 0:
                    await consumer.unassign([where])
                    await consumer.assign({where: seen[where]})
                case 1:
                    consumer.pause(where)
                case 2 | 3:
                    consumer.resume(*parts)
                case 4:
                    cluster.move("wide", draw.choice(cluster.nodes), partition=where.partition)
                case 5:
                    await consumer.seek(where, seen[where])
                case _:
                    assert consumer.position() == seen
        await asyncio.gather(*publishing)


async def test_later_node_gets_credit_of_an_idle_one(cluster: FakeCluster) -> None:
    async with Client(cluster.bootstrap) as client, client.consumer(prefetch_records=10) as consumer:
        await client.producer("wide").send_many(numbered(40), partition=1)
        await consumer.assign({WIDE[0]: 0})
        await cluster.nodes[0].received("subscribe")
        assert await nothing_comes(consumer)
        await consumer.assign({WIDE[1]: 0})
        async with asyncio.timeout(2):
            assert await take(consumer, 40) == numbered(40)
        await client.producer("wide").send(b"idle no more", partition=0)
        assert await take(consumer, 1) == [b"idle no more"]


async def test_load_counts_records_once_across_pause_and_seek(node: FakeNode) -> None:
    await publish(node, *numbered(6), batch=6)
    now = 0.0
    router = Router([("127.0.0.1", node.port)], ConnectionPool(Identity("test", "test", 5.0)), request_timeout_s=5.0)
    assignment = Assignment(router, ConsumerOptions.of([]))
    assignment.loads = meter = LoadMeter(lambda: now)

    async def take_one() -> float:
        """Take the batch; return its rate by then."""
        batch = await assignment.next_batch()
        assert batch is not None
        assignment.cursor.load(batch)
        assert len(assignment.cursor.take(2)) == 2
        return meter.rates()[T0]

    await assignment.assign({T0: 0})
    now = 10.0
    once = await take_one()
    assert once > 0
    assignment.pause([T0])
    assignment.resume([T0])
    assert await take_one() == once, "the rest of it was received again"
    assignment.seek(T0, 0)
    assert await take_one() == pytest.approx(2 * once)
    assignment.unassign([T0])
    assert meter.rates() == {}
    await assignment.close()
    await router.close()


async def test_unassign_returns_positions_that_may_be_committed(node: FakeNode) -> None:
    await publish(node, *numbered(6), batch=6)
    router = Router([("127.0.0.1", node.port)], ConnectionPool(Identity("test", "test", 5.0)), request_timeout_s=5.0)
    assignment = Assignment(router, ConsumerOptions.of([]))
    await assignment.assign({T0: 2, WIDE[1]: 0})
    assert assignment.topic_ids == {name: node.topics[name].topic_id for name in ("t", "wide")}
    batch = await assignment.next_batch()
    assert batch is not None
    assignment.cursor.load(batch)
    assert [record.offset for record in assignment.cursor.take(2)] == [2, 3]
    left = assignment.cursor.records
    assert assignment.unassign([T0, WIDE[2]]) == {T0: 4}
    assert list(left) == []
    assert assignment.partitions == {WIDE[1]}
    assert assignment.unassign([T0]) == {}
    await assignment.close()
    await router.close()
