"""A graceful stop in a cluster: what this node owns goes to other replicas before it stops taking requests.

Without it every partition of a node that is restarted would be without an owner until the others have noticed, agreed
and sealed. A planned roll-over is one round, and a publish that meets it is merely sent on to the new owner.

    tell      the others hear that this node leaves, so that nothing new comes to it; two nodes that stop at the same
              time do not hand over to each other
    roll over each partition to a replica that lives, keeps up and stays; a bounded number at a time, because the
              writers of a partition wait while its epoch is being ended, and a thousand at once would wait for each
              other

All of it is limited in time: other nodes take over what is not handed over by then, as after a crash.

Rejected: draining the node in `__meta`. It would have to be undone at the next start, and it moves copies as well.
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

TELL_S: Final = 0.5
"""For telling the others. One that does not answer is stopped or cut off, and places nothing here soon."""
HAND_OVER_S: Final = 3.0
AT_ONCE: Final = 64
_LOOK_S: Final = 0.005


async def hand_over(broker: Broker) -> int:
    """Tell the others that this node leaves, give them what it owns, and return how many partitions that were.

    Returns after `HAND_OVER_S` at the latest, whatever has become of it by then.
    """
    began_s = broker.loop.time()
    handed: set[str] = set()
    tried: set[tuple[str, int]] = set()
    under_way: list[Partition] = []
    try:
        async with asyncio.timeout(HAND_OVER_S):
            await broker.cluster.leave(timeout_s=TELL_S)
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
        log.warning("%d partitions were not handed over in time; others will take them over", len(under_way))
    if handed:
        log.info("handed over %d partitions in %.2f s", len(handed), broker.loop.time() - began_s)
    return len(handed)


def _to_hand_over(broker: Broker, tried: set[tuple[str, int]]) -> Iterable[Partition]:
    """Yield what this node owns now and has not been tried: it may have come to own something meanwhile."""
    for partition in broker.partitions.all():
        if partition.state.writer is not None and (partition.name, partition.state.epoch) not in tried:
            yield partition


def _begin(broker: Broker, partition: Partition) -> bool:
    """Begin to roll a partition over to another replica; False when there is none that could own it."""
    replica = partition.replica
    now_ms = int(broker.loop.time() * 1000)
    behind = {follower.node_id for follower in replica.followers if not follower.keeps_up(now_ms)}
    plan = broker.cluster.heir(partition.driver.key, replica.state.active, behind=behind)
    if plan is None or partition.state.writer is None:
        return False
    partition.driver.roll_over(plan)
    return True
