"""Requests to nodes carry trace contexts, and none without a source."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.clients.fake_node import FakeNode

from tidelog import Client
from tidelog.cluster import trace_contexts
from tidelog.produce.open_batch import RecordLists
from tidelog.produce.receipts import attach_trace
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import TRACE_CONTEXTS_MAX

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-0af7651916cd43dd8448eb211c80319c-1111111111111111-01"


@pytest.fixture
def source() -> Iterator[list[str]]:
    contexts = [""]
    trace_contexts.use(lambda: contexts[0])
    yield contexts
    trace_contexts.use(None)


async def node_with_topic() -> FakeNode:
    node = FakeNode()
    await node.start()
    node.add_topic("t")
    return node


def carried(node: FakeNode, kind: str) -> list[list[str]]:
    return [contexts for each, contexts in node.traces if each == kind]


async def test_publish_carries_the_contexts_of_its_records(source: list[str]) -> None:
    node = await node_with_topic()
    async with Client(f"127.0.0.1:{node.port}") as client, client.producer("t") as producer:
        for context in (CONTEXT, OTHER, CONTEXT, ""):
            pending = producer.bulk_appender.put(RecordLists([b"x"], trace=context))
        assert pending is not None
        await pending.settled()
        source[0] = CONTEXT
        receipt = await producer.enqueue(b"y")
        attach_trace(receipt)
        await receipt
        await producer.send(b"z")
    await node.stop()
    assert carried(node, "publish") == [[CONTEXT, OTHER], [CONTEXT], []]


async def test_request_carries_the_current_context(source: list[str]) -> None:
    node = await node_with_topic()
    async with Client(f"127.0.0.1:{node.port}") as client:
        source[0] = CONTEXT
        await client.fetch("t", 0, 0)
        source[0] = ""
        await client.fetch("t", 0, 0)
    await node.stop()
    assert carried(node, "fetch") == [[CONTEXT], []]


def test_contexts_are_bounded_and_unique() -> None:
    envelope = pb.Envelope()
    trace_contexts.carry(envelope, [CONTEXT, "", CONTEXT, *(f"{number}" for number in range(100))])
    assert len(envelope.trace_contexts) == TRACE_CONTEXTS_MAX
    assert envelope.trace_contexts[0] == CONTEXT
    trace_contexts.carry_current(envelope := pb.Envelope())
    assert not envelope.trace_contexts
    assert trace_contexts.current() == ""
