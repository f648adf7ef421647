"""What a node tells of topics: their configuration, where their partitions are, and what it stores of them itself."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.routes import Route, Routes
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.partition.partition_info import describe_partition
from tidelog_broker.partition.partitions import Partitions
from tidelog_proto import broker_pb2 as pb


class Description:
    """See the module.

    Args:
        topics: what is known of them.
        partitions: what is stored here.
        routes: where the rest is.
        cluster: who is alive.
    """

    def __init__(self, topics: TopicRegistry, partitions: Partitions, routes: Routes, cluster: Cluster) -> None:
        self._topics = topics
        self._partitions = partitions
        self._routes = routes
        self._cluster = cluster

    def topic(self, record: pb.TopicRecord, only: Iterable[int] | None = None) -> pb.TopicInfo:
        """Return all that this node knows of a topic, or of some partitions; offsets and sizes of what it stores."""
        info = pb.TopicInfo(name=record.name, topic_id=record.topic_id, config=record.config, serial=record.serial)
        for index in range(record.config.partitions) if only is None else only:
            key = (record.topic_id, index)
            here = self._partitions.find(key)
            if here is not None:
                info.partitions.append(describe_partition(here.state))
                continue
            route = self._routes.get(key) or Route(0, "", ())
            state = "away" if self._cluster.alive(route.owner) else "no owner"
            if key in self._partitions.closed:
                state = "idle"
            info.partitions.add(
                partition=index,
                owner=route.owner,
                epoch=route.epoch,
                placement=route.placement,
                state=state,
            )
        return info

    def to_be_opened(self, record: pb.TopicRecord, indices: Iterable[int]) -> list[PartitionKey]:
        """Return which partitions of a topic have to be opened before more than their epoch can be told of them.

        One that was never used has no offsets and no records, whoever tells it.
        """
        keys = ((record.topic_id, index) for index in indices)
        return [key for key in keys if self._partitions.closed.is_used(key)]

    def part(self, record: pb.TopicRecord, first: int, stop: int) -> pb.TopicInfo:
        """Describe a topic's partitions from the first number to before the second."""
        return self.topic(record, range(first, stop))

    def stored_by(self, node_id: str) -> list[PartitionKey]:
        """Return the partitions whose newest epoch a node stores, as far as is known here."""
        keys = [(record.topic_id, index) for record in self._topics.live() for index in range(record.config.partitions)]
        return [key for key in keys if (route := self._routes.get(key)) is not None and node_id in route.placement]
