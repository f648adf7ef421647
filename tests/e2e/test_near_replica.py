"""Three nodes in three zones: a client in one of them reads there, and continues elsewhere when that node is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.faults.nodes import Node, make_nodes

from tidelog import Client, Consumer
from tidelog.errors import TidelogError
from tidelog_cli.up.local_cluster import free_ports

pytestmark = pytest.mark.e2e

PARTITIONS = 6
WAIT_S = 60


@pytest.fixture
def management() -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(3)]


@pytest.fixture
async def nodes(tmp_path: Path, management: list[str]) -> AsyncIterator[list[Node]]:
    nodes = make_nodes(3, tmp_path, None, None)
    try:
        await asyncio.gather(
            *(
                node.start("--management-port", where.rpartition(":")[2], "--zone", f"zone{number}")
                for number, (node, where) in enumerate(zip(nodes, management, strict=True))
            )
        )
        yield nodes
    finally:
        await asyncio.gather(*(node.kill() for node in nodes))


async def bytes_out(management: list[str]) -> list[int]:
    """Return how many bytes of batches each node has sent to readers."""
    counts: list[int] = []
    async with httpx.AsyncClient() as http:
        for where in management:
            lines = (await http.get(f"http://{where}/metrics")).text.splitlines()
            counts += [int(float(line.split()[1])) for line in lines if line.startswith("tidelog_bytes_out_total ")]
    return counts


async def publish(client: Client, values: range) -> None:
    async with client.producer("t") as producer:
        for value in values:
            await producer.send(b"%d" % value, partition=value % PARTITIONS)


async def taken(consumer: Consumer, values: range) -> None:
    async with asyncio.timeout(WAIT_S):
        found = sorted([int((await anext(consumer)).value or b"") for _ in values])
    assert found == list(values)


@pytest.mark.long
async def test_a_client_reads_in_its_zone(nodes: list[Node], management: list[str]) -> None:
    bootstrap = ",".join(node.address for node in nodes)
    async with Client(bootstrap) as anywhere, asyncio.timeout(3 * WAIT_S):
        while True:
            try:
                await anywhere.create_topic("t", partitions=PARTITIONS, replication_factor=3)
                break
            except TidelogError:
                await asyncio.sleep(0.2)  # the nodes have only just met
        await publish(anywhere, range(60))
        before = await bytes_out(management)
        async with Client(bootstrap, zone="zone1") as client, client.consumer("t") as consumer:
            await taken(consumer, range(60))
            await publish(anywhere, range(60, 120))
            await taken(consumer, range(60, 120))
            given = [now - then for now, then in zip(await bytes_out(management), before, strict=True)]
            assert (given[0], given[2]) == (0, 0)
            assert given[1] > 0
            await nodes[1].kill()
            await publish(anywhere, range(120, 180))
            await taken(consumer, range(120, 180))
