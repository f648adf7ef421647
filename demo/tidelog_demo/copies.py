"""The placement of the records: each partition's owner and replicas, and records that a replica is missing.

A publish is acknowledged when a quorum of the replicas has stored it, so the slowest replica may still lack the last
records; the demonstration waits for it. The figures are those of the owners, to which replicas confirm what they store.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from rich.table import Table

from tidelog import Client, Topic

LEVEL_TIMEOUT_S: Final = 30.0
"""Maximum time in seconds that the demonstration waits until all replicas have all records."""
_PERIOD_S: Final = 0.1


async def level_topic(client: Client, name: str, *, copies: int) -> Topic:
    """Return the topic as soon as each partition has `copies` replicas with all records, or after `LEVEL_TIMEOUT_S`.

    Raises:
        TidelogError: the cluster cannot be reached.
    """
    topic = await _described(client, name)
    with contextlib.suppress(TimeoutError):  # `shortages` reports missing records
        async with asyncio.timeout(LEVEL_TIMEOUT_S):
            while not _is_level(topic, copies):
                await asyncio.sleep(_PERIOD_S)
                topic = await _described(client, name)
    return topic


async def _described(client: Client, name: str) -> Topic:
    topics = (await client.cluster_status()).topics
    return next((topic for topic in topics if topic.name == name), Topic(name, b""))


def _is_level(topic: Topic, copies: int) -> bool:
    return bool(topic.partitions) and all(
        len(partition.replicas) == copies and all(replica.lag == 0 for replica in partition.replicas)
        for partition in topic.partitions
    )


def shortages(topic: Topic, records: int, *, copies: int) -> list[str]:
    """Return a sentence for each deviation from `copies` replicas with all `records`; empty without deviations."""
    stored = sum(partition.high_watermark - partition.log_start_offset for partition in topic.partitions)
    difference = f"topic {topic.name!r} has {stored:,} records; {records:,} were published"
    problems = [] if stored == records else [difference]
    for partition in topic.partitions:
        name = f"partition {partition.partition}"
        if len(partition.replicas) != copies:
            problems.append(f"{name} has {len(partition.replicas)} replicas; {copies} expected")
        problems += [
            f"{name} is missing {partition.high_watermark - replica.held_offset:,} records on {replica.node_id}"
            for replica in partition.replicas
            if replica.held_offset < partition.high_watermark
        ]
    return problems


def whereabouts(topic: Topic) -> Table:
    """Return a table of each partition's owner, replicas and records."""
    table = Table(title=f"Placement of topic {topic.name!r}")
    table.add_column("partition", justify="right")
    table.add_column("owner")
    table.add_column("copies")
    table.add_column("records", justify="right")
    for partition in topic.partitions:
        records = partition.high_watermark - partition.log_start_offset
        copies = ", ".join(sorted(replica.node_id for replica in partition.replicas))
        table.add_row(str(partition.partition), partition.owner, copies, f"{records:,}")
    return table
