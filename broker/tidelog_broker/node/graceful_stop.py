"""A graceful stop in a cluster: this node transfers its partitions to other replicas before it stops taking requests.

Without it, every partition of a restarted node would have no owner until the other nodes have detected its stop, agreed
and sealed the epoch. A planned roll-over takes one round, and a publish during it is forwarded to the new owner. The
steps are:

    announce   the other nodes learn that this node is leaving, so that it gets no new partitions; two nodes that stop
               at the same time do not transfer to each other
    roll over  each partition moves to a replica that is alive, keeps up and is not stopping; a limited number at a
               time, because a partition's writers wait while its epoch is being ended

All of it has a time limit: other nodes take over the remaining partitions, as after a crash.

Rejected: draining the node in `__meta`. It would have to be undone at the next start, and it also moves copies.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from tidelog_broker.broker import Broker
from tidelog_broker.partition.partition import Partition

log = logging.getLogger(__name__)

ANNOUNCE_TIMEOUT_S: Final = 0.5
"""Maximum time of the announcement. A node that does not answer is stopped or unreachable, so it assigns no partitions
for now."""
HAND_OVER_S: Final = 3.0
"""Maximum time of the announcement and all transfers together."""
AT_ONCE: Final = 64
"""Maximum number of transfers at a time."""
_LOOK_S: Final = 0.005


async def hand_over(broker: Broker) -> int:
    """Announce that this node leaves, transfer its partitions, and return how many were transferred.

    Returns after `HAND_OVER_S` at the latest.
    """
    began_s = broker.loop.time()
    handed: set[str] = set()
    tried: set[tuple[str, int]] = set()
    under_way: list[Partition] = []
    try:
        async with asyncio.timeout(HAND_OVER_S):
            await broker.cluster.leave(timeout_s=ANNOUNCE_TIMEOUT_S)
            while waiting := deque(_to_hand_over(broker, tried)):
                while waiting or under_way:
                    while waiting and len(under_way) < AT_ONCE:
                        partition = waiting.popleft()
                        tried.add((partition.name, partition.state.epoch))
                        if _begin(broker, partition):
                            under_way.append(partition)
                    handed.update(one.name for one in under_way if one.state.owner_id != broker.node_id)
                    under_way = [one for one in under_way if one.state.is_moving]
                    if under_way:
                        await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        log.warning(
            "stopped transferring partitions after %g s, with %d transfers in progress; other nodes take over the "
            "partitions that this node still owns",
            HAND_OVER_S,
            len(under_way),
        )
    if handed:
        log.info("transferred %d partitions in %.2f s", len(handed), broker.loop.time() - began_s)
    return len(handed)


def _to_hand_over(broker: Broker, tried: set[tuple[str, int]]) -> Iterable[Partition]:
    """Yield the partitions that this node owns now and has not tried to transfer, including newly owned ones."""
    for partition in broker.partitions.all():
        if partition.state.assigner is not None and (partition.name, partition.state.epoch) not in tried:
            yield partition


def _begin(broker: Broker, partition: Partition) -> bool:
    """Begin to roll a partition over to another replica; return False without an heir, or if this node cannot write."""
    replica = partition.replica
    now_ms = int(broker.loop.time() * 1000)
    lagging = {follower.node_id for follower in replica.followers if not follower.keeps_up(now_ms)}
    plan = broker.cluster.handover_plan(partition.driver.key, replica.state.active, lagging=lagging)
    if plan is None or partition.state.assigner is None:
        return False
    partition.driver.roll_over(plan)
    return True
