from __future__ import annotations

import asyncio
import time

import pytest

from tidelog import Client
from tidelog_loadtest.cluster.acknowledgement_ledger import Audit, Ledger, audit
from tidelog_loadtest.cluster.paced_load import BATCH_RECORDS, Load

pytestmark = pytest.mark.e2e


async def test_acknowledged_records_are_stored(client: Client) -> None:
    await client.create_topic("loaded", partitions=2)
    ledger = Ledger(16)
    async with Load(client, "loaded", ledger, partitions=2, records_per_s=20_000) as load:
        for partition in (0, 1):
            await load.first_ack(partition, 0)
    found, _ = await audit(client, "loaded", ledger, {0: 0, 1: 0})
    assert found == Audit(acked=found.acked, read=found.acked)
    assert found.acked >= 2 * BATCH_RECORDS
    assert load.failed == 0


async def test_an_append_before_the_time_does_not_count(client: Client) -> None:
    await client.create_topic("loaded")
    async with Load(client, "loaded", Ledger(16), partitions=1, records_per_s=50_000) as load:
        waiting = asyncio.create_task(load.first_ack(0, time.time_ns() // 1_000 + 3_600_000_000))
        await load.first_ack(0, 0)
        await load.first_ack(0, time.time_ns() // 1_000)
        assert not waiting.done()
        waiting.cancel()


async def test_failed_sends_are_counted(client: Client) -> None:
    async with Load(client, "missing", Ledger(16), partitions=1, records_per_s=50_000) as load:
        while not load.failed:  # noqa: ASYNC110 - a load does not signal failures
            await asyncio.sleep(0.001)
    assert "missing" in load.last_error
