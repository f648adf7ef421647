"""Ownership goes back to the nodes that placement prefers, once the cluster has been calm for a while.

Whoever takes over owns what it took, and keeps it: to give it back at once would be a second interruption, and on a
node that comes and goes one after the other. So after a restart of every node, one by one, the last of them would own
nothing for ever. When nothing has changed for some time (nobody came, went or was even suspected, and the epoch itself
is that old), an owner hands a partition to the first of its replicas in placement's order, if that keeps up. No copy
moves: that is for `cluster rebalance`.

A partition that comes back here may have a reason for it that is seen only over there, such as a full disk. So each
time it takes twice as long until it is handed over again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.rebalance.ownership_advice import EpochTimes, Owned


class PreferredOwner:
    """See the module.

    Args:
        cluster: what has changed, and whom placement prefers.
        calm_ms: how long nothing must have; 0: ownership is never given back.
        now_ms: the clock by which replicas were heard.
        clock_s: the monotonic clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        calm_ms: int,
        now_ms: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._calm_s = calm_ms / 1000
        self._now_ms = now_ms
        self._clock_s = clock_s
        self._version = cluster.version
        self._here = EpochTimes()
        """Epochs that were here since the last change, as far as they have been seen."""
        self._preferred: dict[PartitionKey, int] = {}
        """Epochs that are owned by whom placement prefers: to find that out means to look at every node."""

    @property
    def again_s(self) -> float:
        """See `Adviser`. Should a partition come back, it stays for longer than the calm that an epoch needs anyway."""
        return 2 * self._calm_s

    def plan(self, owned: Owned) -> Plan | None:
        """Return the epoch by which a partition goes to the owner that placement prefers; None to leave it."""
        if self._cluster.version != self._version:
            self._version = self._cluster.version
            self._here.clear()
            self._preferred.clear()
        here_s = self._here.held_s(owned, self._clock_s())
        if not self._calm_s or here_s < self._calm_s:
            return None
        if self._preferred.get(owned.key) == owned.active.epoch:
            return None
        plan = self._cluster.preferred(owned.key, owned.active)
        if plan is None:
            self._preferred[owned.key] = owned.active.epoch
        return plan if plan is not None and plan.owner not in owned.behind(self._now_ms()) else None
