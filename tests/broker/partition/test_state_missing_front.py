"""A log whose first segment file is lost: other nodes restore it, and an only copy reports the damage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import TOPIC_ID, ClusterStand, others, started_cluster
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.partition.partition import Partition
from tidelog_broker.storage.partition.log_start import NAME
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import KIB

BODY = b"x" * 30_000
SEGMENT_BYTES = 64 * KIB
"""Two batches of `BODY` fill a segment."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as stand:
        await stand.start(ring_bytes=0)
        yield stand


async def publish(peer: Peer, topic_id: bytes, count: int) -> None:
    for _ in range(count):
        (result,) = await peer.publish(topic_id, batch(BODY))
        assert not result.HasField("error"), result


async def refusal(peer: Peer, topic_id: bytes, offset: int) -> pb.Error:
    """Return the error of a fetch."""
    frame = await peer.reply(peer.post_fetch(topic_id, offset))
    (result,) = frame.envelope.fetch_reply.results
    assert result.HasField("error"), result
    return result.error


def lose_first_segment(directory: Path, epoch: int = 0) -> None:
    """Remove the first segment file of an epoch, and its indexes, below a partition's directory."""
    first = min((directory / f"epoch-{epoch:08d}").glob("*.seg"))
    for path in first.parent.glob(first.stem + ".*"):
        path.unlink()


async def only_copy(stand: Stand, count: int = 7, *, retention_bytes: int = 0) -> pb.TopicInfo:
    """Publish to a topic with one copy on a new node."""
    node = await stand.start(ring_bytes=0, retention_interval_ms=10)
    peer = await stand.peer()
    topic = await peer.create(segment_bytes=SEGMENT_BYTES, retention_bytes=retention_bytes)
    await publish(peer, topic.topic_id, count)
    log = node.broker.partitions.get(topic.topic_id, 0).log
    await settled((log.directory / NAME).exists, "the file is created when the second segment has begun")
    return topic


def directory_of(stand: Stand) -> Path:
    (directory,) = stand.path.glob("partitions/t.*-0")
    return directory


async def restarted(stand: Stand, topic: pb.TopicInfo) -> Partition:
    """Start the node again and return its partition, opened."""
    node = await stand.start()
    return node.broker.partitions.get(topic.topic_id, 0)


async def test_only_copy_reports_a_lost_first_segment(stand: Stand) -> None:
    topic = await only_copy(stand)
    await stand.stop()
    lose_first_segment(directory_of(stand))
    partition = await restarted(stand, topic)
    assert partition.state.summary == "limbo"
    assert partition.state.log_start == 0, "a lost record counts as deleted"
    peer = await stand.peer()
    error = await refusal(peer, topic.topic_id, 0)
    assert error.code == pb.LIMBO
    assert "begins at offset 2, but the records from offset 0 were not deleted" in error.message
    assert len(await peer.fetch(topic.topic_id, 2)) > 0, "later records stay readable"
    (result,) = await peer.publish(topic.topic_id, batch(BODY))
    assert result.error.code == pb.LIMBO


async def test_only_copy_with_deleted_records_starts_again(stand: Stand) -> None:
    topic = await only_copy(stand, count=12, retention_bytes=2 * SEGMENT_BYTES)
    (partition,) = stand.node.broker.partitions.of_topic(topic.topic_id)
    await settled(lambda: partition.log.start_offset > 0, "nothing was deleted")
    start = partition.log.start_offset
    await stand.stop()
    partition = await restarted(stand, topic)
    assert partition.state.summary != "limbo"
    assert partition.state.log_start >= start
    peer = await stand.peer()
    assert (await refusal(peer, topic.topic_id, 0)).code == pb.OFFSET_OUT_OF_RANGE


async def test_start_of_an_only_copy_without_the_file_is_that_of_retention(stand: Stand) -> None:
    """An earlier build deleted records of an only copy without storing where."""
    topic = await only_copy(stand)
    await stand.stop()
    (directory_of(stand) / NAME).unlink()
    lose_first_segment(directory_of(stand))
    partition = await restarted(stand, topic)
    assert (partition.state.summary, partition.state.log_start) != ("limbo", 0)
    await publish(await stand.peer(), topic.topic_id, 3)
    await settled((directory_of(stand) / NAME).exists, "the start is not stored")
    await stand.stop()
    partition = await restarted(stand, topic)
    assert (partition.state.summary == "limbo", partition.state.log_start) == (False, 2)


async def test_replica_fetches_a_lost_first_segment_again(cluster: ClusterStand) -> None:
    first = await cluster.owner()
    await publish(await cluster.peer(first), TOPIC_ID, 5)
    late = others(first)[0]
    await cluster.stop(first)
    second = await cluster.owner()
    await publish(await cluster.peer(second), TOPIC_ID, 1)
    await cluster.start(first)
    late = next(name for name in others(second) if name != first)
    log = cluster.partition(late).log
    await settled(lambda: len(log.epochs) == 2 and log.end_offset == 6, "the copy does not follow")
    directory, epoch = log.directory, log.epochs[0].epoch
    await cluster.crash(late)
    lose_first_segment(directory, epoch)
    await cluster.start(late)
    copy = cluster.partition(late)
    await settled(lambda: copy.log.start_offset == 0 and copy.state.is_whole, "the copy stays without its front")
    assert copy.log.end_offset >= 6


async def test_replica_fetches_a_lost_first_segment_of_the_open_epoch_after_its_end(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    await publish(await cluster.peer(owner), TOPIC_ID, 5)
    late = others(owner)[0]
    log = cluster.partition(late).log
    await settled(lambda: log.end_offset == 5, "the copy does not follow")
    directory, epoch = log.directory, log.epochs[-1].epoch
    await cluster.crash(late)
    lose_first_segment(directory, epoch)
    await cluster.start(late)
    copy = cluster.partition(late)
    await settled(lambda: copy.log.end_offset == 5, "the copy does not follow")
    assert 0 < copy.log.start_offset < 5, "the copy lacks its front"
    await cluster.stop(owner)
    next_owner = await cluster.owner()
    await publish(await cluster.peer(next_owner), TOPIC_ID, 1)
    await settled(lambda: copy.log.start_offset == 0 and copy.state.is_whole, "the copy stays without its front")
