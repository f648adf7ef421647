from __future__ import annotations

import asyncio

import pytest
from tests.broker.linked import Ear, ack, identity, join, linked
from tests.broker.stand import settled

from tidelog_broker.node.node import Node
from tidelog_broker.wire.one_way import OneWay
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


async def test_new_connection_of_a_node_replaces_the_old_one(node: Node) -> None:
    ear = Ear()
    peers = join(node, ear, identity("b"))
    old = await linked(node.port)
    new = await linked(node.port)
    async with asyncio.timeout(20):
        await old.lost
    new.send(OneWay(ack(1)))
    await ear.heard(1)
    assert peers.connected == {"a"}
    new.close("done")
    await settled(lambda: not peers.connected, "a lost connection still counts")


async def test_earlier_start_of_a_node_is_refused(node: Node) -> None:
    ear = Ear()
    join(node, ear, identity("b"))
    later = await linked(node.port, identity("a", incarnation=8))
    with pytest.raises(ProtocolError, match="it was started later") as caught:
        await linked(node.port, identity("a", incarnation=7))
    assert caught.value.code == pb.FORBIDDEN
    later.send(OneWay(ack(1)))
    await ear.heard(1)
    later.close("done")


async def test_connections_of_several_nodes_are_separate(node: Node) -> None:
    ear = Ear()
    peers = join(node, ear, identity("b"))
    links = [await linked(node.port, identity(name)) for name in ("a", "c")]
    assert peers.connected == {"a", "c"}
    for end, link in enumerate(links):
        link.send(OneWay(ack(end)))
    assert {(peer, message.end_offset) for peer, message, _ in await ear.heard(2)} == {("a", 0), ("c", 1)}
    for link in links:
        link.close("done")
