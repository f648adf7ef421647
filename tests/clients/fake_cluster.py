"""Three fake nodes with one log: partitions move, nodes die, freeze, and lag with old epochs.

The log and the producers' table are shared, as after a failover without loss. A node's *belief* may differ from the
truth; a publish is stored only at the true owner, as fencing ensures in a real cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from tests.clients.fake_node import FakeConnection, FakeNode, Key

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame, encode_frame

Owners = dict[Key, tuple[str, int]]
"""Partition -> owner ("" for none) and epoch."""


class FakeCluster:
    """The true state, and the nodes."""

    def __init__(self, count: int = 3) -> None:
        self.owners: Owners = {}
        self.replicated = False
        """Whether every node has a replica of everything and serves reads."""
        self.nodes = [ClusterNode(self, f"node-{number}") for number in range(count)]
        for node in self.nodes[1:]:
            node.topics, node.partitions = self.nodes[0].topics, self.nodes[0].partitions
            node.committed = self.nodes[0].committed

    @property
    def bootstrap(self) -> list[str]:
        return [f"127.0.0.1:{node.port}" for node in self.nodes]

    def add_topic(self, name: str, partitions: int = 1) -> None:
        """Partition p belongs to node p."""
        topic_id = self.nodes[0].add_topic(name, partitions)
        for partition in range(partitions):
            self.owners.setdefault((topic_id, partition), (self.nodes[partition % len(self.nodes)].node_id, 1))

    def make_again(self, name: str, partitions: int = 1) -> None:
        """Delete a topic and recreate it under its name."""
        info = self.nodes[0].topics.pop(name)
        for key in [key for key in self.nodes[0].partitions if key[0] == info.topic_id]:
            del self.nodes[0].partitions[key]
        self.add_topic(name, partitions)

    def key(self, topic: str, partition: int = 0) -> Key:
        return self.nodes[0].topics[topic].topic_id, partition

    def owner(self, topic: str, partition: int = 0) -> ClusterNode | None:
        owner, _ = self.owners[self.key(topic, partition)]
        return next((node for node in self.nodes if node.node_id == owner), None)

    def move(self, topic: str, to: ClusterNode | None, partition: int = 0) -> None:
        """Open the next epoch of a partition; the old owner ends its subscriptions if it can."""
        key = self.key(topic, partition)
        before = self.owner(topic, partition)
        _, epoch = self.owners[key]
        self.owners[key] = (to.node_id if to else "", epoch + 1)
        if before is not None and not before.frozen:
            for connection in list(before.connections):
                assert isinstance(connection, ClusterConnection)
                connection.end_partition(key)

    def values(self, topic: str) -> list[bytes | None]:
        return self.nodes[0].values(topic)

    def asked(self, kind: str) -> int:
        return sum(node.requests.count(kind) for node in self.nodes)


class ClusterNode(FakeNode):
    """One of the nodes."""

    def __init__(self, cluster: FakeCluster, node_id: str) -> None:
        super().__init__()
        self.cluster = cluster
        self.node_id = node_id
        self.frozen = False
        self.alive = False
        self.believes: Owners | None = None
        """The owners as this node knows them; None for the true ones."""
        self.remembers: dict[str, pb.TopicInfo] | None = None
        """Topics that it reports in unconfirmed answers; None for the existing ones."""
        self.hears = True
        """Whether it learns of commits; a replica that does not cannot serve newer records."""
        self.cut_off = False
        """Whether it cannot confirm anything with other nodes."""

    def new_connection(self) -> FakeConnection:
        return ClusterConnection(self)

    async def start(self, port: int = 0) -> None:
        await super().start(port)
        self.alive = True

    async def stop(self) -> None:
        self.alive = False
        await super().stop()
        self.emptied = None

    async def restart(self) -> None:
        self.frozen = False
        await self.start(self.port)

    def lag(self) -> None:
        """Keep the current owners as this node's knowledge."""
        self.believes = dict(self.cluster.owners)

    def lag_in_topics(self, *, cut_off: bool = False) -> None:
        """Keep the current topics as this node's knowledge for unconfirmed answers."""
        self.remembers, self.cut_off = {}, cut_off
        for name, info in self.topics.items():
            self.remembers[name] = pb.TopicInfo()
            self.remembers[name].CopyFrom(info)

    def topics_for(self, *, confirmed: bool) -> dict[str, pb.TopicInfo]:
        lags = self.remembers is not None and (self.cut_off or not confirmed)
        return self.remembers if self.remembers is not None and lags else self.topics

    def freeze(self) -> None:
        """Behave as after SIGSTOP: connections are accepted and stay open, and nothing is answered."""
        self.frozen = True
        for connection in self.connections:
            connection.transport.pause_reading()

    def thaw(self) -> None:
        """Continue, processing what has arrived in the meantime."""
        self.frozen = False
        for connection in self.connections:
            connection.transport.resume_reading()

    def push(self) -> None:
        if not self.frozen:
            super().push()


