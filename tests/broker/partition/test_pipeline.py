from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, started_cluster
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.replication.producers import PlacedBatch
from tidelog_broker.node.node import Node
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.pipeline import GROUP_BATCHES_MAX, QueuedBatch
from tidelog_broker.storage.epoch.epoch_log import EpochLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB

Outcome = tuple[PlacedBatch | ProtocolError, bool]


class Settled(list[Outcome]):
    """Outcome of one batch; settled at most once."""

    def __call__(self, outcome: PlacedBatch | ProtocolError, duplicate: bool) -> None:
        assert not self, "settled twice"
        self.append((outcome, duplicate))

    @property
    def offset(self) -> int:
        (outcome, _), *_ = self
        assert isinstance(outcome, PlacedBatch), outcome
        return outcome.base_offset

    @property
    def code(self) -> int:
        (outcome, _), *_ = self
        assert isinstance(outcome, ProtocolError), outcome
        return outcome.code


@pytest.fixture
async def partition(node: Node, peer: Peer) -> Partition:
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"open"))
    return node.broker.partitions.get(topic.topic_id, 0)


def submit(partition: Partition, data: bytes = batch(b"x"), *, verified: bool = True) -> tuple[QueuedBatch, Settled]:
    settle = Settled()
    view = memoryview(bytearray(data))
    pending = QueuedBatch(view, unpack_header(view) if verified else None, settle)
    partition.pipeline.submit(pending)
    return pending, settle


def syncs(stand: Stand) -> int:
    return sum(1 for operation, path in stand.disk.log if operation == "sync" and path.name.endswith(".seg"))


async def test_batches_queued_during_a_sync_share_the_next_one(stand: Stand, partition: Partition) -> None:
    stand.disk.hold("sync")
    outcomes = [submit(partition)[1]]
    await stand.disk.held_up()
    before = syncs(stand)
    outcomes += [submit(partition)[1] for _ in range(20)]
    stand.disk.heal()
    await partition.pipeline.idle()
    assert [outcome.offset for outcome in outcomes] == list(range(1, 22))
    assert syncs(stand) == before + 1


async def test_a_group_is_bounded_in_bytes(stand: Stand) -> None:
    node = await stand.start(group_bytes=10 * KIB)
    topic = await (await stand.peer()).create()
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await partition.access.ensure_active()
    data = batch(b"x" * 4000)
    outcomes = [submit(partition, data)[1]]
    await partition.pipeline.idle()
    stand.disk.hold("sync")
    outcomes += [submit(partition, data)[1] for _ in range(6)]
    await stand.disk.held_up()
    before = syncs(stand)
    assert len(partition.pipeline._queue) == 5
    stand.disk.heal()
    await partition.pipeline.idle()
    assert syncs(stand) == before + 3
    assert [outcome.offset for outcome in outcomes] == list(range(7))


async def test_unverified_head_blocks_the_queue_and_refused_one_is_removed(partition: Partition) -> None:
    first, first_outcome = submit(partition, verified=False)
    second, second_outcome = submit(partition, verified=False)
    _, third_outcome = submit(partition)
    await asyncio.sleep(0)
    assert not third_outcome
    second.header = unpack_header(second.data)
    partition.pipeline.start_next_group()
    assert not third_outcome
    first.refusal = ProtocolError(pb.CORRUPT_BATCH, "damaged")
    partition.pipeline.start_next_group()
    await partition.pipeline.idle()
    assert first_outcome.code == pb.CORRUPT_BATCH
    assert (second_outcome.offset, third_outcome.offset) == (1, 2)
    assert partition.pipeline.queued_bytes == 0


