"""Answers that take long are waited for as long as their node says anything."""

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


async def test_a_node_that_says_nothing_more_is_given_up_long_before_the_answer_would_be_due(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_topic("t")

    def stopped(connection: FakeConnection, frame: Frame) -> None:
        """Hear everything from now on and answer nothing, as a process that was stopped."""
        del frame
        connection.transport.pause_reading()

    monkeypatch.setattr(FakeConnection, "on_compact", stopped, raising=False)
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.2) as client, asyncio.timeout(20):
        with pytest.raises(ConnectionLostError, match=r"compacts 't'/0 and has said nothing for") as gone:
            await client.compact_topic("t")
    assert not gone.value.definite


async def test_a_node_that_works_is_asked_in_between_and_waited_for(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add_topic("t")

    def late(connection: FakeConnection, frame: Frame) -> None:
        reply = pb.Envelope(compact_reply=pb.CompactReply(results=[pb.CompactResult(below=1, size_bytes=2)]))
        asyncio.get_running_loop().call_later(2.0, connection.reply, frame, reply)

    monkeypatch.setattr(FakeConnection, "on_compact", late, raising=False)
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.2) as client, asyncio.timeout(20):
        assert await client.compact_topic("t") == {0: Compacted(1, 2)}
    assert node.requests.count("metadata") >= 3, "nothing was asked, so silence would not have been seen"
