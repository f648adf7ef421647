"""METADATA pages; held requests are in `test_topics.py`."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled
from tests.broker.wire.test_connection import deaf_peer

from tidelog_broker.node.node import Node
from tidelog_broker.server import pages
from tidelog_broker.server.handlers import metadata as metadata_module
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "ROUTED_ENTRIES", 8)


async def all_pages(peer: Peer, *names: str) -> list[pb.MetadataReply]:
    asked = pb.Metadata(topics=names)
    found: list[pb.MetadataReply] = []
    while True:
        found.append((await peer.ask(metadata=asked)).envelope.metadata_reply)
        if not found[-1].HasField("next"):
            return found
        asked.cursor.CopyFrom(found[-1].next)


@pytest.mark.usefixtures("small_pages")
async def test_metadata_of_all_topics_is_paginated(node: Node, peer: Peer) -> None:
    for name, partitions in (("a", 3), ("b", 3), ("c", 20), ("d", 1)):
        await peer.create(name, partitions=partitions)
    found = await all_pages(peer)
    assert len(found) >= 4
    told = [(one.name, part.partition) for page in found for one in page.topics for part in one.partitions]
    assert told == [
        (name, index) for name, count in (("a", 3), ("b", 3), ("c", 20), ("d", 1)) for index in range(count)
    ]
    assert [[one.node_id for one in page.nodes] for page in found] == [[node.node_id], *[[]] * (len(found) - 1)]


@pytest.mark.usefixtures("small_pages")
async def test_metadata_of_named_topics_is_paginated(peer: Peer) -> None:
    await peer.create("a", partitions=20)
    names = ["x1", "a", *(f"y{number}" for number in range(20))]
    found = await all_pages(peer, *names)
    infos = [one for page in found for one in page.topics]
    assert list(dict.fromkeys(one.name for one in infos)) == names
    assert [one.error.code for one in infos if one.name != "a"] == [pb.UNKNOWN_TOPIC] * 21
    assert [part.partition for one in infos for part in one.partitions] == list(range(20))


async def test_unknown_names_are_denied_page_by_page(peer: Peer) -> None:
    names = [f"{'n' * 190}{number}" for number in range(ENTRIES_PER_REQUEST_MAX)]
    reply = (await peer.ask(metadata=pb.Metadata(topics=names))).envelope.metadata_reply
    assert 0 < len(reply.topics) <= pages.ROUTED_ENTRIES
    assert {one.error.code for one in reply.topics} == {pb.UNKNOWN_TOPIC}
    assert reply.next.topic == reply.topics[-1].name


async def test_metadata_is_not_made_for_a_client_that_does_not_read(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of requests on one connection: the answers made ahead of the client are bounded."""
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create("t", partitions=400)
    made = 0
    nodes = node.broker.cluster.nodes

    def counting() -> list[pb.NodeInfo]:
        nonlocal made
        made += 1
        return nodes()

    monkeypatch.setattr(node.broker.cluster, "nodes", counting)
    deaf = await deaf_peer(stand)
    for _ in range(4000):
        deaf.post(metadata=pb.Metadata())
    connection = next(one for one in node.server.connections if one.client_id == "deaf")
    await settled(lambda: not connection.is_writable, "it takes everything")
    before = made
    assert 0 < before < 3000
    for _ in range(20):
        assert not (await peer.publish(topic.topic_id, batch(b"beside it")))[0].HasField("error")
        await asyncio.sleep(0.02)
    assert made <= before + 16, "the kernel may take a little more, and no client does"


@pytest.mark.usefixtures("small_pages")
async def test_nodes_learn_routes_page_by_page(founded: Founded) -> None:
    """Of a topic whose owners have changed: its record does not say who owns it now."""
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topics = [await peer.create(f"t{number}", partitions=6, replication_factor=1) for number in range(4)]
    keys = [(topic.topic_id, index) for topic in topics for index in range(6)]
    routes = founded.nodes["c"].broker.routes
    elsewhere = [key for key in keys if founded.nodes["c"].broker.partitions.find(key) is None]
    assert elsewhere
    await founded.until(lambda: all(key in routes._told for key in elsewhere), "some routes are never learned")


async def test_other_work_runs_between_the_known_topics_of_a_held_request(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look at a topic of 4,096 partitions takes milliseconds, and a request may know 256 topics."""
    monkeypatch.setattr(metadata_module, "has_newer_metadata", lambda *_: False)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    assert not await metadata_module.has_news(node.broker, [pb.KnownEpochs(topic_id=b"t" * 16)] * 20)
    counting.cancel()
    assert turns >= 20
