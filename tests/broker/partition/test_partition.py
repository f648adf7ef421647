from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, others, started_cluster
from tests.broker.founded import Founded
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.replication.producer_budget import NODE_PRODUCERS_MAX
from tidelog_broker.core.replication.producers import PRODUCERS_MIN
from tidelog_broker.node.node import Node
from tidelog_broker.storage.io.errors import DiskFullError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import KIB


async def publish_until_refused(peer: Peer, topic_id: bytes) -> tuple[int, pb.Error]:
    """Publish batches of 30 KB until one is refused; return how many were stored, and why no more."""
    for number in range(100):
        (result,) = await peer.publish(topic_id, batch(bytes([number]) * 30_000))
        if result.HasField("error"):
            return number, result.error
    raise AssertionError("nothing was refused")


@pytest.mark.parametrize("used", [False, True])
async def test_full_disk_refuses_publishes_until_there_is_space(
    stand: Stand, node: Node, peer: Peer, used: bool
) -> None:
    """Both where a segment grows and where the first one is to be made."""
    topic = await peer.create(segment_bytes=64 * KIB)
    before = 0
    if used:
        await peer.publish(topic.topic_id, batch(b"first"))
        before = 1
    stand.disk.fill_up()
    stored, error = await publish_until_refused(peer, topic.topic_id)
    assert (error.code, error.retriable, error.definite) == (pb.DISK_FULL, True, True)
    assert error.retry_after_ms > 0
    assert len(await peer.read_all(topic.topic_id)) == before + stored
    assert (await peer.publish(topic.topic_id, batch(b"x" * 30_000)))[0].error.code == pb.DISK_FULL
    stand.disk.heal()
    (result,) = await peer.publish(topic.topic_id, batch(b"again"))
    assert result.base_offset == before + stored
    assert node.lifecycle.health.state == "running"
    await stand.restart()
    assert (await (await stand.peer()).read_all(topic.topic_id))[-1] == b"again"


async def test_full_disk_at_a_takeover_is_reported_and_retried(stand: Stand) -> None:
    await stand.start()
    topic = await (await stand.peer()).create()
    await stand.restart()
    peer = await stand.peer()
    node = stand.node

    def full(entries: object) -> None:
        raise DiskFullError("no space")

    writes = node.broker.replication.chains._fence_writes
    append = writes._append
    writes._append = full  # the journals reserve space of their own
    assert (await peer.publish(topic.topic_id, batch(b"x")))[0].error.code == pb.DISK_FULL
    frame = await peer.reply(peer.post_fetch(topic.topic_id))
    assert frame.envelope.fetch_reply.results[0].error.code == pb.DISK_FULL
    writes._append = append
    await node.broker.partitions.get(topic.topic_id, 0).access.ensure_active()
    assert not (await peer.publish(topic.topic_id, batch(b"x")))[0].HasField("error")


@pytest.mark.parametrize("operation", ["sync", "write"])
async def test_disk_failure_stops_the_node_without_acknowledgement(
    stand: Stand, node: Node, peer: Peer, operation: str
) -> None:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"good"))
    stand.disk.break_at(operation)
    stand.disk.hold(operation)
    others = [await stand.peer() for _ in range(3)]
    numbers = [(other, other.post_publish(topic.topic_id, batch(b"lost"))) for other in others for _ in range(5)]
    await stand.disk.held_up()
    await settled(
        lambda: len(node.broker.partitions.get(topic.topic_id, 0).pipeline._queue) >= 10,
        "nothing gathered behind the group",
    )
    stand.disk.held = lambda operation, path: False
    stand.disk.gate.set()
    for other, number in numbers:
        (result,) = await other.published(number)
        assert (result.error.code, result.error.definite) == (pb.STORAGE_FAILED, False)
    assert await stand.stopped() == os.EX_IOERR
    for other in others:
        await other.closed()

    await stand.start()
    values = await (await stand.peer()).read_all(topic.topic_id)
    assert values[0] == b"good"
    assert set(values[1:]) <= {b"lost"}, "unacknowledged records may exist"


