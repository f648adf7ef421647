from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from tests.broker.metric import counted
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.node.node import Node
from tidelog_broker.wire.connection import Connection
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import FRAME_BYTES_MAX, MIB, PROTOCOL_VERSION
from tidelog_proto.process.busy_poll import IdlePoll
from tidelog_proto.wire.frames import encode_frame

WRITE_HIGH_WATER_BYTES = 8 * MIB  # connection_outgoing_bytes, unless told otherwise
BIG = b"x" * MIB


def publish_frame(number: int, topic_id: bytes, attachment_bytes: int) -> bytes:
    """Return the head of a PUBLISH whose attachment is for the test to send, or not."""
    entry = pb.PublishEntry(topic_id=topic_id, length=attachment_bytes)
    return encode_frame(pb.Envelope(correlation_id=number, publish=pb.Publish(entries=[entry])), attachment_bytes)


async def deaf_peer(stand: Stand) -> Peer:
    """Connect with small socket buffers, greet, and read nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", stand.node.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=4096)
    peer = Peer(reader, writer)
    stand.peers.append(peer)
    peer.post(hello=pb.Hello(version=PROTOCOL_VERSION, client_id="deaf"))
    connections = stand.node.server.connections
    await settled(lambda: any(one.client_id == "deaf" for one in connections), "the deaf client was not heard")
    return peer


async def stored(peer: Peer, count: int) -> bytes:
    """Make a topic with `count` batches of a megabyte; return its id."""
    topic = await peer.create(flush=pb.NEVER)
    for _ in range(count):
        assert not (await peer.publish(topic.topic_id, batch(BIG)))[0].HasField("error")
    return topic.topic_id


def unsent_bytes(node: Node) -> int:
    return max(connection.unsent() for connection in node.server.connections)


async def test_client_that_does_not_read_replies_is_closed(stand: Stand) -> None:
    node = await stand.start(write_stall_ms=300, ring_bytes=64 * MIB)
    peer = await stand.peer()
    topic_id = await stored(peer, 12)
    deaf = await deaf_peer(stand)
    for _ in range(40):
        deaf.post_fetch(topic_id, max_bytes=4 * MIB)
    bound = WRITE_HIGH_WATER_BYTES + 5 * MIB
    most = 0
    async with asyncio.timeout(20):
        while len(node.server.connections) == 2:
            most = max(most, unsent_bytes(node))
            assert len(await peer.fetch(topic_id, 0)) > 0, "another client is not served"
    assert 0 < most <= bound
    assert counted(node.broker.metrics.stalled) == 1


async def test_unread_events_are_limited(stand: Stand) -> None:
    node = await stand.start(write_stall_ms=300)
    peer = await stand.peer()
    topic_id = await stored(peer, 30)
    deaf = await deaf_peer(stand)
    entry = pb.SubscribeEntry(topic_id=topic_id)
    deaf.post(subscribe=pb.Subscribe(subscription_id=1, entries=[entry], credit_records=10**9, credit_bytes=10**12))
    most = 0
    async with asyncio.timeout(20):
        while len(node.server.connections) == 2:
            most = max(most, unsent_bytes(node))
            await peer.publish(topic_id, batch(BIG))
    assert 0 < most <= WRITE_HIGH_WATER_BYTES + 3 * MIB
    assert not node.broker.partitions.get(topic_id, 0).changes.listeners


async def test_slow_reader_gets_all_records_after_it_reads_again(stand: Stand, node: Node, peer: Peer) -> None:
    topic_id = await stored(peer, 12)
    slow = await deaf_peer(stand)
    numbers = [slow.post_fetch(topic_id, max_bytes=4 * MIB) for _ in range(8)]
    connection = next(one for one in node.server.connections if one.client_id == "deaf")
    await settled(lambda: not connection.is_writable, "the backlog never passed the high-water mark")
    slow.start_reading()
    for number in numbers:
        assert len((await slow.reply(number)).attachment) > 3 * MIB
    assert connection.is_writable


async def test_closing_connection_that_reads_nothing_is_aborted(stand: Stand) -> None:
    """Its backlog is below the mark at which the clock starts, and it still must not stay for ever."""
    node = await stand.start(write_stall_ms=100)
    peer = await stand.peer()
    topic_id = await stored(peer, 6)
    deaf = await deaf_peer(stand)
    deaf.post_fetch(topic_id, max_bytes=6 * MIB)
    await settled(lambda: unsent_bytes(node) > 0, "the socket took everything")
    deaf.send_raw(bytes(8))  # a broken frame
    await settled(lambda: len(node.server.connections) == 1, "the connection stays")


async def test_full_node_declines_requests_before_allocating_memory(stand: Stand) -> None:
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX)
    peer, hog = await stand.peer(), await stand.peer()
    topic = await peer.create()
    announced_bytes = FRAME_BYTES_MAX - 1024
    hog.send_raw(publish_frame(7, topic.topic_id, announced_bytes))
    await settled(lambda: node.server.budget.used_bytes == announced_bytes, "the announced frame is not counted")

    large = b"x" * 200_000
    error = await peer.refused(large, publish=pb.Publish(entries=[pb.PublishEntry(length=len(large))]))
    assert error.code == pb.OVERLOADED
    assert error.retriable
    assert error.definite
    assert error.retry_after_ms > 0
    assert node.server.budget.used_bytes == announced_bytes
    assert counted(node.broker.metrics.declined) == 1

    assert (await peer.create("u")).name == "u", "a request without an attachment is served"
    await hog.close()
    await settled(lambda: node.server.budget.used_bytes == 0, "the incomplete request is still counted")
    assert not (await peer.publish(topic.topic_id, batch(b"x" * 200_000)))[0].HasField("error")


def padded_frame(envelope: pb.Envelope, padding_bytes: int) -> bytes:
    """Return a frame whose envelope has a field that no node knows, of 16 KiB to 2 MiB."""
    tag = (1023 << 3) | 2
    head = [tag & 127 | 128, tag >> 7, padding_bytes & 127 | 128, padding_bytes >> 7 & 127 | 128, padding_bytes >> 14]
    body = envelope.SerializeToString() + bytes(head) + bytes(padding_bytes)
    return struct.pack("<II", 4 + len(body), len(body)) + body


async def test_waiting_large_envelopes_are_counted_and_declined(stand: Stand) -> None:
    """Long polls, each with nearly a megabyte that the node does not know and keeps with the request."""
    node = await stand.start(node_in_flight_bytes=FRAME_BYTES_MAX, caller_in_flight_bytes=2 * FRAME_BYTES_MAX)
    peer, hog = await stand.peer(), await stand.peer()
    topic = await peer.create()
    fetch = pb.Fetch(entries=[pb.FetchEntry(topic_id=topic.topic_id)], min_bytes=1, wait_ms=60_000)
    size_bytes = 1_000_000
    numbers = [hog.expect() for _ in range(FRAME_BYTES_MAX // size_bytes + 1)]
    for number in numbers:
        hog.send_raw(padded_frame(pb.Envelope(correlation_id=number, fetch=fetch), size_bytes))
        await hog.writer.drain()
    error = (await hog.reply(numbers[-1])).envelope.error
    assert (error.code, error.retriable, error.definite) == (pb.OVERLOADED, True, True)
    assert not hog.answered(numbers[-2])
    in_flight_bytes = node.server.budget.used_bytes
    assert FRAME_BYTES_MAX - 2 * size_bytes < in_flight_bytes <= FRAME_BYTES_MAX
    assert (await peer.create("u")).name == "u", "a small request without an attachment is served"
    await hog.close()
    await peer.publish(topic.topic_id, batch(b"for waiting fetches"))
    await settled(lambda: node.server.budget.used_bytes == 0, "the closed connection is still counted")


async def test_connection_at_its_limit_pauses_without_loss(stand: Stand) -> None:
    """The requests in the way end by themselves; reading goes on then."""
    node = await stand.start(connection_in_flight_bytes=300_000)
    peer, other = await stand.peer(), await stand.peer()
    topic = await peer.create()
    stand.disk.hold("sync")
    numbers = [peer.post_publish(topic.topic_id, batch(bytes([index]) * 100_000)) for index in range(12)]
    await stand.disk.held_up()
    await settled(lambda: node.server.budget.used_bytes >= 300_000, "the connection did not fill up")
    for _ in range(50):
        await other.ask(topic_list=pb.TopicList())
    assert node.server.budget.used_bytes < 600_000
    stand.disk.heal()
    results = [(await peer.published(number))[0] for number in numbers]
    assert [result.base_offset for result in results] == list(range(12))


@pytest.mark.parametrize("bound", [1, 4])
async def test_too_many_requests_in_flight_pause_reading(stand: Stand, bound: int) -> None:
    node = await stand.start(requests_in_flight=bound)
    peer, other = await stand.peer(), await stand.peer()
    topic = await peer.create()
    waiting = [peer.post_fetch(topic.topic_id, min_bytes=1, wait_ms=60_000) for _ in range(bound)]
    await settled(
        lambda: len(node.broker.partitions.get(topic.topic_id, 0).changes.listeners) == bound, "not all fetches wait"
    )
    late = peer.post(topic_list=pb.TopicList())
    for _ in range(20):
        await other.ask(topic_list=pb.TopicList())
    assert not peer.answered(late)
    await other.publish(topic.topic_id, batch(b"go on"))
    for number in waiting:
        await peer.reply(number)
    assert (await peer.reply(late)).envelope.WhichOneof("kind") == "topic_reply"


async def test_attachment_larger_than_a_read_is_received_with_one_request_allowed(stand: Stand) -> None:
    """It counts as the one request from its envelope on and must not wait for itself."""
    await stand.start(requests_in_flight=1)
    peer = await stand.peer()
    topic = await peer.create()
    assert not (await peer.publish(topic.topic_id, batch(b"x" * (2 * MIB))))[0].HasField("error")


async def test_disconnect_ends_long_polls(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create()
    other = await stand.peer()
    for _ in range(5):
        other.post_fetch(topic.topic_id, min_bytes=1, wait_ms=60_000)
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: len(partition.changes.listeners) == 5, "the fetches do not wait")
    await other.close()
    await settled(lambda: not partition.changes.listeners, "fetches wait for a client that is gone")


async def test_event_loop_polls_for_messages_in_quick_succession(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(IdlePoll, "_look", lambda _: looks.append(1))
    for idle_poll_us in (0, 10_000):
        await stand.start(idle_poll_us=idle_poll_us)
        peer = await stand.peer()
        for _ in range(1000):
            await peer.ask(cluster_status=pb.ClusterStatus())
            if looks:
                break
        assert bool(looks) == bool(idle_poll_us)
        await stand.stop()


async def test_slow_reader_is_limited_without_asyncio_flow_control(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`writelines` of Python 3.13.0 never pauses the protocol."""
    monkeypatch.setattr(Connection, "pause_writing", lambda _: None)
    monkeypatch.setattr(Connection, "resume_writing", lambda _: None)
    node = await stand.start(write_stall_ms=3000, ring_bytes=64 * MIB)
    peer = await stand.peer()
    topic_id = await stored(peer, 12)
    slow, deaf = await deaf_peer(stand), await deaf_peer(stand)
    numbers = [slow.post_fetch(topic_id, max_bytes=4 * MIB) for _ in range(8)]
    entry = pb.SubscribeEntry(topic_id=topic_id)
    for number in range(20):
        deaf.post(
            subscribe=pb.Subscribe(subscription_id=number, entries=[entry], credit_records=99, credit_bytes=2**40)
        )
    slow.start_reading()
    most = 0
    async with asyncio.timeout(30):
        while len(node.server.connections) == 3:
            most = max(most, unsent_bytes(node))
            deaf.post(metadata=pb.Metadata())  # a client that sends but does not read counts as stalled
            await asyncio.sleep(0.02)
    for number in numbers:
        assert len((await slow.reply(number)).attachment) > MIB, "less than a batch"
    assert 0 < most <= WRITE_HIGH_WATER_BYTES + 5 * MIB
    assert counted(node.broker.metrics.stalled) == 1
    await settled(lambda: node.broker.bounds.send_budget.used_bytes == 0, "sent bytes are still counted")


async def test_unsent_bytes_of_all_clients_are_limited_and_readers_are_served(stand: Stand) -> None:
    node = await stand.start(node_outgoing_bytes=16 * MIB, ring_bytes=64 * MIB)
    peer = await stand.peer()
    topic_id = await stored(peer, 12)
    small = await peer.create("small")
    await peer.publish(small.topic_id, batch(b"x"))
    for _ in range(20):
        deaf = await deaf_peer(stand)
        entry = pb.SubscribeEntry(topic_id=topic_id)
        deaf.post(subscribe=pb.Subscribe(subscription_id=1, entries=[entry], credit_records=99, credit_bytes=2**40))
        for _ in range(4):
            deaf.post_fetch(topic_id, max_bytes=8 * MIB)
    most = 0
    for _ in range(100):
        waiting = sum(one.unsent() for one in node.server.connections)
        assert waiting <= node.broker.bounds.send_budget.used_bytes <= 16 * MIB
        most = max(most, node.broker.bounds.send_budget.used_bytes)
        assert len(await peer.fetch(small.topic_id, 0)) == 1, "another client is not served"
        await asyncio.sleep(0.01)
    assert most > 12 * MIB, "the bound was never near"