async def test_batch_bound_to_another_epoch_is_refused_alone(stand: Stand, partition: Partition) -> None:
    epoch = partition.state.epoch
    stand.disk.hold("sync")
    outcomes = [submit(partition)[1]]
    await stand.disk.held_up()
    for bound in (epoch, None, epoch - 1, epoch + 1, epoch):
        settle, data = Settled(), memoryview(bytearray(batch(b"x")))
        partition.pipeline.submit(QueuedBatch(data, unpack_header(data), settle, epoch=bound))
        outcomes.append(settle)
    stand.disk.heal()
    await partition.pipeline.idle()
    assert [outcome.offset for outcome in outcomes[:3] + outcomes[5:]] == [1, 2, 3, 4]
    assert [outcome.code for outcome in outcomes[3:5]] == [pb.EPOCH_CHANGING] * 2


async def test_a_bound_batch_is_refused_in_the_next_epoch_of_the_same_owner(stand: Stand, partition: Partition) -> None:
    epoch = partition.state.epoch
    stand.disk.hold("sync")
    first, settle, data = submit(partition)[1], Settled(), memoryview(bytearray(batch(b"x")))
    await stand.disk.held_up()
    partition.pipeline.submit(QueuedBatch(data, unpack_header(data), settle, epoch=epoch))
    partition.driver.roll_over(partition.replica.ownership.plan_next())
    stand.disk.heal()
    await partition.pipeline.idle()
    assert (first.offset, settle.code) == (1, pb.EPOCH_CHANGING)
    assert partition.state.epoch == epoch + 1


@pytest.mark.parametrize("operation", ["sync", "allocate"])
async def test_batch_pending_during_another_ownership_is_refused(tmp_path: Path, operation: str) -> None:
    """It waits in the queue, or for space; its sender has been elsewhere since, and has lost a permission perhaps."""
    async with started_cluster(tmp_path) as cluster:
        await cluster.start()
        first = await cluster.owner()
        await cluster.publish(b"kept")
        partition, peer = cluster.partition(first), await cluster.peer(first)
        cluster.disks[first].hold(operation)
        cluster.cut = {first}
        values = [bytes([65 + number]) * (60 * KIB) for number in range(3)]
        waiting = [peer.post_publish(TOPIC_ID, batch(value)) for value in values]
        await cluster.disks[first].held_up()
        await settled(lambda: partition.pipeline.queued_bytes > 0, "nothing is queued")
        cluster.suspect(first)
        second = await cluster.owner(but=first)
        await cluster.publish(b"meanwhile", to=second)
        epoch = cluster.partition(second).state.epoch + 1
        cluster.partition(second).driver.roll_over(Plan(first, NODES, 2, pb.ALWAYS))
        await settled(lambda: cluster.partition(second).state.epoch == epoch, "the epoch did not end")
        cluster.isolate()
        cluster.disks[first].heal()
        await settled(lambda: cluster.owners() == [first], "it does not own the partition again")
        for number in waiting:
            (told,) = await peer.published(number)
            assert (told.error.definite, told.error.retriable) == (True, True)
        await cluster.agree(b"kept", b"meanwhile")


async def test_pipeline_is_idle_after_only_refused_batches(partition: Partition) -> None:
    pending, outcome = submit(partition, verified=False)
    pending.refusal = ProtocolError(pb.CORRUPT_BATCH, "damaged")
    partition.pipeline.start_next_group()
    async with asyncio.timeout(10):
        await partition.pipeline.idle()
    assert outcome.code == pb.CORRUPT_BATCH


async def test_refuse_answers_queued_and_later_batches(stand: Stand, partition: Partition) -> None:
    stand.disk.hold("sync")
    _, writing = submit(partition)
    await stand.disk.held_up()
    waiting, late = submit(partition, verified=False)
    partition.pipeline.refuse(ProtocolError(pb.SHUTTING_DOWN, "the node stops"))
    assert late.code == pb.SHUTTING_DOWN
    waiting.header = unpack_header(waiting.data)
    partition.pipeline.start_next_group()
    _, after = submit(partition)
    assert after.code == pb.SHUTTING_DOWN
    stand.disk.heal()
    await partition.pipeline.idle()
    assert writing.offset == 1


