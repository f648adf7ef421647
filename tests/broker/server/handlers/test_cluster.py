from __future__ import annotations

import asyncio

import pytest
from tests.broker.founded import WAIT_S, Founded
from tests.broker.peer import Peer
from tests.broker.stand import Stand

from tidelog_broker.core.topics import META_KEY
from tidelog_broker.node.node import Node
from tidelog_broker.server.handlers import cluster as cluster_module
from tidelog_proto import broker_pb2 as pb


async def status_by(peer: Peer) -> pb.ClusterStatusReply:
    return (await peer.ask(cluster_status=pb.ClusterStatus())).envelope.cluster_status_reply


async def calm_status_by(peer: Peer) -> pb.ClusterStatusReply:
    """Ask until no node is suspected, which may take a moment on a busy machine."""
    async with asyncio.timeout(WAIT_S):
        while True:
            status = await status_by(peer)
            if all((one.membership, one.state) == ("alive", "running") for one in status.nodes):
                return status


async def test_single_node_reports_its_status_and_refuses_changes(node: Node, peer: Peer) -> None:
    status = await status_by(peer)
    assert [one.node.node_id for one in status.nodes] == [node.node_id]
    refused = await peer.refused(cluster_change=pb.ClusterChange(rebalance=True))
    assert refused.code == pb.FORBIDDEN


async def test_node_requests_of_clients_are_refused(stand: Stand, peer: Peer) -> None:
    del stand
    assert (await peer.refused(node_announce=pb.NodeAnnounce(ask=True))).code == pb.FORBIDDEN


async def test_status_merges_the_reports_of_all_nodes(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=6, replication_factor=2)
    assert {len(partition.placement) for partition in topic.partitions} == {2}
    for index in range(6):
        await founded.publish(peer, topic.topic_id, b"x" * 100, partition=index)
    for via in "abc":
        status = await calm_status_by(await founded.peer(via))
        assert [one.node.node_id for one in status.nodes] == ["a", "b", "c"]
        assert all(list(one.roles) == [pb.INGESTION, pb.PERSISTENCE] for one in status.nodes)
        (mine,) = [one for one in status.topics if one.name == "t"]
        assert [one.high_watermark for one in mine.partitions] == [1] * 6, "owners tell, wherever they are"
        for one in mine.partitions:
            assert [replica.node_id for replica in one.replicas] == [one.owner, *(set(one.placement) - {one.owner})]


async def test_status_contains_unreachable_nodes(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    await founded.stop("b")
    peer = await founded.peer("a")
    await founded.until(lambda: not founded.nodes["a"].broker.cluster.alive("b"), "b is not missed")
    away = (await status_by(peer)).nodes[1]
    assert (away.node.node_id, away.state, away.node.alive) == ("b", "no answer", False)


async def test_node_is_drained_and_removed(founded: Founded) -> None:
    await founded.found()
    await founded.join()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=8, replication_factor=3)
    keys = [(topic.topic_id, index) for index in range(8)]
    assert founded.nodes["a"].broker.description.stored_by("b")
    early = await peer.refused(cluster_change=pb.ClusterChange(remove="b"))
    assert (early.code, "drain it with" in early.message) == (pb.INVALID_REQUEST, True)
    told = (await peer.ask(cluster_change=pb.ClusterChange(drain="b"))).envelope.cluster_change_reply
    assert told.moves > 0

    def is_clear() -> bool:
        stored = founded.nodes["a"].broker.description.stored_by("b")
        return not set(keys).intersection(stored) and founded.owner(META_KEY, "a") != "b"

    await founded.until(is_clear, "b still stores something")
    for key in keys:
        await founded.publish(peer, key[0], b"after", partition=key[1])
    assert (await status_by(peer)).nodes[1].draining
    await founded.remove(peer, "b")
    await founded.until(lambda: "b" not in founded.nodes["c"].broker.cluster.addresses(), "c still knows b")
    await founded.until(lambda: not founded.nodes["c"].broker.description.stored_by("b"), "b is still counted on")


async def test_change_of_an_unknown_node_is_refused(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    assert (await peer.refused(cluster_change=pb.ClusterChange(drain="z"))).code == pb.INVALID_REQUEST
    assert (await peer.refused(cluster_change=pb.ClusterChange())).code == pb.INVALID_REQUEST


async def test_rebalance_restores_preferred_owners(founded: Founded) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await founded.spread(peer, 9)
    keys = [(topic.topic_id, index) for index in range(9)]
    before = [founded.owner(key, "a") for key in keys]
    await founded.stop("b")
    await founded.until(lambda: all(founded.owner(key, "a") != "b" for key in keys), "b still owns something")
    await founded.start("b")
    await founded.settled()
    assert before.count("b") > 0
    # Once is enough, though not all of it may be ready yet to own again.
    assert not (await peer.ask(cluster_change=pb.ClusterChange(rebalance=True))).envelope.HasField("error")
    await founded.until(lambda: [founded.owner(key, "a") for key in keys] == before, "not all came back")


async def test_single_node_reports_its_roles_and_liveness(node: Node, peer: Peer) -> None:
    (status,) = (await status_by(peer)).nodes
    assert (status.node.node_id, status.membership, status.state) == (node.node_id, "alive", "running")
    assert list(status.roles) == [pb.INGESTION, pb.PERSISTENCE]


async def test_announce_answer_paginates_removed_nodes(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PAGE_BYTES", 100)
    await founded.found()
    await founded.settled()
    node = founded.nodes["a"]
    for number in range(30):
        gone = pb.NodeRecord(node_id=f"gone-{number:02}", host="nowhere", port=1, revision=1, removed=True)
        assert node.broker.nodes.apply(gone)
    told: list[str] = []
    pages = 0
    while True:
        reply = cluster_module.known(node.broker, "b", told[-1] if told else "")
        assert (reply.nodes[0].node_id == "b") == (not told), "the asking node's own record stands first, and once"
        told += [record.node_id for record in reply.nodes]
        pages += 1
        if not reply.last:
            break
        assert reply.last == told[-1]
    assert told == ["b", "a", "c", *(f"gone-{number:02}" for number in range(30))]
    assert pages > 5
    joined = await founded.join()
    assert {f"gone-{number:02}" for number in range(30)} <= {record.node_id for record in joined.broker.nodes.records()}