async def test_a_failing_timed_sync_stops_the_node(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create(flush=pb.INTERVAL, flush_interval_ms=1)
    stand.disk.break_at("sync")
    await peer.publish(topic.topic_id, batch(b"in the page cache"))
    assert await stand.stopped() == os.EX_IOERR
    record = (stand.path / "node.json").read_text()
    assert '"stopped_cleanly": false' in record


async def test_failed_sync_at_the_stop_is_reported_and_files_are_closed(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create(flush=pb.NEVER)
    other = await peer.create("other", flush=pb.NEVER)
    for one in (topic, other):
        await peer.publish(one.topic_id, batch(b"x"))
    stand.disk.break_at("sync")
    assert await stand.stop() == os.EX_IOERR
    assert '"stopped_cleanly": false' in (stand.path / "node.json").read_text()
    await stand.start()
    assert await (await stand.peer()).read_all(other.topic_id) == [b"x"]


async def test_interval_sync_follows_appends(stand: Stand, node: Node, peer: Peer) -> None:
    topic = await peer.create(flush=pb.INTERVAL, flush_interval_ms=1)
    await peer.publish(topic.topic_id, batch(b"a"))
    log = node.broker.partitions.get(topic.topic_id, 0).log
    await settled(lambda: log.synced_offset == 1, "the append was never synced")
    await peer.publish(topic.topic_id, batch(b"b"))
    await settled(lambda: log.synced_offset == 2, "the next append was never synced")


async def test_retention_deletes_old_segments_and_readers_get_out_of_range(stand: Stand) -> None:
    node = await stand.start(retention_interval_ms=10, ring_bytes=0)
    peer = await stand.peer()
    topic = await peer.create(segment_bytes=64 * KIB, retention_bytes=64 * KIB)
    await peer.publish(topic.topic_id, batch(b"first" * 6000))
    entry = pb.SubscribeEntry(topic_id=topic.topic_id)
    await peer.ask(subscribe=pb.Subscribe(subscription_id=1, entries=[entry]))
    for _ in range(8):
        await peer.publish(topic.topic_id, batch(b"x" * 30_000))
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await settled(lambda: partition.state.log_start > 0, "nothing was deleted")
    peer.send_credit(1, records=10**6, size_bytes=10**9)
    ended = (await peer.event()).envelope.subscription_ended
    assert ended.error.code == pb.OFFSET_OUT_OF_RANGE
    assert not partition.changes.listeners


async def test_damaged_partition_is_readable_up_to_its_damage_and_refuses_publishes(
    stand: Stand, node: Node, peer: Peer
) -> None:
    """The damage is before the newest sync mark, so the data was durable: the log is set aside, not truncated."""
    topic = await peer.create(segment_bytes=64 * KIB)
    for number in range(6):
        await peer.publish(topic.topic_id, batch(bytes([number]) * 30_000))
    directory = node.broker.partitions.get(topic.topic_id, 0).log.directory
    await stand.stop()
    segment = max(directory.glob("epoch-*/*.seg"))
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"TLRB") + 10_000] ^= 1
    segment.write_bytes(damaged)

    await stand.start()
    peer = await stand.peer()
    refused = (await peer.publish(topic.topic_id, batch(b"x")))[0].error
    assert refused.code == pb.LIMBO
    assert "damaged" in refused.message
    good = [one.values() for one in await peer.fetch(topic.topic_id)]
    assert good == [[bytes([number]) * 30_000] for number in range(len(good))]
    assert 0 < len(good) < 6
    frame = await peer.reply(peer.post_fetch(topic.topic_id, len(good)))
    assert frame.envelope.fetch_reply.results[0].length == 0
    info = (await peer.ask(topic_describe=pb.TopicDescribe(name="t"))).envelope.topic_reply.topics[0]
    assert info.partitions[0].state == "limbo"
    assert (await peer.create("healthy")).name == "healthy"
    assert stand.node.lifecycle.health.state == "running"


