"""Three nodes as their own processes, started by one command: the owner is killed under load, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tidelog import Client, ClusterStatus
from tidelog.errors import TidelogError

pytestmark = pytest.mark.e2e

START_TIMEOUT_S = 90
WAIT_S = 60


class Cluster:
    """`tidelog up --nodes 3`, and nodes that were started again by hand."""

    def __init__(self, data: Path, process: asyncio.subprocess.Process, ready: dict[str, Any]) -> None:
        self.data = data
        self.process = process
        self.bootstrap: str = ready["bootstrap"]
        self.nodes = {node["node_id"]: node for node in ready["nodes"]}
        self.again: list[subprocess.Popen[bytes]] = []

    def kill(self, node_id: str) -> None:
        os.kill(self.nodes[node_id]["pid"], signal.SIGKILL)

    def start(self, node_id: str) -> None:
        """Start a node again with its command."""
        words = ["--bootstrap", self.data / "cluster.json", "--secret-file", self.data / "secret"]
        words += ["--node-id", node_id, "--data", self.data / node_id, "--management-port", "0"]
        command = [sys.executable, "-m", "tidelog_cli.up.supervised_child", str(os.getpid()), "tidelog_cli", "node"]
        with (self.data / f"{node_id}.log").open("ab") as log:
            self.again.append(subprocess.Popen([*command, *map(str, words)], stdout=subprocess.DEVNULL, stderr=log))
        self.nodes[node_id]["pid"] = self.again[-1].pid


@contextlib.asynccontextmanager
async def cluster(data: Path, *, nodes: int = 3) -> AsyncIterator[Cluster]:
    command = [sys.executable, "-m", "tidelog_cli", "up", "--nodes", str(nodes), "--data", str(data), "--json"]
    command += ["--port", "0", "--management-port", "0", "--http-port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            line = await process.stdout.readline()
        assert line, "the cluster did not start"
        up = Cluster(data, process, json.loads(line))
        try:
            yield up
        finally:
            for node in up.again:
                node.terminate()
                node.wait(WAIT_S)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            async with asyncio.timeout(WAIT_S):
                await process.wait()


async def until(client: Client, condition: Callable[[ClusterStatus], bool], what: str) -> ClusterStatus:
    """Ask for the status until it is as wanted."""
    status: ClusterStatus | None = None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(TidelogError):
                    status = await client.cluster_status()
                    if condition(status):
                        return status
                await asyncio.sleep(0.1)
    raise AssertionError(f"{what}: {status}")


async def read_all(client: Client, topic: str, count: int) -> list[bytes | None]:
    """Return the values of the first records of partition 0, at least `count`, with their offsets checked."""
    values: list[bytes | None] = []
    async with asyncio.timeout(WAIT_S):
        while len(values) < count:
            fetched = await client.fetch(topic, 0, len(values))
            for batch in fetched.batches:
                assert batch.base_offset == len(values)
                values += batch.values()
    return values


def copies_are_level(status: ClusterStatus, topic: str) -> bool:
    (partition,) = next(found.partitions for found in status.topics if found.name == topic)
    replicas = partition.replicas
    return len(replicas) == 3 and all(replica.lag == 0 for replica in replicas)


async def publish_on(client: Client, topic: str, acknowledged: dict[int, int], stop: asyncio.Event) -> None:
    """Publish 0, 1, 2, … one after the other, and note the offset of each."""
    producer = client.producer(topic, delivery_timeout_s=WAIT_S)
    while not stop.is_set():
        number = len(acknowledged)
        receipt = await producer.send(b"%d" % number)
        acknowledged[number] = receipt.offset


async def reaches(acknowledged: dict[int, int], count: int) -> None:
    async with asyncio.timeout(WAIT_S):
        while len(acknowledged) < count:  # noqa: ASYNC110 - the publisher counts, and does nothing else
            await asyncio.sleep(0.01)


async def owner_of(client: Client, topic: str) -> str:
    return (await client.topic(topic)).partitions[0].owner


async def checked(work: Callable[[], Awaitable[None]], publishing: asyncio.Task[None]) -> None:
    """Do something while records are published; a failure to publish is the failure."""
    doing = asyncio.ensure_future(work())
    done, _ = await asyncio.wait([doing, publishing], return_when=asyncio.FIRST_COMPLETED)
    if publishing in done:
        doing.cancel()
        await publishing
    await doing


async def test_killing_the_owner_loses_nothing_and_it_rejoins(tmp_path: Path) -> None:
    async with cluster(tmp_path / "data") as up, Client(up.bootstrap) as client:
        topic = await client.create_topic("flights", partitions=1, replication_factor=3)
        assert len(topic.partitions[0].placement) == 3
        acknowledged: dict[int, int] = {}
        stop = asyncio.Event()
        publishing = asyncio.create_task(publish_on(client, "flights", acknowledged, stop))

        async def kill_the_owner() -> None:
            await reaches(acknowledged, 200)
            killed = await owner_of(client, "flights")
            up.kill(killed)
            await reaches(acknowledged, len(acknowledged) + 200)
            assert await owner_of(client, "flights") != killed
            up.start(killed)
            await until(client, lambda status: copies_are_level(status, "flights"), "the killed node does not catch up")
            await reaches(acknowledged, len(acknowledged) + 50)
            stop.set()

        await checked(kill_the_owner, publishing)
        await publishing
        values = await read_all(client, "flights", len(acknowledged))
        assert values == [b"%d" % number for number in range(len(acknowledged))], "each once, in order"
        assert acknowledged == {number: number for number in range(len(acknowledged))}
        await client.commit("readers", "flights", {0: 100})

        def all_live(status: ClusterStatus) -> bool:
            return all(node.alive and node.membership in {"alive", "suspect"} for node in status.nodes)

        status = await until(client, all_live, "a node is thought dead")
        assert [node.node_id for node in status.nodes] == sorted(up.nodes)

    async with cluster(tmp_path / "data") as up, Client(up.bootstrap) as client:
        assert len(await read_all(client, "flights", len(acknowledged))) == len(acknowledged), "a restart keeps all"
        (position,) = await client.committed("readers")
        assert position.next_offset == 100
        receipt = await client.producer("flights").send(b"more")
        assert receipt.offset == len(acknowledged)
