"""Requests about groups go to the coordinator once its route is known, and to any node before."""

from __future__ import annotations

import asyncio

import pytest
from tests.clients.fake_node import FakeNode, running_fake_node

from tidelog.cluster.connection import Connection
from tidelog.cluster.coordinators import at_coordinator, coordinator_partition, note_forwarded
from tidelog.cluster.routing import Router
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.names import OFFSETS_TOPIC


async def port_asked(router: Router, *, repeatable: bool = True) -> int:
    async def ask(connection: Connection) -> int:
        return connection.address[1]

    return await at_coordinator(router, "g", ask, repeatable=repeatable)


async def known(router: Router) -> None:
    async with asyncio.timeout(10):
        while router.metadata.topic(OFFSETS_TOPIC) is None:  # noqa: ASYNC110 - the metadata have no event
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("repeatable", [True, False])
async def test_coordinator_is_asked_once_it_is_known(node: FakeNode, router: Router, *, repeatable: bool) -> None:
    async with running_fake_node() as other:
        node.others = [pb.NodeInfo(node_id="fake-2", host="127.0.0.1", port=other.port)]
        node.owner_of = {coordinator_partition("g", 4).partition: "fake-2"}
        node.add_topic(OFFSETS_TOPIC, 4)
        router.pool.now(("127.0.0.1", node.port))
        await router.any_connection()
        assert await port_asked(router, repeatable=repeatable) == node.port, "the request does not wait for the route"
        await known(router)
        assert await port_asked(router, repeatable=repeatable) == other.port
        await other.stop()
        async with asyncio.timeout(10):
            while await port_asked(router, repeatable=repeatable) != node.port:  # noqa: ASYNC110 - until the loss is seen
                await asyncio.sleep(0.01)


async def test_forwarded_answer_refreshes_the_route(node: FakeNode, router: Router) -> None:
    node.add_topic(OFFSETS_TOPIC, 4)
    await router.topic(OFFSETS_TOPIC)
    before = node.requests.count("metadata")
    note_forwarded(router, pb.CommitReply())
    await asyncio.sleep(0.05)
    assert node.requests.count("metadata") == before
    note_forwarded(router, pb.CommittedReply(forwarded=True))
    async with asyncio.timeout(5):
        await node.received("metadata", before + 1)
