"""Partition owners, as far as this node knows: from its own replicas and from other nodes' metadata.

A replica knows its chain of epochs, so for local partitions the answer is the newest decision that this node has
learned. For other partitions a node has only their first epoch, from the topic's record; it asks other nodes for later
epochs, by METADATA like a client, and keeps the highest one. Routes are hints for addressing requests: the receiver
knows whether it is the owner, and refuses otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_proto import broker_pb2 as pb


class Route(NamedTuple):
    """An epoch: its number, its owner ("" if it has no owner), and the nodes that store it."""

    epoch: int
    owner: str
    placement: tuple[str, ...]


class Routes:
    """The known owners of partitions.

    Args:
        topics: supply the first epochs.
        local: returns the active epoch of a local partition; None for others.
        changed: called for each partition with a newer epoch from another node.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        local: Callable[[PartitionKey], Route | None],
        changed: Callable[[bytes, int], None] = lambda *_: None,
    ) -> None:
        self._topics = topics
        self._local = local
        self._changed = changed
        self._told: dict[PartitionKey, Route] = {}
        self._first: dict[PartitionKey, Route] = {}
        """Routes of first epochs, which never change: METADATA needs one for each partition that has no other."""

    def get(self, key: PartitionKey) -> Route | None:
        """Return the newest known epoch of a partition; None if this node knows none."""
        local, reported = self._local(key), self._told.get(key)
        if local is not None and (reported is None or reported.epoch <= local.epoch):
            return local
        if reported is not None:
            return reported
        known = self._first.get(key)
        if known is not None:
            return known
        first = self._topics.first_epoch(*key)
        if first is None:
            return None
        route = self._first[key] = route_of(first)
        return route

    def owner(self, key: PartitionKey) -> str:
        """Return the owner of a partition; "" if it has no owner, or is unknown."""
        route = self.get(key)
        return route.owner if route is not None else ""

    def learn(self, topics: Iterable[pb.TopicInfo]) -> None:
        """Apply another node's METADATA; older epochs are ignored."""
        for topic in topics:
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition)
                reported = self._told.get(key)
                if partition.placement and (reported is None or partition.epoch > reported.epoch):
                    self._told[key] = Route(partition.epoch, partition.owner, tuple(partition.placement))
                    self._changed(*key)

    def forget(self, topic_id: bytes) -> None:
        """Forget a deleted topic."""
        for routes in (self._told, self._first):
            for key in [key for key in routes if key[0] == topic_id]:
                del routes[key]


def route_of(epoch: pb.EpochDescriptor) -> Route:
    """Return an epoch as a route."""
    return Route(epoch.epoch, epoch.owner, tuple(epoch.placement))
