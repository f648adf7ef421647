"""Long requests are waited for while their node shows signs of life."""

from __future__ import annotations

import asyncio

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode

from tidelog import Client, Compacted
from tidelog.admin import long_requests
from tidelog.errors import ConnectionLostError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_requests, "PROBE_AFTER_S", 0.05)
    monkeypatch.setattr(long_requests, "SILENT_S_MAX", 1.0)


async def test_silent_node_is_given_up_before_the_timeout(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add_topic("t")

    def stopped(connection: FakeConnection, frame: Frame) -> None:
        """Receive requests and answer nothing, like a stopped process."""
        del frame
        connection.transport.pause_reading()

    monkeypatch.setattr(FakeConnection, "on_compact", stopped, raising=False)
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.2) as client, asyncio.timeout(20):
        with pytest.raises(ConnectionLostError, match=r"is compacting 't'/0 and has been silent for") as gone:
            await client.compact_topic("t")
    assert not gone.value.definite


async def test_working_node_is_probed_and_waited_for(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.add_topic("t")

    def late(connection: FakeConnection, frame: Frame) -> None:
        reply = pb.Envelope(compact_reply=pb.CompactReply(results=[pb.CompactResult(below=1, size_bytes=2)]))
        asyncio.get_running_loop().call_later(2.0, connection.reply, frame, reply)

    monkeypatch.setattr(FakeConnection, "on_compact", late, raising=False)
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.2) as client, asyncio.timeout(20):
        assert await client.compact_topic("t") == {0: Compacted(1, 2)}
    assert node.requests.count("metadata") >= 3, "no probe was sent, so silence would not be detected"
