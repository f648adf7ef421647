"""A client that sends requests on behalf of a caller, over the connections of another client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.clients.fake_node import FakeNode

from tidelog import Client
from tidelog.errors import NodeUnreachableError, UnauthenticatedError
from tidelog_proto.hello_features import ON_BEHALF


class Ann:
    """A caller with numbered tickets."""

    principal = "ann"

    def __init__(self) -> None:
        self.number = 1
        self.is_over = False

    def ticket(self) -> bytes:
        if self.is_over:
            raise UnauthenticatedError("the credentials of ann are no longer valid")
        return b"%d" % self.number

    def refused(self, ticket: bytes) -> None:
        if ticket == b"%d" % self.number:
            self.number += 1


@pytest.fixture
async def gate(node: FakeNode) -> AsyncIterator[Client]:
    node.features = [ON_BEHALF]
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=1) as client:
        yield client


def asking_for(ann: Ann, gate: Client, node: FakeNode) -> Client:
    return Client(f"127.0.0.1:{node.port}", router=gate.security.for_caller(ann))


async def test_requests_carry_the_callers_ticket_over_shared_connections(node: FakeNode, gate: Client) -> None:
    await gate.connect()
    async with asking_for(Ann(), gate, node) as client:
        await client.producer("t").send(b"x")
        async with client.consumer("t", start="earliest") as consumer:
            assert (await anext(consumer)).value == b"x"
        await client.fetch("t", 0, 0)
    asked = {kind: ticket for kind, ticket in node.tickets if kind not in {"hello", "credit", "unsubscribe"}}
    assert set(asked) >= {"metadata", "publish", "subscribe", "fetch"}
    assert set(asked.values()) == {b"1"}
    assert node.requests.count("hello") == 1
    await gate.fetch("t", 0, 0)
    assert node.tickets[-1] == ("fetch", b""), "connections stay open, and the other client's requests carry no ticket"


async def test_refused_ticket_is_renewed_without_loss_or_duplicates(node: FakeNode, gate: Client) -> None:
    ann = Ann()
    async with asking_for(ann, gate, node) as client:
        producer = client.producer("t")
        for number in range(1, 4):
            node.refused_tickets.add(b"%d" % number)
            await producer.send(b"x%d" % number)
        assert ann.number == 4
        assert node.values("t") == [b"x1", b"x2", b"x3"]


async def test_caller_with_invalid_credentials_sends_nothing(node: FakeNode, gate: Client) -> None:
    ann = Ann()
    async with asking_for(ann, gate, node) as client:
        producer = client.producer("t")
        await producer.send(b"x")
        ann.is_over = True
        count = len(node.requests)
        with pytest.raises(UnauthenticatedError):
            await producer.send(b"y")
        with pytest.raises(UnauthenticatedError):
            await client.fetch("t", 0, 0)
        assert len(node.requests) == count


async def test_node_without_caller_support_gets_no_caller_requests(node: FakeNode, gate: Client) -> None:
    """Such a node would attribute them to the gateway."""
    node.features = []
    async with asking_for(Ann(), gate, node) as client:
        with pytest.raises(NodeUnreachableError, match="does not support requests on behalf"):
            await client.fetch("t", 0, 0)
        assert set(node.requests) == {"hello"}