async def test_group_refused_during_its_allocation_is_not_written(stand: Stand, partition: Partition) -> None:
    stand.disk.hold("allocate")
    _, outcome = submit(partition, batch(b"x" * 500_000))
    await stand.disk.held_up()
    partition.pipeline.refuse(ProtocolError(pb.UNKNOWN_TOPIC, "deleted"))
    assert not outcome
    stand.disk.heal()
    await partition.pipeline.idle()
    assert outcome.code == pb.UNKNOWN_TOPIC
    assert partition.log.end_offset == 1


async def test_group_of_duplicates_writes_nothing(stand: Stand, partition: Partition) -> None:
    data = batch(b"x", producer_id=3)
    submit(partition, data)
    await partition.pipeline.idle()
    before = syncs(stand)
    _, again = submit(partition, data)
    await partition.pipeline.idle()
    assert (again.offset, again[0][1]) == (1, True)
    assert syncs(stand) == before


async def test_a_retry_is_not_acknowledged_before_its_first_attempt(stand: Stand, partition: Partition) -> None:
    stand.disk.hold("sync")
    data = batch(b"x", producer_id=3)
    _, first = submit(partition, data)
    await stand.disk.held_up()
    _, again = submit(partition, data)
    await asyncio.sleep(0)
    assert not first
    assert not again
    stand.disk.heal()
    await partition.pipeline.idle()
    assert first.offset == again.offset == 1


@pytest.mark.parametrize("flush", [pb.ALWAYS, pb.NEVER])
async def test_nothing_is_read_before_it_is_committed(stand: Stand, node: Node, peer: Peer, flush: pb.Flush) -> None:
    topic = await peer.create(flush=flush)
    await peer.publish(topic.topic_id, batch(b"a"))
    stand.disk.hold("sync" if flush == pb.ALWAYS else "write")
    data = batch(b"x" * 300_000)  # too large to be written from the loop
    number = peer.post_publish(topic.topic_id, data)
    await stand.disk.held_up()
    reader = await stand.peer()
    assert await reader.read_all(topic.topic_id) == [b"a"]
    stand.disk.heal()
    await peer.published(number)
    assert len(await reader.read_all(topic.topic_id)) == 2


async def test_idle_waits_for_a_partition_that_is_being_opened(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"x"))
    node = await stand.restart()
    partition = node.broker.partitions.get(topic.topic_id, 0)
    stand.disk.hold("sync", "fences")
    _, outcome = submit(partition)
    idle = asyncio.create_task(partition.pipeline.idle())
    await stand.disk.held_up()
    assert not idle.done()
    stand.disk.heal()
    await idle
    assert outcome.offset == 1
    assert partition.state.assigner is not None


@pytest.mark.parametrize(("flush", "inline"), [(pb.NEVER, True), (pb.ALWAYS, False)])
async def test_event_loop_writes_unsynced_groups_while_fast(
    stand: Stand, node: Node, peer: Peer, flush: pb.Flush, inline: bool
) -> None:
    topic = await peer.create(flush=flush)
    await peer.publish(topic.topic_id, batch(b"the first one takes space and begins the epoch"))
    writers: list[str] = []

    def note(operation: str, path: Path) -> None:
        if operation == "write" and path.suffix == ".seg":
            writers.append(threading.current_thread().name)

    stand.disk.fail = note
    node.broker.inline_writes._paused_until_s = 0
    await peer.publish(topic.topic_id, batch(b"x"))
    node.broker.inline_writes.took(0, math.inf, math.inf, sleeps_before=-1)
    await peer.publish(topic.topic_id, batch(b"y"))
    here = threading.current_thread().name
    assert [writer == here for writer in writers] == [inline, False]


