"""Every node of a cluster is replaced by plan, one after the other: join, drain, remove, stop; nothing is missing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.founded import WAIT_S, Founded

from tidelog import Client, ClusterStatus
from tidelog.errors import InvalidRequestError

pytestmark = pytest.mark.e2e

TOPICS = {"solo": 1, "trio": 3}
"""Topics and their replication factors."""
BATCH = 50


@pytest.fixture
async def founded(tmp_path: Path) -> AsyncIterator[Founded]:
    made = Founded(tmp_path)
    yield made
    await made.close()


async def publish(client: Client, values: list[bytes]) -> None:
    """Add some records to each topic, and to their expected content."""
    more = [b"%d" % number for number in range(len(values), len(values) + BATCH)]
    for topic in TOPICS:
        await client.producer(topic).send_many(more)
    values += more


async def check(client: Client, values: list[bytes]) -> None:
    """Read every topic from its first record to its last."""
    for topic in TOPICS:
        async with client.consumer(topic, start="earliest") as consumer, asyncio.timeout(WAIT_S):
            assert [(await anext(consumer)).value for _ in values] == values
        (offset,) = (await client.list_offsets(topic, "latest")).values()
        assert offset.offset == len(values)


async def remove(client: Client, node_id: str) -> None:
    """Remove a node that drains, as soon as the cluster lets it go."""
    refused = ""
    try:
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    return await client.remove_node(node_id)
                except InvalidRequestError as error:
                    refused = str(error)
                    await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(refused) from None


def is_settled(status: ClusterStatus, nodes: set[str]) -> bool:
    """Whether these nodes are the cluster's members and have all copies."""
    partitions = [partition for topic in status.topics for partition in topic.partitions]
    return (
        {node.node_id for node in status.nodes} == nodes
        and all(nodes.issuperset(partition.placement) for partition in partitions)
        and not any(replica.missing_epochs for partition in partitions for replica in partition.replicas)
    )


@pytest.mark.long
async def test_every_node_is_replaced_and_nothing_is_missing_at_any_step(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    seeds = ",".join(f"127.0.0.1:{node.port}" for node in founded.nodes.values())
    values: list[bytes] = []
    async with Client(seeds) as client:
        for topic, copies in TOPICS.items():
            await client.create_topic(topic, partitions=1, replication_factor=copies)
        await publish(client, values)
        for leaving, coming in (("a", "d"), ("b", "e"), ("c", "")):
            if coming:
                await founded.join(coming)
                await founded.settled()
            await client.drain_node(leaving)
            await publish(client, values)
            await check(client, values)
            await remove(client, leaving)
            await check(client, values)
            removed = founded.nodes[leaving]
            await founded.until(lambda removed=removed: removed.lifecycle.health.state == "failed", "it did not stop")  # type: ignore[misc]
            assert await founded.stop(leaving) == os.EX_CONFIG
            await publish(client, values)
            await check(client, values)
        async with asyncio.timeout(WAIT_S):
            while not is_settled(await client.cluster_status(), {"d", "e"}):  # noqa: ASYNC110 - it is far away
                await asyncio.sleep(0.1)
        await check(client, values)


@pytest.mark.long
async def test_the_only_copy_moves_repeatedly_and_is_found_at_its_last_node(founded: Founded) -> None:
    """After two moves the first epoch's node is gone, and who holds it is named neither at its end nor at the last."""
    await founded.found()
    for name in ("d", "e"):
        await founded.join(name)
    await founded.settled()
    values: list[bytes] = []
    seeds = ",".join(f"127.0.0.1:{node.port}" for node in founded.nodes.values())
    async with Client(seeds) as client:
        await client.create_topic("solo", partitions=1, replication_factor=1)
        await client.create_topic("trio", partitions=1, replication_factor=3)
        await publish(client, values)
        for _ in range(3):
            owner = (await client.topic("solo")).partitions[0].owner
            await client.drain_node(owner)
            await remove(client, owner)
            await founded.stop(owner)
            await check(client, values)
