"""Partitions that move by themselves, on real nodes: a copy too few, a replica away, a full disk, a halted owner."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch

from tidelog_broker.core.replication.effects import PeerMessage
from tidelog_broker.core.replication.ports import Timing
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.partition.partition import Partition
from tidelog_broker.rebalance import mover, ownership_advice
from tidelog_broker.rebalance.mover import Mover
from tidelog_broker.rebalance.ownership_advice import OwnershipAdvice
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_proto import broker_pb2 as pb


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mover, "AGAIN_S", 0.05)
    monkeypatch.setattr(mover, "PERIOD_S", 0.05)


@pytest.fixture
async def three(founded: Founded) -> Founded:
    await founded.found()
    await founded.settled()
    return founded


async def used(cluster: Founded, peer: Peer) -> PartitionKey:
    topic = await peer.create(replication_factor=3)
    await cluster.publish(peer, topic.topic_id, b"first")
    return topic.topic_id, 0


def placement(cluster: Founded, key: PartitionKey, seen_by: str) -> set[str]:
    route = cluster.nodes[seen_by].broker.routes.get(key)
    assert route is not None
    return set(route.placement)


def owned(cluster: Founded, key: PartitionKey) -> Partition:
    """Return the partition at the node that may write to it."""
    for node in cluster.nodes.values():
        partition = node.broker.partitions.find(key)
        if partition is not None and partition.state.assigner is not None:
            return partition
    raise AssertionError("the partition has no owner")


async def done(peer: Peer, change: pb.ClusterChange) -> None:
    """Change the cluster; partitions of a drained node are moved by their owners, and not removed before."""
    async with asyncio.timeout(30):
        while (await peer.ask(cluster_change=change)).envelope.HasField("error"):  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.05)


async def test_copies_of_a_removed_node_are_recreated_when_a_node_joins(three: Founded) -> None:
    peer = await three.peer("a")
    key = await used(three, peer)
    await three.stop("c")
    for change in (pb.ClusterChange(drain="c"), pb.ClusterChange(remove="c")):
        await three.until(lambda: three.owner(key, "a") in "ab", "no node took over")
        await done(peer, change)
    await three.until(lambda: placement(three, key, "a") == {"a", "b"}, "c is still counted on")
    await three.publish(peer, key[0], b"between")
    node = await three.join("d")
    await three.until(lambda: placement(three, key, "a") == {"a", "b", "d"}, "the copy was not moved")

    def is_whole() -> bool:
        partition = node.broker.partitions.find(key)
        return partition is not None and partition.state.readable_end == 2 and not partition.replica.backfill.incomplete

    await three.until(is_whole, "the copy was not made")
    assert await (await three.peer("d")).read_all(key[0]) == [b"first", b"between"]


async def test_joining_node_gets_only_new_partitions(three: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[Mover] = Counter()
    step = Mover.step

    def counted(mover: Mover) -> int:
        looks[mover] += 1
        return step(mover)

    monkeypatch.setattr(Mover, "step", counted)
    peer = await three.peer("a")
    old = await three.spread(peer, partitions=8)
    keys = [(old.topic_id, partition.partition) for partition in old.partitions]
    for _, partition in keys:
        await three.publish(peer, old.topic_id, b"before", partition=partition)
    before = [three.nodes["a"].broker.routes.get(key) for key in keys]

    await three.join("d")
    await three.settled()
    looks.clear()
    await three.until(
        lambda: len(looks) == 4 and min(looks.values()) >= 5, "not every node has looked what should move"
    )
    for node in three.nodes.values():
        assert [node.broker.routes.get(key) for key in keys] == before, f"{node.node_id} has seen something move"
    assert all(three.nodes["d"].broker.partitions.find(key) is None for key in keys)

    new = await three.spread(peer, partitions=8, name="new")
    of_the_new_node = next(one for one in new.partitions if one.owner == "d")
    await three.publish(peer, new.topic_id, b"after", partition=of_the_new_node.partition)
    written = three.nodes["d"].broker.partitions.find((new.topic_id, of_the_new_node.partition))
    assert written is not None
    assert written.log.end_offset == 1

    # The move was possible before: an explicit rebalance moves old partitions, too.
    await done(peer, pb.ClusterChange(rebalance=True))
    await three.until(lambda: any("d" in placement(three, key, "a") for key in keys), "nothing was to be moved at all")


async def test_publish_with_acks_all_succeeds_with_a_spare_node(three: Founded) -> None:
    await three.join("d")
    await three.settled()
    peer = await three.peer("a")
    key = await used(three, peer)
    owner = three.owner(key, "a")
    away = next(name for name in placement(three, key, "a") if name not in {owner, "a"})
    await three.stop(away)
    data = batch(b"all")
    publish = pb.Publish(entries=[pb.PublishEntry(topic_id=key[0], length=len(data))], acks=pb.ALL, timeout_ms=20_000)
    peer = await three.peer(three.owner(key, "a"))
    (result,) = await peer.published(peer.post(data, publish=publish))
    assert result.error.code == pb.STORED_ON_QUORUM, "of its own epoch one replica is away"
    assert away not in placement(three, key, three.owner(key, "a"))
    peer = await three.peer(three.owner(key, "a"))
    (result,) = await peer.published(peer.post(data, publish=publish))
    assert not result.HasField("error"), result


async def test_lagging_replica_is_replaced_by_a_spare_node(three: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    await three.join("d")
    await three.settled()
    peer = await three.peer("a")
    key = await used(three, peer)
    partition = owned(three, key)
    owner, neighbours = partition.replica.state.node_id, partition.tools.neighbours
    slow = next(name for name in partition.replica.state.active.placement if name != owner)
    for advice in three.nodes[owner].broker.mover._advice:
        if isinstance(advice._adviser, OwnershipAdvice):
            advice._adviser._lag_ms = 300
    send = neighbours.send

    def lossy(to: Sequence[str], message: PeerMessage, batches: Sequence[memoryview]) -> None:
        is_append = isinstance(message, pb.AppendBatch)
        send([node for node in to if not (node == slow and is_append)], message, batches)

    monkeypatch.setattr(neighbours, "send", lossy)
    await three.publish(peer, key[0], b"second")
    await three.until(lambda: slow not in placement(three, key, owner), "it is waited for")
    assert len(placement(three, key, owner)) == 3
    assert (await three.publish(peer, key[0], b"third")).base_offset == 2


async def test_owner_with_a_full_disk_hands_over(three: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership_advice, "FULL_S", 0.0)
    peer = await three.peer("a")
    key = await used(three, peer)
    partition = owned(three, key)
    owner = partition.replica.state.node_id

    def full(*_: object, **_named: object) -> None:
        raise DiskFullError("no space")

    monkeypatch.setattr(partition.log, "make_space", full)
    monkeypatch.setattr(partition.log, "has_room", lambda *_: False)
    refused = (await (await three.peer(owner)).publish(key[0], batch(b"refused")))[0].error
    assert refused.code == pb.DISK_FULL
    await three.until(lambda: three.owner(key, "a") != owner, "it stays owner although it cannot write")
    assert placement(three, key, "a") == set("abc")
    assert (await three.publish(peer, key[0], b"stored")).base_offset == 1


async def test_halted_owner_is_replaced_while_its_node_runs(three: Founded) -> None:
    peer = await three.peer("a")
    key = await used(three, peer)
    for copy in await three.copies(key, end_offset=1):
        copy.replica.state.timing = Timing(grace_ms=0)
    partition = owned(three, key)
    partition.replica.state.halt("a test says so")
    partition.driver.execute_effects()
    await three.until(lambda: three.owner(key, "a") != partition.replica.state.node_id, "no node took over")
    assert (await three.publish(peer, key[0], b"stored")).base_offset == 1
