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
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.rebalance.ownership_advice import EpochTimes, Owned

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
        self._could_go = EpochTimes()

    @property
    def again_s(self) -> float:
        """See `Adviser`. Should a partition be back, it stays for longer."""
        return AGAIN_S

    def plan(self, owned: Owned) -> Plan | None:
        """Return the epoch by which a partition goes to a replica that may own it; None while this node must."""
        plan = self._cluster.relief(owned.key, owned.active, behind=owned.behind(self._now_ms()))
        if plan is None:
            self._could_go.broken(owned.key)
            return None
        return plan if self._could_go.held_s(owned, self._clock_s()) >= STEADY_S else None
