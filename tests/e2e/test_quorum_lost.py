"""Two of three nodes are killed: committed records are read, the missing nodes are named, and recovery is automatic."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.faults.nodes import Node, make_nodes

from tidelog import Client, Topic
from tidelog.errors import TidelogError
from tidelog_cli.up.local_cluster import free_ports
from tidelog_proto.batch.key_partitions import partition_for_key

pytestmark = pytest.mark.e2e

PARTITIONS = 6
RECORDS = 60
WAIT_S = 60
POSITIONS = b"__offsets/%d" % partition_for_key(b"g", 16)
"""Partition of group g, with the default number of partitions of a cluster."""
SOON_S = 20
"""Far less than a client's request may take."""


@pytest.fixture
def management() -> str:
    """Where the node that survives tells about itself."""
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture
async def nodes(tmp_path: Path, management: str) -> AsyncIterator[list[Node]]:
    nodes = make_nodes(3, tmp_path, None, None)
    survivor, *others = nodes
    port = management.rpartition(":")[2]
    try:
        await asyncio.gather(survivor.start("--management-port", port), *(node.start() for node in others))
        yield nodes
    finally:
        await asyncio.gather(*(node.kill() for node in nodes))


def bootstrap(nodes: list[Node]) -> str:
    return ",".join(node.address for node in nodes)


async def known_to_be_committed(http: httpx.AsyncClient) -> list[str]:
    """Return up to where a node knows the topic's partitions to be committed."""
    lines = (await http.get("/metrics")).text.splitlines()
    return [line.split()[1] for line in lines if line.startswith("tidelog_high_watermark_offset{") and '"t"' in line]


async def filled(client: Client, management: str) -> Topic:
    """Create a topic with several owners, with records in all partitions; return when the survivor knows them.

    Storing them is not enough: an owner that dies at once has not reported yet that they are committed.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await client.create_topic("t", partitions=PARTITIONS, replication_factor=3)
                break
            except TidelogError:
                await asyncio.sleep(0.2)  # the nodes have only just met
    async with client.producer("t") as producer:
        for number in range(RECORDS):
            await producer.send(b"%d" % number, partition=number % PARTITIONS)
    await client.commit("g", "t", dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS - 1))
    all_of_it = PARTITIONS * [str(RECORDS / PARTITIONS)]
    async with httpx.AsyncClient(base_url=f"http://{management}") as http, asyncio.timeout(WAIT_S):
        while await known_to_be_committed(http) != all_of_it:  # noqa: ASYNC110 - it is asked over HTTP
            await asyncio.sleep(0.1)
    return await client.topic("t")


@contextlib.asynccontextmanager
async def command(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tidelog_cli", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def lines(process: asyncio.subprocess.Process, count: int) -> set[bytes]:
    assert process.stdout is not None
    return {(await process.stdout.readline()).strip() for _ in range(count)}


async def said(process: asyncio.subprocess.Process, what: bytes) -> None:
    assert process.stderr is not None
    while what not in (line := await process.stderr.readline()):
        assert line, "it ended without a word"


@pytest.mark.long
async def test_committed_records_are_read_and_recovery_is_automatic(nodes: list[Node], management: str) -> None:
    where = ("--bootstrap", bootstrap(nodes))
    async with Client(bootstrap(nodes)) as client:
        described = await filled(client, management)
    owners = {one.owner for one in described.partitions}
    assert len(owners) > 1, "one that stays alone with all would show little"
    await asyncio.gather(nodes[1].kill(), nodes[2].kill())
    everything = {b"%d" % number for number in range(RECORDS)}
    async with asyncio.timeout(WAIT_S), command("consume", "t", *where) as all_of_it:
        async with command("consume", "t", "--group", "g", *where) as group:
            assert await lines(all_of_it, RECORDS) == everything
            await said(all_of_it, b"cannot be confirmed without a quorum")
            await said(group, POSITIONS + b": 1 of 3 replicas are alive, 2 are needed")
            async with command("cluster", "status", *where) as status:
                await said(status, b"partitions without a quorum (t/0, t/1, t/2")
            await nodes[1].start()
            assert await lines(group, PARTITIONS) == everything - {b"%d" % n for n in range(RECORDS - PARTITIONS)}
            assert await group.wait() == 0
        assert await all_of_it.wait() == 0
        assert all_of_it.stdout is not None
        assert not await all_of_it.stdout.read(), "each record once"


@pytest.mark.long
async def test_the_gateway_serves_reads_and_names_the_missing_nodes(nodes: list[Node], management: str) -> None:
    (port,) = free_ports(1)
    async with Client(bootstrap(nodes)) as client:
        await filled(client, management)
    async with (
        command("gateway", "--bootstrap", bootstrap(nodes), "--http-port", str(port)) as gateway,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_S) as http,
        asyncio.timeout(WAIT_S),
    ):
        assert gateway.stdout is not None
        assert await gateway.stdout.readline(), "it did not start"
        assert (await http.get("/readyz")).json() == {"status": "ready", "nodes": 3}
        await asyncio.gather(nodes[1].kill(), nodes[2].kill())
        for partition in range(PARTITIONS):
            answer = await http.get(f"/v1/topics/t/partitions/{partition}/records", timeout=SOON_S)
            assert len(answer.json()["records"]) == RECORDS // PARTITIONS
        for path in ("/v1/topics/t/partitions/0/records?from=latest", "/v1/groups/g/offsets"):
            answer = await http.get(path, timeout=SOON_S)
            assert (answer.status_code, answer.json()["code"]) == (503, "quorum_lost")
            assert "1 of 3 replicas are alive, 2 are needed" in answer.json()["detail"]
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["status"] == "degraded"
        assert ready.json()["nodes_away"] == sorted(node.node_id for node in nodes[1:])
        await nodes[2].start()
        while (await http.get("/readyz")).json()["status"] != "ready":  # noqa: ASYNC110 - it is asked over HTTP
            await asyncio.sleep(0.2)
        assert (await http.get("/v1/groups/g/offsets")).status_code == 200
