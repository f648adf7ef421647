"""Reads without a quorum: the owner fails, no other is elected, and committed records are read from other replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator

import pytest
from tests.clients.fake_cluster import FakeCluster, running_cluster
from tests.clients.fake_node import Do, FakeConnection

from tidelog import Client, Consumer, TopicPartition
from tidelog.errors import OutcomeUnknownError, QuorumLostError
from tidelog.subscriptions.consumer_options import Start
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

pytestmark = pytest.mark.usefixtures("short_timeouts")

LOOK_S = 0.01


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Shorten the time-outs for silent nodes."""
    monkeypatch.setattr("tidelog.cluster.owner_changes.SILENCE_S", 0.1)
    monkeypatch.setattr("tidelog.cluster.owner_changes.READER_SILENCE_S", 0.2)
    monkeypatch.setattr("tidelog.cluster.owner_changes.GRACE_S", 0.1)
    monkeypatch.setattr("tidelog.cluster.routing.SILENCE_S", 0.1)
    monkeypatch.setattr("tidelog.cluster.routing.HEDGE_S", 0.05)
    monkeypatch.setattr("tidelog.cluster.routing.LOG_AFTER_S", 0.2)
    monkeypatch.setattr("tidelog.cluster.fallback_replicas.FALLBACK_AFTER_S", 0.2)
    monkeypatch.setattr("tidelog.subscriptions.liveness_probe.PROBE_S", 0.1)
    monkeypatch.setattr("tidelog.subscriptions.consumer_options.START_WAIT_S", 0.5)
    caplog.set_level(logging.WARNING)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Partition p of `wide` belongs to node p, and every node has a replica of all partitions."""
    async with running_cluster() as cluster:
        cluster.replicated = True
        yield cluster


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[Client]:
    client = Client(cluster.bootstrap, request_timeout_s=20.0)
    yield client
    await client.abort()


async def publish(client: Client, values: str) -> None:
    async with client.producer("wide") as producer:
        for number, value in enumerate(values):
            await producer.send(value.encode(), partition=number % 3)


async def lose_quorum(cluster: FakeCluster) -> None:
    for node in cluster.nodes[1:]:
        await node.stop()


_KEPT: list[Consumer] = []
"""Consumers are closed with their clients, so each must live as long as its client."""


@pytest.fixture(autouse=True)
def kept_until_clients_are_closed() -> Iterator[None]:
    """Set up before the clients, and so torn down after them."""
    yield
    _KEPT.clear()


async def taken(consumer: Consumer, count: int) -> set[str]:
    _KEPT.append(consumer)
    async with asyncio.timeout(20):
        return {((await anext(consumer)).value or b"").decode() for _ in range(count)}


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    async with asyncio.timeout(20):
        while text not in caplog.text:  # noqa: ASYNC110 - logging has no event
            await asyncio.sleep(LOOK_S)


@pytest.mark.parametrize("start", ["earliest", 0])
async def test_consumer_reads_committed_records_and_continues_when_nodes_return(
    cluster: FakeCluster, client: Client, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, "abc")
    await lose_quorum(cluster)
    async with Client(cluster.bootstrap) as late, late.consumer("wide", start=start) as consumer:
        assert await taken(consumer, 3) == set("abc")
        assert "no owner of partitions" in caplog.text
        for node in cluster.nodes[1:]:
            await node.restart()
        await publish(client, "def")
        assert await taken(consumer, 3) == set("def")


async def test_running_consumer_switches_to_another_replica_and_back(cluster: FakeCluster, client: Client) -> None:
    await publish(client, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == set("abc")
        others = [cluster.nodes[0], cluster.nodes[2]]
        before = sum(node.requests.count("subscribe") for node in others)
        cluster.nodes[1].freeze()
        async with asyncio.timeout(20):
            while sum(node.requests.count("subscribe") for node in others) == before:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_S)
        asked = cluster.nodes[1].requests.count("subscribe")
        cluster.nodes[1].thaw()
        await cluster.nodes[1].received("subscribe", asked + 1)
        await publish(client, "def")
        assert await taken(consumer, 3) == set("def")


async def test_owner_with_delayed_publish_is_kept(
    cluster: FakeCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, "abc")
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == set("abc")
        cluster.nodes[1].script.append(Do.SILENT_BEFORE)
        producer = client.producer("wide")
        waiting = await producer.enqueue(b"d", partition=1)
        await cluster.nodes[1].received("publish", 2)
        await asyncio.sleep(1)  # ten times the time-out of this test
        assert (await client.fetch("wide", 1, 0)).next_offset == 1
        assert "no owner of partitions" not in caplog.text
        await producer.abort()
        cluster.nodes[1].drop_connections()  # requests in flight are answered, or end with their connection
        with pytest.raises(OutcomeUnknownError):
            await waiting


async def test_new_owner_is_used(cluster: FakeCluster, client: Client) -> None:
    await publish(client, "abc")
    await lose_quorum(cluster)
    async with client.consumer("wide") as consumer:
        assert await taken(consumer, 3) == set("abc")
        for partition in (1, 2):
            cluster.move("wide", cluster.nodes[0], partition)
        await publish(client, "def")
        assert await taken(consumer, 3) == set("def")


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_fetch_and_earliest_offset_are_answered_by_other_replicas(
    cluster: FakeCluster, client: Client, how: str
) -> None:
    await publish(client, "abc")
    for node in cluster.nodes[1:]:
        if how == "killed":
            await node.stop()
        else:
            node.freeze()
    async with asyncio.timeout(20):
        for partition in range(3):
            assert (await client.fetch("wide", partition, 0)).next_offset == 1
        found = await client.list_offsets("wide", "earliest")
    assert {partition: offset.high_watermark for partition, offset in found.items()} == {0: 1, 1: 1, 2: 1}


async def test_latest_offset_needs_the_owner(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    async with Client(cluster.bootstrap, quorum_timeout_s=0.5) as client:
        await publish(client, "abc")
        await lose_quorum(cluster)
        with pytest.raises(QuorumLostError, match="1 of 3 replicas"):
            await client.list_offsets("wide", "latest")
    assert "a request failed, retrying" in caplog.text


async def test_start_at_latest_misses_no_newer_record(
    cluster: FakeCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, "abc")
    await lose_quorum(cluster)
    async with asyncio.timeout(20), client.consumer("wide", start="latest") as consumer:
        assert consumer.position() == {TopicPartition("wide", number): 1 for number in range(3)}
        assert "the ends of partitions [1, 2] cannot be confirmed" in caplog.text
        for node in cluster.nodes[1:]:
            await node.restart()
        await publish(client, "def")
        assert await taken(consumer, 3) == set("def")


async def test_unreachable_partition_does_not_delay_others(
    cluster: FakeCluster, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, "abc")
    cluster.replicated = False
    await cluster.nodes[1].stop()
    async with Client(cluster.bootstrap) as late, late.consumer("wide") as consumer:
        assert await taken(consumer, 2) == set("ac")
        assert consumer.position().keys() == {("wide", 0), ("wide", 2)}
        await logged(caplog, "start offsets of partitions [1] are not known yet")
        await cluster.nodes[1].restart()
        assert await taken(consumer, 1) == {"b"}


async def test_group_waits_for_its_positions(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await publish(client, "abcdef")
    await client.commit("g", "wide", {0: 1, 1: 1, 2: 1})
    answer = FakeConnection.on_committed

    def refuse(peer: FakeConnection, frame: Frame) -> None:
        error = ProtocolError(pb.QUORUM_LOST, "__offsets/0: 1 of 3 replicas are alive", retry_after_ms=20)
        peer.reply(frame, pb.Envelope(error=error.to_message()))

    monkeypatch.setattr(FakeConnection, "on_committed", refuse)
    async with Client(cluster.bootstrap, quorum_timeout_s=0.3) as late:
        reading = asyncio.ensure_future(taken(late.consumer("wide", group="g", partitions="all"), 3))
        await logged(caplog, "__offsets/0: 1 of 3 replicas")
        await asyncio.sleep(0.5)  # longer than the request timeout
        assert not reading.done()
        monkeypatch.setattr(FakeConnection, "on_committed", answer)
        assert await reading == set("def")
