"""The partitions that this node owns, for moves and other planned ends of their epochs."""

from __future__ import annotations

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.partitions import Partitions
from tidelog_broker.rebalance.ownership_advice import Owned


class OwnedPartitions:
    """Finds the open partitions that this node owns and appends to, and ends their epochs."""

    def __init__(self, partitions: Partitions, cluster: Cluster) -> None:
        self._partitions = partitions
        self._cluster = cluster

    def all(self) -> list[Owned]:
        """Return every partition that this node owns and appends to."""
        return [_owned(one) for one in self._partitions.all() if one.state.assigner is not None]

    def find(self, key: PartitionKey) -> Owned | None:
        """Return a partition; None if it is not open on this node, or this node does not append to it."""
        partition = self._partitions.find(key)
        return None if partition is None or partition.state.assigner is None else _owned(partition)

    def roll_over(self, key: PartitionKey, plan: Plan) -> None:
        """End the epoch of a partition by plan, if this node owns it."""
        partition = self._partitions.find(key)
        if partition is not None:
            partition.driver.roll_over(plan)

    def begin_single_copies(self) -> None:
        """Begin an epoch of each partition that only this node stores and that needs more copies."""
        for partition in self._partitions.all():
            replica = partition.replica
            is_waiting = partition.state.is_alone and not replica.can_append and replica.state.halted is None
            if is_waiting and self._cluster.lacks_copies(partition.driver.key, replica.state.active):
                partition.driver.want_owner()


def _owned(partition: Partition) -> Owned:
    return Owned(
        partition.driver.key,
        partition.replica.state.active,
        partition.replica.followers,
        partition.pipeline.waits_for_all,
        partition.pipeline.full_since_s,
        partition.state.is_moving,
    )
