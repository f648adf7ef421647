from __future__ import annotations

import asyncio
import logging

import pytest
from tests.broker.founded import Founded

from tidelog_broker.core.replication import planned_end
from tidelog_broker.core.topics import META_KEY, OFFSETS_KEY, PartitionKey
from tidelog_broker.node import graceful_stop
from tidelog_broker.node.graceful_stop import hand_over
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb

PARTITIONS = 24


@pytest.fixture
async def three(founded: Founded) -> Founded:
    await founded.found()
    await founded.settled()
    return founded


async def used(three: Founded, *, copies: int = 3) -> list[PartitionKey]:
    """Create a topic and write to all its partitions; return them with the broker's own."""
    peer = await three.peer("a")
    topic = await peer.create(partitions=PARTITIONS, replication_factor=copies)
    for index in range(PARTITIONS):
        await three.publish(peer, topic.topic_id, b"first", partition=index)
        if copies == len(three.nodes):
            await three.copies((topic.topic_id, index), end_offset=1)
    return [META_KEY, OFFSETS_KEY, *((topic.topic_id, index) for index in range(PARTITIONS))]


def epoch_of(node: Node, key: PartitionKey) -> int:
    route = node.broker.routes.get(key)
    assert route is not None
    return route.epoch


async def test_stopping_node_transfers_each_partition_in_one_epoch(three: Founded) -> None:
    """No takeover is needed: the partitions have an owner before the node stops, and the copies stay."""
    keys = await used(three)
    leaver = three.owner(keys[2], "a")
    rest = [name for name in "abc" if name != leaver]
    watch = three.nodes[rest[0]]
    owned = [key for key in keys if three.owner(key, rest[0]) == leaver]
    before = {key: epoch_of(watch, key) for key in keys}
    await hand_over(three.nodes[leaver].broker)
    await three.until(lambda: all(three.owner(key, rest[0]) in rest for key in keys), "not all was handed over")
    assert {key: epoch_of(watch, key) - before[key] for key in keys} == {key: int(key in owned) for key in keys}
    for key in keys:
        route = watch.broker.routes.get(key)
        assert route is not None
        assert set(route.placement) == set("abc")
    await three.stop(leaver)
    assert all(epoch_of(watch, key) - before[key] <= 1 for key in keys), "something was taken over all the same"


async def test_transfer_waits_for_a_pending_sync(three: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_end, "SLACK_BYTES", 0)
    peer = await three.peer("a")
    topic = await peer.create(partitions=4, replication_factor=3, flush=pb.NEVER)
    keys: list[PartitionKey] = [(topic.topic_id, index) for index in range(4)]
    for key in keys:
        await three.publish(peer, key[0], b"first", partition=key[1])
        await three.copies(key, end_offset=1)
    leaver = three.owner(keys[0], "a")
    owned = [
        partition for partition in three.nodes[leaver].broker.partitions.all() if partition.state.owner_id == leaver
    ]
    await hand_over(three.nodes[leaver].broker)
    assert leaver not in {partition.state.owner_id for partition in owned}


async def test_publishing_continues_during_a_graceful_stop(three: Founded) -> None:
    """Meanwhile a client gets an offset, or a definite error that nothing was written."""
    keys = await used(three)
    key = keys[2]
    leaver = three.owner(key, "a")
    asked = next(name for name in "abc" if name != leaver)
    peer = await three.peer(asked)
    stopping = asyncio.create_task(three.stop(leaver))
    sent = 1
    while not stopping.done():
        assert (await three.publish(peer, key[0], b"more", partition=key[1])).base_offset == sent
        sent += 1
    assert await stopping == 0
    copy = three.nodes[asked].broker.partitions.get(*key)
    await three.until(lambda: copy.state.readable_end == sent, "the copy lacks something")
    assert len(await peer.read_all(key[0], partition=key[1])) == sent


async def test_leaving_node_gets_no_partitions_until_its_restart(three: Founded) -> None:
    await used(three)
    await three.nodes["b"].broker.cluster.leave(timeout_s=10)
    peer = await three.peer("a")
    topic = await peer.create("meanwhile", partitions=PARTITIONS, replication_factor=3)
    assert "b" not in {partition.owner for partition in topic.partitions}
    assert all("b" in partition.placement for partition in topic.partitions), "there are no other nodes"
    await three.stop("b")
    await three.start("b")
    await three.settled()
    topic = await (await three.peer("a")).create("afterwards", partitions=PARTITIONS, replication_factor=3)
    assert {partition.owner for partition in topic.partitions} == {"a", "b", "c"}


async def test_stopping_nodes_do_not_transfer_to_each_other(three: Founded, caplog: pytest.LogCaptureFixture) -> None:
    await used(three)
    for name in "abc":
        await three.nodes[name].broker.cluster.leave(timeout_s=10)
    caplog.set_level(logging.INFO, graceful_stop.log.name)
    assert await asyncio.gather(*(hand_over(three.nodes[name].broker) for name in "abc")) == [0, 0, 0]


async def test_single_copy_partition_is_not_transferred(three: Founded) -> None:
    keys = await used(three, copies=1)
    owner = three.owner(keys[2], "a")
    await hand_over(three.nodes[owner].broker)
    assert three.owner(keys[2], owner) == owner
    partition = three.nodes[owner].broker.partitions.find(keys[2])
    assert partition is not None
    assert partition.state.assigner is not None, "it takes records until the node stops"


async def test_failed_transfer_times_out(
    three: Founded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await used(three)
    node = three.nodes[three.owner(META_KEY, "a")]
    monkeypatch.setattr(graceful_stop, "HAND_OVER_S", 0.3)
    monkeypatch.setattr(node.broker.cluster, "send", lambda *_: None)
    await hand_over(node.broker)
    assert "stopped transferring partitions" in caplog.text
