"""Topic descriptions in pages, merged from all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer
from tests.broker.stand import Stand

from tidelog import Client
from tidelog_broker.rebalance.status_merge import removal_fault
from tidelog_broker.server.handlers import cluster as cluster_module
from tidelog_broker.server.handlers import partition_descriptions as described_module
from tidelog_broker.server.handlers import topics as topics_module
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_module, "DESCRIBED_ENTRIES", 8)
    monkeypatch.setattr(topics_module, "ROUTED_ENTRIES", 3)


async def status_pages(peer: Peer, *, nodes_only: bool = False) -> list[pb.ClusterStatusReply]:
    asked = pb.ClusterStatus(nodes_only=nodes_only)
    found: list[pb.ClusterStatusReply] = []
    while True:
        found.append((await peer.ask(cluster_status=asked)).envelope.cluster_status_reply)
        if not found[-1].HasField("next"):
            return found
        asked.cursor.CopyFrom(found[-1].next)


def numbers(infos: Sequence[pb.TopicInfo]) -> list[tuple[str, int]]:
    return [(one.name, part.partition) for one in infos for part in one.partitions if not one.name.startswith("__")]


async def test_status_and_descriptions_are_merged_page_by_page(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    sizes = {"a": 20, "b": 3, "c": 3}
    made = [await peer.create(name, partitions=count, replication_factor=2) for name, count in sizes.items()]
    for index in range(3):
        await founded.publish(peer, made[-1].topic_id, b"x", partition=index)
    expected = [(name, index) for name, count in sizes.items() for index in range(count)]
    for via in "abc":
        found = await status_pages(await founded.peer(via))
        assert len(found) > 4
        assert [[one.node.node_id for one in page.nodes] for page in found] == [
            ["a", "b", "c"],
            *[[]] * (len(found) - 1),
        ]
        infos = [one for page in found for one in page.topics]
        assert numbers(infos) == expected
        for info in infos:
            for part in info.partitions:
                assert part.replicas, "its owner has told of it, wherever that is"
        assert [part.high_watermark for one in infos if one.name == "c" for part in one.partitions] == [1] * 3
        (alone,) = await status_pages(await founded.peer(via), nodes_only=True)
        assert ([one.state for one in alone.nodes], len(alone.topics)) == (["running"] * 3, 0)
    addresses = [f"127.0.0.1:{founded.nodes[name].port}" for name in "bc"]
    async with Client(addresses) as client:
        status = await client.cluster_status()
        assert [(t.name, t.partition_count) for t in status.topics if not t.name.startswith("__")] == [*sizes.items()]
        assert all(part.replicas for one in status.topics for part in one.partitions)
        assert [node.node_id for node in await client.nodes()] == ["a", "b", "c"]
        wide = await client.topic("a")
        assert [part.partition for part in wide.partitions] == list(range(20))
        assert all(len(part.replicas) == 2 for part in wide.partitions)
        assert [(t.name, len(t.partitions)) for t in await client.topics()] == [*sizes.items()]
        new = await client.create_topic("d", partitions=30)
        assert [part.partition for part in new.partitions] == list(range(30))
        grown = await client.alter_topic("d", partitions=40)
        assert grown.partition_count == len(grown.partitions) == 40


async def test_first_status_page_of_many_nodes_has_no_topics(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_NODES_WITH_TOPICS", 2)
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    await peer.create("a")
    first, *rest = await status_pages(peer)
    assert ([one.node.node_id for one in first.nodes], len(first.topics)) == (["a", "b", "c"], 0)
    assert numbers([one for page in rest for one in page.topics]) == [("a", 0)]


async def test_topic_list_is_paginated(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    for index in range(7):
        await peer.create(f"t{index}", partitions=index + 1)
    async with Client(f"127.0.0.1:{node.port}") as client:
        page, more = await client.topic_page(limit=5)
        assert ([(one.name, one.partition_count) for one in page], more) == (
            [(f"t{index}", index + 1) for index in range(5)],
            True,
        )
        assert not page[0].partitions
        await peer.delete("t4")
        page, more = await client.topic_page(after="t4", limit=5)
        assert ([one.name for one in page], more) == (["t5", "t6"], False)
        assert (await client.topic_page(after="t6"))[0] == []
        page, more = await client.topic_page(after="t4", limit=2)
        assert ([one.name for one in page], more) == (["t5", "t6"], False)
    frame = await peer.ask(topic_list=pb.TopicList())
    assert frame.envelope.topic_reply.HasField("next"), "a client without paging learns that more entries exist"


async def test_node_removal_checks_every_page(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    await peer.create("a", partitions=20, replication_factor=2)
    looked: list[tuple[str, int]] = []
    fault = removal_fault

    def looking(node_id: str, told: dict[str, pb.ClusterStatusReply]) -> str:
        looked.extend(numbers(next(iter(told.values())).topics))
        assert all(len(reply.topics) > 0 for reply in told.values())
        assert set(told) == {"a", "b", "c"}
        return fault(node_id, told)

    monkeypatch.setattr(cluster_module, "removal_fault", looking)
    for node in founded.nodes.values():
        monkeypatch.setattr(node.broker.controller, "refuse_while_it_stores", lambda _: None)
    await peer.ask(cluster_change=pb.ClusterChange(remove="c"))
    assert looked[:1] == [("a", 0)]
    assert looked == [("a", index) for index in range(len(looked))]


async def test_number_of_partitions_in_a_nodes_status_request_is_limited(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    broker, other = founded.nodes["a"].broker, "b"
    many = [pb.PartitionName(topic_id=b"?" * 16, partition=index) for index in range(ENTRIES_PER_REQUEST_MAX + 1)]
    assert await described_module.ask(broker, other, pb.ClusterStatus(partitions=many), timeout_s=5) is None
    reply = await described_module.ask(broker, other, pb.ClusterStatus(partitions=many[1:]), timeout_s=5)
    assert reply is not None
    assert ([one.node.node_id for one in reply.nodes], len(reply.topics)) == ([other], 0)


async def told_ends(port: int) -> list[int]:
    async with Client(f"127.0.0.1:{port}") as client:
        return [one.high_watermark for one in (await client.topic("t")).partitions]


async def make_topic(port: int) -> None:
    async with Client(f"127.0.0.1:{port}") as client:
        await client.create_topic("t", partitions=2, replication_factor=1)
        await client.producer("t").send_many([b"x"] * 10, partition=1)


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_description_of_an_unused_single_copy_has_its_end(stand: Stand, end: str) -> None:
    await make_topic((await stand.start()).port)
    await getattr(stand, end)()
    assert await told_ends((await stand.start()).port) == [0, 10]


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_description_of_an_unused_single_copy_in_a_cluster_has_its_end(tmp_path: Path, end: str) -> None:
    cluster = Founded(tmp_path, ("a",))
    try:
        await cluster.found()
        await cluster.settled()
        await make_topic(cluster.ports["a"])
        await getattr(cluster, end)("a")
        await cluster.found()
        await cluster.settled()
        assert await told_ends(cluster.ports["a"]) == [0, 10]
    finally:
        await cluster.close()
