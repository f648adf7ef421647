"""Requests about groups go to the coordinator once its route is known, and to any node before."""

from __future__ import annotations

import asyncio

import pytest
from tests.clients.fake_node import FakeNode, running_fake_node

from tidelog import Client, Group
from tidelog.cluster import routing
from tidelog.cluster.connection import Connection
from tidelog.cluster.coordinators import at_coordinator, coordinator_partition, note_forwarded
from tidelog.cluster.routing import Router
from tidelog.requests import committed_positions, fetch_and_commit
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


@pytest.mark.parametrize("is_known", [True, False])
async def test_request_that_must_not_run_twice_is_sent_to_one_node(
    node: FakeNode, router: Router, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    monkeypatch.setattr(routing, "REQUEST_HEDGE_S", 0.05)
    asked: list[int] = []

    async def ask(connection: Connection) -> None:
        asked.append(connection.address[1])
        await asyncio.sleep(0.3)

    async with running_fake_node() as other:
        node.add_topic(OFFSETS_TOPIC, 4)
        both = Router([("127.0.0.1", each.port) for each in (node, other)], router.pool, request_timeout_s=10)
        await both.any_connection()
        if is_known:
            await both.topic(OFFSETS_TOPIC)
        await at_coordinator(both, "g", ask, repeatable=False)
        assert asked == [node.port]
        asked.clear()
        await at_coordinator(both, "g", ask)
        assert asked == [node.port, other.port], "a request that may be repeated does not wait for a slow node"
        await both.close()


@pytest.mark.parametrize("kind", ["commit", "committed"])
async def test_forwarded_request_of_a_client_refreshes_the_route(node: FakeNode, router: Router, kind: str) -> None:
    node.add_topic(OFFSETS_TOPIC)
    await router.topic("t")
    await router.topic(OFFSETS_TOPIC)
    node.forwards = True
    before = node.requests.count("metadata")
    if kind == "commit":
        await fetch_and_commit.commit(router, "g", "t", {0: 0}, reset=False, note="")
    else:
        await committed_positions.committed(router, "g", "t")
    async with asyncio.timeout(5):
        await node.received("metadata", before + 1)


async def test_forwarded_commit_of_a_member_refreshes_the_route(node: FakeNode, client: Client) -> None:
    node.add_topic(OFFSETS_TOPIC)
    topic_id = node.topics["t"].topic_id
    assigned = [pb.TopicPartitions(topic_id=topic_id, topic="t", partitions=[0])]
    node.coordinate = lambda asked: pb.GroupHeartbeatReply(
        revision=1, generation=1, assigned=assigned, unchanged=not asked.HasField("join")
    )
    async with client.producer("t") as producer:
        await producer.send(b"a")
    async with client.consumer("t", group=Group("g", commit="manual")) as consumer:
        await anext(consumer)
        node.forwards = True
        before = node.requests.count("metadata")
        await consumer.commit()
        async with asyncio.timeout(5):
            await node.received("metadata", before + 1)
