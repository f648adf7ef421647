"""Who owns which partition, as far as this node knows: by its own replicas, or by what other nodes tell.

A replica knows its chain of epochs, so for what is stored here the answer is the newest decision that has been learned
here. Of partitions that live elsewhere a node has only their first epoch, from the topic's record; it asks the others
for the rest, by METADATA like any client, and keeps the answer with the highest epoch. All of this is for finding
somebody to ask: whoever is asked knows whether it is the owner, and refuses if not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_proto import broker_pb2 as pb


class Route(NamedTuple):
    """An epoch: its number, its owner ("" when it has none), the nodes that store it."""

    epoch: int
    owner: str
    placement: tuple[str, ...]


class Routes:
    """See the module.

    Args:
        topics: for the first epochs.
        local: the active epoch of a partition that is stored here; None for others.
        changed: is told of the partitions of which other nodes had news.
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

    def get(self, key: PartitionKey) -> Route | None:
        """Return the newest epoch that is known of a partition."""
        local, told = self._local(key), self._told.get(key)
        if local is not None and (told is None or told.epoch <= local.epoch):
            return local
        if told is not None:
            return told
        first = self._topics.first_epoch(*key)
        return None if first is None else route_of(first)

    def owner(self, key: PartitionKey) -> str:
        """Return who owns a partition; "" when nobody does or nobody is known."""
        route = self.get(key)
        return route.owner if route is not None else ""

    def learn(self, topics: Iterable[pb.TopicInfo]) -> None:
        """Take what another node's METADATA says; an older epoch changes nothing."""
        for topic in topics:
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition)
                told = self._told.get(key)
                if partition.placement and (told is None or partition.epoch > told.epoch):
                    self._told[key] = Route(partition.epoch, partition.owner, tuple(partition.placement))
                    self._changed(*key)

    def forget(self, topic_id: bytes) -> None:
        """Forget a deleted topic."""
        for key in [key for key in self._told if key[0] == topic_id]:
            del self._told[key]


def route_of(epoch: pb.EpochDescriptor) -> Route:
    """Return what matters of an epoch to who looks for its owner."""
    return Route(epoch.epoch, epoch.owner, tuple(epoch.placement))
