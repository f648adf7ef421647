"""Temporary ownership: a node that merely stores copies owns a partition while no other replica can.

By its role it owns nothing, but writes that nobody takes help no one: where no living replica may own, one that only
stores copies takes over, or is handed what a stopping node owns. It gives the partition up as soon as a replica
that may own keeps up, and does not wait for the long calm of `preferred_owner`: its publishers are where they should
not be.

It waits a little, and each time that the partition is back much longer: a replica that comes and goes must not take its
publishers along, and it may have handed over for a reason that is seen only there, such as a full disk. No copy moves;
where none of the replicas may own, `mover` makes a copy on a node that may.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.ports import PartitionKey, Plan
from tidelog_broker.rebalance.ownership_advice import LeftAlone, Owned

STEADY_S: Final = 10.0
"""So long a replica that may own has to keep up with this node before it does."""
AGAIN_S: Final = 300.0


class TemporaryOwner:
    """See the module.

    Args:
        cluster: who may own, and who is there.
        now_ms: the clock by which replicas were heard.
        clock_s: the monotonic clock.
    """

    def __init__(
        self, cluster: Cluster, *, now_ms: Callable[[], int], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster = cluster
        self._now_ms = now_ms
        self._clock_s = clock_s
        self._since: dict[PartitionKey, tuple[int, float]] = {}
        """Epochs that could go elsewhere, and since when."""
        self._left = LeftAlone()

    def plan(self, owned: Owned) -> Plan | None:
        """Return the epoch by which a partition goes to a replica that may own it; None while this node must."""
        key, now_s = owned.key, self._clock_s()
        plan = self._cluster.relief(key, owned.active, behind=owned.behind(self._now_ms()))
        if plan is None:
            self._since.pop(key, None)
            return None
        epoch, since_s = self._since.get(key, (-1, now_s))
        if epoch != owned.active.epoch:
            since_s = now_s
            self._since[key] = owned.active.epoch, now_s
        is_steady = now_s - since_s >= STEADY_S
        return plan if is_steady and not self._left.includes(key, now_s) else None

    def taken(self, key: PartitionKey) -> None:
        """The partition goes. Should it be back, it stays for longer."""
        self._left.add(key, self._clock_s(), first_s=AGAIN_S)
