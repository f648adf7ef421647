from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from tests.broker.linked import Ear, identity, join, linked
from tests.broker.metric import counted
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.node.node import Node
from tidelog_broker.server import server as server_module
from tidelog_broker.server.handlers import commit as commit_module
from tidelog_broker.server.server import HANDLERS, NODES_ONLY
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import (
    BATCH_BYTES_MAX,
    ENVELOPE_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MAX_BEFORE_HELLO,
    NOTE_BYTES_MAX,
    PROTOCOL_VERSION,
)
from tidelog_proto.version import NODE_SOFTWARE
from tidelog_proto.wire.frames import encode_frame

BROKEN_FRAMES = {
    "zero length": (struct.pack("<II", 0, 0), pb.MALFORMED_FRAME),
    "no envelope": (struct.pack("<II", 4, 0), pb.MALFORMED_FRAME),
    "envelope longer than the frame": (struct.pack("<II", 8, 100), pb.MALFORMED_FRAME),
    "not an envelope": (struct.pack("<II", 8, 4) + b"\xff\xff\xff\xff", pb.MALFORMED_FRAME),
    "frame too large": (struct.pack("<II", FRAME_BYTES_MAX + 1, 10), pb.FRAME_TOO_LARGE),
    "envelope too large": (struct.pack("<II", FRAME_BYTES_MAX, ENVELOPE_BYTES_MAX + 1), pb.FRAME_TOO_LARGE),
    "a web browser": (b"GET / HTTP/1.1\r\nHost: tidelog\r\n\r\n", pb.MALFORMED_FRAME),
}


@pytest.mark.parametrize(("data", "code"), BROKEN_FRAMES.values(), ids=BROKEN_FRAMES.keys())
@pytest.mark.parametrize("greeted", [True, False])
async def test_malformed_frame_ends_only_its_connection(
    stand: Stand, peer: Peer, data: bytes, code: int, greeted: bool
) -> None:
    other = await stand.peer(greet=greeted)
    other.send_raw(data)
    error = (await other.event()).envelope.error
    await other.closed()
    assert error.code == code
    assert error.message
    assert (await peer.create()).name == "t"
    assert counted(stand.node.broker.metrics.connection_errors) == 1


async def test_truncated_frame_releases_its_budget(stand: Stand, node: Node, peer: Peer) -> None:
    """Also its share of the budgets, which was taken when its envelope had come."""
    topic = await peer.create()
    other = await stand.peer()
    announced = encode_frame(
        pb.Envelope(correlation_id=9, publish=pb.Publish(entries=[pb.PublishEntry(topic_id=topic.topic_id)])), 100_000
    )
    other.send_raw(announced + bytes(50_000))
    await settled(lambda: node.server.budget.used_bytes == 100_000, "the attachment was not counted")
    await other.close()
    await settled(lambda: len(node.server.connections) == 1, "the connection was not noticed to be gone")
    assert node.server.budget.used_bytes == 0


async def test_frame_is_parsed_byte_by_byte(stand: Stand, node: Node) -> None:
    peer = await stand.peer(greet=False)
    await peer.greet("slow")
    topic = await peer.create()
    data = batch(b"x" * 100)
    number = peer.expect()
    envelope = pb.Envelope(
        correlation_id=number, publish=pb.Publish(entries=[pb.PublishEntry(topic_id=topic.topic_id, length=len(data))])
    )
    for byte in encode_frame(envelope, len(data)) + data:
        peer.send_raw(bytes([byte]))
        await peer.writer.drain()
    assert not (await peer.published(number))[0].HasField("error")


async def test_unknown_request_kind_keeps_the_connection(peer: Peer) -> None:
    number = peer.expect()
    unknown = pb.Envelope(correlation_id=number).SerializeToString() + b"\xd2\x3e\x00"  # field 1002, empty
    peer.send_raw(struct.pack("<II", 4 + len(unknown), len(unknown)) + unknown)
    error = (await peer.reply(number)).envelope.error
    assert error.code == pb.UNKNOWN_KIND
    assert "requests of kind 1002 are not supported:" in error.message
    assert f"the node is {NODE_SOFTWARE}, protocol {PROTOCOL_VERSION}, the client " in error.message
    assert "test-peer/9.8" in error.message
    assert (await peer.create()).name == "t"


REPLY_KINDS = sorted({field.name for field in pb.Envelope.DESCRIPTOR.oneofs_by_name["kind"].fields} - set(HANDLERS))


@pytest.mark.parametrize("kind", REPLY_KINDS)
async def test_node_kinds_are_refused_from_clients(peer: Peer, kind: str) -> None:
    field = pb.Envelope.DESCRIPTOR.fields_by_name[kind]
    assert field.message_type is not None
    error = await peer.refused(**{kind: getattr(pb, field.message_type.name)()})
    assert error.code == (pb.FORBIDDEN if kind in NODES_ONLY else pb.UNKNOWN_KIND)
    assert not error.retriable
    assert (await peer.ask(topic_list=pb.TopicList())).envelope.WhichOneof("kind") == "topic_reply"


async def test_hello_reply_contains_identity_and_limits(stand: Stand, node: Node) -> None:
    peer = await stand.peer(greet=False)
    reply = await peer.greet("tester")
    assert reply.node_id == node.node_id
    assert reply.cluster_id == node.broker.cluster_id
    assert reply.incarnation == node.incarnation
    assert (reply.frame_bytes_max, reply.batch_bytes_max) == (FRAME_BYTES_MAX, BATCH_BYTES_MAX)


async def test_requests_before_hello_are_refused(stand: Stand, node: Node) -> None:
    peer = await stand.peer(greet=False)
    assert (await peer.refused(topic_list=pb.TopicList())).code == pb.HELLO_REQUIRED
    await peer.greet()
    assert (await peer.create()).name == "t"


