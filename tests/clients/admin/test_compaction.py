"""Requested compaction: requests to owners, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode

from tidelog import Client, Compacted, sync
from tidelog.errors import InvalidRequestError, UnknownPartitionError, UnknownTopicError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

Asked = list[list[int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Let the fake node answer COMPACT: for partition 0 an error first, for the others a result."""
    found: Asked = []

    def on_compact(connection: FakeConnection, frame: Frame) -> None:
        reply = pb.CompactReply()
        found.append([entry.partition for entry in frame.envelope.compact.entries])
        for entry in frame.envelope.compact.entries:
            refusal = connection.refusal(entry.topic_id, entry.partition)
            if refusal is None and len(found) == 1:
                refusal = ProtocolError(pb.EPOCH_CHANGING, "in a moment", retry_after_ms=1).to_message()
            if refusal is None:
                reply.results.add(below=10 + entry.partition, size_bytes=100 + entry.partition)
            else:
                reply.results.add(error=refusal)
        connection.reply(frame, pb.Envelope(compact_reply=reply))

    monkeypatch.setattr(FakeConnection, "on_compact", on_compact, raising=False)
    return found


async def test_each_partition_is_compacted_with_retries(node: FakeNode, client: Client, asked: Asked) -> None:
    node.add_topic("t", partitions=3)
    assert await client.compact_topic("t") == {each: Compacted(10 + each, 100 + each) for each in range(3)}
    assert asked == [[0], [0], [1], [2]]


async def test_only_requested_partitions_are_compacted(node: FakeNode, client: Client, asked: Asked) -> None:
    node.add_topic("t", partitions=3)
    assert await client.compact_topic("t", [2, 2]) == {2: Compacted(12, 102)}
    assert asked == [[2], [2]]
    assert await client.compact_topic("t", []) == {}


async def test_pass_may_exceed_the_request_timeout(
    node: FakeNode, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_topic("t")
    answer: Callable[[FakeConnection, Frame], None] = FakeConnection.on_compact  # type: ignore[attr-defined] # see above

    def late(connection: FakeConnection, frame: Frame) -> None:
        asyncio.get_running_loop().call_later(0.5, answer, connection, frame)

    monkeypatch.setattr(FakeConnection, "on_compact", late)
    asked.append([])
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.2) as client:
        assert await client.compact_topic("t") == {0: Compacted(10, 100)}


async def test_refusals_are_raised(node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add_topic("t")
    with pytest.raises(UnknownTopicError):
        await client.compact_topic("nowhere")
    with pytest.raises(UnknownPartitionError):
        await client.compact_topic("t", [1])

    def refuse(connection: FakeConnection, frame: Frame) -> None:
        error = ProtocolError(pb.INVALID_REQUEST, "t/0 is on hold").to_message()
        connection.reply(frame, pb.Envelope(compact_reply=pb.CompactReply(results=[pb.CompactResult(error=error)])))

    monkeypatch.setattr(FakeConnection, "on_compact", refuse, raising=False)
    with pytest.raises(InvalidRequestError, match="on hold"):
        await client.compact_topic("t")


async def test_blocking_client_compacts(node: FakeNode, asked: Asked) -> None:
    node.add_topic("t")

    def work() -> dict[int, Compacted]:
        with sync.Client(f"127.0.0.1:{node.port}") as client:
            return client.compact_topic("t")

    assert await asyncio.to_thread(work) == {0: Compacted(10, 100)}
    assert asked == [[0], [0]]


async def test_refusal_reports_compacted_partitions(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_topic("t", partitions=4)

    def answer(connection: FakeConnection, frame: Frame) -> None:
        (entry,) = frame.envelope.compact.entries
        result = pb.CompactResult(below=10 + entry.partition, size_bytes=1)
        if entry.partition == 2:
            result = pb.CompactResult(error=ProtocolError(pb.INVALID_REQUEST, "t/2 is on hold").to_message())
        connection.reply(frame, pb.Envelope(compact_reply=pb.CompactReply(results=[result])))

    monkeypatch.setattr(FakeConnection, "on_compact", answer, raising=False)
    with pytest.raises(InvalidRequestError) as refused:
        await client.compact_topic("t")
    assert str(refused.value) == "t/2 is on hold; compacted nevertheless: partitions 0 to 1"
    assert refused.value.done == {0: Compacted(10, 1), 1: Compacted(11, 1)}
    with pytest.raises(InvalidRequestError) as only:
        await client.compact_topic("t", [2, 3])
    assert (str(only.value), only.value.done) == ("t/2 is on hold", {})