async def test_restarted_ring_releases_its_memory(node: Node, peer: Peer) -> None:
    topic = await peer.create()
    partition = node.broker.partitions.get(topic.topic_id, 0)
    before = node.broker.rings.size_bytes
    for _ in range(2):
        await peer.publish(topic.topic_id, batch(b"x" * 30_000))
        assert node.broker.rings.size_bytes > before + 30_000
        partition._restart_ring(partition.ring.end_offset)
        assert (node.broker.rings.size_bytes, partition.ring.size_bytes) == (before, 0)
        partition._restart_ring(partition.ring.end_offset)


@pytest.mark.parametrize(("flush", "loss"), [(pb.INTERVAL, True), (pb.ALWAYS, False)])
async def test_every_node_logs_possible_data_loss_after_power_loss_of_all(
    founded: Founded, caplog: pytest.LogCaptureFixture, flush: pb.Flush, loss: bool
) -> None:
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    topic = await peer.create(partitions=1, replication_factor=3, flush=flush)
    await founded.publish(peer, topic.topic_id, b"one")
    await founded.copies((topic.topic_id, 0), end_offset=1)
    await founded.close()
    for name in "abc":
        record = founded.path / name / "node.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"unnoted_reboot": True}))
    caplog.clear()
    await founded.found()
    await founded.publish(await founded.peer("b"), topic.topic_id, b"two")
    await founded.copies((topic.topic_id, 0), end_offset=2)
    told = [text for text in caplog.messages if "DATA_LOSS: t/0" in text]
    assert len(told) == (3 if loss else 0)
    assert all("ends at offset 1" in text for text in told)


async def test_planned_end_reports_held_by_all_only_if_true(tmp_path: Path) -> None:
    """Like an owner that leaves a dead replica behind: it never reports its log end."""
    async with started_cluster(tmp_path) as stand:
        await stand.start()
        owner = await stand.owner()
        await stand.publish(b"0", acks=pb.ALL)
        await stand.crash(others(owner)[0])
        peer, partition = await stand.peer(owner), stand.partition(owner)
        data = batch(b"1", producer_id=7)

        def post(acks: pb.Acks) -> int:
            entry = pb.PublishEntry(topic_id=TOPIC_ID, length=len(data))
            return peer.post(data, publish=pb.Publish(entries=[entry], acks=acks))

        number = post(pb.ALL)
        await settled(lambda: partition.state.high_watermark == 2, "no quorum holds it")
        partition.driver.roll_over(Plan(owner, tuple(NODES), 2))
        (told,) = await peer.published(number)
        assert (told.error.code, told.error.definite, told.error.retriable) == (pb.STORED_ON_QUORUM, False, False)
        await settled(lambda: partition.state.assigner is not None, "the next epoch does not begin")
        (again,) = await peer.published(post(pb.ALL))
        assert again.error.code == pb.STORED_ON_QUORUM, "replicas of the next epoch do not count for this one"
        (again,) = await peer.published(post(pb.QUORUM))
        assert (again.base_offset, again.duplicate) == (1, True)


async def test_partitions_share_the_producer_budget_of_their_node(node: Node, peer: Peer) -> None:
    topic_id = (await peer.create(partitions=2)).topic_id
    first = node.broker.partitions.get(topic_id, 0)
    for partition, producers in ((0, 5), (1, 3 * PRODUCERS_MIN)):
        for producer in range(1, 1 + producers):
            data = batch(b"x", producer_id=producer)
            (result,) = await peer.publish(topic_id, data, partition=partition)
            assert not result.HasField("error")
        first.tools.producers.give_back(-NODE_PRODUCERS_MAX)
    second = node.broker.partitions.get(topic_id, 1)
    known = [len(each.state.assigner.producers) for each in (first, second) if each.state.assigner is not None]
    assert known == [5, PRODUCERS_MIN]
