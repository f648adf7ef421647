"""Return of ownership to the nodes that placement prefers, once the cluster has been stable for a while.

A node that takes over keeps the ownership: returning it at once would be a second interruption, and an unstable node
would cause one after the other. So after a rolling restart the last node would own nothing forever. When nothing has
changed for some time (no node started, stopped or was suspected, and the epoch is that old), an owner transfers a
partition to the first of its replicas in placement's order, if that replica keeps up. No copy moves; `cluster
rebalance` moves copies.

A partition that returns may have been given up for a reason that only the other node knows, such as a full disk. So the
time until it is transferred again doubles each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.rebalance.ownership_advice import EpochTimes, Owned


class PreferredOwner:
    """Advises the transfer of partitions that this node owns to the replicas that placement prefers as owners.

    Args:
        cluster: computes the preferred owner; its `version` shows whether the cluster has changed.
        calm_ms: the required time without changes; 0: ownership is never returned.
        now_ms: the replicas' clock.
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
        """For how long each partition's epoch has been examined without a change in the cluster."""
        self._preferred: dict[PartitionKey, int] = {}
        """By partition the epoch that needs no other owner; cached, because the computation examines every node."""

    @property
    def again_s(self) -> float:
        """See `Adviser`. It is longer than the time without changes that precedes every move anyway."""
        return 2 * self._calm_s

    def plan(self, owned: Owned) -> Plan | None:
        """Return the epoch that makes the preferred owner a partition's owner; None to keep its owner."""
        if self._cluster.version != self._version:
            self._version = self._cluster.version
            self._here.clear()
            self._preferred.clear()
        here_s = self._here.held_s(owned, self._clock_s())
        if not self._calm_s or here_s < self._calm_s:
            return None
        if self._preferred.get(owned.key) == owned.active.epoch:
            return None
        plan = self._cluster.preferred_owner_plan(owned.key, owned.active)
        if plan is None:
            self._preferred[owned.key] = owned.active.epoch
        return plan if plan is not None and plan.owner not in owned.lagging(self._now_ms()) else None
