from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_node import FakeNode, running_fake_node

from tidelog import Client
from tidelog_loadtest.clients.client_loops import PUBLISHING, READING, Records, Timed, publish, read
from tidelog_loadtest.measure.product import WrongCountError
from tidelog_proto.batch.key_partitions import partition_for_key


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    async with running_fake_node() as node:
        yield node


def test_records_have_one_size_and_keys_repeat() -> None:
    records = Records.of(1_000, 20)
    assert {len(value) for value in records.values} == {20}
    assert len(set(records.values)) == 1_000
    assert len(set(records.keys)) == 50
    assert records.first(3).values == records.values[:3]


def test_figures_are_per_record() -> None:
    timed = Timed(100, 0.5, 0.0001)
    assert timed.per_s == 200
    assert timed.cpu_ns == pytest.approx(1_000)


@pytest.mark.parametrize("name", PUBLISHING)
async def test_a_loop_publishes_every_record_once_to_the_partition_of_its_key(node: FakeNode, name: str) -> None:
    records = Records.of(2_100, 30)
    async with Client(f"127.0.0.1:{node.port}") as client:
        timed = await publish(client, "wide", PUBLISHING[name], records)
    assert timed.records == 2_100
    assert sorted(value or b"" for value in node.values("wide")) == sorted(records.values)
    if name.endswith("keys"):
        key_of = dict(zip(records.values, records.keys, strict=True))
        for partition in range(4):
            for value in node.partition("wide", partition).values():
                assert partition_for_key(key_of[value or b""], 4) == partition


@pytest.mark.parametrize("how", READING)
async def test_reading_counts_records(node: FakeNode, how: str) -> None:
    async with Client(f"127.0.0.1:{node.port}") as client:
        await client.producer("t").send_many([b"v"] * 100)
        assert (await read(client, "t", how, 100)).records == 100
        if how != "async for record":
            with pytest.raises(WrongCountError, match="100 records read, 99"):
                await read(client, "t", how, 99)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await read(client, "t", how, 101)
