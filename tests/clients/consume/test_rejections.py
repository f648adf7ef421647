"""Records that a user rejects: published to the dead-letter topic as they were sent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.clients.consume.test_consumer import publish
from tests.clients.consume.test_dead_letters import records_of
from tests.clients.fake_node import FakeNode, Refuse
from tests.clients.test_consumer_values import T0

from tidelog import Client, sync
from tidelog.errors import (
    ClosedError,
    CorruptBatchError,
    InvalidRequestError,
    OutcomeUnknownError,
    RecordError,
    UnknownTopicError,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import RecordBatch

SENT = b'{ "n": 1 }'
SENT_US = 1_700_000_000_000_000


@pytest.fixture
def dead(node: FakeNode) -> str:
    node.add_topic("dead")
    return "dead"


async def send_one(client: Client) -> None:
    await client.producer("t").send(SENT, key=b"07", headers=[("a", b"b")], tag="tag", timestamp_us=SENT_US)


def check_letter(letter: Any, reason: bytes) -> None:
    assert (letter.value, letter.key, letter.tag, letter.timestamp_us) == (SENT, b"07", "tag", SENT_US)
    assert dict(letter.headers) == {
        "a": b"b",
        "tidelog-topic": b"t",
        "tidelog-partition": b"0",
        "tidelog-offset": b"0",
        "tidelog-error": reason,
    }


@pytest.mark.parametrize("decoded", [{}, {"value_deserializer": "json", "key_deserializer": int}])
async def test_a_rejected_record_is_published_as_it_was_sent_with_its_origin(
    node: FakeNode, client: Client, dead: str, decoded: dict[str, Any]
) -> None:
    await send_one(client)
    async with client.consumer("t", dead_letter=dead, **decoded) as consumer:
        await consumer.reject(await anext(consumer), "no such customer")
    (letter,) = records_of(node, dead)
    check_letter(letter, b"no such customer")


@pytest.mark.parametrize("decoder", [None, "json"])
async def test_dead_letter_that_fails_again_has_only_its_new_origin(
    node: FakeNode, client: Client, dead: str, decoder: Any
) -> None:
    old = [("tidelog-topic", b"x"), ("a", b"1"), ("tidelog-error", b"old"), ("tidelog-offset", b"9"), ("a", b"2")]
    await client.producer("t").send(b"not JSON", headers=[*old, ("tidelog-partition", b"7"), ("tidelog-error", b"")])
    await client.producer("t").send(b"1")
    async with client.consumer("t", dead_letter=dead, value_deserializer=decoder) as consumer:
        record = await anext(consumer)
        if decoder is None:
            await consumer.reject(record, "again")
    (letter,) = records_of(node, dead)
    assert letter.headers[:-1] == (
        *(("a", b"1"), ("a", b"2"), ("tidelog-topic", b"t"), ("tidelog-partition", b"0"), ("tidelog-offset", b"0")),
    )
    assert letter.headers[-1][0] == "tidelog-error"
    assert letter.headers[-1][1] != b"old"


async def test_an_exception_is_a_reason(node: FakeNode, client: Client, dead: str) -> None:
    await publish(node, b"x")
    async with client.consumer("t", dead_letter=dead) as consumer:
        await consumer.reject(await anext(consumer), ValueError("é" * 2000))
    (letter,) = records_of(node, dead)
    reason = dict(letter.headers)["tidelog-error"].decode()
    assert reason.startswith("ValueError('éé")
    assert len(reason) == 1024


async def test_records_of_earlier_batches_are_read_again_as_they_were_sent(
    node: FakeNode, client: Client, dead: str
) -> None:
    await publish(node, *(b" %d" % number for number in range(6)), batch=2)
    async with client.consumer("t", value_deserializer="json", dead_letter=dead) as consumer:
        polled: list[Any] = []
        while len(polled) < 6:
            polled += await consumer.poll(timeout_s=5)
        for record in reversed(polled):
            await consumer.reject(record, "late")
    assert [letter.value for letter in records_of(node, dead)] == [b" 5", b" 4", b" 3", b" 2", b" 1", b" 0"]


async def test_rejecting_returns_after_the_acknowledgement_and_only_then_the_position_is_committed(
    node: FakeNode, client: Client, dead: str
) -> None:
    await publish(node, b"1", b"2", batch=2)
    group = {"group": "g", "partitions": "all", "dead_letter": dead}
    async with client.consumer("t", **group) as consumer:  # type: ignore[arg-type]  # one mapping for both
        record = await anext(consumer)
        node.hold = asyncio.Event()
        rejecting = asyncio.ensure_future(consumer.reject(record, "no"))
        await node.received("publish", 2)
        await asyncio.sleep(0.02)
        assert not rejecting.done()
        node.hold.set()
        await rejecting
        assert len(records_of(node, dead)) == 1
        assert await client.committed("g") == []
        assert (await consumer.commit())[T0].next_offset == 1


async def test_a_dead_letter_that_is_not_acknowledged_is_an_error_and_can_be_rejected_again(
    node: FakeNode, client: Client, dead: str
) -> None:
    await publish(node, b"1")
    async with client.consumer("t", dead_letter=dead) as consumer:
        record = await anext(consumer)
        node.script.append(Refuse(pb.CORRUPT_BATCH))
        with pytest.raises(CorruptBatchError):
            await consumer.reject(record, "no")
        await consumer.reject(record, "no")
    assert len(records_of(node, dead)) == 1


@pytest.mark.parametrize("code", [pb.BATCH_TOO_LARGE, pb.UNSUPPORTED_BATCH])
async def test_a_record_that_the_dead_letter_topic_cannot_have_is_named(
    node: FakeNode, client: Client, dead: str, code: pb.ErrorCode
) -> None:
    await publish(node, b"1")
    async with client.consumer("t", dead_letter=dead) as consumer:
        record = await anext(consumer)
        node.script.append(Refuse(code))
        message = "t/0: the record at offset 0 cannot be published to the dead-letter topic"
        with pytest.raises(RecordError, match=message) as refused:
            await consumer.reject(record, "no")
    assert (refused.value.topic, refused.value.partition, refused.value.offset) == ("t", 0, 0)


async def test_a_record_that_the_log_no_longer_has_is_named(node: FakeNode, client: Client, dead: str) -> None:
    await publish(node, b"1", b"2")
    async with client.consumer("t", value_deserializer="json", dead_letter=dead) as consumer:
        record = await anext(consumer)
        await anext(consumer)
        with pytest.raises(RecordError, match="the log no longer has the record at offset 7"):
            await consumer.reject(record._replace(offset=7), "no")
    assert records_of(node, dead) == []


async def test_concurrent_rejections_and_undecodable_records_use_one_producer(
    node: FakeNode, client: Client, dead: str
) -> None:
    await publish(node, *(b"%d" % number for number in range(20)), b"{", b"21", batch=22)
    async with client.consumer("t", value_deserializer="json", dead_letter=dead) as consumer:
        records = [await anext(consumer) for _ in range(20)]
        rejecting = [asyncio.ensure_future(consumer.reject(record, "no")) for record in records]
        assert (await anext(consumer)).value == 21
        await asyncio.gather(*rejecting)
    assert sorted(letter.value for letter in records_of(node, dead)) == sorted(
        [b"{", *(b"%d" % number for number in range(20))]
    )
    assert len({batch.header.producer_id for batch in map(RecordBatch.parse, node.partition(dead).batches)}) == 1


async def test_closing_ends_a_rejection_that_waits(node: FakeNode, client: Client, dead: str) -> None:
    await publish(node, b"1")
    consumer = client.consumer("t", dead_letter=dead)
    record = await anext(consumer)
    node.hold = asyncio.Event()
    rejecting = asyncio.ensure_future(consumer.reject(record, "no"))
    await node.received("publish", 2)
    await asyncio.wait_for(consumer.close(), 5)
    with pytest.raises(OutcomeUnknownError, match="may be stored"):
        await rejecting
    node.hold.set()
    with pytest.raises(ClosedError, match="the consumer is closed"):
        await consumer.reject(record, "no")


async def test_rejecting_needs_a_dead_letter_topic_and_a_record(node: FakeNode, client: Client, dead: str) -> None:
    await publish(node, b"1")
    async with client.consumer("t") as consumer:
        record = await anext(consumer)
        with pytest.raises(InvalidRequestError, match="no dead-letter topic; pass dead_letter='TOPIC'"):
            await consumer.reject(record, "no")
    async with client.consumer("t", dead_letter=dead) as consumer:
        with pytest.raises(InvalidRequestError, match="takes a Record of this consumer, got bytes"):
            await consumer.reject(b"1", "no")  # type: ignore[arg-type]  # that is the point


async def test_a_missing_dead_letter_topic_is_an_error(node: FakeNode, client: Client) -> None:
    await publish(node, b"1")
    async with client.consumer("t", dead_letter="missing") as consumer:
        record = await anext(consumer)
        with pytest.raises(UnknownTopicError):
            await consumer.reject(record, "no")


async def test_blocking_consumers_reject(node: FakeNode, client: Client, dead: str) -> None:
    await send_one(client)

    def run() -> None:
        with (
            sync.Client(f"127.0.0.1:{node.port}") as blocking,
            blocking.consumer("t", value_deserializer="json", dead_letter=dead) as consumer,
        ):
            (record,) = consumer.poll(timeout_s=5)
            consumer.reject(record, "no")

    await asyncio.to_thread(run)
    (letter,) = records_of(node, dead)
    check_letter(letter, b"no")
