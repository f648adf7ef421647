"""What a client believes about the cluster, without I/O: topics, partition owners, node addresses.

Metadata is a cache: any node's answer is merged, and for a partition the higher epoch wins, so an answer from a
node that lags cannot move an owner back. A name that comes with another topic id is another topic and replaces the
old one whole.
"""

from __future__ import annotations

from tidelog.connection import Address
from tidelog.errors import TidelogError, error_of
from tidelog.model import PartitionRoute, TopicRoute
from tidelog_proto import broker_pb2 as pb


class Metadata:
    """Topics and nodes as last heard of."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRoute] = {}
        self._names: dict[bytes, str] = {}
        self._nodes: dict[str, Address] = {}

    def merge(self, reply: pb.MetadataReply, heard_from: Address) -> dict[str, TidelogError]:
        """Take an answer in; return the errors of topics that the node does not know.

        Args:
            reply: the answer.
            heard_from: where it came from; stands in for a node that does not say where it can be reached.
        """
        for node in reply.nodes:
            self._nodes[node.node_id] = (node.host or heard_from[0], node.port or heard_from[1])
        errors: dict[str, TidelogError] = {}
        for topic in reply.topics:
            if topic.HasField("error"):
                errors[topic.name] = error_of(topic.error)
                self.forget(topic.name)
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
        self._topics.pop(name, None)

    def owner_address(self, name: str, partition: int) -> Address | None:
        """Return where the owner of a partition can be reached, as far as is known."""
        topic = self._topics.get(name)
        route = topic.partitions.get(partition) if topic else None
        return self._nodes.get(route.owner) if route else None

    def addresses(self) -> list[Address]:
        """Return the addresses of all nodes that were ever named."""
        return list(dict.fromkeys(self._nodes.values()))

    def _merge_topic(self, topic: pb.TopicInfo) -> None:
        known = self._topics.get(topic.name)
        partitions = dict(known.partitions) if known and known.topic_id == topic.topic_id else {}
        for info in topic.partitions:
            before = partitions.get(info.partition)
            if before is None or info.epoch >= before.epoch:
                partitions[info.partition] = PartitionRoute(info.owner, info.epoch)
        self._topics[topic.name] = TopicRoute(topic.name, topic.topic_id, partitions)
        self._names[topic.topic_id] = topic.name
