"""The partitions of `__offsets` at this node, each with its log, its groups' state and their coordinator.

A group belongs to the partition that its name hashes to. The partition count is part of the record of `__offsets` in
`__meta` and never changes, so all nodes find the same partition, whatever their settings are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog_broker.base.lifecycle import Lifecycle
from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.base.tasks import Tasks
from tidelog_broker.core.groups.positions import GroupBounds, GroupOffsets, GroupTotals
from tidelog_broker.core.groups.records import GroupRecords
from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.topics import OFFSETS_TOPIC_ID, PartitionKey, TopicRegistry
from tidelog_broker.groups.coordinator import Coordinator
from tidelog_broker.groups.descriptions import Descriptions
from tidelog_broker.groups.group_reservations import GroupReservations
from tidelog_broker.groups.subscriptions import Subscriptions
from tidelog_broker.metadata.state_log import OffsetsLog
from tidelog_broker.partition.partitions import Partitions
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.errors import ProtocolError
from tidelog_proto.flow.fair_scheduler import Turns


@dataclass(frozen=True, slots=True)
class GroupShard:
    """The groups of one partition of `__offsets`, as known at this node."""

    key: PartitionKey
    positions: GroupOffsets
    records: GroupRecords
    log: OffsetsLog
    coordinator: Coordinator


class GroupShards:
    """Provides the group shards of one node, each created when it is first accessed.

    Args:
        bounds: limits of groups, over all partitions of `__offsets`.
    """

    def __init__(
        self,
        *,
        tasks: Tasks,
        partitions: Partitions,
        topics: TopicRegistry,
        permissions: Permissions,
        bounds: GroupBounds,
        clock: SteadyClock,
        metrics: NodeMetrics,
        node_id: str,
        lifecycle: Lifecycle,
        turns: Turns,
    ) -> None:
        self.claims = GroupReservations()
        self._tasks = tasks
        self._partitions = partitions
        self._topics = topics
        self._permissions = permissions
        self._bounds = bounds
        self._clock = clock
        self._metrics = metrics
        self._node_id = node_id
        self._lifecycle = lifecycle
        self._turns = turns
        self._subscriptions = Subscriptions(topics)
        self._totals = GroupTotals()
        self._shards: dict[int, GroupShard] = {}

    def __iter__(self) -> Iterator[GroupShard]:
        """Yield the shards that were accessed so far."""
        yield from list(self._shards.values())

    def is_founded(self) -> bool:
        """Return whether this node knows the partition count of `__offsets`."""
        return self._topics.get(OFFSETS_TOPIC_ID) is not None

    def all_keys(self) -> list[PartitionKey]:
        """Return all partitions of `__offsets`.

        Raises:
            ProtocolError: EPOCH_CHANGING: this node does not know `__offsets` yet.
        """
        return [(OFFSETS_TOPIC_ID, index) for index in range(self._count())]

    def key_of(self, group: str) -> PartitionKey:
        """Return the partition that a group belongs to.

        Raises:
            ProtocolError: see `all_keys`.
        """
        return (OFFSETS_TOPIC_ID, partition_for_key(group.encode(), self._count()))

    def of(self, group: str) -> GroupShard:
        """Return the shard that a group belongs to.

        Raises:
            ProtocolError: see `all_keys`.
        """
        return self.at(self.key_of(group)[1])

    def at(self, index: int) -> GroupShard:
        """Return the shard of a partition.

        Raises:
            ProtocolError: UNKNOWN_PARTITION; see `all_keys`.
        """
        shard = self._shards.get(index)
        if shard is None:
            count = self._count()
            if not 0 <= index < count:
                raise ProtocolError(pb.UNKNOWN_PARTITION, f"__offsets has partitions 0 to {count - 1}, got {index}")
            shard = self._shards[index] = self._new_shard((OFFSETS_TOPIC_ID, index))
        return shard

    def forget_topic(self, topic_id: bytes) -> None:
        """Drop the positions of a deleted topic."""
        for shard in self:
            shard.positions.forget_topic(topic_id)

    def group_count(self) -> int:
        """Return the number of groups that this node knows."""
        return sum(len(shard.coordinator.descriptions.names()) for shard in self)

    def size_bytes(self) -> int:
        """Return the approximate memory of groups and positions."""
        return self._totals.size_bytes + sum(shard.records.size_bytes for shard in self)

    def _count(self) -> int:
        record = self._topics.get(OFFSETS_TOPIC_ID)
        if record is None:
            raise ProtocolError(pb.EPOCH_CHANGING, "this node does not know the topic __offsets yet; retry")
        return record.config.partitions

    def _new_shard(self, key: PartitionKey) -> GroupShard:
        partitions, topics = self._partitions, self._topics
        positions, records = GroupOffsets(self._bounds, self._totals), GroupRecords()
        log = OffsetsLog(
            self._tasks, lambda: partitions.get(*key), positions=positions, groups=records, is_gone=topics.is_deleted
        )
        coordinator = Coordinator(
            tasks=self._tasks,
            offsets_log=log,
            awake=lambda: partitions.awake([key]),
            partition=lambda: partitions.find(key),
            groups=records,
            positions=positions,
            topics=topics,
            permissions=self._permissions,
            subscriptions=self._subscriptions,
            holdings=self,
            bounds=self._bounds,
            descriptions=Descriptions(groups=records, positions=positions, topics=topics, node_id=self._node_id),
            clock=self._clock,
            metrics=self._metrics,
            is_stopping=lambda: self._lifecycle.stopping,
            turns=self._turns,
        )
        return GroupShard(key, positions, records, log, coordinator)
