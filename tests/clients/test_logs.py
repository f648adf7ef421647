"""The client's log messages name the topic and partitions, the node if relevant, and the next step."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from tests.clients.fake_node import Do, FakeConnection, FakeNode

from tidelog import Client
from tidelog.cluster import routing
from tidelog.consume import topic_discovery
from tidelog.errors import NodeUnreachableError
from tidelog.produce import sender as sender_module
from tidelog.subscriptions.consumer_options import resolve_added
from tidelog.sync import client as sync
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

Told = Callable[[], list[str]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.WARNING)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "LOG_AFTER_S", 0.05)
    monkeypatch.setattr(sender_module, "LOG_AFTER_S", 0.05)


@pytest.fixture
async def hasty(node: FakeNode) -> AsyncIterator[Client]:
    client = Client(f"127.0.0.1:{node.port}", request_timeout_s=1.0)
    yield client
    await client.abort()


def refusing(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Let the node refuse all requests of a kind."""

    def refuse(connection: FakeConnection, frame: Frame) -> None:
        connection.fail(frame, pb.QUORUM_LOST, "1 of 3 replicas")

    monkeypatch.setattr(FakeConnection, f"on_{kind}", refuse)


@pytest.mark.parametrize(
    ("kind", "ask", "about"),
    [
        ("topic_create", lambda client: client.create_topic("new"), "creating topic 'new'"),
        ("topic_describe", lambda client: client.topic("t"), "topic 't'"),
        ("cluster_status", lambda client: client.nodes(), "cluster_status"),
        ("committed", lambda client: client.committed("g"), "group 'g'"),
        ("commit", lambda client: client.commit("g", "t", {0: 0}), "t"),
    ],
)
async def test_retried_request_logs_its_subject_and_the_refusing_node(
    *,
    kind: str,
    ask: Callable[[Client], asyncio.Future[object]],
    about: str,
    node: FakeNode,
    hasty: Client,
    told: Told,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing(monkeypatch, kind)
    with pytest.raises(Exception, match="1 of 3 replicas"):
        await ask(hasty)
    (line,) = told()
    assert (
        line
        == f"{about}: a request failed, retrying for at most 1 s more: 1 of 3 replicas (from 127.0.0.1:{node.port})"
    )


async def test_producer_logs_the_refusing_node(node: FakeNode, client: Client, told: Told) -> None:
    def refusal(connection: FakeConnection, topic_id: bytes, partition: int) -> pb.Error | None:
        return ProtocolError(pb.QUORUM_LOST, "1 of 3 replicas").to_message() if not told() else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeConnection, "refusal", refusal)
        await client.producer("t").send(b"v")
    (line,) = told()
    assert line == (f"t/0: publishing fails, retrying: 1 of 3 replicas (from 127.0.0.1:{node.port})")


async def test_consumer_logs_reason_and_new_position_after_out_of_range(
    node: FakeNode, client: Client, told: Told
) -> None:
    producer = client.producer("t")
    for _ in range(3):
        await producer.send(b"v")
    node.partition("t").log_start = 2
    async with client.consumer("t", start=1, on_out_of_range="earliest") as consumer:
        assert (await anext(consumer)).offset == 2
    (line,) = told()
    assert line.startswith("t/0: position 1 is out of range: the log now has offsets 2 to 3; continuing at 2 ")
    assert "because on_out_of_range is 'earliest': " in line


async def test_unresolved_new_partitions_are_retried(
    node: FakeNode, client: Client, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown_at_first(*arguments: object) -> dict[int, int]:
        if not told():
            raise NodeUnreachableError("no replica is reachable")
        return await resolve_added(*arguments)  # type: ignore[arg-type] # handed on

    monkeypatch.setattr(topic_discovery, "resolve_added", unknown_at_first)
    monkeypatch.setattr(topic_discovery, "NEW_PARTITIONS_S", 0.2)
    async with client.consumer("t") as consumer:
        node.add_topic("t", partitions=2)
        await client.producer("t").send(b"v", partition=1)
        assert (await anext(consumer)).partition == 1
    (line,) = told()
    assert line.startswith("t: start offsets of the new partitions [1] are not known yet, retrying within")
    assert line.endswith("no replica is reachable")


async def test_unclosed_client_is_named_in_the_log(node: FakeNode, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "LAST_FLUSH_S", 0.2)
    node.script.append(Do.SILENT_BEFORE)

    def forget() -> None:
        client = sync.Client(f"127.0.0.1:{node.port}", client_id="forgotten")
        client.producer("t").enqueue(b"v")
        del client
        gc.collect()

    thread = threading.Thread(target=forget)
    thread.start()
    while thread.is_alive():  # noqa: ASYNC110 - the thread has no event
        await asyncio.sleep(0.01)
    (line,) = told()
    assert line.startswith(f"client 'forgotten' of 127.0.0.1:{node.port} was not closed, and records or commits may be")
    assert "not acknowledged within 0.2 s" in line
