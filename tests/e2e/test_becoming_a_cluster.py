"""A single node becomes a cluster of three: its data stays, gets copies, and survives its loss."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.test_crash import end, ready, start

from tidelog import Client, Topic
from tidelog_broker.storage.io.filesystem import RealFileSystem
from tidelog_broker.storage.offline.verify import verify
from tidelog_cli.up.local_cluster import free_ports
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

WAIT_S = 60
VALUES = [b"%d" % number for number in range(500)]


def tidelog(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tidelog_cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def told(*arguments: str) -> tuple[int, str]:
    process = tidelog(*arguments)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output + errors


async def values(client: Client) -> list[bytes | None]:
    found: list[bytes | None] = []
    while True:
        fetched = await client.fetch("t", 0, len(found))
        if not fetched.batches:
            return found
        found += [value for batch in fetched.batches for value in batch.values()]


async def until(client: Client, holds: Callable[[Topic], bool]) -> Topic:
    async with asyncio.timeout(WAIT_S):
        while not holds(topic := await client.topic("t")):  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.2)
    return topic


def is_whole(topic: Topic, copies: int) -> bool:
    (partition,) = topic.partitions
    behind = [replica for replica in partition.replicas if replica.lag or replica.missing_epochs]
    return len(partition.placement) == copies and len(partition.replicas) >= copies - 1 and not behind


def own_ends(data: Path) -> dict[str, int]:
    """Return how far a node's files of the broker's own topics reach."""
    ends: dict[str, int] = {}
    for report in verify(RealFileSystem(), data):
        if report.topic in {META_TOPIC, OFFSETS_TOPIC} and report.role == "log":
            ends[report.topic] = max(ends.get(report.topic, 0), report.end_offset or 0)
    return ends


@pytest.mark.long
async def test_data_of_a_single_node_survives_its_loss(tmp_path: Path) -> None:
    ports, data, files = free_ports(3), tmp_path / "first", tmp_path / "cluster"
    process = start(data, port=ports[0])
    node_id = ready(process)["node_id"]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    async with Client(addresses[0]) as client:
        await client.create_topic("t")
        async with client.producer("t") as producer:
            await producer.send_many(VALUES)
        await client.commit("g", "t", {0: 123})
    end(process)

    made = ("cluster", "init", str(files), "--node", f"{node_id}={addresses[0]}", "--from", str(data), "--json")
    code, output = told(*made)
    assert code == 0, output
    document = json.loads(output)
    assert document["cluster_id"] == json.loads((data / "node.json").read_text())["cluster_id"]
    first = tidelog(*document["commands"][node_id][1:], "--management-port", "0")
    secret = ("--secret-file", document["secret_file"], "--management-port", "0")
    others: list[subprocess.Popen[str]] = []
    try:
        ready(first)
        for number in (1, 2):
            place = ("--data", str(tmp_path / f"{number}"), "--port", str(ports[number]), "--node-id", f"more-{number}")
            others.append(tidelog("node", *place, "--seeds", addresses[0], *secret))
        for other in others:
            ready(other)
        async with Client(addresses) as client:
            assert await values(client) == VALUES
            await client.alter_topic("t", replication_factor=3)
            await until(client, lambda topic: is_whole(topic, 3))
            await client.alter_topic("t", replication_factor=2)
            await client.rebalance()
            await until(client, lambda topic: is_whole(topic, 2))
            await client.alter_topic("t", replication_factor=3)
            await until(client, lambda topic: is_whole(topic, 3))
            async with client.producer("t") as producer:
                await producer.send(b"last")
        async with asyncio.timeout(WAIT_S):  # the cluster's own topics get their copies by themselves
            while own_ends(tmp_path / "1") != own_ends(data) or own_ends(tmp_path / "2") != own_ends(data):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        first.kill()
        first.wait()
        async with Client(addresses[1:], request_timeout_s=WAIT_S) as client:
            assert await values(client) == [*VALUES, b"last"]
            async with client.producer("t") as producer:
                await producer.send(b"without the first")
            assert [(one.partition, one.next_offset) for one in await client.committed("g", "t")] == [(0, 123)]
            assert await values(client) == [*VALUES, b"last", b"without the first"]
    finally:
        for one in (first, *others):
            if one.poll() is None:
                end(one)
            one.communicate()


@pytest.mark.parametrize(
    ("node", "complaint"), [("other=h", "the only founder"), ("{id}=h --node b=h:1", "the only founder")]
)
def test_only_the_node_itself_founds(tmp_path: Path, node: str, complaint: str) -> None:
    (tmp_path / "node.json").write_text(json.dumps({"node_id": "me", "cluster_id": "ab" * 16}))
    options = f"--node {node.format(id='me')}".split()
    code, output = told("cluster", "init", str(tmp_path / "c"), *options, "--from", str(tmp_path))
    assert code == 2
    assert complaint in output
    assert not (tmp_path / "c").exists()


def test_a_directory_without_data_of_a_node_is_refused(tmp_path: Path) -> None:
    code, output = told("cluster", "init", str(tmp_path / "c"), "--node", "a=h", "--from", str(tmp_path))
    assert (code, "is not the data directory of a node" in output) == (2, True)
