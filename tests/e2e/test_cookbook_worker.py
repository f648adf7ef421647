"""The worker of docs/cookbook.md while its node is away, and when it stops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.test_readme import FENCE

from tidelog import Client, testing

pytestmark = [pytest.mark.e2e, pytest.mark.long]

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
AWAY_S = 13.0
"""Longer than a session of 10 s."""


def worker() -> dict[str, Any]:
    """Return the names that the program defines, without running it."""
    (code,) = [code for language, code in FENCE.findall(PAGE.read_text()) if language == "python" and "reject" in code]
    program: dict[str, Any] = {}
    exec(code.replace("asyncio.run(main())", ""), program)
    return program


async def lag(client: Client) -> int:
    return sum(row.lag for row in await client.groups.lag("charging", "payments"))


async def until_idle(client: Client) -> None:
    async with asyncio.timeout(40.0):
        while await lag(client):  # noqa: ASYNC110 (a state of the node)
            await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
async def test_worker_survives_an_outage_and_finishes_its_record_when_stopped() -> None:
    program, charged, gate, stopping = worker(), list[int](), asyncio.Event(), asyncio.Event()
    started = asyncio.Event()

    async def charge(payment: Any) -> None:
        started.set()
        await gate.wait()
        charged.append(payment.number)

    program["charge"] = charge

    async def send(client: Client, *numbers: int) -> None:
        values = [b'{"number":%d,"customer":"ada","cents":1}' % number for number in numbers]
        await client.producer("payments").send_many(values, keys=[b"one key"] * len(values))

    async with testing.node() as node, Client(node.bootstrap) as client:
        await client.create_topic("payments", partitions=3)
        await client.create_topic("payments-dead")
        working = [asyncio.create_task(program["work"](client, stopping)) for _ in range(2)]
        gate.set()
        await send(client, *range(3))
        await until_idle(client)
        gate.clear()
        started.clear()
        await send(client, *range(3, 6))
        await started.wait()
        await asyncio.to_thread(node.kill)
        gate.set()  # the worker's commit waits for the node
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(node.restart)
        await until_idle(client)
        assert set(charged) == set(range(6))
        assert not any(task.done() for task in working)
        gate.clear()
        started.clear()
        await send(client, 6, 7)
        await started.wait()
        stopping.set()
        gate.set()
        await asyncio.gather(*working)
        assert charged.count(6) == 1
        assert await lag(client) == (0 if 7 in charged else 1), "every record that was begun is committed"
        assert (await client.groups.describe("charging")).member_count == 0
