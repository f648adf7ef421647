"""Instances of named producers, at real and at fake nodes."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from tests.clients.fake_cluster import running_cluster
from tests.clients.fake_node import FakeNode

from tidelog import Client, Group, TopicPartition
from tidelog import sync as blocking
from tidelog.errors import (
    DeliveryTimeoutError,
    EpochChangingError,
    InvalidRequestError,
    ProducerFencedError,
    RequestTimeoutError,
    UnknownTopicError,
)
from tidelog.produce.producer_epochs import BEGUN_PER_REQUEST
from tidelog.produce.producer_instances import ProducerInstance
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def topic(real: Client) -> str:
    name = f"named-{uuid.uuid4().hex[:8]}"
    await real.create_topic(name, partitions=3)
    return name


async def values_in(client: Client, topic: str, count: int) -> set[bytes | None]:
    async with client.consumer(topic) as consumer:
        return {(await anext(consumer)).value for _ in range(count)}


async def test_newest_instance_fences_older_ones_in_every_partition(real: Client, topic: str) -> None:
    old = real.producer(topic, name="billing")
    await old.send(b"old", partition=0)
    new = real.producer(topic, name="billing")
    await new.begin()
    for partition in range(3):
        with pytest.raises(ProducerFencedError) as failure:
            await old.send(b"too late", partition=partition)
        assert failure.value.definite
        await new.send(b"new %d" % partition, partition=partition)
    assert await values_in(real, topic, 4) == {b"old", b"new 0", b"new 1", b"new 2"}
    await old.abort()
    await new.close()


async def test_unsent_records_fail_when_a_newer_instance_begins(real: Client, topic: str) -> None:
    async with real.producer(topic, name="one") as old:
        receipts = await old.enqueue_many([b"early"] * 10, partition=1)
        assert len(await receipts) == 10
        async with real.producer(topic, name="one") as new:
            late = await old.enqueue_many([b"late"] * 10, partition=1)
            with pytest.raises(ProducerFencedError):
                await late
            await new.send_many([b"new"] * 10)


async def test_names_are_independent(real: Client, topic: str) -> None:
    async with (
        real.producer(topic, name="a") as one,
        real.producer(topic, name="b") as other,
        real.producer(topic) as no,
    ):
        offsets = [(await producer.send(b"x", partition=0)).offset for producer in (one, other, no, one)]
    assert offsets == [2, 3, 4, 5], "after the two fencing records"


async def test_one_of_two_concurrent_instances_continues(real: Client, topic: str) -> None:
    both = [real.producer(topic, name="twins") for _ in range(2)]
    await asyncio.gather(*(each.begin() for each in both))
    outcomes = await asyncio.gather(
        *(each.send(b"x", partition=number) for each in both for number in range(3)), return_exceptions=True
    )
    fenced = [isinstance(outcome, ProducerFencedError) for outcome in outcomes]
    assert sorted([sum(fenced[:3]), sum(fenced[3:])]) == [0, 3], outcomes
    for each in both:
        await each.abort()


async def test_added_partition_is_fenced_before_its_first_batch(real: Client, topic: str) -> None:
    async with real.producer(topic, name="grower") as old:
        await old.send(b"before", partition=2)
        await real.alter_topic(topic, partitions=5)
        await old.send(b"grown", partition=3)
        new = real.producer(topic, name="grower")
        await new.begin()
        for partition in (3, 4):
            with pytest.raises(ProducerFencedError):
                await old.send(b"too late", partition=partition)
            await new.send(b"new", partition=partition)
        await new.close()


async def test_reader_skips_fencing_records(real: Client, topic: str) -> None:
    group = f"readers of {topic}"
    async with real.producer(topic, name="tail") as producer:
        await producer.send_many([b"x"] * 5, partition=0)
    async with real.producer(topic, name="tail"):
        pass  # each partition ends with a fencing record, which no consumer gets
    async with real.consumer(topic, group=Group(group, commit="manual")) as consumer:
        for _ in range(5):
            await anext(consumer)
        async with asyncio.timeout(10):
            while consumer.position()[TopicPartition(topic, 0)] < 7:
                await consumer.poll(10, timeout_s=0.1)
    fetched = await real.fetch(topic, 0, offset=0)
    assert [batch.values() for batch in fetched.batches] == [[b"x"] * 5]
    assert fetched.next_offset == 7


async def test_bad_names_and_topics_are_refused(real: Client, topic: str) -> None:
    for name in ("", "x" * 256, "é" * 128, 7):
        with pytest.raises(InvalidRequestError, match="a producer's name must be"):
            real.producer(topic, name=name)  # type: ignore[arg-type]
    with pytest.raises(UnknownTopicError):
        await real.producer(f"no-{topic}", name="a").begin()


def test_blocking(shared_node: str) -> None:
    with blocking.Client(shared_node) as client:
        topic = f"named-{uuid.uuid4().hex[:8]}"
        client.create_topic(topic)
        old, new = client.producer(topic, name="b"), client.producer(topic, name="b")
        old.send(b"old")
        new.send(b"new")
        with pytest.raises(ProducerFencedError):
            old.send(b"late")
        new.close()
        old.abort()


# ------------------------------------------------------------------------------------------------ at fake nodes


async def test_begin_fences_all_existing_partitions() -> None:
    async with running_cluster() as cluster:
        for node in cluster.nodes:
            node.lag_in_topics(cut_off=True)
        cluster.add_topic("t", 2)  # an older instance may know the partition and write to it
        async with Client(cluster.bootstrap, request_timeout_s=1.0) as client:
            with pytest.raises(EpochChangingError):
                await client.producer("t", name="a").begin()
            for node in cluster.nodes:
                node.cut_off = False
            await client.producer("t", name="a").begin()
        assert cluster.nodes[0].partition("t", 1).end_offset == 1


async def test_owner_without_the_new_partition_is_retried(client: Client, node: FakeNode) -> None:
    asked: list[int] = []

    def begin(entry: pb.ProducerBeginEntry) -> pb.ProducerBeginResult:
        asked.append(entry.partition)
        if entry.partition == 1 and asked.count(1) == 1:
            error = ProtocolError(pb.UNKNOWN_PARTITION, "'wide' has partitions 0 to 0, not 1")
            return pb.ProducerBeginResult(error=error.to_message())
        return pb.ProducerBeginResult(producer_epoch=entry.producer_epoch)

    node.begin = begin
    await client.producer("wide", name="a").begin()
    assert asked.count(1) == 2


async def test_begin_exceeds_epochs_that_only_other_partitions_know(client: Client, node: FakeNode) -> None:
    old = client.producer("wide", name="a")
    await old.send(b"old", partition=1)
    node.partition("wide", 0).producers = ProducerTable()
    new = client.producer("wide", name="a")
    await new.begin()
    with pytest.raises(ProducerFencedError):
        await old.send(b"late", partition=1)
    await new.send(b"new", partition=1)
    assert [value for value in node.partition("wide", 1).values() if value] == [b"old", b"new"]
    await old.abort()


async def test_instance_unknown_to_partition_0_is_fenced(client: Client, node: FakeNode) -> None:
    producer = client.producer("t", name="a")
    await producer.begin()
    node.partition("t", 0).producers = ProducerTable()
    node.add_topic("t", 2)
    with pytest.raises(ProducerFencedError):
        await producer.send(b"late", partition=1)
    assert node.partition("t", 1).end_offset == 0
    await producer.abort()


async def test_unreachable_new_partition_times_out(client: Client, node: FakeNode) -> None:
    producer = client.producer("t", name="a", delivery_timeout_s=0.5)
    await producer.begin()
    node.add_topic("t", 2)
    node.begin = lambda entry: None
    async with asyncio.timeout(15):
        with pytest.raises(DeliveryTimeoutError) as failure:
            await producer.send(b"late", partition=1)
        assert failure.value.definite
        receipt = await producer.enqueue(b"late again", partition=1)
        with pytest.raises(DeliveryTimeoutError):
            await producer.close()
        assert receipt.done()
    node.begin = None


async def test_instance_does_not_write_to_a_recreated_topic(
    client: Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, begin = node.topics["t"].topic_id, ProducerInstance.begin

    async def made_again(instance: ProducerInstance) -> None:
        await begin(instance)
        del node.topics["t"]
        node.add_topic("t")
        await client.list_offsets("t", "latest")  # refreshes the client's metadata

    monkeypatch.setattr(ProducerInstance, "begin", made_again)
    producer = client.producer("t", name="a")
    with pytest.raises(UnknownTopicError):
        await producer.send(b"v")
    assert node.topics["t"].topic_id != begun
    assert node.values("t") == []
    await producer.abort()


async def test_delayed_begin_does_not_fence_newer_instances(client: Client, node: FakeNode) -> None:
    late: list[pb.ProducerBeginEntry] = []
    node.begin = late.append
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.3) as early:
        with pytest.raises(RequestTimeoutError):
            await early.producer("t", name="a").begin()
    node.begin = None
    producer = client.producer("t", name="a")
    await producer.begin()
    connection = next(iter(node.connections))
    assert late
    assert all(entry.producer_epoch for entry in late), "with epoch 0 the owner would choose one"
    for entry in late:
        connection.begun(entry)
    await producer.send(b"v")
    await producer.close()


async def test_begin_succeeds_despite_a_silent_node() -> None:
    async with running_cluster() as cluster, Client(cluster.bootstrap, request_timeout_s=20.0) as client:
        await client.producer("wide", name="a").begin()
        (asked,) = [node for node in cluster.nodes if "producer_begin" in node.requests]
        asked.freeze()
        async with asyncio.timeout(10):
            await client.producer("wide", name="a").begin()
        asked.thaw()


async def test_begin_splits_many_partitions_into_requests(client: Client, node: FakeNode) -> None:
    node.add_topic("many", partitions=2 * BEGUN_PER_REQUEST + 2)
    producer = client.producer("many", name="a")
    await producer.begin()
    assert node.requests.count("producer_begin") == 1 + 3, "partition 0 comes first, in a request of its own"
    await producer.abort()
