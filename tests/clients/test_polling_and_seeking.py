"""Polling lists of records, and seeking."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.clients.consume.test_consumer import end_all, numbered, publish, take
from tests.clients.fake_node import FakeNode

from tidelog import Client, Consumer, TopicPartition
from tidelog.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
)
from tidelog_proto import broker_pb2 as pb

T0 = TopicPartition("t", 0)
WIDE = [TopicPartition("wide", number) for number in range(4)]


async def count_topics(consumer: Consumer, seen: Counter[str]) -> None:
    async for record in consumer:
        seen[record.topic] += 1


async def test_poll_returns_available_records_up_to_a_limit(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(50), batch=5)
    async with client.consumer("t") as consumer:
        assert len(await consumer.poll(3, timeout_s=60.0)) == 3
        assert consumer.position() == {T0: 3}
        taken: list[bytes] = []
        while len(taken) < 47:
            records = await consumer.poll(20, timeout_s=60.0)
            assert 0 < len(records) <= 20
            taken += [record.value for record in records]
        assert taken == numbered(47, 3)
        assert await consumer.poll(timeout_s=0) == []
        wrongs: list[dict[str, Any]] = [{"max_records": 0}, {"timeout_s": -1.0}]
        for wrong in wrongs:
            with pytest.raises(InvalidRequestError):
                await consumer.poll(**wrong)


async def test_poll_does_not_wait_once_it_has_records(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled caller would lose them: they count as delivered, and are committed."""
    await publish(node, *numbered(50), batch=5)
    async with client.consumer("t") as consumer:
        assert len(await consumer.poll(1, timeout_s=60.0)) == 1
        while not consumer.has_arrivals:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        waited: list[int] = []
        more = consumer.more

        async def counted() -> bool:
            waited.append(1)
            return await more()

        monkeypatch.setattr(consumer, "more", counted)
        records = await consumer.poll(1000, timeout_s=60.0)
        assert len(records) > 4, "received records are returned, across batches"
        assert not waited


async def test_poll_returns_records_before_an_error_and_then_raises(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(4))
    async with client.consumer("t") as consumer:
        while len(await consumer.poll(1)) != 1:
            pass
        end_all(node, pb.FORBIDDEN)
        await asyncio.sleep(0.05)
        assert [record.value for record in await consumer.poll()] == numbered(3, 1)
        with pytest.raises(Exception, match="scripted"):
            await consumer.poll()


async def test_seek_accepts_every_kind_of_position(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(node, *numbered(6))
    async with client.consumer("t", "wide") as consumer:
        await consumer.seek(T0, "latest")
        assert consumer.position()[T0] == 6
        await consumer.seek(T0, datetime(2013, 1, 1, tzinfo=UTC))
        assert consumer.position()[T0] == 6, "the fake node has no record that new"
        await consumer.seek(T0, "earliest")
        assert consumer.position()[T0] == 0
        with pytest.raises(InvalidRequestError, match="time zone"):
            await consumer.seek(T0, datetime(2013, 1, 1))  # noqa: DTZ001 - a datetime without a zone is refused
        with pytest.raises(InvalidRequestError, match="exactly one topic name"):
            await consumer.seek(0, 1)
        with pytest.raises(UnknownPartitionError):
            await consumer.seek(TopicPartition("t", 5), 1)
        assert not await consumer.seek_to_key(T0, b"k")
        with pytest.raises(InvalidRequestError, match="no record with key"):
            await consumer.seek(T0, b"k")
        assert consumer.position()[T0] == 0


async def test_deleted_offset_stops_one_partition_until_a_seek(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(6), batch=1)
    await publish(node, *numbered(2), topic="wide")
    node.partition("t").log_start = 4
    async with client.consumer("t", "wide", start={T0: 1, WIDE[0]: 1}) as consumer:
        seen: Counter[str] = Counter()
        for _ in range(2):
            with pytest.raises(OffsetOutOfRangeError):
                await count_topics(consumer, seen)
        assert seen == {"wide": 1}
        await consumer.seek(T0, "earliest")
        assert await take(consumer, 2) == [b"4", b"5"]
