"""A node's description of topics: their configuration, the location of their partitions, and its own copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidelog_broker.cluster.cluster_view import Cluster
from tidelog_broker.cluster.routes import Route, Routes
from tidelog_broker.core.schemas import SchemaRegistry
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.partition.partition_info import describe_partition
from tidelog_broker.partition.partitions import Partitions
from tidelog_proto import broker_pb2 as pb


class TopicDescriptions:
    """Describes topics as this node knows them.

    Args:
        unapplied: returns which changed settings a partition of this node does not have yet, and why; empty if it has
            all.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        schemas: SchemaRegistry,
        partitions: Partitions,
        routes: Routes,
        cluster: Cluster,
        *,
        unapplied: Callable[[PartitionKey], str],
    ) -> None:
        self._topics = topics
        self._schemas = schemas
        self._partitions = partitions
        self._routes = routes
        self._cluster = cluster
        self._unapplied = unapplied

    def topic(self, record: pb.TopicRecord, only: Iterable[int] | None = None) -> pb.TopicInfo:
        """Describe a topic and all partitions, or those in `only`; open local ones with their offsets and sizes."""
        info = pb.TopicInfo(name=record.name, topic_id=record.topic_id, config=record.config, serial=record.serial)
        info.schema_number = self._schemas.newest_number(record.topic_id)
        for index in range(record.config.partitions) if only is None else only:
            key = (record.topic_id, index)
            here = self._partitions.find(key)
            if here is not None:
                described = describe_partition(here.state)
                described.unapplied = self._unapplied(key)
                info.partitions.append(described)
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
        """Return the partitions of a topic that must be opened to describe more than their epoch.

        A partition that was never used has no offsets and no records, and stays closed.
        """
        keys = ((record.topic_id, index) for index in indices)
        return [key for key in keys if self._partitions.closed.is_used(key)]

    def part(self, record: pb.TopicRecord, first: int, stop: int) -> pb.TopicInfo:
        """Describe a topic with its partitions from `first` up to, but not including, `stop`."""
        return self.topic(record, range(first, stop))

    def stored_by(self, node_id: str) -> list[PartitionKey]:
        """Return the partitions whose newest epoch a node stores, as far as this node knows."""
        keys = [(record.topic_id, index) for record in self._topics.live() for index in range(record.config.partitions)]
        return [key for key in keys if (route := self._routes.get(key)) is not None and node_id in route.placement]
