"""A consumer with a zone reads at the replica there, as long as that keeps up, and loses and repeats nothing."""

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

LOOK_S = 0.01


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(nearest_replica, "LOOK_S", 0.1)
    monkeypatch.setattr(nearest_replica, "BEHIND_S", 0.1)
    monkeypatch.setattr(nearest_replica, "SHUN_S", 0.5)
    monkeypatch.setattr(nearest_replica, "CONNECT_S", 0.2)
    monkeypatch.setattr(owner_changes, "SILENCE_S", 0.1)
    monkeypatch.setattr(owner_changes, "GRACE_S", 0.1)
    monkeypatch.setattr(liveness_probe, "PROBE_S", 0.1)
    caplog.set_level(logging.WARNING)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Of `wide`, partition p belongs to node p, and every node has a copy of all. Each node is a zone."""
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
    """Publish to the three partitions in turn; replicas hear of it, unless they are not `told`."""
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


async def test_everything_is_read_in_the_zone(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        await publish(cluster, "defghi")
        assert await taken(consumer, 6) == list("defghi")
        before = asked(cluster)
        assert before[:2] == [0, 0]
        await asyncio.sleep(0.5)
        assert asked(cluster) == before, "who keeps up is not left"


async def test_who_does_not_hear_of_commits_is_left_for_the_owners_and_come_back_to(
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
        assert "behind their owners" in caplog.text
        assert all(asked(cluster)[number] > before[number] for number in (0, 1))
        near.hears = True
        away = asked(cluster)[2]
        await near.received("subscribe", away + 1)
        await publish(cluster, "ghi")
        assert await taken(consumer, 3) == list("ghi")


async def test_who_begins_beyond_the_end_is_told_so_though_a_replica_cannot_tell(
    cluster: FakeCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(cluster, "abc")
    async with client.consumer("wide", start=5, partitions=[0]) as consumer, asyncio.timeout(20):
        with pytest.raises(OffsetOutOfRangeError, match="wide/0: offset 5 is beyond the end of the log, 1") as refused:
            await anext(consumer)
        assert (refused.value.log_start_offset, refused.value.high_watermark) == (0, 1)
        assert asked(cluster)[0] == 0, "the replica was read all the time"
    async with client.consumer("wide", start=5, on_out_of_range="earliest") as consumer:
        assert await taken(consumer, 3) == list("abc")
    assert "going on at 0, because on_out_of_range is 'earliest'" in caplog.text


async def test_who_reads_slowly_is_not_taken_for_a_replica_that_is_behind(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abcdef")
    async with client.consumer("wide", prefetch_records=1) as consumer:
        assert len(await taken(consumer, 1)) == 1
        await asyncio.sleep(0.6)
        assert asked(cluster)[:2] == [0, 0]
        assert len(await taken(consumer, 5)) == 5


async def test_who_catches_up_is_not_behind(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest_replica, "BEHIND_S", 2.0)
    async with Client(cluster.bootstrap) as writer, writer.producer("wide") as producer:
        for _ in range(260):  # to one partition: the fake would send all of one before any of the next
            await producer.send(b"x", partition=1)
    for node in cluster.nodes:
        node.push()
    async with client.consumer("wide", prefetch_records=4) as consumer:
        for _ in range(260):  # for longer than is looked for
            await taken(consumer, 1)
            await asyncio.sleep(LOOK_S)
        assert asked(cluster)[:2] == [0, 0]


async def test_without_a_replica_in_the_zone_owners_are_read(cluster: FakeCluster, near: ClusterNode) -> None:
    await publish(cluster, "abc")
    async with Client(cluster.bootstrap, zone="nowhere") as client, client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        assert asked(cluster) == [1, 1, 1]


async def test_a_replica_that_cannot_be_reached_or_goes_away_is_not_waited_for(
    cluster: FakeCluster, client: Client, near: ClusterNode
) -> None:
    cluster.move("wide", cluster.nodes[0], 2)
    await publish(cluster, "abc")
    await near.stop()
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == list("abc")
        await near.restart()
        async with asyncio.timeout(20):
            while not near.requests.count("subscribe"):  # noqa: ASYNC110 (a fake tells nobody)
                await asyncio.sleep(LOOK_S)
        await near.stop()
        await publish(cluster, "def")
        assert await taken(consumer, 3) == list("def")


async def test_a_replica_that_falls_silent_is_left(cluster: FakeCluster, client: Client, near: ClusterNode) -> None:
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


async def test_a_replica_is_not_left_because_the_owner_has_changed(
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
        assert "is not read" not in caplog.text


async def test_a_replica_is_not_left_because_a_topic_is_deleted(
    client: Client, near: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    async with client.consumer("t") as consumer:
        await near.received("subscribe", 1)
        await client.fetch("t", 0, 0)
        for connection in near.connections:
            connection.end_subscriptions(pb.UNKNOWN_TOPIC)
        with pytest.raises(UnknownTopicError):
            await anext(consumer)
    assert "is not read" not in caplog.text


async def fetched(client: Client, offset: int = 0) -> list[bytes | None]:
    answer = await client.fetch("wide", 0, offset, nearest=True, end_offset=1)
    return [value for batch in answer.batches for value in batch.values()]


def fetches(cluster: FakeCluster) -> list[int]:
    return [node.requests.count("fetch") for node in cluster.nodes]


async def test_a_fetch_of_the_nearest_asks_the_replica_in_the_zone(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abc")
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [0, 0, 1]
    assert (await client.fetch("wide", 0, 0)).batches
    assert fetches(cluster) == [1, 0, 1], "who does not say so asks the owner"


async def test_a_replica_that_has_not_heard_of_what_is_asked_for_is_left_for_the_owner(
    cluster: FakeCluster, client: Client, near: ClusterNode, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(cluster, "abc")
    near.hears = False
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [1, 0, 1]
    assert "is not read for" in caplog.text
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [2, 0, 1], "nor is it asked again"


async def test_a_fetch_beyond_what_a_replica_has_heard_of_asks_the_owner(cluster: FakeCluster, client: Client) -> None:
    await publish(cluster, "abc")
    assert await fetched(client, 1) == []
    assert fetches(cluster) == [0, 0, 1], "the next record comes there"
    with pytest.raises(OffsetOutOfRangeError):
        await fetched(client, 2)
    assert fetches(cluster) == [1, 0, 2]
    assert await fetched(client) == [b"a"]
    assert fetches(cluster) == [1, 0, 3], "nothing is wrong with the replica"


async def test_a_replica_that_cannot_be_reached_is_not_waited_for_by_a_fetch(
    cluster: FakeCluster, client: Client, near: ClusterNode
) -> None:
    await publish(cluster, "abc")
    await near.stop()
    assert await fetched(client) == [b"a"]
    assert await fetched(client, 1) == []
