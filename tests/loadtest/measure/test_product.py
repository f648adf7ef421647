from __future__ import annotations

import asyncio

import pytest

from tidelog import Client
from tidelog_loadtest.measure import product
from tidelog_loadtest.measure.runs import Budget
from tidelog_loadtest.stand.payloads import encoded, value_batches

pytestmark = pytest.mark.e2e

BATCH_RECORDS = 50


async def test_published_records_are_read_and_both_runs_are_timed(client: Client) -> None:
    batches = value_batches(100, BATCH_RECORDS, count=4)
    length_bytes = encoded(batches)[0].length_bytes
    async with product.own_topic(client, "never") as topic:
        sent = await product.produce_run(client, topic, batches, length_bytes, Budget(batches=20), window=3)
        assert (sent.batches, sent.records) == (20, 20 * BATCH_RECORDS)
        assert len(sent.latencies_ns) == 20
        read = await product.consume_run(client, topic, sent.records)
    assert read.records == sent.records


async def test_one_record_at_a_time_has_one_latency_per_record(client: Client) -> None:
    async with product.own_topic(client, "always") as topic:
        run = await product.latency_run(client, topic, b"x" * 100, Budget(batches=5))
    assert (run.records, len(run.latencies_ns)) == (5, 5)
    assert sum(run.latencies_ns) <= run.elapsed_ns


async def test_topics_are_new_and_deleted_and_others_are_unchanged(client: Client) -> None:
    await client.create_topic("bench")
    async with product.own_topic(client, "never") as first, product.own_topic(client, "never") as second:
        assert len({first, second, "bench"}) == 3
    assert [topic.name for topic in await client.topics()] == ["bench"]


async def test_more_records_than_stored_are_an_error(client: Client) -> None:
    batches = value_batches(10, BATCH_RECORDS, count=1)
    async with product.own_topic(client, "never") as topic:
        await product.produce_run(client, topic, batches, 1, Budget(batches=1), window=1)
        with pytest.raises(product.WrongCountError, match="50 records read, 49"):
            await product.consume_run(client, topic, BATCH_RECORDS - 1)


async def test_a_missing_record_ends_the_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "READ_STALL_S", 0.5)
    batches = value_batches(10, BATCH_RECORDS, count=1)
    async with product.own_topic(client, "never") as topic:
        await product.produce_run(client, topic, batches, 1, Budget(batches=1), window=1)
        async with asyncio.timeout(20):
            with pytest.raises(product.WrongCountError, match=r"50 records read, 51 .* no further record arrived"):
                await product.consume_run(client, topic, BATCH_RECORDS + 1)