async def test_frames_before_hello_are_limited(stand: Stand, node: Node) -> None:
    peer = await stand.peer(greet=False)
    peer.send_raw(struct.pack("<II", FRAME_BYTES_MAX_BEFORE_HELLO + 1, 10))
    assert (await peer.event()).envelope.error.code == pb.FRAME_TOO_LARGE
    await peer.closed()


@pytest.mark.parametrize(
    ("hello", "code"),
    [
        (pb.Hello(version=PROTOCOL_VERSION + 1, client_id="new"), pb.UNSUPPORTED_VERSION),
        (pb.Hello(version=0), pb.UNSUPPORTED_VERSION),
        (pb.Hello(version=PROTOCOL_VERSION, client_id="x" * 256), pb.INVALID_REQUEST),
    ],
)
async def test_invalid_hello_is_refused(stand: Stand, node: Node, hello: pb.Hello, code: int) -> None:
    peer = await stand.peer(greet=False)
    assert (await peer.refused(hello=hello)).code == code
    assert (await peer.refused(topic_list=pb.TopicList())).code == pb.HELLO_REQUIRED


async def test_connection_without_hello_is_closed(stand: Stand) -> None:
    await stand.start(hello_timeout_ms=300)
    silent = await stand.peer(greet=False)
    greeted = await stand.peer()
    assert (await silent.event()).envelope.error.code == pb.HELLO_REQUIRED
    await silent.closed()
    assert (await greeted.create()).name == "t"


async def test_repeated_hello_is_answered(peer: Peer) -> None:
    assert (await peer.greet("once more")).version == PROTOCOL_VERSION
    assert (await peer.create()).name == "t"


async def test_connection_beyond_the_limit_is_refused(stand: Stand) -> None:
    node = await stand.start(connections_max=2)
    first, second = await stand.peer(), await stand.peer()
    third = await stand.peer(greet=False)
    error = await third.refused(hello=pb.Hello(version=PROTOCOL_VERSION))
    await third.closed()
    assert error.code == pb.OVERLOADED
    assert error.retriable
    assert error.definite
    assert error.retry_after_ms > 0
    await first.create()
    await second.close()
    await settled(lambda: len(node.server.connections) == 1, "a closed connection still counts")
    assert (await (await stand.peer()).create("u")).name == "u"


async def test_unauthenticated_connections_are_limited(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "RESERVED_CONNECTIONS", 1)
    node = await stand.start(connections_max=2)
    for _ in range(3):
        await stand.peer(greet=False)
    await settled(lambda: len(node.server.connections) == 3, "a connection was not taken")
    oldest = stand.peers[0]
    fourth = await stand.peer()
    assert (await oldest.event()).envelope.error.code == pb.OVERLOADED
    await oldest.closed()
    assert (await fourth.create()).name == "t"
    assert counted(node.broker.metrics.strangers_closed) == 1


async def test_connections_without_hello_do_not_block_clients(stand: Stand) -> None:
    node = await stand.start(strangers_max=50)
    silent = [await stand.peer(greet=False) for _ in range(200)]
    for _ in range(20):
        peer = await stand.peer()
        assert (await peer.ask(metadata=pb.Metadata())).envelope.WhichOneof("kind") == "metadata_reply"
    await settled(lambda: sum(peer.ended.is_set() for peer in silent) >= 150, "too few connections were evicted")
    await settled(lambda: len(node.server.connections) <= 70, "evicted connections are still open")


async def test_node_can_connect_at_the_client_limit(stand: Stand) -> None:
    node = await stand.start(connections_max=1)
    join(node, Ear(), identity("b"))
    await stand.peer()
    link = await linked(node.port)
    assert node.broker.bounds.open_clients == 1
    link.close("done")
    await settled(lambda: len(node.server.connections) == 1, "the link's end was not noticed")
    assert node.broker.bounds.open_clients == 1


async def test_exception_in_a_handler_fails_one_request(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    async def broken_later(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setitem(HANDLERS, "topic_list", broken)
    monkeypatch.setitem(HANDLERS, "commit", broken_later)
    assert (await peer.refused(topic_list=pb.TopicList())).code == pb.INTERNAL
    assert (await peer.refused(commit=pb.Commit())).code == pb.INTERNAL
    assert (await peer.create()).name == "t"


async def test_oversized_answer_is_an_error(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await peer.create(partitions=300)
    note = "x" * NOTE_BYTES_MAX
    for half in (range(150), range(150, 300)):
        entries = [pb.CommitEntry(topic_id=topic.topic_id, partition=index, note=note) for index in half]
        await peer.ask(commit=pb.Commit(group="g", entries=entries))
    monkeypatch.setattr(commit_module, "PAGE_BYTES", FRAME_BYTES_MAX)  # all answers come in pages that fit
    error = await peer.refused(committed=pb.Committed(group="g"))
    assert error.code == pb.FRAME_TOO_LARGE
    few = [pb.CommittedEntry(topic_id=topic.topic_id, partition=299)]
    found = (await peer.ask(committed=pb.Committed(group="g", entries=few))).envelope.committed_reply.results
    assert [result.note for result in found] == [note]


async def test_connection_accepted_during_a_stop_is_closed(stand: Stand) -> None:
    """Asyncio makes a connection in the turn after the one in which it accepts it, and none of a closed listener."""
    node = await stand.start()
    with socket.create_connection(("127.0.0.1", stand.node.port)) as late:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await node.server.stop_listening()
        assert [one._transport.get_extra_info("peername") for one in node.server.connections] == [late.getsockname()]  # type: ignore[union-attr]