class ClusterConnection(FakeConnection):
    """A connection to one of the nodes."""

    node: ClusterNode

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.node.alive:
            self.transport.abort()  # accepted while the node was stopping
        elif self.node.frozen:
            self.transport.pause_reading()

    reads = False
    """Whether the request being processed may be answered by a replica."""

    def push(self) -> None:
        if self.node.hears:
            super().push()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        self.reads = self.node.cluster.replicated
        yield
        self.reads = False

    def on_fetch(self, frame: Frame) -> None:
        if not self.node.hears:
            nothing = [pb.FetchResult(next_offset=entry.offset) for entry in frame.envelope.fetch.entries]
            self.reply(frame, pb.Envelope(fetch_reply=pb.FetchReply(results=nothing)))
            return
        with self._reading():
            super().on_fetch(frame)

    def on_subscribe(self, frame: Frame) -> None:
        with self._reading():
            super().on_subscribe(frame)

    def on_list_offsets(self, frame: Frame) -> None:
        if any(entry.latest for entry in frame.envelope.list_offsets.entries):
            super().on_list_offsets(frame)
            return
        with self._reading():
            super().on_list_offsets(frame)

    def knows_end(self, topic_id: bytes, partition: int) -> bool:
        return self.node.cluster.owners[topic_id, partition][0] == self.node.node_id

    def refusal(self, topic_id: bytes, partition: int) -> pb.Error | None:
        unknown = super().refusal(topic_id, partition)
        if unknown is not None:
            return unknown
        key = (topic_id, partition)
        believed = (self.node.believes or self.node.cluster.owners)[key]
        if self.node.cluster.owners[key][0] == believed[0] == self.node.node_id:
            return None
        if self.reads:
            return None
        if self.node.cluster.replicated and self.node.cluster.owners[key] == believed:
            return ProtocolError(pb.QUORUM_LOST, "1 of 3 replicas are alive", retry_after_ms=20).to_message()
        return ProtocolError(pb.NOT_OWNER, f"not {self.node.node_id}", epoch=believed[1]).to_message()

    def on_metadata(self, frame: Frame) -> None:
        node = self.node
        reply = pb.MetadataReply()
        for each in node.cluster.nodes:
            reply.nodes.add(
                node_id=each.node_id,
                host="127.0.0.1",
                port=each.port,
                incarnation=1,
                alive=each.alive,
                zone=f"zone of {each.node_id}",
            )
        asked = frame.envelope.metadata
        topics = node.topics_for(confirmed=asked.confirmed)
        reply.unconfirmed = asked.confirmed and node.cut_off
        for name in asked.topics or list(topics):
            if name not in topics:
                code = pb.EPOCH_CHANGING if node.cut_off else pb.UNKNOWN_TOPIC
                reply.topics.add(name=name, error=ProtocolError(code, f"no topic {name}").to_message())
                continue
            info = reply.topics.add()
            info.CopyFrom(topics[name])
            for partition in info.partitions:
                owners = node.believes or node.cluster.owners
                partition.owner, partition.epoch = owners[info.topic_id, partition.partition]
                if node.cluster.replicated:
                    partition.placement.extend(each.node_id for each in node.cluster.nodes)
        self.reply(frame, pb.Envelope(metadata_reply=reply))

    def on_topic_describe(self, frame: Frame) -> None:
        asked = frame.envelope.topic_describe
        topics = self.node.topics_for(confirmed=True)
        if self.node.cut_off and (asked.confirmed or asked.name not in topics):
            self.fail(frame, pb.EPOCH_CHANGING)
        elif asked.name not in topics:
            self.fail(frame, pb.UNKNOWN_TOPIC)
        else:
            self.reply(frame, pb.Envelope(topic_reply=pb.TopicReply(topics=[topics[asked.name]])))

    def end_partition(self, key: Key) -> None:
        for subscription_id, subscription in self.subscriptions.items():
            if subscription.positions.pop(key, None) is not None:
                error = ProtocolError(pb.NOT_OWNER, "moved", epoch=self.node.cluster.owners[key][1]).to_message()
                ended = pb.SubscriptionEnded(
                    subscription_id=subscription_id, topic_id=key[0], partition=key[1], error=error
                )
                self.transport.write(encode_frame(pb.Envelope(subscription_ended=ended)))


@contextlib.asynccontextmanager
async def running_cluster() -> AsyncIterator[FakeCluster]:
    """Three started nodes; topic `t` has one partition at the first node, `wide` three, one at each."""
    cluster = FakeCluster()
    for node in cluster.nodes:
        await node.start()
    cluster.add_topic("t")
    cluster.add_topic("wide", 3)
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            await node.stop()
