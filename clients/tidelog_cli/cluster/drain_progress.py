"""Progress of a drain or a rebalance, from the cluster's status, and waiting for its end.

A drain request only records the decision; owners then move their partitions, and each new replica fetches its records.
No node has a list of remaining work, so the status is polled until nothing is left.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog import Client, ClusterStatus

LOOK_S: Final = 1.0
"""Interval in seconds at which the cluster's status is requested."""


class Progress(NamedTuple):
    """Progress of an operation as a sentence, and whether the operation is complete."""

    text: str
    done: bool


def drain_progress_of(node_id: str, cluster: ClusterStatus) -> Progress:
    """Return how many partitions a draining node still stores, and how many of them cannot move."""
    others = sum(
        1 for node in cluster.nodes if node.node_id != node_id and not node.draining and "persistence" in node.roles
    )
    stored = moving = 0
    for topic in cluster.topics:
        here = sum(node_id in partition.placement for partition in topic.partitions)
        # Ownership can always move to another replica, because that needs no new copy.
        owned = sum(partition.owner == node_id for partition in topic.partitions)
        stored += here
        moving += here if others >= topic.replication_factor else owned if others else 0
    fetching = fetch_progress_of(cluster)
    if not stored:
        if fetching.done:
            return Progress(
                f"{node_id} stores no partitions; remove it with `tidelog cluster remove {node_id}`", done=True
            )
        return Progress(f"{node_id} stores no partitions; {fetching.text}", done=False)
    text = f"{node_id} is draining; it stores {counted(stored, 'partition')}"
    stuck = stored - moving
    if stuck:
        text += f", {stuck:,} of which cannot move before another node joins: there are too few nodes for all copies"
    if not fetching.done:
        text += f"; {fetching.text}"
    return Progress(text, done=not moving and fetching.done)


def fetch_progress_of(cluster: ClusterStatus) -> Progress:
    """Return how many records new replicas still have to fetch, and how many replicas may be incomplete."""
    missing = [
        replica.missing_records
        for topic in cluster.topics
        for partition in topic.partitions
        for replica in partition.replicas
        if replica.missing_epochs
    ]
    fetching = sum(records > 0 for records in missing)
    at_fault = len(missing) - fetching  # The number of records that copies with a fault lack is unknown.
    texts = []
    if fetching:
        texts.append(f"{counted(fetching, 'copy', 'copies')} must still fetch {sum(missing):,} older records")
    if at_fault:
        texts.append(f"{counted(at_fault, 'copy', 'copies')} may be incomplete")
    return Progress(", ".join(texts) or "all copies are complete", done=not missing)


async def watch(client: Client, tell: Callable[[ClusterStatus], Progress]) -> None:
    """Poll the cluster until the operation is complete; print changes to stderr, and the end to stdout.

    Nothing is written to stdout before the end, because a failed write to it ends the command with exit code 0.
    """
    last = ""
    while True:
        progress = tell(await client.cluster_status())
        if progress.done:
            sys.stdout.write(f"done: {progress.text}\n")
            return
        if progress.text != last:
            last = progress.text
            sys.stderr.write(f"{progress.text}\n")
        await asyncio.sleep(LOOK_S)


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, in the plural if needed: `many`, or by default `one` with an `s`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
