"""Batches of many partitions that are written with one write and one sync."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.joint_append import JointAppend
from tidelog_broker.storage.commit_log.commit_log import CommitLog
from tidelog_broker.storage.commit_log.shared_store import SharedStore
from tidelog_broker.storage.engine.store import StagedBatch
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Buffer, Codec, unpack_header

PARTITIONS = 12
LOG_SUFFIX = ".clog"


class Topic:
    """A topic with shared files and a record in each partition; the event loop writes the later ones."""

    def __init__(self, stand: Stand, peer: Peer, topic_id: bytes) -> None:
        self.stand = stand
        self.peer = peer
        self.topic_id = topic_id

    def post(self, *batches: tuple[int, bytes], acks: pb.Acks = pb.QUORUM) -> int:
        """Send one request with a batch for each of several partitions."""
        entries = [pb.PublishEntry(topic_id=self.topic_id, partition=at, length=len(one)) for at, one in batches]
        return self.peer.post(b"".join(one for _, one in batches), publish=pb.Publish(entries=entries, acks=acks))

    async def publish(self, *batches: tuple[int, bytes], acks: pb.Acks = pb.QUORUM) -> list[pb.PublishResult]:
        return await self.peer.published(self.post(*batches, acks=acks))

    def operations(self, since: int) -> list[str]:
        """Return the operations on the commit log."""
        return [what for what, path in self.stand.disk.log[since:] if path.name.endswith(LOG_SUFFIX)]


@pytest.fixture
async def topic(stand: Stand) -> Topic:
    node = await stand.start()
    peer = await stand.peer()
    topic_id = (await peer.create(partitions=PARTITIONS, file_model=pb.SHARED)).topic_id
    found = Topic(stand, peer, topic_id)
    results = await found.publish(*((at, batch(b"first")) for at in range(PARTITIONS)))
    assert [result.base_offset for result in results] == [0] * PARTITIONS
    node.broker.inline_writes._paused_until_s = 0.0
    return found


def each(value: bytes, *, sequence: int = 0, producer_id: int = 0) -> list[tuple[int, bytes]]:
    return [(at, batch(value, producer_id=producer_id, sequence=sequence)) for at in range(PARTITIONS)]


async def test_a_request_to_many_partitions_makes_one_write_and_one_sync(topic: Topic) -> None:
    before = len(topic.stand.disk.log)
    results = await topic.publish(*each(b"second"))
    assert [result.base_offset for result in results] == [1] * PARTITIONS
    assert topic.operations(before) == ["write", "sync"]
    logs = [topic.stand.node.broker.partitions.get(topic.topic_id, at).log for at in range(PARTITIONS)]
    assert {log.synced_offset for log in logs} == {2}, "no store has anything to sync"
    for at in range(PARTITIONS):
        assert await topic.peer.read_all(topic.topic_id, partition=at) == [b"first", b"second"]


@pytest.mark.parametrize("acks", [pb.ONE, pb.QUORUM, pb.ALL])
async def test_a_batch_is_acknowledged_and_readable_only_after_the_sync(topic: Topic, acks: pb.Acks) -> None:
    disk = topic.stand.disk
    disk.hold("sync", LOG_SUFFIX)
    number = topic.post(*each(b"second"), acks=acks)
    await disk.held_up()
    assert await topic.peer.read_all(topic.topic_id, partition=3) == [b"first"]
    assert not topic.peer.answered(number)
    disk.heal()
    assert [result.base_offset for result in await topic.peer.published(number)] == [1] * PARTITIONS
    assert await topic.peer.read_all(topic.topic_id, partition=3) == [b"first", b"second"]


async def test_batches_of_one_partition_in_a_request_keep_their_order(topic: Topic) -> None:
    results = await topic.publish((2, batch(b"a")), (5, batch(b"x")), (2, batch(b"b")), (2, batch(b"c")))
    assert [result.base_offset for result in results] == [1, 1, 2, 3]
    assert await topic.peer.read_all(topic.topic_id, partition=2) == [b"first", b"a", b"b", b"c"]


async def test_a_batch_does_not_overtake_one_that_is_verified_by_a_worker(topic: Topic) -> None:
    compressed = batch(b"a" * 5_000, codec=Codec.LZ4)
    results = await topic.publish((2, compressed), (5, batch(b"x")), (2, batch(b"b")))
    assert [result.base_offset for result in results] == [1, 1, 2]
    assert await topic.peer.read_all(topic.topic_id, partition=2) == [b"first", b"a" * 5_000, b"b"]


async def test_retries_get_their_offsets_and_gaps_are_refused(topic: Topic) -> None:
    first = await topic.publish(*each(b"second", producer_id=7))
    again = await topic.publish(*each(b"second", producer_id=7))
    assert [result.base_offset for result in again] == [result.base_offset for result in first]
    assert all(result.duplicate for result in again)
    other, gap = await topic.publish(
        (0, batch(b"third", producer_id=7, sequence=1)), (1, batch(b"fourth", producer_id=7, sequence=2))
    )
    assert (other.base_offset, gap.error.code) == (2, pb.SEQUENCE_GAP)
    assert await topic.peer.read_all(topic.topic_id, partition=1) == [b"first", b"second"]


async def test_batches_that_arrive_during_the_sync_follow_it(topic: Topic) -> None:
    disk = topic.stand.disk
    disk.hold("sync", LOG_SUFFIX)
    number = topic.post(*each(b"second"))
    await disk.held_up()
    later = [topic.post(*each(b"third")), topic.post(*each(b"fourth"))]
    await topic.peer.ask(metadata=pb.Metadata())
    disk.heal()
    offsets = [[result.base_offset for result in await topic.peer.published(each_)] for each_ in (number, *later)]
    assert offsets == [[1] * PARTITIONS, [2] * PARTITIONS, [3] * PARTITIONS]


async def test_an_epoch_may_end_during_the_write(topic: Topic) -> None:
    disk, partition = topic.stand.disk, topic.stand.node.broker.partitions.get(topic.topic_id, 3)
    epoch = partition.state.epoch
    disk.hold("sync", LOG_SUFFIX)
    number = topic.post(*each(b"second"))
    await disk.held_up()
    partition.driver.roll_over(partition.replica.ownership.plan_next())
    disk.heal()
    results = await topic.peer.published(number)
    assert [(result.base_offset, result.epoch) for result in results] == [(1, epoch)] * PARTITIONS
    await settled(lambda: partition.state.epoch == epoch + 1, "the next epoch does not begin")
    assert (await topic.publish((3, batch(b"third"))))[0].base_offset == 2
    assert await topic.peer.read_all(topic.topic_id, partition=3) == [b"first", b"second", b"third"]


@pytest.mark.parametrize("operation", ["write", "sync"])
async def test_a_failure_of_the_log_fails_all_batches_and_stops_the_node(topic: Topic, operation: str) -> None:
    broken = OSError(errno.EIO, "input/output error")

    def fail(what: str, path: Path) -> OSError | None:
        return broken if what == operation and path.name.endswith(LOG_SUFFIX) else None

    topic.stand.disk.fail = fail
    results = await topic.publish(*each(b"second"))
    assert {result.error.code for result in results} == {pb.STORAGE_FAILED}
    assert await topic.stand.stopped() != 0


async def test_an_unexpected_fault_of_the_write_leaves_no_batch_waiting(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the engine")

    monkeypatch.setattr(CommitLog, "append_staged", fail)
    results = await topic.publish(*each(b"second"))
    assert all(result.HasField("error") for result in results)
    assert await topic.stand.stopped() != 0


async def test_a_batch_that_cannot_be_staged_is_not_acknowledged(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = SharedStore.stage

    def fail(store: SharedStore, data: Buffer, header: BatchHeader) -> StagedBatch:
        if "-3/" in str(store.directory):
            raise RuntimeError("a fault of the engine")
        return stage(store, data, header)

    monkeypatch.setattr(SharedStore, "stage", fail)
    topic.post(*each(b"second"))
    before = topic.stand.node.broker.partitions.get(topic.topic_id, 2)
    await settled(lambda: before.state.high_watermark == 2, "the batches before it are not written")
    partition = topic.stand.node.broker.partitions.get(topic.topic_id, 3)
    assert (partition.log.end_offset, partition.state.high_watermark) == (1, 1)


async def test_a_fault_while_space_is_reserved_is_that_of_the_partition(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise StorageFailedError("the log has failed")

    monkeypatch.setattr(CommitLog, "has_room", fail)
    results = await topic.publish(*each(b"second"))
    assert [result.base_offset for result in results] == [1] * PARTITIONS, "each is written by itself"


async def test_acknowledged_batches_survive_a_crash(topic: Topic) -> None:
    await topic.publish(*each(b"second"))
    topic.stand.disk.hold("sync", LOG_SUFFIX)
    topic.post(*each(b"third"))
    await topic.stand.disk.held_up()
    await topic.stand.crash()
    await topic.stand.start()
    peer = await topic.stand.peer()
    for at in range(PARTITIONS):
        values = await peer.read_all(topic.topic_id, partition=at)
        assert values in ([b"first", b"second"], [b"first", b"second", b"third"])


async def test_a_full_disk_refuses_batches_without_offsets(topic: Topic) -> None:
    topic.stand.disk.fill_up()
    results: list[pb.PublishResult] = []
    while not any(result.HasField("error") for result in results):  # until the allocated space is used up
        results = await topic.publish(*each(bytes(60_000)))
    refused = [at for at, result in enumerate(results) if result.HasField("error")]
    assert {results[at].error.code for at in refused} == {pb.DISK_FULL}
    topic.stand.disk.heal()
    ends = [len(await topic.peer.read_all(topic.topic_id, partition=at)) for at in refused]
    results = await topic.publish(*((at, batch(b"last")) for at in refused))
    assert [result.base_offset for result in results] == ends


async def test_readers_at_the_end_are_woken(topic: Topic) -> None:
    waiting = topic.peer.post_fetch(topic.topic_id, 1, partition=4, min_bytes=1, wait_ms=10_000)
    await topic.peer.ask(metadata=pb.Metadata())
    await topic.publish(*each(b"second"))
    frame = await topic.peer.reply(waiting)
    assert frame.envelope.fetch_reply.results[0].length > 0


async def test_partitions_with_other_work_are_written_by_themselves(topic: Topic) -> None:
    node = topic.stand.node
    joint = node.broker.replication.joint_append()
    partition = node.broker.partitions.get(topic.topic_id, 0)
    assert _joins(joint, partition.driver)
    assert not _joins(joint, partition.driver), "it has a batch in this write already"
    joint.write()
    await settled(lambda: partition.driver.may_join, "the write is not completed")
    partition.replica.state.halt("a test")
    assert not _joins(node.broker.replication.joint_append(), partition.driver), "it takes no part in the epoch"


def _joins(joint: JointAppend, driver: ReplicaDriver) -> bool:
    data = memoryview(bytearray(batch(b"x")))
    return joint.add(driver, unpack_header(data), data) is not None
