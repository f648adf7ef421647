"""A consumer with a zone reads from the replica in it while it keeps up, without loss or duplicates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_cluster import ClusterNode, FakeCluster, running_cluster

from tidelog import Client, Consumer
from tidelog.cluster import nearest_replica, owner_changes
from tidelog.errors import OffsetOutOfRangeError, UnknownTopicError
from tidelog.subscriptions import liveness_probe
from tidelog_proto import broker_pb2 as pb

CHECK_INTERVAL_S = 0.01


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(nearest_replica, "CHECK_INTERVAL_S", 0.1)
    monkeypatch.setattr(nearest_replica, "LAG_GRACE_S", 0.1)
    monkeypatch.setattr(nearest_replica, "EXCLUDE_S", 0.5)
    monkeypatch.setattr(nearest_replica, "CONNECT_S", 0.2)
    monkeypatch.setattr(owner_changes, "SILENCE_S", 0.1)
    monkeypatch.setattr(owner_changes, "GRACE_S", 0.1)
    monkeypatch.setattr(liveness_probe, "PROBE_S", 0.1)
    caplog.set_level(logging.WARNING)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Partition p of `wide` belongs to node p, and every node, each a zone, has a replica of all partitions."""
    async with running_cluster() as cluster:
        cluster.replicated = True
        yield cluster


@pytest.fixture
def near(cluster: FakeCluster) -> ClusterNode:
    return cluster.nodes[2]


@pytest.fixture
async def client(cluster: FakeCluster, near: ClusterNode) -> AsyncIterator[Client]:
    async with Client(cluster.bootstrap, zone=f"zone of {near.node_id}") as client:
        yield client


async def publish(cluster: FakeCluster, values: str, *, told: bool = True) -> None:
    """Publish to the three partitions in turn; unless `told`, replicas do not learn of the commits."""
    async with Client(cluster.bootstrap) as client, client.producer("wide") as producer:
        for number, value in enumerate(values):
            await producer.send(value.encode(), partition=number % 3)
    for node in cluster.nodes if told else ():
        node.push()


async def taken(consumer: Consumer, count: int) -> list[str]:
    async with asyncio.timeout(20):
        return sorted([((await anext(consumer)).value or b"").decode() for _ in range(count)])


def asked(cluster: FakeCluster) -> list[int]:
    return [node.requests.count("subscribe") for node in cluster.nodes]


