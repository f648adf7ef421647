"""Partitions that change their engine, or write records in memory to files, on nodes that crash or have full disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, started_cluster
from tests.broker.faulty_disk import GoneError
from tests.broker.metric import value_of
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.node.node import Node
from tidelog_broker.partition.state import PartitionState
from tidelog_broker.storage.engine.store import SEGMENT
from tidelog_broker.storage.engines.stores import unwritten
from tidelog_broker.storage.memory.memory_store import MEMORY
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.topic_settings import MEMORY_ASYNC


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        yield made


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    made = Stand(tmp_path)
    try:
        yield made
    finally:
        await made.close()


async def written(node: Node) -> None:
    """Wait until everything that a node has in memory is in files, too."""
    await settled(lambda: unwritten(node.broker.disk) == (0, 0), "the records are not written")


async def switched(stand: Stand, engine: str, flush: pb.Flush) -> None:
    """Change the engine of the topic `t`, and wait until its partition has begun an epoch in it."""
    (partition,) = (one for one in stand.node.broker.partitions.all() if one.name.startswith("t/"))
    named = {"": SEGMENT, MEMORY_ASYNC: MEMORY}.get(engine, engine)
    await (await stand.peer()).ask(topic_alter=pb.TopicAlter(name="t", engine=named, flush=flush))
    await settled(
        lambda: partition.replica.state.active.engine == engine and partition.state.assigner is not None, "no new epoch"
    )


async def values_from(peer: Peer, topic_id: bytes, offset: int) -> list[bytes | None]:
    return [value for one in await peer.fetch(topic_id, offset) for value in one.values()]


def is_after(cluster: ClusterStand, epoch: int) -> bool:
    return cluster.partition(NODES[0]).state.epoch > epoch


def is_longer(acknowledged: Sequence[bytes], count: int) -> bool:
    return len(acknowledged) > count


def reads_to(state: PartitionState, end: int) -> bool:
    return state.readable_end == end


# --- flush=async ---------------------------------------------------------------------------------------


async def test_restart_of_all_nodes_finds_what_was_written(cluster: ClusterStand) -> None:
    """M3: unwritten records are lost with their offsets, and their readers get the bounds."""
    await cluster.start(flush=pb.ASYNC, engine=MEMORY_ASYNC)
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    for node in cluster.nodes.values():
        await written(node)
    for name in NODES:
        await cluster.crash(name)
    await cluster.start()
    owner = await cluster.owner()
    [result] = await cluster.publish(b"c")
    resume = result.base_offset
    assert resume > 2, "a copy counts as lost even if everything was written"
    for name in NODES:
        state = cluster.partition(name).state
        await settled(partial(reads_to, state, resume + 1), "a node lacks the record")
        peer = await cluster.peer(name)
        assert await values_from(peer, TOPIC_ID, 0) == [b"a", b"b"]
        assert await values_from(peer, TOPIC_ID, resume) == [b"c"]
        with pytest.raises(ProtocolError, match="DATA_LOSS") as lost:
            cluster.partition(name).reader.check_offset(2)
        assert (lost.value.code, lost.value.log_start_offset) == (pb.OFFSET_OUT_OF_RANGE, resume)
    assert owner in NODES


async def test_one_restart_of_three_loses_nothing_that_was_not_written(cluster: ClusterStand) -> None:
    """M1: the files change nothing about how many copies may be lost."""
    await cluster.start(flush=pb.ASYNC, engine=MEMORY_ASYNC)
    for disk in cluster.disks.values():
        disk.break_at("write")
    owner = await cluster.owner()
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    await cluster.crash(owner)
    await cluster.start(owner)
    await cluster.owner()
    await cluster.publish(b"c")
    await cluster.agree(b"a", b"b", b"c")


async def test_full_disk_is_reported_and_publishes_go_on(stand: Stand) -> None:
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create(engine=MEMORY, flush=pb.ASYNC, segment_bytes=1 << 20)
    await peer.publish(topic.topic_id, batch(b"a"))
    await written(node)
    stand.disk.fill_up()
    for number in range(100):
        await peer.publish(topic.topic_id, batch(b"%d" % number, bytes(20_000)))
    await settled(lambda: value_of(node, "tidelog_unwritten_partitions") == 1, "it is not reported")
    await settled(lambda: value_of(node, "tidelog_unwritten_bytes") > 1_000_000, "the size is not reported")
    stand.disk.heal()
    await written(node)
    await stand.crash()
    node = await stand.start()
    peer = await stand.peer()
    assert len(await values_from(peer, topic.topic_id, 0)) > 10


# --- a single node -------------------------------------------------------------------------------------


async def test_files_before_a_lost_epoch_of_a_single_copy_stay_readable(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"on the disk"))
    await switched(stand, MEMORY, pb.NEVER)
    await peer.publish(topic.topic_id, batch(b"in memory"))
    await switched(stand, "", pb.ALWAYS)
    await peer.publish(topic.topic_id, batch(b"on the disk again"))
    assert await values_from(peer, topic.topic_id, 0) == [b"on the disk", b"in memory", b"on the disk again"]
    for _ in range(2):
        await stand.crash()
        node = await stand.start()
        peer = await stand.peer()
        assert (await values_from(peer, topic.topic_id, 0))[:1] == [b"on the disk"]
        assert await values_from(peer, topic.topic_id, 2) == [b"on the disk again"]
        (partition,) = (one for one in node.broker.partitions.all() if one.name.startswith("t/"))
        with pytest.raises(ProtocolError, match="DATA_LOSS") as lost:
            partition.reader.check_offset(1)
        assert (lost.value.code, lost.value.log_start_offset) == (pb.OFFSET_OUT_OF_RANGE, 2)
    [result] = await peer.publish(topic.topic_id, batch(b"continues"))
    assert result.base_offset == 3


async def test_deleted_front_before_a_lost_epoch_of_a_single_copy_takes_no_other_records_along(stand: Stand) -> None:
    """An only copy deletes without storing the log start, so its copy beside the log begins late."""
    node = await stand.start()
    peer = await stand.peer()
    topic = await peer.create()
    for values in ((b"0", b"1"), (b"2", b"3")):
        await peer.publish(topic.topic_id, *(batch(value) for value in values))
        next(one for one in node.broker.partitions.all() if one.name.startswith("t/")).log.roll()
    await switched(stand, MEMORY, pb.NEVER)
    await peer.publish(topic.topic_id, batch(b"in memory"))
    await switched(stand, "", pb.ALWAYS)
    await peer.publish(topic.topic_id, batch(b"5"))
    entry = pb.DeleteRecordsEntry(topic_id=topic.topic_id, partition=0, offset=3)
    await peer.ask(delete_records=pb.DeleteRecords(entries=[entry]))
    (log,) = (one.log for one in node.broker.partitions.all() if one.name.startswith("t/"))
    await settled(lambda: log.start_offset == 2, "the first segment is not removed")
    for _ in range(2):
        await stand.crash()
        node = await stand.start()
        peer = await stand.peer()
        assert (await values_from(peer, topic.topic_id, 3))[:1] == [b"3"]
        assert await values_from(peer, topic.topic_id, 5) == [b"5"]
        (partition,) = (one for one in node.broker.partitions.all() if one.name.startswith("t/"))
        for offset, start in ((2, 3), (4, 5)):
            with pytest.raises(ProtocolError) as refused:
                partition.reader.check_offset(offset)
            assert (refused.value.code, refused.value.log_start_offset) == (pb.OFFSET_OUT_OF_RANGE, start)
    [result] = await peer.publish(topic.topic_id, batch(b"continues"))
    assert result.base_offset == 6


async def test_change_to_memory_and_a_crash_before_its_first_record_keeps_the_files(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic = await peer.create()
    await peer.publish(topic.topic_id, batch(b"on the disk"))
    await switched(stand, MEMORY, pb.NEVER)
    await peer.publish(topic.topic_id, batch(b"in memory"))
    await switched(stand, MEMORY_ASYNC, pb.ASYNC)  # The crash comes before the next epoch has a directory.
    await stand.crash()
    await stand.start()
    peer = await stand.peer()
    assert (await values_from(peer, topic.topic_id, 0))[:1] == [b"on the disk"]
    [result] = await peer.publish(topic.topic_id, batch(b"continues"))
    assert result.base_offset >= 2, "the offset of the lost record is given to no other"


async def test_topic_at_its_bound_leaves_memory_to_polite_ones(stand: Stand) -> None:
    await stand.start(memory_engine_bytes=4 << 20)
    peer = await stand.peer()
    greedy = await peer.create("greedy", engine=MEMORY, flush=pb.NEVER)
    polite = [await peer.create(f"polite-{number}", engine=MEMORY, flush=pb.NEVER) for number in range(3)]
    codes: set[int] = set()
    for number in range(60):
        data = batch(bytes(100_000))
        entries = [pb.PublishEntry(topic_id=greedy.topic_id, length=len(data))]
        reply = await peer.ask(data, publish=pb.Publish(entries=entries))
        codes |= {result.error.code for result in reply.envelope.publish_reply.results}
        if number % 10 == 0:
            for topic in polite:
                await peer.publish(topic.topic_id, batch(b"%d" % number))
    assert codes == {0, pb.OVERLOADED}
    for topic in polite:
        assert await peer.read_all(topic.topic_id) == [b"0", b"10", b"20", b"30", b"40", b"50"]


async def test_node_without_the_package_of_an_engine_serves_its_other_partitions(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    topic, other = await peer.create("t"), await peer.create("other")
    for one in (topic, other):
        await peer.publish(one.topic_id, batch(b"kept"))
    await stand.stop()
    (directory,) = stand.path.glob("partitions/t.*/epoch-*")
    (directory / "engine-rocks").touch()
    await stand.start()
    peer = await stand.peer()
    assert await peer.read_all(other.topic_id) == [b"kept"]
    await peer.publish(other.topic_id, batch(b"more"))
    data = batch(b"refused")
    entries = [pb.PublishEntry(topic_id=topic.topic_id, length=len(data))]
    error = (await peer.ask(data, publish=pb.Publish(entries=entries))).envelope.publish_reply.results[0].error
    assert error.code == pb.LIMBO
    assert "engine rocks cannot be used" in error.message
    assert "install its package on this node and restart the node" in error.message
    await stand.stop()
    (directory / "engine-rocks").unlink()
    await stand.start()
    assert await (await stand.peer()).read_all(topic.topic_id) == [b"kept"]


# --- switches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [("", MEMORY), (MEMORY, ""), (MEMORY, MEMORY_ASYNC)])
async def test_owner_that_is_killed_during_a_switch_loses_nothing(
    cluster: ClusterStand, before: str, after: str
) -> None:
    """M1 at each of the first steps of its disk during a switch: one of three copies is lost at a time."""
    flush = pb.ALWAYS if not before else pb.NEVER
    await cluster.start(flush=flush, engine=before)
    values: list[bytes] = []
    for steps in (0, 1, 3, 6, 10):
        await whole(cluster)
        owner = await cluster.owner()
        values.append(b"%d" % len(values))
        await cluster.publish(values[-1])
        await cluster.agree(*values)
        active = cluster.partition(owner).replica.state.active
        engine, mode = (after, pb.NEVER) if active.engine == before else (before, flush)
        kill_after(cluster, owner, steps)
        cluster.partition(owner).driver.roll_over(Plan(owner, NODES, 2, mode, engine=engine))
        await asyncio.sleep(0.02)
        await cluster.crash(owner)
        await cluster.start(owner)
    await cluster.owner()
    await cluster.publish(b"last")
    await cluster.agree(*values, b"last")


def kill_after(cluster: ClusterStand, node_id: str, steps: int) -> None:
    """Let the disk of a node fail as after kill -9, after this number of operations."""
    left = [steps]

    def fail(operation: str, path: Path) -> BaseException | None:
        left[0] -= 1
        return GoneError(f"{operation} {path}") if left[0] < 0 else None

    cluster.disks[node_id].fail = fail


async def whole(cluster: ClusterStand) -> None:
    """Wait until no copy may lack records."""
    copies = [cluster.partition(name).replica for name in NODES]
    await settled(
        lambda: not any(copy.state.doubt or copy.backfill.missing() for copy in copies), "a copy may lack records"
    )


async def test_a_hundred_switches_under_load_keep_every_record_once(cluster: ClusterStand) -> None:
    await cluster.start()
    acknowledged: list[bytes] = []
    is_over = False

    async def publish() -> None:
        peers = {name: await cluster.peer(name) for name in NODES}
        while not is_over:
            value = b"%d" % len(acknowledged)
            data = batch(value)
            entries = [pb.PublishEntry(topic_id=TOPIC_ID, length=len(data))]
            reply = await peers[await cluster.owner()].ask(data, publish=pb.Publish(entries=entries, acks=pb.QUORUM))
            if not reply.envelope.publish_reply.results[0].error.code:
                acknowledged.append(value)

    publishing = asyncio.create_task(publish())
    for number in range(100):
        owner = await cluster.owner()
        epoch = cluster.partition(owner).state.epoch
        engine = (MEMORY, "", MEMORY_ASYNC, "")[number % 4]
        cluster.partition(owner).driver.roll_over(
            Plan(owner, NODES, 2, pb.NEVER if engine else pb.ALWAYS, engine=engine)
        )
        await settled(partial(is_after, cluster, epoch), "no new epoch")
        await settled(partial(is_longer, acknowledged, len(acknowledged)), "nothing is acknowledged")
    is_over = True
    await publishing
    assert len(acknowledged) >= 100
    await cluster.agree(*acknowledged)
