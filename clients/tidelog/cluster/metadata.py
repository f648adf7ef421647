"""What a client believes about the cluster, without I/O: topics, partition owners, node addresses.

Metadata is a cache: any node's answer is merged, and for a partition the higher epoch wins, so an answer from a
node that lags cannot move an owner back. Within one epoch there is one owner, so "nobody" never replaces a name of the
same epoch: a node that misses the owner says so, but only a higher epoch takes the partition away. Of a node's
addresses that of its newest incarnation counts.

A name that comes with another topic id is another topic and replaces the old one whole, if it is newer: topics have
serials, and a node that lags tells of a topic that is gone for longer than one would like. So what is known to be gone
and the newest serial of each name are remembered, and an answer that tells of less is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.cluster.connection import Address
from tidelog.errors import EpochChangingError, TidelogError, UnknownTopicError, error_of
from tidelog.model import PartitionRoute, TopicRoute
from tidelog_proto import broker_pb2 as pb

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED_MAX: Final = 8_192
"""So many topics that are gone, and serials of names, are remembered: the newest."""


@dataclass(frozen=True, slots=True)
class NodeRoute:
    """Where a node can be reached, as of an incarnation (its boot count)."""

    address: Address
    incarnation: int
    zone: str = ""


class Metadata:
    """Topics and nodes as last heard of. `revision` counts what was news."""

    def __init__(self) -> None:
        self.revision = 0
        self._topics: dict[str, TopicRoute] = {}
        self._names: dict[bytes, str] = {}
        self._nodes: dict[str, NodeRoute] = {}
        self._serials: dict[str, int] = {}
        self._gone: dict[bytes, None] = {}

    def merge(self, reply: pb.MetadataReply, heard_from: Address) -> dict[str, TidelogError]:
        """Take an answer in; return the errors of topics that the node does not know, or not as they are now.

        Args:
            reply: the answer.
            heard_from: where it came from; stands in for a node that does not say where it can be reached.
        """
        for node in reply.nodes:
            address = (node.host or heard_from[0], node.port or heard_from[1])
            self._merge_node(node.node_id, NodeRoute(address, node.incarnation, node.zone))
        errors: dict[str, TidelogError] = {}
        for topic in reply.topics:
            if topic.HasField("error"):
                error = errors[topic.name] = error_of(topic.error)
                if isinstance(error, UnknownTopicError):
                    self.forget(topic.name)
            elif self.is_stale(topic):
                errors[topic.name] = EpochChangingError(
                    f"{heard_from[0]}:{heard_from[1]} has not heard yet which topic is called {topic.name!r} now"
                )
            else:
                self._merge_topic(topic)
        return errors

    def topic(self, name: str) -> TopicRoute | None:
        """Return what is known of a topic."""
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of a topic that was seen."""
        return self._names.get(topic_id)

    def forget(self, name: str) -> None:
        """Drop a topic: what was known of it turned out to be wrong."""
        if self._topics.pop(name, None) is not None:
            self.revision += 1

    def gone(self, name: str, topic_id: bytes) -> None:
        """Note that a topic was deleted: whoever still tells of it lags behind."""
        _remember(self._gone, topic_id, None)
        known = self._topics.get(name)
        if known is not None and known.topic_id == topic_id:
            self.forget(name)

    def made(self, topic: pb.TopicInfo) -> None:
        """Note that a topic was just made: whoever tells of an older one of its name lags behind."""
        self._note_serial(topic)
        known = self._topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self.forget(topic.name)

    def is_stale(self, topic: pb.TopicInfo) -> bool:
        """Whether a node tells of a topic that is known to be gone. Ids of nodes without serials are not in doubt."""
        known = self._topics.get(topic.name)
        if known is not None and known.topic_id == topic.topic_id:
            return False
        return topic.topic_id in self._gone or topic.serial < self._serials.get(topic.name, 0)

    def heard_of_epoch(self, name: str, partition: int, epoch: int) -> None:
        """Note that a partition has reached `epoch`, with an owner who is not known yet; old news changes nothing."""
        topic = self._topics.get(name)
        route = topic.partitions.get(partition) if topic else None
        if topic is not None and route is not None and epoch > route.epoch:
            self._set(topic, dict(topic.partitions) | {partition: PartitionRoute("", epoch, route.placement)})

    def route(self, name: str, partition: int) -> PartitionRoute | None:
        """Return what is known of a partition: its owner ("" for nobody) and epoch."""
        topic = self._topics.get(name)
        return topic.partitions.get(partition) if topic else None

    def known(self, names: Iterable[str]) -> list[pb.KnownEpochs] | None:
        """Return what is known of some topics, for a question that waits for more; None if one is not known at all."""
        found: list[pb.KnownEpochs] = []
        for name in names:
            topic = self._topics.get(name)
            if topic is None:
                return None
            # Of an epoch without an owner the owner would be news.
            news_from = [
                0 if (route := topic.partitions.get(index)) is None else route.epoch + bool(route.owner)
                for index in range(max(topic.partitions, default=-1) + 1)
            ]
            found.append(pb.KnownEpochs(topic_id=topic.topic_id, news_from=news_from))
        return found

    def owner_address(self, name: str, partition: int) -> Address | None:
        """Return where the owner of a partition can be reached, as far as is known."""
        route = self.route(name, partition)
        node = self._nodes.get(route.owner) if route else None
        return node.address if node else None

    def replica_addresses(self, name: str, partition: int) -> list[Address]:
        """Return where the nodes can be reached that hold a copy, as far as is known."""
        route = self.route(name, partition)
        nodes = [self._nodes.get(node_id) for node_id in (route.placement if route else ())]
        return list(dict.fromkeys(node.address for node in nodes if node is not None))

    def copies_in(self, name: str, partition: int, zone: str) -> tuple[Address | None, list[Address]]:
        """Return where the owner is, and where nodes of a zone are that hold a copy, as far as is known."""
        route = self.route(name, partition)
        nodes = [self._nodes.get(node_id) for node_id in (route.placement if route else ())]
        there = [node.address for node in nodes if node is not None and node.zone == zone]
        return self.owner_address(name, partition), there

    def addresses(self) -> list[Address]:
        """Return the addresses of all nodes that were ever named."""
        return list(dict.fromkeys(node.address for node in self._nodes.values()))

    def _merge_node(self, node_id: str, node: NodeRoute) -> None:
        before = self._nodes.get(node_id)
        if before != node and (before is None or node.incarnation >= before.incarnation):
            self._nodes[node_id] = node
            self.revision += 1

    def _note_serial(self, topic: pb.TopicInfo) -> None:
        serial = max(topic.serial, self._serials.pop(topic.name, 0))
        if serial:
            _remember(self._serials, topic.name, serial)

    def _merge_topic(self, topic: pb.TopicInfo) -> None:
        self._note_serial(topic)
        known = self._topics.get(topic.name)
        same = known is not None and known.topic_id == topic.topic_id
        partitions = dict(known.partitions) if known is not None and same else {}
        for info in topic.partitions:
            before = partitions.get(info.partition)
            if before is None or info.epoch > before.epoch or (info.epoch == before.epoch and info.owner):
                partitions[info.partition] = PartitionRoute(info.owner, info.epoch, tuple(info.placement))
        if known is None or not same or partitions != known.partitions:
            self._set(TopicRoute(topic.name, topic.topic_id), partitions)

    def _set(self, topic: TopicRoute, partitions: dict[int, PartitionRoute]) -> None:
        self._topics[topic.name] = TopicRoute(topic.name, topic.topic_id, partitions)
        self._names[topic.topic_id] = topic.name
        self.revision += 1


def joined(pages: Sequence[pb.MetadataReply]) -> pb.MetadataReply:
    """Return an answer that came in pages as one: a topic of which only a part is known looks like a smaller one."""
    if len(pages) == 1:
        return pages[0]
    whole = pb.MetadataReply()
    for page in pages:
        whole.nodes.extend(page.nodes)
        for topic in page.topics:
            last = whole.topics[-1] if whole.topics else None
            if last is not None and (last.name, last.topic_id) == (topic.name, topic.topic_id):
                last.partitions.extend(topic.partitions)
            else:
                whole.topics.append(topic)
    return whole


def gone_error(name: str) -> UnknownTopicError:
    """Return the error of who is bound to a topic that was deleted."""
    return UnknownTopicError(
        f"the topic {name!r} that this began with was deleted, and one that was made since under its name is another: "
        "make a new producer or consumer for that one"
    )


def _remember(table: dict[K, V], key: K, value: V) -> None:
    table[key] = value
    if len(table) > REMEMBERED_MAX:
        del table[next(iter(table))]
