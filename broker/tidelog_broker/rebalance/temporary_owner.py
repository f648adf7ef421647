"""Temporary ownership: a node that may only store copies owns a partition while no other replica can.

By its role such a node owns nothing, but a partition without an owner takes no writes: if no live replica may own it, a
node that only stores copies takes over, or gets what a stopping node owns. It gives the partition up as soon as a
replica that may own it keeps up, without the long stable time of `preferred_owner`.

The transfer waits a little, and much longer each time the partition returns: an unstable replica must not interrupt
publishers repeatedly, and it may have given the partition up for a reason that only its node knows, such as a full
disk. No copy moves; if no replica may own the partition, `mover` creates a copy on a node that may.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.rebalance.ownership_advice import EpochTimes, Owned

STEADY_S: Final = 10.0
"""How long a replica with the role ingestion must keep up before it becomes the owner."""
AGAIN_S: Final = 300.0


class TemporaryOwner:
    """Advises the transfer of partitions that this node owns temporarily to replicas that may own them.

    Args:
        now_ms: the replicas' clock.
        clock_s: the monotonic clock.
    """

    def __init__(
        self, cluster: Cluster, *, now_ms: Callable[[], int], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._now_ms = now_ms
        self._clock_s = clock_s
        self._could_go = EpochTimes()

    @property
    def again_s(self) -> float:
        """See `Adviser`. It is much longer than `STEADY_S`, which applies before the first move."""
        return AGAIN_S

    def plan(self, owned: Owned) -> Plan | None:
        """Return the epoch in which a replica with the role ingestion owns the partition.

        None if the owner has that role, or until a replica with it has kept up for `STEADY_S`.
        """
        plan = self._cluster.ingestion_owner_plan(owned.key, owned.active, lagging=owned.lagging(self._now_ms()))
        if plan is None:
            self._could_go.broken(owned.key)
            return None
        return plan if self._could_go.held_s(owned, self._clock_s()) >= STEADY_S else None
