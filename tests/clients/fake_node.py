"""A node in the test's process: real frames over a loopback socket, scripted faults, and a log in memory.

It checks producer sequences with the broker's own table, so "stored once" means the same as at a real node.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from enum import Enum

from tests.clients.fake_partition import FakePartition

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.record_batch import encode_batch
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import PROTOCOL_VERSION
from tidelog_proto.wire.frames import Frame, FrameDecoder, encode_frame, split_attachment

Key = tuple[bytes, int]


class Do(Enum):
    """The fate of one PUBLISH."""

    STORE = "store it and answer"
    DROP_BEFORE = "close the connection, nothing stored"
    DROP_AFTER = "store it, then close the connection without an answer"
    SILENT_BEFORE = "neither store nor answer"
    SILENT_AFTER = "store it and never answer"
    GARBAGE = "store it and answer with garbage"
    WRONG_KIND = "store it and answer with another kind"


@dataclass
class Refuse:
    """Refuse every batch of one PUBLISH with a code."""

    code: pb.ErrorCode
    retry_after_ms: int = 0


@dataclass
class FakeSubscription:
    """The remaining credit and position of one subscription."""

    connection: FakeConnection
    positions: dict[Key, int]
    records: int
    bytes: int


class FakeNode:
    """Answers every request of the client; `script` determines the fate of the next publishes."""

    def __init__(self) -> None:
        self.node_id = "fake-1"
        self.port = 0
        self.topics: dict[str, pb.TopicInfo] = {}
        self.made: list[str] = []
        """Names of all topics ever created."""
        self.partitions: dict[Key, FakePartition] = {}
        self.committed: dict[tuple[str, bytes, int], pb.CommittedResult] = {}
        self.forwards = False
        """Whether it marks answers about positions as those of another node."""
        self.script: deque[Do | Refuse | Callable[[pb.Publish], Do | Refuse]] = deque()
        self.publishes: list[list[tuple[int, int, int]]] = []
        """For each PUBLISH and entry: partition, base sequence, records."""
        self.requests: list[str] = []
        self.traces: list[tuple[str, list[str]]] = []
        """Trace contexts of each request, with its kind."""
        self.features: list[str] = []
        """Its supported features."""
        self.tickets: list[tuple[str, bytes]] = []
        """Kind and ticket of each request."""
        self.refused_tickets: set[bytes] = set()
        self.cannot_say = False
        """Whether it cannot confirm that an unknown topic does not exist."""
        self.metadata_asked: list[pb.Metadata] = []
        self.hold: asyncio.Event | None = None
        """While set to an event, publishes are answered only when the event is set."""
        self.coordinate: Callable[[pb.GroupHeartbeat], pb.GroupHeartbeatReply | None] = lambda _: None
        """Answers heartbeats of group members; None: never."""
        self.begin: Callable[[pb.ProducerBeginEntry], pb.ProducerBeginResult | None] | None = None
        """Answers PRODUCER_BEGIN instead of the partitions; if it returns None: never."""
        self.connections: set[FakeConnection] = set()
        self.owner_of: dict[int, str] = {}
        self.others: list[pb.NodeInfo] = []
        self.epoch = 0
        self.activity = asyncio.Event()
        self.emptied: asyncio.Future[None] | None = None
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self.new_connection, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            # Asyncio never closes connections accepted while a server closes: stop accepting, then close.
            for listening in self._server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        if self.connections:
            self.emptied = asyncio.get_running_loop().create_future()
            await self.emptied
        if self._server is not None:
            await self._server.wait_closed()

    def new_connection(self) -> FakeConnection:
        return FakeConnection(self)

    async def received(self, kind: str, count: int = 1) -> None:
        """Wait until `count` requests of a kind have arrived since the start."""
        while self.requests.count(kind) < count:
            self.activity.clear()
            await self.activity.wait()

    def add_topic(self, name: str, partitions: int = 1, topic_id: bytes | None = None) -> bytes:
        standing = self.topics.get(name)
        if standing is not None and topic_id in {None, standing.topic_id}:  # it grows
            topic_id, serial = standing.topic_id, standing.serial
        else:
            again = str(self.made.count(name) or "")
            self.made.append(name)
            topic_id, serial = topic_id or (name + again).encode().ljust(16, b"\0"), len(self.made)
        info = pb.TopicInfo(name=name, topic_id=topic_id, serial=serial)
        info.config.MergeFrom(pb.TopicConfig(partitions=partitions, flush=pb.ALWAYS))
        for partition in range(partitions):
            info.partitions.add(partition=partition, owner=self.owner_of.get(partition, self.node_id))
            self.partitions.setdefault((topic_id, partition), FakePartition())
        self.topics[name] = info
        return topic_id

    def partition(self, topic: str, partition: int = 0) -> FakePartition:
        return self.partitions[self.topics[topic].topic_id, partition]

    def reach(self, topic: str, end_offset: int) -> None:
        """Set the end of a topic's partitions, as if everything had been published and deleted."""
        for partition in self.topics[topic].partitions:
            self.partition(topic, partition.partition).end_offset = end_offset

    def values(self, topic: str) -> list[bytes | None]:
        count = len(self.topics[topic].partitions)
        return [value for partition in range(count) for value in self.partition(topic, partition).values()]

    def drop_connections(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()

    def push(self) -> None:
        """Send subscribers what they have credit for."""
        for connection in list(self.connections):
            connection.push()


class FakeConnection(asyncio.Protocol):
    """A connection of a client."""

    transport: asyncio.Transport

    def __init__(self, node: FakeNode) -> None:
        self.node = node
        self.decoder = FrameDecoder()
        self.subscriptions: dict[int, FakeSubscription] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.node.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.node.connections.discard(self)
        if not self.node.connections and self.node.emptied is not None and not self.node.emptied.done():
            self.node.emptied.set_result(None)

    def data_received(self, data: bytes) -> None:
        for frame in self.decoder.feed(data):
            kind = frame.envelope.WhichOneof("kind")
            assert kind is not None
            self.node.requests.append(kind)
            self.node.traces.append((kind, list(frame.envelope.trace_contexts)))
            self.node.tickets.append((kind, frame.envelope.on_behalf))
            if frame.envelope.on_behalf in self.node.refused_tickets:
                self.fail(frame, pb.TICKET_REFUSED)
            else:
                getattr(self, f"on_{kind}")(frame)
            self.node.activity.set()

    def reply(self, frame: Frame, envelope: pb.Envelope, attachment: bytes = b"") -> None:
        envelope.correlation_id = frame.envelope.correlation_id
        self.transport.write(encode_frame(envelope, len(attachment)) + attachment)

    def fail(self, frame: Frame, code: pb.ErrorCode, message: str = "scripted") -> None:
        self.reply(frame, pb.Envelope(error=ProtocolError(code, message).to_message()))

    def on_hello(self, frame: Frame) -> None:
        node = self.node
        greeting = pb.HelloReply(version=PROTOCOL_VERSION, node_id=node.node_id, features=node.features)
        self.reply(frame, pb.Envelope(hello_reply=greeting))

    def on_metadata(self, frame: Frame) -> None:
        node = self.node
        node.metadata_asked.append(frame.envelope.metadata)
        reply = pb.MetadataReply(nodes=[pb.NodeInfo(node_id=node.node_id, host="127.0.0.1", port=node.port)])
        reply.nodes.extend(node.others)
        for name in frame.envelope.metadata.topics or list(node.topics):
            if name in node.topics:
                info = reply.topics.add()
                info.CopyFrom(node.topics[name])
                for partition in info.partitions:
                    partition.owner = node.owner_of.get(partition.partition, node.node_id)
                    partition.epoch = node.epoch
            else:
                code = pb.EPOCH_CHANGING if node.cannot_say else pb.UNKNOWN_TOPIC
                reply.topics.add(name=name, error=ProtocolError(code, f"no topic {name}").to_message())
        self.reply(frame, pb.Envelope(metadata_reply=reply))

    def refusal(self, topic_id: bytes, partition: int) -> pb.Error | None:
        """Return why this node does not serve a partition."""
        if (topic_id, partition) in self.node.partitions:
            return None
        return ProtocolError(pb.UNKNOWN_TOPIC, "no such topic id", topic_id=topic_id).to_message()

    def refusal_of_topic(self, topic_id: bytes) -> pb.Error | None:
        if any(topic.topic_id == topic_id for topic in self.node.topics.values()):
            return None
        return ProtocolError(pb.UNKNOWN_TOPIC, "no such topic id", topic_id=topic_id).to_message()

    def on_producer_begin(self, frame: Frame) -> None:
        reply = pb.ProducerBeginReply()
        for entry in frame.envelope.producer_begin.entries:
            result = (self.node.begin or self.begun)(entry)
            if result is None:
                return
            reply.results.append(result)
        self.reply(frame, pb.Envelope(producer_begin_reply=reply))

    def begun(self, entry: pb.ProducerBeginEntry) -> pb.ProducerBeginResult:
        """Begin a producer instance like a real node."""
        partition, epoch = self.node.partitions[entry.topic_id, entry.partition], entry.producer_epoch
        encoded = encode_batch(
            columns_of([None]), now_us=1, producer_id=entry.producer_id, producer_epoch=epoch, control=True
        )
        stored = partition.append(encoded.to_bytes())
        if stored.HasField("error"):
            known = partition.producers.epoch_of(entry.producer_id)
            return pb.ProducerBeginResult(error=stored.error, producer_epoch=known)
        return pb.ProducerBeginResult(producer_epoch=epoch, repeated=stored.duplicate)

    # ------------------------------------------------------------------------------------------ publishing

    def on_publish(self, frame: Frame) -> None:
        publish = frame.envelope.publish
        parts = [bytes(part) for part in split_attachment(frame.attachment, [e.length for e in publish.entries])]
        headers = [unpack_header(part) for part in parts]
        self.node.publishes.append(
            [
                (entry.partition, header.base_sequence, header.record_count)
                for entry, header in zip(publish.entries, headers, strict=True)
            ]
        )
        step = self.node.script.popleft() if self.node.script else Do.STORE
        if callable(step):
            step = step(publish)
        if step in (Do.SILENT_BEFORE, Do.DROP_BEFORE):
            if step is Do.DROP_BEFORE:
                self.transport.abort()
            return
        reply = pb.PublishReply()
        for entry, data in zip(publish.entries, parts, strict=True):
            if isinstance(step, Refuse):
                error = ProtocolError(step.code, "scripted", retry_after_ms=step.retry_after_ms)
                reply.results.add(error=error.to_message())
                continue
            refusal = self.refusal(entry.topic_id, entry.partition)
            if refusal is not None:
                reply.results.add(error=refusal)
            else:
                reply.results.append(self.node.partitions[entry.topic_id, entry.partition].append(data))
        self._finish_publish(frame, step, reply)

    def _finish_publish(self, frame: Frame, step: Do | Refuse, reply: pb.PublishReply) -> None:
        if step is Do.DROP_AFTER:
            self.transport.abort()
        elif step is Do.GARBAGE:
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif step is Do.WRONG_KIND:
            self.reply(frame, pb.Envelope(hello_reply=pb.HelloReply()))
        elif step is not Do.SILENT_AFTER:
            if self.node.hold is None:
                self.reply(frame, pb.Envelope(publish_reply=reply))
            else:
                task = asyncio.ensure_future(self._reply_when_released(self.node.hold, frame, reply))
                task.add_done_callback(lambda done: done.exception())
        self.node.push()

    async def _reply_when_released(self, hold: asyncio.Event, frame: Frame, reply: pb.PublishReply) -> None:
        await hold.wait()
        self.reply(frame, pb.Envelope(publish_reply=reply))

    # --------------------------------------------------------------------------------------------- reading

    def on_fetch(self, frame: Frame) -> None:
        reply = pb.FetchReply()
        attachment = b""
        for entry in frame.envelope.fetch.entries:
            refusal = self.refusal(entry.topic_id, entry.partition)
            if refusal is not None:
                reply.results.add(error=refusal)
                continue
            partition = self.node.partitions[entry.topic_id, entry.partition]
            if self._is_out_of_range(entry.topic_id, entry.partition, entry.offset):
                reply.results.add(error=self._out_of_range(partition))
                continue
            data = b"".join(partition.read_from(entry.offset))
            attachment += data
            reply.results.add(
                length=len(data),
                high_watermark=partition.end_offset,
                next_offset=max(partition.end_offset, entry.offset),
                log_start_offset=partition.log_start,
            )
        self.reply(frame, pb.Envelope(fetch_reply=reply), attachment)

    def on_list_offsets(self, frame: Frame) -> None:
        reply = pb.ListOffsetsReply()
        for entry in frame.envelope.list_offsets.entries:
            refusal = self.refusal(entry.topic_id, entry.partition)
            if refusal is not None:
                reply.results.add(error=refusal)
                continue
            partition = self.node.partitions[entry.topic_id, entry.partition]
            at = entry.WhichOneof("at")
            offset = partition.log_start if at == "earliest" else partition.end_offset
            reply.results.add(
                offset=offset, log_start_offset=partition.log_start, high_watermark=partition.end_offset, epoch=0
            )
        self.reply(frame, pb.Envelope(list_offsets_reply=reply))

    def on_subscribe(self, frame: Frame) -> None:
        asked = frame.envelope.subscribe
        subscription = FakeSubscription(self, {}, asked.credit_records, asked.credit_bytes)
        reply = pb.SubscribeReply()
        for entry in asked.entries:
            refusal = self.refusal(entry.topic_id, entry.partition)
            if refusal is not None:
                reply.results.add(error=refusal)
                continue
            partition = self.node.partitions[entry.topic_id, entry.partition]
            if self._is_out_of_range(entry.topic_id, entry.partition, entry.offset):
                reply.results.add(error=self._out_of_range(partition))
            else:
                subscription.positions[entry.topic_id, entry.partition] = entry.offset
                reply.results.add(high_watermark=partition.end_offset)
        self.subscriptions[asked.subscription_id] = subscription
        self.reply(frame, pb.Envelope(subscribe_reply=reply))
        self.push()

    def on_credit(self, frame: Frame) -> None:
        credit = frame.envelope.credit
        subscription = self.subscriptions.get(credit.subscription_id)
        if subscription is not None:
            subscription.records += credit.records
            subscription.bytes += credit.bytes
        self.push()

    def on_unsubscribe(self, frame: Frame) -> None:
        self.subscriptions.pop(frame.envelope.unsubscribe.subscription_id, None)
        self.reply(frame, pb.Envelope(unsubscribe_reply=pb.UnsubscribeReply()))

    def push(self) -> None:
        for subscription_id, subscription in self.subscriptions.items():
            for (topic_id, number), position in list(subscription.positions.items()):
                partition = self.node.partitions[topic_id, number]
                for data in partition.read_from(position):
                    if subscription.records <= 0 or subscription.bytes <= 0:
                        break
                    header = unpack_header(data)
                    subscription.records -= header.record_count
                    subscription.bytes -= len(data)
                    subscription.positions[topic_id, number] = header.end_offset
                    event = pb.MessageEvent(
                        subscription_id=subscription_id,
                        topic_id=topic_id,
                        partition=number,
                        record_count=header.record_count,
                        high_watermark=self.node.partitions[topic_id, number].end_offset,
                        next_offset=header.end_offset,
                    )
                    self.transport.write(encode_frame(pb.Envelope(message_event=event), len(data)) + data)

    def end_subscriptions(self, code: pb.ErrorCode) -> None:
        """Push SUBSCRIPTION_ENDED for all subscriptions."""
        for subscription_id, subscription in self.subscriptions.items():
            for topic_id, number in subscription.positions:
                error = ProtocolError(code, "scripted", log_start_offset=3, high_watermark=9).to_message()
                ended = pb.SubscriptionEnded(
                    subscription_id=subscription_id, topic_id=topic_id, partition=number, error=error
                )
                self.transport.write(encode_frame(pb.Envelope(subscription_ended=ended)))
        self.subscriptions.clear()

    def knows_end(self, topic_id: bytes, partition: int) -> bool:
        """Whether the node can detect that an offset does not exist yet."""
        del topic_id, partition
        return True

    def _is_out_of_range(self, topic_id: bytes, number: int, offset: int) -> bool:
        partition = self.node.partitions[topic_id, number]
        return offset < partition.log_start or (offset > partition.end_offset and self.knows_end(topic_id, number))

    def _out_of_range(self, partition: FakePartition) -> pb.Error:
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            "gone",
            log_start_offset=partition.log_start,
            high_watermark=partition.end_offset,
        ).to_message()

    # ------------------------------------------------------------------------------------ groups and topics

    def on_group_heartbeat(self, frame: Frame) -> None:
        told = self.node.coordinate(frame.envelope.group_heartbeat)
        if told is not None:
            self.reply(frame, pb.Envelope(group_heartbeat_reply=told))

    def on_commit(self, frame: Frame) -> None:
        reply = pb.CommitReply(forwarded=self.node.forwards)
        asked = frame.envelope.commit
        for entry in asked.entries:
            refusal = self.refusal_of_topic(entry.topic_id)
            if refusal is not None:
                reply.results.add(error=refusal)
                continue
            key = (asked.group, entry.topic_id, entry.partition)
            held = self.node.committed.get(key)
            if held is None or asked.reset or entry.next_offset >= held.next_offset:
                held = self.node.committed[key] = pb.CommittedResult(
                    topic_id=entry.topic_id,
                    partition=entry.partition,
                    found=True,
                    next_offset=entry.next_offset,
                    note=entry.note,
                )
            reply.results.append(held)
        self.reply(frame, pb.Envelope(commit_reply=reply))

    def on_committed(self, frame: Frame) -> None:
        asked = frame.envelope.committed
        keys = [(asked.group, entry.topic_id, entry.partition) for entry in asked.entries]
        refusal = self.refusal_of_topic(asked.topic_id) if asked.topic_id else None
        if refusal is not None:
            self.reply(frame, pb.Envelope(error=refusal))
            return
        if not keys:
            keys = [key for key in self.node.committed if key[0] == asked.group]
            keys = [key for key in keys if asked.topic_id in {b"", key[1]}]
        reply = pb.CommittedReply(forwarded=self.node.forwards)
        for key in keys:
            missing = pb.CommittedResult(topic_id=key[1], partition=key[2])
            reply.results.append(self.node.committed.get(key, missing))
        self.reply(frame, pb.Envelope(committed_reply=reply))

    def on_topic_create(self, frame: Frame) -> None:
        asked = frame.envelope.topic_create
        if asked.name in self.node.topics:
            self.fail(frame, pb.TOPIC_EXISTS)
            return
        self.node.add_topic(asked.name, asked.config.partitions)
        self.node.topics[asked.name].config.MergeFrom(asked.config)
        self._reply_topic(frame, asked.name)

    def on_topic_describe(self, frame: Frame) -> None:
        self._reply_topic(frame, frame.envelope.topic_describe.name)

    def on_topic_alter(self, frame: Frame) -> None:
        asked = frame.envelope.topic_alter
        if asked.HasField("partitions"):
            self.node.add_topic(asked.name, asked.partitions)
        self._reply_topic(frame, asked.name)

    def on_topic_delete(self, frame: Frame) -> None:
        asked = frame.envelope.topic_delete
        info = self.node.topics.get(asked.name)
        if info is None or asked.topic_id not in {b"", info.topic_id}:
            self.fail(frame, pb.UNKNOWN_TOPIC)
            return
        del self.node.topics[asked.name]
        for key in [key for key in self.node.partitions if key[0] == info.topic_id]:
            del self.node.partitions[key]
        self.reply(frame, pb.Envelope(topic_reply=pb.TopicReply()))

    def on_topic_list(self, frame: Frame) -> None:
        self.reply(frame, pb.Envelope(topic_reply=pb.TopicReply(topics=list(self.node.topics.values()))))

    def on_cluster_status(self, frame: Frame) -> None:
        reply = pb.ClusterStatusReply(cluster_id=b"c" * 16, topics=list(self.node.topics.values()))
        reply.nodes.add(node=pb.NodeInfo(node_id=self.node.node_id, host="127.0.0.1", port=self.node.port))
        self.reply(frame, pb.Envelope(cluster_status_reply=reply))

    def _reply_topic(self, frame: Frame, name: str) -> None:
        if name not in self.node.topics:
            self.fail(frame, pb.UNKNOWN_TOPIC)
        else:
            self.reply(frame, pb.Envelope(topic_reply=pb.TopicReply(topics=[self.node.topics[name]])))


@contextlib.asynccontextmanager
async def running_fake_node() -> AsyncIterator[FakeNode]:
    """A started node with topic `t` of one partition and topic `wide` of four."""
    node = FakeNode()
    await node.start()
    node.add_topic("t")
    node.add_topic("wide", 4)
    try:
        yield node
    finally:
        await node.stop()
