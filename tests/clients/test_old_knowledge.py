"""Topics that grow, are deleted and recreated while a client, or the node that it asks, has old metadata."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_cluster import ClusterConnection, FakeCluster, running_cluster

from tidelog import Client, TopicPartition
from tidelog.cluster.metadata_requests import CONFIRM_S
from tidelog.errors import EpochChangingError, TidelogError, UnknownPartitionError, UnknownTopicError
from tidelog.produce.open_batch import RecordLists
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    monkeypatch.setattr("tidelog.cluster.routing.HEDGE_S", 0.05)
    monkeypatch.setattr("tidelog.cluster.routing.REQUEST_HEDGE_S", 0.1)
    async with running_cluster() as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[Client]:
    client = Client(cluster.bootstrap, request_timeout_s=10.0)
    yield client
    await client.abort()


def id_of(cluster: FakeCluster, name: str) -> bytes:
    return cluster.nodes[0].topics[name].topic_id


# --------------------------------------------------------------------------------------------- recreated


@pytest.mark.parametrize("cut_off", [False, True])
async def test_recreated_topic_is_found_despite_a_lagging_node(
    cluster: FakeCluster, client: Client, *, cut_off: bool
) -> None:
    await client.fetch("t", 0, 0)
    cluster.nodes[0].lag_in_topics(cut_off=cut_off)
    cluster.make_again("t")
    assert (await client.fetch("t", 0, 0)).high_watermark == 0
    assert (await client.topic("t")).topic_id == id_of(cluster, "t")
    assert (await client.producer("t").send(b"v")).offset == 0


@pytest.mark.parametrize("publish", ["send", "put", "columns", "rows", "fan-out"])
async def test_new_producer_writes_to_the_recreated_topic(cluster: FakeCluster, client: Client, publish: str) -> None:
    await client.producer("t").send(b"old")
    cluster.make_again("t", 2)
    producer = client.producer("t")
    if publish == "send":
        assert (await producer.send(b"v")).offset == 0
    elif publish == "put":
        await producer.begin()
        assert (await producer.put(b"v")).offset == 0
    elif publish == "columns":
        assert len(await producer.send_many([b"v"], partition=1)) == 1
    elif publish == "rows":
        assert producer.bulk_appender.put(RecordLists([b"v"])) is None, "it binds to nothing that is not confirmed"
        await producer.begin()
        pending = producer.bulk_appender.put(RecordLists([b"v"]))
        assert pending is not None
        await pending.settled()
        assert not any(isinstance(outcome, TidelogError) for outcome in pending.outcomes())
    else:
        receipts = await asyncio.gather(*(producer.send(b"v", key=b"%d" % number) for number in range(16)))
        assert {receipt.partition for receipt in receipts} == {0, 1}, "they are split by the new partition count"
    assert set(cluster.values("t")) == {b"v"}


async def test_new_producer_finds_a_node_that_can_confirm_its_topic(cluster: FakeCluster, client: Client) -> None:
    await client.producer("t").send(b"old")
    for node in cluster.nodes[:2]:
        node.lag_in_topics(cut_off=True)
    cluster.make_again("t")
    assert (await client.producer("t").send(b"v")).offset == 0


async def test_new_producer_fails_when_its_topic_is_deleted(cluster: FakeCluster, client: Client) -> None:
    await client.producer("t").send(b"old")
    del cluster.nodes[0].topics["t"]
    with pytest.raises(UnknownTopicError):
        await client.producer("t").begin()


async def test_producer_asks_once_for_its_topic(cluster: FakeCluster, client: Client) -> None:
    first = client.producer("t")
    await first.send(b"0")
    assert cluster.asked("metadata") == 1
    second = client.producer("t")
    await second.send(b"1")
    await second.send_many([b"2", b"3"])
    await first.send(b"4")
    assert cluster.asked("metadata") == 2


async def test_producers_of_a_cached_topic_do_not_wait_for_each_other(cluster: FakeCluster, client: Client) -> None:
    """Questions of the refresher are spaced out, by up to 250 ms each."""
    await client.producer("t").send(b"old")
    began_s = time.monotonic()
    for _ in range(40):
        await client.producer("t").begin()
    assert time.monotonic() - began_s < 5, "a quarter of a second each would be 10 s"


@pytest.mark.parametrize("silent", [False, True])
async def test_new_producer_uses_the_cached_topic_when_no_node_can_confirm_it(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch, *, silent: bool
) -> None:
    await client.producer("t").send(b"0")
    for node in cluster.nodes:
        node.lag_in_topics(cut_off=True)
    if silent:
        monkeypatch.setattr(ClusterConnection, "on_metadata", lambda *_: None)
    began_s = time.monotonic()
    assert (await client.producer("t").send(b"1")).offset == 1
    took_s = time.monotonic() - began_s
    assert CONFIRM_S - 0.1 < took_s < CONFIRM_S + 3 if silent else took_s < CONFIRM_S


async def test_new_producer_accepts_records_while_no_node_can_be_reached(cluster: FakeCluster, client: Client) -> None:
    await client.producer("t").send(b"0")
    for node in cluster.nodes:
        await node.stop()
    async with asyncio.timeout(5):
        receipt = await client.producer("t").enqueue(b"1")
    for node in cluster.nodes:
        await node.restart()
    assert (await receipt).offset == 1


async def test_consumer_of_given_positions_reads_the_recreated_topic(cluster: FakeCluster, client: Client) -> None:
    await client.producer("t").send(b"old")
    cluster.make_again("t")
    async with Client(cluster.bootstrap) as other:
        await other.producer("t").send(b"new")
    async with client.consumer("t", partitions=[0], start={0: 0}) as consumer:
        assert (await anext(consumer)).value == b"new"


async def test_assigned_partition_is_read_of_the_recreated_topic(cluster: FakeCluster, client: Client) -> None:
    await client.producer("t").send(b"old")
    async with client.consumer("wide", partitions=[0], start=0) as consumer:
        await consumer.begin()
        cluster.make_again("t")
        async with Client(cluster.bootstrap) as other:
            await other.producer("t").send(b"new")
        await consumer.assign({TopicPartition("t", 0): 0})
        assert (await anext(consumer)).value == b"new"


async def test_topic_is_deleted_despite_a_lagging_node(cluster: FakeCluster, client: Client) -> None:
    await client.topic("t")
    for node in cluster.nodes[:2]:
        node.lag_in_topics(cut_off=True)
    cluster.make_again("t")
    await client.delete_topic("t")
    assert "t" not in cluster.nodes[2].topics
    with pytest.raises(EpochChangingError):  # the only node that could confirm is stopped as well
        async with asyncio.timeout(5), Client(cluster.bootstrap[:2], request_timeout_s=0.2) as other:
            await other.delete_topic("t")


async def test_deleted_topic_is_not_restored_by_a_lagging_node(cluster: FakeCluster, client: Client) -> None:
    await client.fetch("t", 0, 0)
    cluster.nodes[0].lag_in_topics(cut_off=True)
    await client.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        await client.fetch("t", 0, 0)
    with pytest.raises(UnknownTopicError):
        await client.topic("t")


async def test_unconfirmed_metadata_is_used_if_no_node_can_confirm(cluster: FakeCluster, client: Client) -> None:
    for node in cluster.nodes:
        node.lag_in_topics(cut_off=True)
    assert (await client.topic("t")).name == "t"
    assert (await client.producer("t").send(b"v")).offset == 0
    with pytest.raises(TidelogError) as caught:
        async with Client(cluster.bootstrap, request_timeout_s=0.3) as other:
            await other.fetch("t", 7, 0)
    assert caught.value.retriable, "the partition may have been added"


async def test_consumer_commits_nothing_for_a_recreated_topic(cluster: FakeCluster, client: Client) -> None:
    await client.producer("t").send_many([b"0", b"1"])
    async with client.consumer("t", group="g", partitions="all") as consumer:
        assert (await anext(consumer)).value == b"0"
        cluster.make_again("t")
        with pytest.raises(UnknownTopicError):
            await consumer.commit()
        assert (await anext(consumer)).value == b"1", "received records are delivered"
        with pytest.raises(UnknownTopicError):
            await anext(consumer)
    assert await client.committed("g", "t") == []


async def test_group_starts_at_positions_of_the_current_topic(cluster: FakeCluster, client: Client) -> None:
    await client.producer("t").send(b"old")
    await client.commit("g", "t", {0: 1})
    cluster.make_again("t")
    async with Client(cluster.bootstrap) as other:
        await other.producer("t").send_many([b"0", b"1", b"2"])
        await other.commit("g", "t", {0: 2})
    assert [each.next_offset for each in await client.committed("g", "t")] == [2]
    async with client.consumer("t", group="g", partitions="all") as consumer:
        assert (await anext(consumer)).value == b"2"


# -------------------------------------------------------------------------------------------------- grown


async def test_added_partitions_are_included(cluster: FakeCluster, client: Client) -> None:
    await client.fetch("t", 0, 0)
    for node in cluster.nodes:
        node.lag_in_topics()
    cluster.add_topic("t", 2)
    async with Client(cluster.bootstrap) as other:
        await other.producer("t").send_many([b"%d" % number for number in range(12)], partition=1)
        await other.commit("g", "t", {1: 10})
    assert [(each.partition, each.next_offset) for each in await client.committed("g", "t")] == [(1, 10)]
    async with client.consumer("t", group="g", partitions="all") as consumer:
        record = await anext(consumer)
        assert (record.partition, record.value) == (1, b"10")
    found = await client.list_offsets("t", "latest")
    assert {partition: offset.offset for partition, offset in found.items()} == {0: 0, 1: 12}


@pytest.mark.parametrize("ask", ["fetch", "offsets", "send"])
async def test_added_partition_is_found_by_number(cluster: FakeCluster, client: Client, ask: str) -> None:
    producer = client.producer("t")

    async def about(partition: int) -> None:
        if ask == "fetch":
            await client.fetch("t", partition, 0)
        elif ask == "offsets":
            await client.list_offsets("t", "earliest", [partition])
        else:
            await producer.send(b"v", partition=partition)

    await about(0)
    for node in cluster.nodes:
        node.lag_in_topics()
    cluster.add_topic("t", 2)
    await about(1)
    with pytest.raises(UnknownPartitionError):
        await about(2)


# ---------------------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("epoch", [1, 2])
async def test_acknowledged_records_are_read_despite_a_lagging_node(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    """Unless the node answers in a later epoch, which may have begun without them."""
    answers: list[int] = []
    on_fetch = ClusterConnection.on_fetch

    def lagging(connection: ClusterConnection, frame: Frame) -> None:
        answers.append(1)
        if len(answers) > 2:
            on_fetch(connection, frame)
            return
        reply = pb.FetchReply()
        reply.results.add(next_offset=0, high_watermark=0, epoch=epoch)
        connection.reply(frame, pb.Envelope(fetch_reply=reply))

    await client.producer("t").send(b"v")
    client._router.known_ends.note(id_of(cluster, "t"), 0, epoch=1, end_offset=1)
    monkeypatch.setattr(ClusterConnection, "on_fetch", lagging)
    fetched = await client.fetch("t", 0, 0)
    assert [batch.values() for batch in fetched.batches] == ([[b"v"]] if epoch == 1 else [])
    assert len(answers) == (3 if epoch == 1 else 1)


async def test_end_after_an_empty_answer_is_requested(
    cluster: FakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node knows that more is committed than it has on disk."""
    on_fetch, answers = ClusterConnection.on_fetch, []

    def lagging(connection: ClusterConnection, frame: Frame) -> None:
        answers.append(1)
        if len(answers) > 1:
            on_fetch(connection, frame)
            return
        reply = pb.FetchReply()
        reply.results.add(next_offset=0, high_watermark=1, epoch=9)
        connection.reply(frame, pb.Envelope(fetch_reply=reply))

    async with Client(cluster.bootstrap) as other:
        await other.producer("t").send(b"v")
    monkeypatch.setattr(ClusterConnection, "on_fetch", lagging)
    assert [batch.values() for batch in (await client.fetch("t", 0, 0)).batches] == [[b"v"]]
