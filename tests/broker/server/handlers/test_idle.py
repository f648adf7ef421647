"""Status requests and scrapes do not open partitions."""

from __future__ import annotations

import asyncio

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand
from tests.broker.wire.test_management_port import get

from tidelog_broker.node.node import Node
from tidelog_broker.partition import background_opener as background_opener_module
from tidelog_broker.partition import partitions as partitions_module
from tidelog_broker.server.handlers import partition_descriptions as described_module
from tidelog_proto import broker_pb2 as pb


@pytest.fixture(autouse=True)
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened but by who needs it."""
    monkeypatch.setattr(partitions_module, "OPEN_AHEAD", 0)
    monkeypatch.setattr(background_opener_module, "SHARE", 1_000_000)
    monkeypatch.setattr(background_opener_module, "PAUSE_S_MIN", 1_000)
    monkeypatch.setattr(described_module, "DESCRIBED_ENTRIES", 8)


def open_of(node: Node, topic_id: bytes) -> list[int]:
    return [partition.state.index for partition in node.broker.partitions.of_topic(topic_id)]


async def status(peer: Peer) -> list[pb.PartitionInfo]:
    asked, found = pb.ClusterStatus(), list[pb.PartitionInfo]()
    while True:
        reply = (await peer.ask(cluster_status=asked)).envelope.cluster_status_reply
        found += [part for topic in reply.topics if topic.name == "t" for part in topic.partitions]
        if not reply.HasField("next"):
            return found
        asked.cursor.CopyFrom(reply.next)


async def listed(peer: Peer) -> list[pb.PartitionInfo]:
    asked, found = pb.TopicList(), list[pb.PartitionInfo]()
    while True:
        reply = (await peer.ask(topic_list=asked)).envelope.topic_reply
        found += [part for topic in reply.topics if topic.name == "t" for part in topic.partitions]
        if not reply.HasField("next"):
            return found
        asked.cursor.CopyFrom(reply.next)


@pytest.mark.parametrize("how", ["status", "list"])
async def test_status_and_lists_open_no_partition(stand: Stand, how: str) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=20)
    for index in range(0, 20, 2):
        await peer.publish(topic.topic_id, batch(b"a"), partition=index)
    node = await stand.restart()
    peer = await stand.peer()
    found = await (status(peer) if how == "status" else listed(peer))
    assert open_of(node, topic.topic_id) == []
    assert [(part.partition, part.state, part.owner) for part in found] == [
        (index, "idle", node.node_id) for index in range(20)
    ]
    await peer.publish(topic.topic_id, batch(b"b"), partition=4)
    found = await (status(peer) if how == "status" else listed(peer))
    assert open_of(node, topic.topic_id) == [4]
    assert [(part.partition, part.high_watermark) for part in found if part.state != "idle"] == [(4, 2)]
    described = (await peer.ask(topic_describe=pb.TopicDescribe(name="t"))).envelope.topic_reply
    assert [part.size_bytes > 0 for part in described.topics[0].partitions[:6]] == [True, False] * 3, "it opens them"


async def test_scrape_opens_no_partition(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=3)
    await peer.publish(topic.topic_id, batch(b"a"), partition=1)
    node = await stand.restart()
    code, page = await asyncio.to_thread(get, node.management_port, "/metrics")
    assert (code, "tidelog_topics" in page) == (200, True)
    assert open_of(node, topic.topic_id) == []


async def test_cluster_status_opens_no_partition_on_any_node(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=12, replication_factor=2)
    for index in range(12):
        await founded.publish(peer, topic.topic_id, b"x", partition=index)
    for name in "abc":
        await founded.stop(name)
    for name in "abc":
        await founded.start(name)
    await founded.settled()
    peer = await founded.peer("a")
    before = {name: open_of(node, topic.topic_id) for name, node in founded.nodes.items()}
    assert sum(map(len, before.values())) < 24, "nothing is idle, and the test sees nothing"
    found = [*await status(peer), *await listed(peer)]
    assert {name: open_of(node, topic.topic_id) for name, node in founded.nodes.items()} == before
    assert len(found) == 24
    assert {part.state for part in found} >= {"idle"}
    await founded.publish(peer, topic.topic_id, b"y", partition=3)
    (told,) = [part for part in await status(peer) if part.partition == 3]
    assert (told.high_watermark, told.state) == (2, "active"), "the node that has the partition open answers"
