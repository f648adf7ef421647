from __future__ import annotations

import asyncio
import gc
import math
import socket
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest
import uvloop
from tests.broker.linked import TOPIC, Ear, ack, append, identity, join, linked
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.peer_auth import answer_hello
from tidelog_broker.node.node import Node
from tidelog_broker.wire import links as link_module
from tidelog_broker.wire.links import KEPT_BACK_BYTES, Link
from tidelog_broker.wire.one_way import OneWay
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENVELOPE_BYTES_MAX, KIB, MIB
from tidelog_proto.wire.frames import Frame, FrameDecoder, encode_frame


class FakeNode:
    """A listener that greets properly and then does what the test wants."""

    def __init__(self, raw: socket.socket) -> None:
        self.raw = raw
        self.metrics = NodeMetrics()
        """Of the node that calls."""
        self.connection: socket.socket | None = None
        self._decoder = FrameDecoder()

    @property
    def port(self) -> int:
        return int(self.raw.getsockname()[1])

    async def greeted(self, *, queue_bytes: int = 64 * MIB) -> Link:
        """Return a link that thinks that this is the node "b"."""
        calling = asyncio.create_task(linked(self.port, queue_bytes=queue_bytes, metrics=self.metrics))
        loop = asyncio.get_running_loop()
        self.connection, _ = await loop.sock_accept(self.raw)
        hello = await self.frame()
        reply, challenge = answer_hello(identity("b"), hello.envelope.peer_hello, b"n" * 32)
        await self.say(pb.Envelope(correlation_id=hello.envelope.correlation_id, peer_hello_reply=reply))
        proof = await self.frame()
        challenge.check(proof.envelope.peer_proof.proof)
        await self.say(pb.Envelope(correlation_id=proof.envelope.correlation_id, peer_welcome=pb.PeerWelcome()))
        return await calling

    async def frame(self) -> Frame:
        assert self.connection is not None
        async with asyncio.timeout(20):
            while True:
                data = await asyncio.get_running_loop().sock_recv(self.connection, 1 << 20)
                assert data, "the link was closed"
                for frame in self._decoder.feed(data):
                    return frame

    async def say(self, envelope: pb.Envelope, attachment: bytes = b"") -> None:
        assert self.connection is not None
        await asyncio.get_running_loop().sock_sendall(
            self.connection, encode_frame(envelope, len(attachment)) + attachment
        )

    async def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.raw.close()


@pytest.fixture
async def fake() -> AsyncIterator[FakeNode]:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    raw.setblocking(False)
    raw.bind(("127.0.0.1", 0))
    raw.listen()
    fake = FakeNode(raw)
    yield fake
    await fake.hang_up()


async def end(link: Link) -> None:
    link.close("the test is over")
    async with asyncio.timeout(20):
        await link.lost


def dropped(fake: FakeNode) -> int:
    return fake.metrics.peer_dropped_out.tally("b").value


