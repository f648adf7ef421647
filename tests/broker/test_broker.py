"""State that a node keeps for its users, and its own description."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from tests.broker.cluster_stand import ClusterStand, started_cluster
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.topics import META_TOPIC_ID, OFFSETS_TOPIC_ID
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.names import META_TOPIC, OFFSETS_TOPIC


async def test_internal_topics_exist_before_others(node: Node) -> None:
    assert {record.name: record.topic_id for record in node.broker.topics.live()} == {
        META_TOPIC: META_TOPIC_ID,
        OFFSETS_TOPIC: OFFSETS_TOPIC_ID,
    }


async def test_status_sums_partitions(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x" * 1000))
    status = node.broker.status()
    assert status.node.port == node.port
    assert status.connections == 1
    assert status.state == "running"
    assert status.data_bytes >= 1000
    assert status.disk_free_bytes > 0


async def test_status_reports_a_full_disk_while_the_node_runs(node: Node) -> None:
    health = node.lifecycle.health
    health.disk_full = True
    assert node.broker.status().state == "disk_full"
    health.disk_full = False
    assert node.broker.status().state == "running"


async def test_topics_are_recovered_with_their_partitions(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create(partitions=3)
    await stand.stop()
    node = await stand.start()
    assert [partition.state.index for partition in node.broker.partitions.of_topic(topic.topic_id)] == [0, 1, 2]


def copy_fault(stand: ClusterStand, name: str) -> str:
    (told,) = stand.nodes[name].broker.description.topic(stand.record).partitions
    return told.copy_fault


async def test_truncated_copy_is_reported_until_refetched(tmp_path: Path) -> None:
    values = [bytes([number]) * 1000 for number in range(20)]
    async with started_cluster(tmp_path) as stand:
        await stand.start()
        await stand.publish(*values)
        await stand.agree(*values)
        owner = await stand.owner()
        rotten = next(name for name in stand.nodes if name != owner)
        await stand.stop(rotten)
        segment = next(path for path in (tmp_path / rotten).rglob("*.seg") if values[3] in path.read_bytes())
        data = bytearray(segment.read_bytes())
        data[data.index(values[3]) + 500] ^= 1
        segment.write_bytes(data)
        stand.cut = {rotten}
        await stand.start(rotten)
        assert [copy_fault(stand, name) for name in (rotten, owner)] == ["damaged", ""]
        follower = next(one for one in stand.partition(owner).replica.followers if one.node_id == rotten)
        assert not follower.keeps_up(stand.nodes[owner].broker.now_ms()), "and its owner does not count on it"
        stand.isolate()
        await settled(lambda: copy_fault(stand, rotten) == "", "the copy is not repaired")
        await stand.agree(*values)


async def test_damaged_single_copy_is_reported(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create("t")
    partition = stand.node.broker.partitions.get(topic.topic_id, 0)
    record = stand.node.broker.topics.with_id(topic.topic_id)
    partition.replica.state.doubt = "short"
    assert stand.node.broker.description.topic(record).partitions[0].copy_fault == "", (
        "the missing records are not known to exist"
    )
    partition.replica.state.halt("damaged for a test")
    assert stand.node.broker.description.topic(record).partitions[0].copy_fault == "limbo"


async def test_journals_do_not_wait_for_a_log_sync(stand: Stand) -> None:
    broker = (await stand.start(io_workers=1)).broker
    gate, written = threading.Event(), asyncio.Event()
    syncing = asyncio.ensure_future(broker.threads.io.call(0, gate.wait, 20))
    entry = pb.FenceEntry(topic_id=b"t" * 16, epoch=1, promised=pb.Ballot(round=1, node_id="a"))
    broker.replication.chains.write_fences([entry], written.set)
    try:
        await asyncio.wait_for(written.wait(), 20)
        assert not syncing.done()
    finally:
        gate.set()
    await syncing


@pytest.mark.parametrize("pool", ["io", "journals", "readers", "compactor"])
async def test_event_loop_does_not_poll_while_a_worker_is_busy(node: Node, pool: str) -> None:
    """It would take the GIL from the worker."""
    threads, release = node.broker.threads, threading.Event()
    workers = getattr(threads, pool)
    await settled(threads.may_poll, "the start has ended")
    busy = asyncio.create_task(workers.call(0, release.wait))
    await asyncio.sleep(0)
    assert not threads.may_poll()
    release.set()
    await busy
    await settled(threads.may_poll, "no worker is busy")
