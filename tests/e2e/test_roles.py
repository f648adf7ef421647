"""Nodes of different roles: the only possible owner is killed, and temporary owners replace it until it is back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.founded import WAIT_S, Founded

from tidelog import Client, ClusterStatus
from tidelog.errors import TidelogError
from tidelog_broker.rebalance import mover, temporary_owner

pytestmark = pytest.mark.e2e

ROLES = {"a": ["persistence"], "c": ["ingestion"], "d": ["persistence"]}
TOPICS = {"solo": 1, "pair": 2, "trio": 3}
"""Topics and their replication factors."""


@pytest.fixture
async def founded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Founded]:
    """Founders: `a` and `d` only store copies, `c` stores nothing; `b`, which does both, is a process of its own."""
    monkeypatch.setattr(mover, "AGAIN_S", 0.05)
    monkeypatch.setattr(temporary_owner, "STEADY_S", 0.2)
    monkeypatch.setattr(temporary_owner, "AGAIN_S", 0.2)
    made = Founded(tmp_path, ("a", "b", "c", "d"), ROLES)
    yield made
    await made.close()


@contextlib.contextmanager
def able_node(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run `b`."""
    words = ["--bootstrap", path / "cluster.json", "--secret-file", path / "secret", "--node-id", "b"]
    words += ["--data", path / "b", "--management-port", "0"]
    command = [
        sys.executable,
        "-m",
        "tidelog_cli.up.supervised_child",
        str(os.getpid()),
        "tidelog_cli",
        "node",
        *map(str, words),
    ]
    with (path / "b.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)


async def until(client: Client, condition: Callable[[ClusterStatus], bool], what: str) -> None:
    """Ask for the status until it is as wanted."""
    status: ClusterStatus | None = None
    try:
        async with asyncio.timeout(WAIT_S):
            while status is None or not condition(status):
                with contextlib.suppress(TidelogError):
                    status = await client.cluster_status()
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{what}: {status}") from None


def owners(status: ClusterStatus) -> dict[str, str]:
    return {topic.name: topic.partitions[0].owner for topic in status.topics}


async def publish(client: Client, values: dict[str, list[bytes]], *topics: str) -> None:
    """Add some records to topics, and to their expected content."""
    for topic in topics:
        more = [b"%d" % number for number in range(len(values[topic]), len(values[topic]) + 50)]
        await client.producer(topic).send_many(more)
        values[topic] += more


@pytest.mark.long
async def test_the_only_possible_owner_is_killed_and_rejoins(founded: Founded) -> None:
    values: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
    with contextlib.ExitStack() as running:
        able = running.enter_context(able_node(founded.path))
        await founded.found("a", "c", "d")
        await founded.settled()
        async with Client(f"127.0.0.1:{founded.nodes['c'].port}") as client:
            await until(client, lambda status: "b" in {node.node_id for node in status.nodes if node.alive}, "no b")
            for topic, copies in TOPICS.items():
                await client.create_topic(topic, partitions=1, replication_factor=copies)
            await publish(client, values, *TOPICS)
            status = await client.cluster_status()
            assert {name: owners(status)[name] for name in TOPICS} == dict.fromkeys(TOPICS, "b")
            assert all("c" not in topic.partitions[0].placement for topic in status.topics)
            assert {node.node_id: list(node.roles) for node in status.nodes} == ROLES | {
                "b": ["ingestion", "persistence"]
            }

            able.kill()
            await publish(client, values, "trio")
            await until(client, lambda status: owners(status)["trio"] in {"a", "d"}, "no node took over")

            running.enter_context(able_node(founded.path))
            await until(
                client, lambda status: set(owners(status).values()) == {"b"}, "ownership stays with who only stores"
            )
            await publish(client, values, *TOPICS)
            for topic in TOPICS:
                async with client.consumer(topic, start="earliest") as consumer, asyncio.timeout(WAIT_S):
                    assert [(await anext(consumer)).value for _ in values[topic]] == values[topic]
