from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode

from tidelog.cluster import connection as module
from tidelog.cluster.connection import Connection, connect
from tidelog.errors import (
    BadReplyError,
    ClosedError,
    ConnectionLostError,
    InvalidRequestError,
    NodeUnreachableError,
    RequestTimeoutError,
    TidelogError,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.process.busy_poll import IdlePoll
from tidelog_proto.wire.frames import JOIN_BYTES_MAX, Frame, encode_frame
from tidelog_proto.wire.pushed_events import PushedEvent

STATUS = pb.Envelope(cluster_status=pb.ClusterStatus())


@pytest.fixture
async def connection(node: FakeNode) -> AsyncIterator[Connection]:
    connection = await connect(("127.0.0.1", node.port), client_id="test", software="test", timeout_s=5.0)
    yield connection
    connection.close()
    await connection.lost


def silence(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(FakeConnection, f"on_{kind}", lambda *_: None)


async def test_answers_are_matched_to_requests(connection: Connection, node: FakeNode) -> None:
    assert connection.greeting.node_id == node.node_id
    asked = [pb.Envelope(topic_describe=pb.TopicDescribe(name=name)) for name in ("t", "wide", "t")]
    frames = await asyncio.gather(*(connection.call(envelope, timeout_s=5.0) for envelope in asked))
    assert [frame.envelope.topic_reply.topics[0].name for frame in frames] == ["t", "wide", "t"]


async def test_error_answer_is_raised(connection: Connection) -> None:
    with pytest.raises(TidelogError) as caught:
        await connection.call(pb.Envelope(topic_delete=pb.TopicDelete(name="none")), timeout_s=5.0)
    assert caught.value.code == pb.UNKNOWN_TOPIC


async def test_request_times_out_and_connection_stays_usable(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, "cluster_status")
    with pytest.raises(RequestTimeoutError) as caught:
        await connection.call(STATUS, timeout_s=0.01)
    assert not caught.value.definite
    assert not connection.closed, "the connection stays usable"


async def test_each_request_has_its_own_timeout(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    silence(monkeypatch, "cluster_status")
    waits = connection.request(STATUS, timeout_s=60.0)
    soon = connection.request(STATUS, timeout_s=0.02)
    soonest = connection.request(STATUS, timeout_s=0.01)
    assert connection._requests._timer_at < asyncio.get_running_loop().time() + 0.02, (
        "the earliest deadline is checked first"
    )
    for late in (soonest, soon):
        with pytest.raises(RequestTimeoutError, match=r"within 0\.0"):
            await late
    assert not waits.done()
    assert connection._requests._timer is not None, "the pending request still times out"
    await connection.call(pb.Envelope(topic_describe=pb.TopicDescribe(name="t")), timeout_s=5.0)
    connection.close()
    with pytest.raises(TidelogError):
        await waits
    assert connection._requests._timer is None


async def test_late_answer_is_dropped_and_unknown_id_closes_the_connection(
    connection: Connection, node: FakeNode
) -> None:
    (peer,) = node.connections
    await connection.call(STATUS, timeout_s=5.0)
    peer.transport.write(encode_frame(pb.Envelope(correlation_id=1, metadata_reply=pb.MetadataReply())))
    await connection.call(STATUS, timeout_s=5.0)
    peer.transport.write(encode_frame(pb.Envelope(correlation_id=999, metadata_reply=pb.MetadataReply())))
    assert isinstance(await connection.lost, BadReplyError)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\0" * 8,
        b"\x05\0\0\0\x01\0\0\0\xff",
        encode_frame(pb.Envelope(hello=pb.Hello())),
        encode_frame(pb.Envelope()),
    ],
)
async def test_garbage_closes_the_connection(
    connection: Connection, node: FakeNode, monkeypatch: pytest.MonkeyPatch, garbage: bytes
) -> None:
    silence(monkeypatch, "cluster_status")
    pending = connection.request(STATUS, timeout_s=5.0)
    (peer,) = node.connections
    peer.transport.write(garbage)
    with pytest.raises(BadReplyError, match="violated"):
        await pending
    assert connection.closed


async def test_pending_requests_end_with_the_connection(
    connection: Connection, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, "cluster_status")
    pending = [connection.request(STATUS, timeout_s=5.0) for _ in range(3)]
    await node.received("cluster_status", 3)
    node.drop_connections()
    for each in pending:
        with pytest.raises(ConnectionLostError):
            await each
    with pytest.raises(NodeUnreachableError) as caught:
        connection.request(STATUS, timeout_s=5.0)
    assert caught.value.definite, "nothing was sent"


async def test_error_pushed_before_close_is_the_reason(
    connection: Connection, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, "cluster_status")
    pending = connection.request(STATUS, timeout_s=5.0)
    await node.received("cluster_status", 1)
    (peer,) = node.connections
    peer.transport.write(encode_frame(pb.Envelope(error=pb.Error(code=pb.MALFORMED_FRAME, message="go away"))))
    assert isinstance(await connection.lost, InvalidRequestError)
    with pytest.raises(InvalidRequestError, match="go away") as ended:
        await pending
    assert not ended.value.definite, "the outcome is unknown"


async def test_end_of_session_leaves_pending_outcomes_unknown(
    connection: Connection, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, "cluster_status")
    pending = connection.request(STATUS, timeout_s=5.0)
    await node.received("cluster_status", 1)
    (peer,) = node.connections
    peer.transport.write(encode_frame(pb.Envelope(error=pb.Error(code=pb.CREDENTIALS_EXPIRED, message="too late"))))
    with pytest.raises(ConnectionLostError, match="too late") as ended:
        await pending
    assert ended.value.retriable
    assert not ended.value.definite


async def test_requests_in_flight_are_bounded(
    connection: Connection, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REQUESTS_IN_FLIGHT_MAX", 2)
    answers: list[tuple[FakeConnection, Frame]] = []
    monkeypatch.setattr(FakeConnection, "on_cluster_status", lambda peer, frame: answers.append((peer, frame)))
    calls = [asyncio.ensure_future(connection.call(STATUS, timeout_s=5.0)) for _ in range(3)]
    await node.received("cluster_status", 2)
    woken: list[bool] = []
    connection.when_ready(lambda: woken.append(connection.ready))
    assert not connection.ready
    with pytest.raises(RequestTimeoutError) as caught:
        await connection.call(STATUS, timeout_s=0.01)
    assert caught.value.definite
    answers[0][0].reply(answers[0][1], pb.Envelope(cluster_status_reply=pb.ClusterStatusReply()))
    await node.received("cluster_status", 3)
    assert woken == [True]
    for peer, frame in answers[1:]:
        peer.reply(frame, pb.Envelope(cluster_status_reply=pb.ClusterStatusReply()))
    await asyncio.gather(*calls)


async def test_silence_counts_from_due_answer_until_next_byte(
    connection: Connection, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert connection.silent_s == 0.0
    silence(monkeypatch, "cluster_status")
    now = 1000.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    connection._heard_at = now - 5.0
    assert (connection.quiet_s, connection.silent_s) == (5.0, 0.0)
    pending = [
        connection.request(STATUS, timeout_s=60.0, wait_s=20.0),
        connection.request(STATUS, timeout_s=60.0),
    ]
    now = 1003.0
    assert connection.silent_s == 3.0
    connection._heard_at = 1002.0
    assert connection.silent_s == 1.0
    monkeypatch.undo()
    node.drop_connections()
    await asyncio.gather(*pending, return_exceptions=True)
    assert connection.silent_s == 0.0


def transport_of(connection: Connection) -> asyncio.Transport:
    """Return the transport, which the connection keeps private."""
    found = connection._transport
    assert found is not None
    return found


async def test_tcp_keepalive_is_enabled(connection: Connection) -> None:
    sock = transport_of(connection).get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == module.UNACKNOWLEDGED_MS_MAX


async def test_full_write_buffer_delays_requests(connection: Connection) -> None:
    connection.pause_writing()
    call = asyncio.ensure_future(connection.call(STATUS, timeout_s=5.0))
    await asyncio.sleep(0)
    assert not connection.ready
    connection.resume_writing()
    assert (await call).envelope.WhichOneof("kind") == "cluster_status_reply"


async def test_oversized_request_is_refused_before_sending(connection: Connection) -> None:
    huge = pb.Envelope(metadata=pb.Metadata(topics=["x" * 2_000_000]))
    with pytest.raises(InvalidRequestError):
        connection.request(huge, timeout_s=5.0)
    await connection.call(STATUS, timeout_s=5.0)


async def test_close_ends_requests_and_subscriptions(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    silence(monkeypatch, "cluster_status")
    pending = connection.request(STATUS, timeout_s=5.0)
    connection.close()
    with pytest.raises(ClosedError):
        await pending
    connection.close()


async def test_pushes_reach_their_subscription(connection: Connection, node: FakeNode) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[str] = []
            self.errors: list[TidelogError] = []

        def pushed(self, event: PushedEvent) -> None:
            self.heard.append(f"event with {len(event.attachment)} bytes")

        def ended(self, ended: pb.SubscriptionEnded) -> None:
            self.heard.append(f"end of partition {ended.partition}")

        def connection_lost(self, error: TidelogError) -> None:
            self.errors.append(error)

    ear = Listener()
    subscription_id = connection.new_subscription_id()
    connection.subscribe(subscription_id, ear)
    (peer,) = node.connections
    for number in (subscription_id, 77):
        for size_bytes in (0, 500):
            event = pb.Envelope(message_event=pb.MessageEvent(subscription_id=number, topic_id=bytes(16)))
            peer.transport.write(encode_frame(event, size_bytes) + bytes(size_bytes))
            await asyncio.sleep(0.05)
    ended = pb.SubscriptionEnded(subscription_id=subscription_id, partition=3)
    peer.transport.write(encode_frame(pb.Envelope(subscription_ended=ended)))
    await connection.call(STATUS, timeout_s=5.0)
    assert ear.heard == ["event with 0 bytes", "event with 500 bytes", "end of partition 3"]
    node.drop_connections()
    await connection.lost
    assert len(ear.errors) == 1


async def test_invalid_host_is_unreachable() -> None:
    with pytest.raises(NodeUnreachableError):
        await connect(("a..b", 1), client_id="t", software="t", timeout_s=5.0)


async def test_close_does_not_wait_for_peer_that_reads_nothing(connection: Connection, node: FakeNode) -> None:
    (peer,) = node.connections
    peer.transport.pause_reading()
    publish = pb.Envelope(publish=pb.Publish())
    pending = [
        connection.request(publish, [bytes(1 << 20)], attachment_bytes=1 << 20, timeout_s=5.0) for _ in range(16)
    ]
    assert not connection.ready
    connection.close()
    await connection.lost
    for each in pending:
        with pytest.raises(ClosedError):
            await each


async def test_attachment_with_empty_last_part_is_sent_completely(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch without keys has an empty part."""
    silence(monkeypatch, "publish")
    size_bytes = JOIN_BYTES_MAX + 1  # the kernel accepts it immediately
    parts = [bytes(size_bytes), memoryview(b"")]
    pending = connection.request(pb.Envelope(publish=pb.Publish()), parts, attachment_bytes=size_bytes, timeout_s=5.0)
    connection.close()
    await asyncio.wait_for(connection.lost, 5.0)
    with pytest.raises(ClosedError):
        await pending


async def test_nothing_is_sent_on_connection_lost_in_the_same_loop_iteration(connection: Connection) -> None:
    """Asyncio reports the loss in the next iteration; requests sent until then would have an unknown outcome."""
    transport_of(connection).abort()
    assert connection.closed
    assert not connection.ready
    connection.send(STATUS)
    with pytest.raises(NodeUnreachableError) as caught:
        connection.request(pb.Envelope(publish=pb.Publish()), [bytes(1 << 20)], attachment_bytes=1 << 20, timeout_s=5.0)
    assert caught.value.definite
    with pytest.raises(NodeUnreachableError):
        await connection.call(STATUS, timeout_s=5.0)
    assert isinstance(await connection.lost, ConnectionLostError)


async def test_connection_refused_is_reported() -> None:
    with pytest.raises(NodeUnreachableError, match="is the node running"):
        await connect(("127.0.0.1", 1), client_id="t", software="t", timeout_s=1.0)


async def test_server_of_another_protocol_is_reported() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(NodeUnreachableError, match="violated Tidelog"):
        await connect(("127.0.0.1", port), client_id="t", software="t", timeout_s=5.0)
    server.close()
    await server.wait_closed()


async def test_refused_hello_is_raised(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        FakeConnection, "on_hello", lambda peer, frame: peer.fail(frame, pb.UNSUPPORTED_VERSION, "too old")
    )
    with pytest.raises(InvalidRequestError, match="too old"):
        await connect(("127.0.0.1", node.port), client_id="t", software="t", timeout_s=5.0)


async def test_unexpected_hello_answer_is_refused(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = pb.Envelope(hello_reply=pb.HelloReply(version=99))
    monkeypatch.setattr(FakeConnection, "on_hello", lambda peer, frame: peer.reply(frame, reply))
    with pytest.raises(BadReplyError):
        await connect(("127.0.0.1", node.port), client_id="t", software="t", timeout_s=5.0)


async def test_fast_answers_are_busy_polled(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(IdlePoll, "_look", lambda _: looks.append(1))
    for idle_poll_us in (0, 10_000):
        connection = await connect(
            ("127.0.0.1", node.port), client_id="test", software="test", timeout_s=5.0, idle_poll_us=idle_poll_us
        )
        for _ in range(1000):
            await connection.call(STATUS, timeout_s=5.0)
            if looks:
                break
        assert bool(looks) == bool(idle_poll_us)
        connection.close()
        await connection.lost