async def test_space_is_checked_once_before_an_inline_write(
    node: Node, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await peer.create(flush=pb.NEVER)
    await peer.publish(topic.topic_id, batch(b"the first one takes space and begins the epoch"))
    node.broker.inline_writes._paused_until_s = 0
    asked: list[int] = []
    has_room = EpochLog.has_room

    def noted(self: EpochLog, needed_bytes: int) -> bool:
        asked.append(needed_bytes)
        return has_room(self, needed_bytes)

    monkeypatch.setattr(EpochLog, "has_room", noted)
    await peer.publish(topic.topic_id, batch(b"x"))
    assert len(asked) == 1


async def test_full_disk_state_is_cleared_when_the_epoch_ends(partition: Partition) -> None:
    """Another node owned the partition meanwhile; when it comes back here, there may be space again."""
    partition.pipeline.full_since_s = 1.0
    partition.pipeline.decided(
        partition.log.end_offset, ProtocolError(pb.EPOCH_CHANGING, "over"), held_by_all=0, handed_over=False
    )
    assert partition.pipeline.full_since_s is None


async def test_queue_continues_after_a_roll_that_triggers_retention(stand: Stand) -> None:
    node = await stand.start(group_bytes=10 * KIB)
    topic = await (await stand.peer()).create(retention_bytes=128 * KIB, segment_bytes=64 * KIB)
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await partition.access.ensure_active()
    data = batch(b"x" * 20_000)
    for _ in range(20):  # nothing that comes later gives the second of a pair a push
        outcomes = [submit(partition, data)[1] for _ in range(2)]
        async with asyncio.timeout(10):
            await partition.pipeline.idle()
        assert all(isinstance(outcome, PlacedBatch) for ((outcome, _),) in outcomes)
    assert partition.replica.state.deleted_below > 0


async def test_thousands_of_small_batches_are_written_in_bounded_groups(stand: Stand, partition: Partition) -> None:
    stand.disk.hold("sync")
    outcomes = [submit(partition)[1]]
    await stand.disk.held_up()
    before = syncs(stand)
    outcomes += [submit(partition)[1] for _ in range(3 * GROUP_BATCHES_MAX)]
    stand.disk.heal()
    await partition.pipeline.idle()
    assert [outcome.offset for outcome in outcomes] == list(range(1, 2 + 3 * GROUP_BATCHES_MAX))
    assert syncs(stand) == before + 3


async def test_full_queue_refuses_batches_until_there_is_room(stand: Stand) -> None:
    node = await stand.start(partition_in_flight_bytes=10 * KIB)
    topic = await (await stand.peer()).create()
    partition = node.broker.partitions.get(topic.topic_id, 0)
    await partition.access.ensure_active()
    data = batch(b"x" * 4000)
    head, first = submit(partition, data, verified=False)
    _, second = submit(partition, data)
    _, third = submit(partition, data)
    assert third.code == pb.OVERLOADED
    assert not second
    head.header = unpack_header(head.data)
    partition.pipeline.start_next_group()
    await partition.pipeline.idle()
    assert (first.offset, second.offset) == (0, 1)
    _, fourth = submit(partition, data)
    await partition.pipeline.idle()
    assert fourth.offset == 2


async def test_refusals_of_a_full_disk_are_counted(stand: Stand, partition: Partition) -> None:
    refusals = stand.node.broker.full_disk
    assert (refusals.at_s, refusals.count) == (-math.inf, 0)
    stand.disk.fill_up()
    for count in (1, 2):
        _, outcome = submit(partition, batch(b"x" * 2_000_000))
        await partition.pipeline.idle()
        assert outcome.code == pb.DISK_FULL
        assert refusals.at_s > 0
        assert refusals.count == count
    stand.disk.heal()


async def test_uncommitted_bytes_are_bounded(tmp_path: Path) -> None:
    async with started_cluster(tmp_path) as cluster:
        await cluster.start(partition_in_flight_bytes=100 * KIB)
        first = await cluster.owner()
        await cluster.publish(b"kept")
        partition = cluster.partition(first)
        cluster.cut = {first}
        data = batch(b"x" * (30 * KIB))
        for _ in range(12):
            submit(partition, data)
            await asyncio.sleep(0.05)
        assert 2 <= partition.log.end_offset <= 6, "more was appended than the bound and one batch"
        assert partition.pipeline.queued_bytes <= 100 * KIB
        cluster.isolate()
