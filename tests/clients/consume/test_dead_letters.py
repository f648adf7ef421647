"""Dead letters: undecodable records are published to another topic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.clients.consume.test_consumer import publish
from tests.clients.fake_node import Do, FakeNode, Refuse
from tests.clients.test_consumer_values import T0, take

from tidelog import Client
from tidelog.errors import CorruptBatchError, RecordError, UnknownTopicError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import RecordBatch


def records_of(node: FakeNode, topic: str) -> list[Any]:
    return [record for data in node.partition(topic).batches for record in RecordBatch.parse(data)]


async def test_undecodable_records_are_published_unchanged(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    producer = client.producer("t")
    await producer.send(b"1")
    await producer.send(b"{", key=b"k", headers=[("a", b"b")], tag="tag", timestamp_us=1_700_000_000_000_000)
    await producer.send(b"2")
    async with client.consumer("t", value_deserializer="json", dead_letter="dead") as consumer:
        assert await take(consumer, 2) == [1, 2]
        assert consumer.skipped == 0
    (dead,) = records_of(node, "dead")
    assert (dead.value, dead.key, dead.tag) == (b"{", b"k", "tag")
    assert dead.timestamp_us == 1_700_000_000_000_000
    headers = dict(dead.headers)
    assert headers.pop("a") == b"b"
    assert b"Expecting property name" in headers.pop("tidelog-error")
    assert headers == {"tidelog-topic": b"t", "tidelog-partition": b"0", "tidelog-offset": b"1"}


async def test_record_is_passed_after_its_dead_letter_is_acknowledged(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    await publish(node, b"{", b"2")
    async with client.consumer("t", value_deserializer="json", dead_letter="dead") as consumer:
        node.hold = asyncio.Event()
        waiting = asyncio.ensure_future(take(consumer, 1))
        await node.received("publish", 2)
        await asyncio.sleep(0.02)
        assert consumer.position() == {T0: 0}
        node.hold.set()
        assert await waiting == [2]
    assert len(records_of(node, "dead")) == 1


async def test_failed_dead_letter_is_raised_and_retried(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    await publish(node, b"{", b"2")
    node.script.append(Refuse(pb.CORRUPT_BATCH))
    async with client.consumer("t", value_deserializer="json", dead_letter="dead") as consumer:
        with pytest.raises(CorruptBatchError):
            await anext(consumer)
        assert consumer.position() == {T0: 0}
        node.script.append(Do.STORE)
        polled = [record.value for _ in range(100) for record in await consumer.poll(timeout_s=0.01)]
        assert polled == [2]
    assert [record.value for record in records_of(node, "dead")] == [b"{"]


@pytest.mark.parametrize("code", [pb.BATCH_TOO_LARGE, pb.UNSUPPORTED_BATCH])
async def test_refused_dead_letter_names_the_record_and_seek_passes_it(
    node: FakeNode, client: Client, code: pb.ErrorCode
) -> None:
    node.add_topic("dead")
    await publish(node, b"1", b"{", b"2")
    async with client.consumer("t", value_deserializer="json", dead_letter="dead") as consumer:
        assert await take(consumer, 1) == [1]
        for _ in range(2):
            node.script.append(Refuse(code))
            message = "offset 1 does not decode, and cannot be published to the dead-letter topic"
            with pytest.raises(RecordError, match=message) as refused:
                await anext(consumer)
            assert (refused.value.topic, refused.value.partition, refused.value.offset) == ("t", 0, 1)
        await consumer.seek(0, 2)
        assert await take(consumer, 1) == [2]
    assert not records_of(node, "dead")


async def test_poll_observes_its_timeout_during_dead_letters(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    await publish(node, *[b"{"] * 20, b"2", batch=21)
    async with client.consumer("t", value_deserializer="json", dead_letter="dead") as consumer:
        node.hold = asyncio.Event()
        for _ in range(3):
            async with asyncio.timeout(10):  # the node does not answer
                assert await consumer.poll(timeout_s=0.05) == []
        assert len(records_of(node, "dead")) <= 1
        assert consumer.position() == {T0: 0}
        node.hold.set()
        assert [record.value for record in await consumer.poll(timeout_s=10)] == [2]
    assert len(records_of(node, "dead")) == 20, "each exactly once"


async def test_close_ends_a_wait_for_a_dead_letter(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    await publish(node, b"{", b"2")
    consumer = client.consumer("t", value_deserializer="json", dead_letter="dead")
    node.hold = asyncio.Event()
    waiting = asyncio.create_task(consumer.poll(timeout_s=20))
    await node.received("publish", 2)
    closing = asyncio.create_task(consumer.close())
    assert await asyncio.wait_for(waiting, 5) == []
    node.hold.set()
    await closing


async def test_close_does_not_wait_for_an_unstorable_dead_letter(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    await publish(node, b"{", b"1", b"{", b"2")
    consumer = client.consumer("t", value_deserializer="json", dead_letter="dead")
    assert [record.value for record in await consumer.poll(timeout_s=10)] == [1]
    node.hold = asyncio.Event()
    assert await consumer.poll(timeout_s=0.1) == []
    await asyncio.wait_for(consumer.close(), 5)
    assert consumer.position() == {T0: 2}, "the next reader publishes it"


async def test_recreated_dead_letter_topic_is_used(node: FakeNode, client: Client) -> None:
    node.add_topic("dead")
    await publish(node, b"{", b"2", b"[", b"3", b"(", b"4")
    async with client.consumer("t", value_deserializer="json", dead_letter="dead") as consumer:
        assert await take(consumer, 1) == [2]
        await client.delete_topic("dead")
        for _ in range(2):
            with pytest.raises(UnknownTopicError):
                await anext(consumer)
        node.add_topic("dead", topic_id=b"anew".ljust(16))
        assert await take(consumer, 1) == [3]
        await client.delete_topic("dead")
        node.add_topic("dead", topic_id=b"and again".ljust(16))
        assert await take(consumer, 1) == [4], "no record was lost"
    assert [record.value for record in records_of(node, "dead")] == [b"("]
