"""How far a drain or a rebalance is, told from the status of the cluster, and waiting for its end.

The node that is asked to drain another only writes that down; owners move what they own, and the new copies then fetch
the history, each by itself. Nobody has a list of it to count down, so the status is looked at until nothing is left.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from tidelog import Client, ClusterStatus

LOOK_S: Final = 1.0


class Told(NamedTuple):
    """How far something is, in a sentence, and whether it is done."""

    text: str
    done: bool


def tell_drain(node_id: str, cluster: ClusterStatus) -> Told:
    """Say what a draining node still stores, and how much of it can go nowhere."""
    others = sum(
        1 for node in cluster.nodes if node.node_id != node_id and not node.draining and "persistence" in node.roles
    )
    stored = moving = 0
    for topic in cluster.topics:
        here = sum(node_id in partition.placement for partition in topic.partitions)
        # What it owns can always go to another replica, which takes a copy away from nobody.
        owned = sum(partition.owner == node_id for partition in topic.partitions)
        stored += here
        moving += here if others >= topic.replication_factor else owned if others else 0
    fetching = tell_fetching(cluster)
    if not stored:
        if fetching.done:
            return Told(f"{node_id} stores nothing any more; `tidelog cluster remove {node_id}` may follow", done=True)
        return Told(f"{node_id} stores nothing any more; {fetching.text}", done=False)
    text = f"{node_id} is draining; it stores {counted(stored, 'partition')}"
    stuck = stored - moving
    if stuck:
        text += f", {stuck:,} of which can go nowhere before another node joins: there are too few for all copies"
    if not fetching.done:
        text += f"; {fetching.text}"
    return Told(text, done=not moving and fetching.done)


def tell_fetching(cluster: ClusterStatus) -> Told:
    """Say how much history is on its way to new copies, and how many copies are in doubt or damaged."""
    missing = [
        replica.missing_records
        for topic in cluster.topics
        for partition in topic.partitions
        for replica in partition.replicas
        if replica.missing_epochs
    ]
    fetching = sum(records > 0 for records in missing)
    at_fault = len(missing) - fetching  # how much these lack cannot be told
    texts = []
    if fetching:
        texts.append(f"{counted(fetching, 'copy', 'copies')} still to fetch {sum(missing):,} older records")
    if at_fault:
        texts.append(f"{counted(at_fault, 'copy', 'copies')} not known to be whole")
    return Told(", ".join(texts) or "every copy has all of its history", done=not missing)


async def watch(client: Client, tell: Callable[[ClusterStatus], Told], *, last: str = "") -> None:
    """Look at the cluster until something is done; each change is a line of standard error, the end one of output.

    `last` has been said already.
    """
    while True:
        told = tell(await client.cluster_status())
        if told.done:
            sys.stdout.write(f"done: {told.text}\n")
            return
        if told.text != last:
            last = told.text
            sys.stderr.write(f"{told.text}\n")
        await asyncio.sleep(LOOK_S)


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