async def test_messages_of_one_loop_turn_share_an_envelope(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog_broker.wire.links.GATHER_S", math.inf)
    link = await fake.greeted()
    for partition in range(200):
        link.send(OneWay(ack(partition, partition)))
    frame = await fake.frame()
    assert [entry.partition for entry in frame.envelope.replication_ack.entries] == list(range(200))
    assert frame.envelope.correlation_id == 0
    link.send(OneWay(append(1), [memoryview(b"one"), memoryview(b"two")]))
    link.send(OneWay(append(2, 1), [memoryview(b"three")]))
    frame = await fake.frame()
    assert [entry.length for entry in frame.envelope.append_batch.entries] == [6, 5]
    assert bytes(frame.attachment) == b"onetwothree"
    assert fake.metrics.peer_bytes_out.tally("b").value == 11
    await end(link)


async def test_single_message_is_sent_at_once_and_order_is_kept(
    fake: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = await fake.greeted()
    monkeypatch.setattr("tidelog_broker.wire.links.GATHER_S", 0)
    link.send(OneWay(append(1), [memoryview(b"one"), memoryview(b"two")]))
    assert link.waiting_bytes == 0
    monkeypatch.setattr("tidelog_broker.wire.links.GATHER_S", math.inf)
    link.send(OneWay(append(2), [memoryview(b"three")]))
    monkeypatch.setattr("tidelog_broker.wire.links.GATHER_S", 0)
    link.send(OneWay(append(3), [memoryview(b"four")]))  # queued messages are sent first
    first, then = await fake.frame(), await fake.frame()
    assert [[entry.epoch for entry in frame.envelope.append_batch.entries] for frame in (first, then)] == [[1], [2, 3]]
    assert [bytes(frame.attachment) for frame in (first, then)] == [b"onetwo", b"threefour"]
    assert fake.metrics.peer_bytes_out.tally("b").value == 15
    await end(link)


async def deaf(fake: FakeNode) -> int:
    """Send to a node that reads nothing until messages are dropped; return how many were."""
    bound = 8 * MIB
    link = await fake.greeted(queue_bytes=bound)
    data = memoryview(batch(b"x" * MIB))
    for number in range(200):
        link.send(OneWay(append(number), [data]))
        assert link.waiting_bytes <= bound + ENVELOPE_BYTES_MAX
        await asyncio.sleep(0)
    lost = dropped(fake)
    link.send(OneWay(ack(1)))
    assert dropped(fake) == lost, "batches crowd out an acknowledgement"
    with pytest.raises(ProtocolError) as caught:
        link.request(pb.Envelope(publish=pb.Publish()), [data], timeout_s=20)
    assert caught.value.code == pb.OVERLOADED
    assert caught.value.definite
    for number in range(200_000):  # nor are messages without batches endless
        link.send(OneWay(ack(number)))
    assert link.waiting_bytes <= bound + KEPT_BACK_BYTES + ENVELOPE_BYTES_MAX
    assert dropped(fake) > lost
    await end(link)
    assert link.waiting_bytes == 0
    return lost


async def test_send_queue_of_a_peer_that_does_not_read_is_limited(fake: FakeNode) -> None:
    assert await deaf(fake) > 100


def test_queue_limit_holds_on_uvloop() -> None:
    async def main() -> int:
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            raw.setblocking(False)
            raw.bind(("127.0.0.1", 0))
            raw.listen()
            fake = FakeNode(raw)
            lost = await deaf(fake)
            await fake.hang_up()
            return lost

    assert uvloop.run(main()) > 100


async def test_oversized_message_is_dropped_and_others_are_sent(
    fake: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    link = await fake.greeted()
    link.send(OneWay(pb.BackfillReply(topic_id=TOPIC, producers=bytes(2 * MIB))))
    link.send(OneWay(ack(1)))
    assert (await fake.frame()).envelope.replication_ack.entries[0] == ack(1)
    assert dropped(fake) == 1
    assert "dropping a message" in caplog.text
    await end(link)


@pytest.mark.parametrize(
    ("said", "attachment", "why"),
    [
        (pb.Envelope(replication_ack=pb.ReplicationAcks()), b"", "without a correlation id"),
        (
            pb.Envelope(append_batch=pb.AppendBatches()),
            b"x",
            "with an attachment, but without a correlation id",
        ),
        (pb.Envelope(error=pb.Error(code=pb.SHUTTING_DOWN, message="going")), b"", "SHUTTING_DOWN: going"),
        (pb.Envelope(error=pb.Error(code=99, message="new")), b"", "INTERNAL: new"),  # type: ignore[arg-type]
    ],
)
async def test_message_without_a_request_ends_the_link(
    fake: FakeNode, said: pb.Envelope, attachment: bytes, why: str
) -> None:
    link = await fake.greeted()
    await fake.say(said, attachment)
    async with asyncio.timeout(20):
        assert why in await link.lost


async def test_late_answer_is_discarded(fake: FakeNode) -> None:
    link = await fake.greeted()
    with pytest.raises(ProtocolError, match="no answer") as caught:
        await link.request(pb.Envelope(topic_list=pb.TopicList()), timeout_s=0)
    assert caught.value.code == pb.TIMED_OUT
    late = await fake.frame()
    await fake.say(pb.Envelope(correlation_id=late.envelope.correlation_id, fetch_reply=pb.FetchReply()), bytes(MIB))
    answer = link.request(pb.Envelope(topic_list=pb.TopicList()), timeout_s=20)
    asked = await fake.frame()
    await fake.say(pb.Envelope(correlation_id=asked.envelope.correlation_id, topic_reply=pb.TopicReply()))
    assert (await answer).envelope.WhichOneof("kind") == "topic_reply"
    await end(link)


async def test_unawaited_error_is_not_logged(fake: FakeNode) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    link = await fake.greeted()
    abandoned = link.request(pb.Envelope(topic_list=pb.TopicList()), timeout_s=20)
    asked = await fake.frame()
    error = pb.Error(code=pb.NOT_OWNER, message="moved")
    await fake.say(pb.Envelope(correlation_id=asked.envelope.correlation_id, error=error))
    await asyncio.wait([abandoned], timeout=20)
    assert abandoned.done()
    del abandoned
    gc.collect()
    assert complaints == []
    await end(link)


async def test_requests_in_flight_are_bounded(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "FORWARDED_IN_FLIGHT_MAX", 3)
    link = await fake.greeted()
    waiting = [link.request(pb.Envelope(topic_list=pb.TopicList()), timeout_s=20) for _ in range(3)]
    with pytest.raises(ProtocolError) as caught:
        link.request(pb.Envelope(topic_list=pb.TopicList()), timeout_s=20)
    assert caught.value.code == pb.OVERLOADED
    await end(link)
    assert [isinstance(one.exception(), ProtocolError) for one in waiting] == [True] * 3


async def test_closed_link_refuses_requests(fake: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog_broker.wire.links.GATHER_S", math.inf)
    link = await fake.greeted()
    link.send(OneWay(ack(1)))  # still in the outbox
    await end(link)
    link.send(OneWay(ack(2)))
    assert dropped(fake) == 2
    with pytest.raises(ProtocolError) as caught:
        link.request(pb.Envelope(topic_list=pb.TopicList()), timeout_s=20)
    assert caught.value.definite


async def test_peer_without_the_secret_is_rejected(fake: FakeNode) -> None:
    calling = asyncio.create_task(linked(fake.port))
    fake.connection, _ = await asyncio.get_running_loop().sock_accept(fake.raw)
    hello = await fake.frame()
    reply, _ = answer_hello(identity("b", secrets=ClusterSecrets(b"guessed")), hello.envelope.peer_hello, b"n" * 32)
    await fake.say(pb.Envelope(correlation_id=hello.envelope.correlation_id, peer_hello_reply=reply))
    with pytest.raises(ProtocolError, match="another cluster secret"):
        await calling


async def test_full_node_declines_requests_and_reads_messages(stand: Stand) -> None:
    """Of a client nothing more would be read; behind a node's requests there may come what completes them."""
    node: Node = await stand.start(connection_in_flight_bytes=2 * MIB)
    ear = Ear()
    join(node, ear, identity("b"))
    link = await linked(node.port)
    topic = (await link.request(pb.Envelope(topic_create=pb.TopicCreate(name="t")), timeout_s=20)).envelope
    topic_id = topic.topic_reply.topics[0].topic_id
    data = batch(b"x" * MIB)

    def publish() -> asyncio.Future[Frame]:
        entry = pb.PublishEntry(topic_id=topic_id, length=len(data))
        return link.request(pb.Envelope(publish=pb.Publish(entries=[entry])), [memoryview(data)], timeout_s=20)

    stand.disk.hold("pwritev")
    first = publish()
    await settled(lambda: node.broker.bounds.budget.used_bytes == len(data), "the first request did not arrive")
    with pytest.raises(ProtocolError) as caught:
        await publish()
    assert caught.value.code == pb.OVERLOADED
    link.send(OneWay(append(1), [memoryview(data)]))
    await ear.heard(1)
    stand.disk.heal()
    assert not (await first).envelope.publish_reply.results[0].HasField("error")
    await end(link)


async def test_links_update_metrics() -> None:
    metrics = NodeMetrics()
    link = Link("b", queue_bytes=MIB, metrics=metrics)
    link.send(OneWay(ack(1)))
    assert metrics.peer_dropped_out.tally("b").value == 1


class NoSocket:
    def getsockopt(self, *_: int) -> bytes:
        raise OSError


class Wire:
    """A transport that takes everything."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.parts: list[Sequence[bytes | memoryview]] = []

    def get_extra_info(self, name: str) -> NoSocket:
        assert name == "socket"
        return NoSocket()

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: Sequence[bytes | memoryview]) -> None:
        self.parts.append(parts)
        self.write(b"".join(parts))


@pytest.mark.parametrize("size_bytes", [5, 100_000])
async def test_message_to_several_nodes_is_encoded_once(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    encoded: list[int] = []

    def counted(envelope: pb.Envelope, attachment_bytes: int) -> bytes:
        encoded.append(attachment_bytes)
        return encode_frame(envelope, attachment_bytes)

    monkeypatch.setattr("tidelog_broker.wire.links.encode_frame", counted)
    monkeypatch.setattr("tidelog_broker.wire.links.GATHER_S", 0)
    wires = [Wire(), Wire()]
    metrics = NodeMetrics()
    links = [Link(name, queue_bytes=MIB, metrics=metrics) for name in "bc"]
    for link, wire in zip(links, wires, strict=True):
        link.connection_made(cast("asyncio.Transport", wire))
    batches = [memoryview(bytes([number]) * size_bytes) for number in range(2)]
    for message, data in zip([append(1), append(2)], batches, strict=True):
        one_way = OneWay(message, [data])
        for link in links:
            link.send(one_way)
    assert wires[0].written == wires[1].written
    assert len(set(wires[0].written)) == 2
    assert [metrics.peer_bytes_out.tally(name).value for name in "bc"] == [2 * size_bytes] * 2
    assert encoded == [size_bytes] * 2
    as_they_lie = batches if size_bytes > KIB * 16 else []
    assert [parts[1] for parts in wires[1].parts] == as_they_lie
    assert all(parts[1] is data for parts, data in zip(wires[1].parts, as_they_lie, strict=True)), "it was copied"