async def test_all_partitions_are_read_in_the_zone(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        await publish(cluster, "defghi")
        assert await taken(consumer, 6) == list("defghi")
        before = asked(cluster)
        assert before[:2] == [0, 0]
        await asyncio.sleep(0.5)
        assert asked(cluster) == before, "a replica that keeps up stays in use"


async def test_lagging_replica_is_replaced_by_owners_and_used_again(
    cluster: FakeCluster, client: Client, near: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.move("wide", cluster.nodes[0], 2)
    await publish(cluster, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        before = asked(cluster)
        near.hears = False
        await publish(cluster, "def", told=False)
        assert await taken(consumer, 3) == list("def")
        assert "lagged behind the owners" in caplog.text
        assert all(asked(cluster)[number] > before[number] for number in (0, 1))
        near.hears = True
        away = asked(cluster)[2]
        await near.received("subscribe", away + 1)
        await publish(cluster, "ghi")
        assert await taken(consumer, 3) == list("ghi")


async def test_position_beyond_end_is_detected_through_the_owner(
    cluster: FakeCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(cluster, "abc")
    async with client.consumer("wide", start=5, partitions=[0]) as consumer, asyncio.timeout(20):
        with pytest.raises(OffsetOutOfRangeError, match="wide/0: offset 5 is beyond the end of the log, 1") as refused:
            await anext(consumer)
        assert (refused.value.log_start_offset, refused.value.high_watermark) == (0, 1)
        assert asked(cluster)[0] == 0, "the replica was read throughout"
    async with client.consumer("wide", start=5, on_out_of_range="earliest") as consumer:
        assert await taken(consumer, 3) == list("abc")
    assert "continuing at 0 because on_out_of_range is 'earliest'" in caplog.text


async def test_slow_reader_is_not_mistaken_for_a_lagging_replica(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abcdef")
    async with client.consumer("wide", prefetch_records=1) as consumer:
        assert len(await taken(consumer, 1)) == 1
        await asyncio.sleep(0.6)
        assert asked(cluster)[:2] == [0, 0]
        assert len(await taken(consumer, 5)) == 5


async def test_replica_that_catches_up_is_not_lagging(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest_replica, "LAG_GRACE_S", 2.0)
    async with Client(cluster.bootstrap) as writer, writer.producer("wide") as producer:
        for _ in range(260):  # one partition: the fake node sends partitions one after another
            await producer.send(b"x", partition=1)
    for node in cluster.nodes:
        node.push()
    async with client.consumer("wide", prefetch_records=4) as consumer:
        for _ in range(260):  # for longer than a check takes
            await taken(consumer, 1)
            await asyncio.sleep(CHECK_INTERVAL_S)
        assert asked(cluster)[:2] == [0, 0]


async def test_owners_are_read_without_a_replica_in_the_zone(cluster: FakeCluster, near: ClusterNode) -> None:
    await publish(cluster, "abc")
    async with Client(cluster.bootstrap, zone="nowhere") as client, client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        assert asked(cluster) == [1, 1, 1]


async def test_unreachable_replica_is_not_waited_for(cluster: FakeCluster, client: Client, near: ClusterNode) -> None:
    cluster.move("wide", cluster.nodes[0], 2)
    await publish(cluster, "abc")
    await near.stop()
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        await near.restart()
        async with asyncio.timeout(20):
            while not near.requests.count("subscribe"):  # noqa: ASYNC110 (the fake has no event)
                await asyncio.sleep(CHECK_INTERVAL_S)
        await near.stop()
        await publish(cluster, "def")
        assert await taken(consumer, 3) == list("def")


async def test_silent_replica_is_replaced(cluster: FakeCluster, client: Client, near: ClusterNode) -> None:
    cluster.move("wide", cluster.nodes[0], 2)
    await publish(cluster, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        near.freeze()
        await publish(cluster, "def", told=False)
        assert await taken(consumer, 3) == list("def")
        near.thaw()


async def test_owners_may_change(cluster: FakeCluster, client: Client, near: ClusterNode) -> None:
    await publish(cluster, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        cluster.move("wide", near, 0)
        cluster.move("wide", cluster.nodes[0], 2)
        for _ in range(3):
            await publish(cluster, "def")
            assert await taken(consumer, 3) == list("def")


async def test_replica_stays_in_use_after_an_owner_change(
    cluster: FakeCluster, client: Client, near: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.move("wide", cluster.nodes[0], 2)
    await publish(cluster, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        before = asked(cluster)
        cluster.move("wide", cluster.nodes[1], 0)
        await client.topic("wide")
        await publish(cluster, "def")
        assert await taken(consumer, 3) == list("def")
        await near.received("subscribe", before[2] + 1)
        assert asked(cluster)[:2] == before[:2]
        assert "not reading from replica" not in caplog.text


async def test_replica_stays_in_use_after_a_topic_deletion(
    client: Client, near: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.consumer("t") as consumer:
        await near.received("subscribe", 1)
        await client.fetch("t", 0, 0)
        for connection in near.connections:
            connection.end_subscriptions(pb.UNKNOWN_TOPIC)
        with pytest.raises(UnknownTopicError):
            await anext(consumer)
    assert "not reading from replica" not in caplog.text


async def fetched(client: Client, offset: int = 0) -> list[bytes | None]:
    answer = await client.fetch("wide", 0, offset, nearest=True, end_offset=1)
    return [value for batch in answer.batches for value in batch.values()]


def fetches(cluster: FakeCluster) -> list[int]:
    return [node.requests.count("fetch") for node in cluster.nodes]


async def test_nearest_fetch_uses_the_replica_in_the_zone(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abc")
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [0, 0, 1]
    assert (await client.fetch("wide", 0, 0)).batches
    assert fetches(cluster) == [1, 0, 1], "without `nearest` the owner is asked"


async def test_fetch_falls_back_to_owner_if_replica_lacks_the_records(
    cluster: FakeCluster, client: Client, near: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(cluster, "abc")
    near.hears = False
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [1, 0, 1]
    assert "not reading from replica" in caplog.text
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [2, 0, 1], "the replica is not asked again"


async def test_fetch_at_the_end_asks_the_owner(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abc")
    assert await fetched(client, 1) == []
    assert fetches(cluster) == [0, 0, 1], "the next record will be appended there"
    with pytest.raises(OffsetOutOfRangeError):
        await fetched(client, 2)
    assert fetches(cluster) == [1, 0, 2]
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [1, 0, 3], "the replica stays usable"


async def test_fetch_does_not_wait_for_unreachable_replica(
    cluster: FakeCluster, client: Client, near: ClusterNode
) -> None:
    await publish(cluster, "abc")
    await near.stop()
    assert await fetched(client) == [b"a"]
    assert await fetched(client, 1) == []
