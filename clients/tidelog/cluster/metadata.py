"""The client's metadata cache, without I/O: topics, partition owners and node addresses.

Answers of all nodes are merged. For a partition the higher epoch wins, so a lagging node cannot restore a former owner.
An epoch has one owner, so "no owner known" never replaces the owner of the same epoch; only a higher epoch does. For a
node, the address of its newest incarnation is kept.

A topic with the same name and another id is another topic. It replaces the cached topic entirely if its serial is
higher, because a lagging node can still report a deleted topic. The cache therefore remembers deleted topic ids and the
newest serial of each name, and ignores older answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from tidelog.cluster.connection import Address
from tidelog.errors import EpochChangingError, TidelogError, UnknownTopicError, error_of
from tidelog.model import PartitionRoute, TopicRoute
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import KNOWN_PARTITIONS_MAX

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED_MAX: Final = 8_192
"""Maximum number of deleted topic ids, of serials of names, and of names of topics that are no longer cached, that are
remembered; the first noted are evicted."""


@dataclass(frozen=True, slots=True)
class NodeRoute:
    """A node's address and zone as of an incarnation (its boot count)."""

    address: Address
    incarnation: int
    zone: str = ""


class Metadata:
    """Caches topics and nodes as the nodes have reported them. `revision` grows with every change."""

    def __init__(self) -> None:
        self.revision = 0
        self._topics: dict[str, TopicRoute] = {}
        self._names: dict[bytes, str] = {}
        """Names of the cached topics by topic id."""
        self._former_names: dict[bytes, str] = {}
        """Names of topics that are no longer cached."""
        self._nodes: dict[str, NodeRoute] = {}
        self._serials: dict[str, int] = {}
        self._deleted_ids: dict[bytes, None] = {}

    def merge(self, reply: pb.MetadataReply, heard_from: Address) -> dict[str, TidelogError]:
        """Merge an answer; return the errors of topics that the node does not know or knows in an outdated version.

        Args:
            heard_from: the node's address; used for nodes that do not advertise one.
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
                    f"{heard_from[0]}:{heard_from[1]} returned outdated metadata of topic {topic.name!r}"
                )
            else:
                self._merge_topic(topic)
        return errors

    def topic(self, name: str) -> TopicRoute | None:
        """Return the cached route of a topic; None if it is not cached."""
        return self._topics.get(name)

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the name of a topic by its id, also of a deleted topic.

        None if no merged answer had the id, or if the topic is no longer cached and `REMEMBERED_MAX` others followed.
        """
        return self._names.get(topic_id) or self._former_names.get(topic_id)

    def forget(self, name: str) -> None:
        """Drop the cached route of a topic."""
        known = self._topics.pop(name, None)
        if known is not None:
            self._note_former(known)
            self.revision += 1

    def note_deleted(self, name: str, topic_id: bytes) -> None:
        """Note that a topic was deleted, so that later reports of it by lagging nodes are ignored."""
        _put_bounded(self._deleted_ids, topic_id, None)
        known = self._topics.get(name)
        if known is not None and known.topic_id == topic_id:
            self.forget(name)

    def note_created(self, topic: pb.TopicInfo) -> None:
        """Note that a topic was created, so that later reports of an older topic of its name are ignored."""
        self._note_serial(topic)
        known = self._topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self.forget(topic.name)

    def is_stale(self, topic: pb.TopicInfo) -> bool:
        """Return whether the topic of a node's answer was deleted, so that the answer is outdated.

        A node of an older release reports no serials; the topics that it reports are stale only if their deletion is
        known.
        """
        known = self._topics.get(topic.name)
        if known is not None and known.topic_id == topic.topic_id:
            return False
        return topic.topic_id in self._deleted_ids or topic.serial < self._serials.get(topic.name, 0)

    def note_epoch(self, name: str, partition: int, epoch: int) -> None:
        """Note that a partition has reached `epoch` with a yet unknown owner; an older epoch changes nothing."""
        topic = self._topics.get(name)
        route = topic.partitions.get(partition) if topic else None
        if topic is not None and route is not None and epoch > route.epoch:
            self._set(topic, dict(topic.partitions) | {partition: PartitionRoute("", epoch, route.placement)})

    def route(self, name: str, partition: int) -> PartitionRoute | None:
        """Return the cached owner ("" if unknown) and epoch of a partition; None if the partition is not cached."""
        topic = self._topics.get(name)
        return topic.partitions.get(partition) if topic else None

    def known(self, names: Iterable[str]) -> list[pb.KnownEpochs] | None:
        """Return the cached epochs of topics, for a long poll for changes.

        None if one of the topics is not cached, or they have more partitions than a request may list.
        """
        epochs: list[pb.KnownEpochs] = []
        for name in names:
            topic = self._topics.get(name)
            if topic is None:
                return None
            # While an epoch's owner is unknown, the owner of the same epoch counts as a change.
            news_from = [
                0 if (route := topic.partitions.get(index)) is None else route.epoch + bool(route.owner)
                for index in range(max(topic.partitions, default=-1) + 1)
            ]
            epochs.append(pb.KnownEpochs(topic_id=topic.topic_id, news_from=news_from))
        return epochs if sum(len(each.news_from) for each in epochs) <= KNOWN_PARTITIONS_MAX else None

    def owner_address(self, name: str, partition: int) -> Address | None:
        """Return the address of a partition's owner; None if unknown."""
        route = self.route(name, partition)
        node = self._nodes.get(route.owner) if route else None
        return node.address if node else None

    def replica_addresses(self, name: str, partition: int) -> list[Address]:
        """Return the known addresses of the nodes that hold a replica."""
        route = self.route(name, partition)
        nodes = [self._nodes.get(node_id) for node_id in (route.placement if route else ())]
        return list(dict.fromkeys(node.address for node in nodes if node is not None))

    def replicas_in_zone(self, name: str, partition: int, zone: str) -> tuple[Address | None, list[Address]]:
        """Return the owner's address (None if unknown), and the known addresses of the replicas in a zone."""
        route = self.route(name, partition)
        nodes = [self._nodes.get(node_id) for node_id in (route.placement if route else ())]
        there = [node.address for node in nodes if node is not None and node.zone == zone]
        return self.owner_address(name, partition), there

    def addresses(self) -> list[Address]:
        """Return the addresses of all known nodes."""
        return list(dict.fromkeys(node.address for node in self._nodes.values()))

    def _merge_node(self, node_id: str, node: NodeRoute) -> None:
        before = self._nodes.get(node_id)
        if before != node and (before is None or node.incarnation >= before.incarnation):
            self._nodes[node_id] = node
            self.revision += 1

    def _note_serial(self, topic: pb.TopicInfo) -> None:
        serial = max(topic.serial, self._serials.pop(topic.name, 0))
        if serial:
            _put_bounded(self._serials, topic.name, serial)

    def _merge_topic(self, topic: pb.TopicInfo) -> None:
        self._note_serial(topic)
        known = self._topics.get(topic.name)
        same = known is not None and known.topic_id == topic.topic_id
        partitions = dict(known.partitions) if known is not None and same else {}
        for info in topic.partitions:
            before = partitions.get(info.partition)
            if before is None or info.epoch > before.epoch or (info.epoch == before.epoch and info.owner):
                partitions[info.partition] = PartitionRoute(info.owner, info.epoch, tuple(info.placement))
        schema_number = max(topic.schema_number, known.schema_number if known is not None and same else 0)
        if known is None or not same or partitions != known.partitions or schema_number != known.schema_number:
            self._set(TopicRoute(topic.name, topic.topic_id, schema_number=schema_number), partitions)

    def _note_former(self, topic: TopicRoute) -> None:
        """Note that a topic is no longer cached."""
        self._names.pop(topic.topic_id, None)
        _put_bounded(self._former_names, topic.topic_id, topic.name)

    def _set(self, topic: TopicRoute, partitions: dict[int, PartitionRoute]) -> None:
        known = self._topics.get(topic.name)
        if known is not None and known.topic_id != topic.topic_id:
            self._note_former(known)
        self._topics[topic.name] = TopicRoute(topic.name, topic.topic_id, partitions, topic.schema_number)
        self._former_names.pop(topic.topic_id, None)
        self._names[topic.topic_id] = topic.name
        self.revision += 1


def joined(pages: Sequence[pb.MetadataReply]) -> pb.MetadataReply:
    """Return the pages of an answer as one reply, so that the cache never has only some partitions of a new topic."""
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


def deleted_topic_error(name: str) -> UnknownTopicError:
    """Return the error for a producer or consumer whose topic was deleted."""
    return UnknownTopicError(
        f"topic {name!r} was deleted after this producer or consumer began; a topic that was recreated under the name "
        "is another one: create a new producer or consumer for it"
    )


def _put_bounded(table: dict[K, V], key: K, value: V) -> None:
    table[key] = value
    if len(table) > REMEMBERED_MAX:
        del table[next(iter(table))]
