"""Deserialized values, and the handling of undecodable records."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.clients.consume.test_consumer import publish
from tests.clients.fake_node import FakeNode

from tidelog import Client, Consumer, TopicPartition
from tidelog.errors import RecordError
from tidelog_proto.batch.record_batch import RecordBatch

T0 = TopicPartition("t", 0)
MIXED = [b'{"n": 1}', b"{", b'{"n": 2}', b"\xff", b"3"]
DECODED: list[Any] = [{"n": 1}, {"n": 2}, 3]


async def take(consumer: Consumer, count: int) -> list[Any]:
    return [(await anext(consumer)).value for _ in range(count)]


def records_of(node: FakeNode, topic: str) -> list[Any]:
    return [record for data in node.partition(topic).batches for record in RecordBatch.parse(data)]


async def test_values_and_keys_are_decoded(node: FakeNode, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b'{"n": [1, 2]}', key=b"7")
    await producer.send(None, key=b"8")
    async with client.consumer("t", value_deserializer="json", key_deserializer=int) as consumer:
        records = [await anext(consumer) for _ in range(2)]
        assert [(record.key, record.value) for record in records] == [(7, {"n": [1, 2]}), (8, None)]
    async with client.consumer("t", value_deserializer="json") as consumer:
        batch = await anext(aiter(consumer.batches()))
        assert batch.batch.values() == [b'{"n": [1, 2]}'], "columns are not decoded"


async def test_undecodable_record_is_an_error_and_a_seek_passes_it(node: FakeNode, client: Client) -> None:
    await publish(node, *MIXED, batch=5)
    async with client.consumer("t", group="g", partitions="all", value_deserializer="json") as consumer:
        assert await take(consumer, 1) == DECODED[:1]
        for offset in (1, 3):
            for _ in range(2):
                with pytest.raises(RecordError) as caught:
                    await anext(consumer)
                assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("t", 0, offset)
                assert isinstance(caught.value.__cause__, ValueError)
            assert (await consumer.commit())[T0].next_offset == offset
            await consumer.seek(0, offset + 1)
            assert (await take(consumer, 1))[0] in DECODED


async def test_undecodable_records_are_skipped_and_counted(node: FakeNode, client: Client) -> None:
    await publish(node, *MIXED, batch=5)
    async with client.consumer("t", value_deserializer="json", on_undecodable="skip") as consumer:
        assert await take(consumer, 3) == DECODED
        assert consumer.skipped == 2
        assert consumer.position() == {T0: 5}
    async with client.consumer("t", value_deserializer="json", on_undecodable="skip") as consumer:
        polled: list[Any] = []
        while len(polled) < 3:
            polled += [record.value for record in await consumer.poll()]
        assert polled == DECODED


def slowly(content: bytes) -> Any:
    time.sleep(0.0005)
    return json.loads(content)


@pytest.mark.parametrize("batch", [1501, 10])
async def test_poll_observes_its_timeout_and_yields_while_skipping(node: FakeNode, client: Client, batch: int) -> None:
    await publish(node, *[b"{"] * 1500, b"1", batch=batch)
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.001)

    for iterates in (False, True):
        ticker = asyncio.create_task(tick())
        async with client.consumer("t", value_deserializer=slowly, on_undecodable="skip") as consumer:
            if iterates:
                assert await take(consumer, 1) == [1]
            else:
                assert await consumer.poll(timeout_s=0.1) == []
                assert consumer.skipped < 800, "each record takes at least 0.5 ms: 0.4 s"
                assert consumer.position() == {T0: consumer.skipped}
                assert [record.value for record in await consumer.poll(timeout_s=20)] == [1]
            assert consumer.skipped == 1500
        ticker.cancel()
        assert len(ticks) > 20
        ticks.clear()


async def test_deserializer_may_raise_anything(node: FakeNode, client: Client) -> None:
    def fussy(content: bytes) -> object:
        raise KeyError(json.dumps(content.decode()))

    await publish(node, b"0")
    async with client.consumer("t", value_deserializer=fussy) as consumer:
        with pytest.raises(RecordError, match="KeyError"):
            await anext(consumer)
