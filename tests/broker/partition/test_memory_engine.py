"""Replicated partitions whose records are in memory: restarts, losses, and what readers then get."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, started_cluster
from tests.broker.stand import settled

from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.projected_reader import projection_of
from tidelog_broker.storage.memory.memory_store import MEMORY
from tidelog_broker.storage.partition.matching import RecordFilter
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        await made.start(flush=pb.NEVER, engine=MEMORY)
        yield made


def engines(cluster: ClusterStand, node_id: str) -> list[str]:
    return [held.engine for held in cluster.partition(node_id).log.epochs]


def lost(cluster: ClusterStand, node_id: str, offset: int) -> int:
    """Return where a node sends a reader of a lost record."""
    with pytest.raises(ProtocolError, match="DATA_LOSS") as gone:
        cluster.partition(node_id).reader.check_offset(offset)
    assert gone.value.code == pb.OFFSET_OUT_OF_RANGE
    return gone.value.log_start_offset


async def reaches(cluster: ClusterStand, node_id: str, end: int) -> None:
    """Wait until a node serves everything up to an offset."""
    state = cluster.partition(node_id).state
    await settled(lambda: state.readable_end == end, "it lacks the record")


async def whole(cluster: ClusterStand) -> None:
    """Wait until no copy may lack records."""
    copies = [cluster.partition(name).replica.state for name in NODES]
    await settled(lambda: not any(copy.doubt for copy in copies), "a copy may lack records")


def knows_losses(partition: Partition, end: int) -> bool:
    """Return whether a node knows that epochs up to an offset are lost, and lacks no others."""
    history = partition.replica.backfill
    return (history.lost_below, history.awaited_below, history.missing()) == (end, 0, None)


async def entered_after(cluster: ClusterStand, epoch: int) -> None:
    """Wait until every node has entered a later epoch."""
    await settled(lambda: all(cluster.partition(name).state.epoch > epoch for name in NODES), "no new epoch")


async def restart(cluster: ClusterStand, node_id: str) -> None:
    await cluster.crash(node_id)
    await cluster.start(node_id)


async def test_records_are_in_memory_on_every_node(cluster: ClusterStand) -> None:
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    for name in NODES:
        assert engines(cluster, name) == [MEMORY] * len(engines(cluster, name))
        assert not list((cluster.path / name).rglob("*.seg"))


@pytest.mark.parametrize("which", ["owner", "follower"])
async def test_one_restart_loses_nothing(cluster: ClusterStand, which: str) -> None:
    """M1: with two of three replicas for a quorum, one may restart."""
    owner = await cluster.owner()
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    victim = owner if which == "owner" else next(name for name in NODES if name != owner)
    await restart(cluster, victim)
    await cluster.owner()
    await cluster.publish(b"c")
    await cluster.agree(b"a", b"b", b"c")


async def test_each_node_restarts_in_turn(cluster: ClusterStand) -> None:
    values = [b"0"]
    await cluster.publish(*values)
    for name in NODES * 2:
        await cluster.agree(*values)
        await whole(cluster)
        await restart(cluster, name)
        await cluster.owner()
        values.append(b"%d" % len(values))
        await cluster.publish(values[-1])
    await cluster.agree(*values)


async def test_restarted_replica_does_not_confirm_a_shorter_log(cluster: ClusterStand) -> None:
    """A replica that has lost its copy does not help to end the epoch without the one that has everything."""
    owner = await cluster.owner()
    lagging, lost = (name for name in NODES if name != owner)
    cluster.isolate(lagging)
    await cluster.publish(b"a")
    await cluster.crash(lost)
    cluster.isolate()
    await cluster.crash(owner)
    await cluster.start(lost)
    cluster.partition(lagging).driver.want_owner()
    with pytest.raises(AssertionError, match="no node took over"):
        await settled(lambda: bool(cluster.owners()), "no node took over")


async def test_loss_of_all_copies_ends_the_epoch_without_an_operator(
    cluster: ClusterStand, caplog: pytest.LogCaptureFixture
) -> None:
    """M3: offsets continue above the highest one that a record may have got, and readers get the bounds."""
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    epoch = cluster.partition(NODES[0]).state.epoch
    for name in NODES:
        await cluster.crash(name)
    await cluster.start()
    owner = await cluster.owner()
    assert cluster.partition(owner).state.epoch > epoch
    [result] = await cluster.publish(b"c")
    resume = result.base_offset
    assert resume >= 2, "offsets of lost records are not given out again"
    for name in NODES:
        await reaches(cluster, name, resume + 1)
        state = cluster.partition(name).state
        assert (state.earliest, state.latest) == (resume, resume + 1)
        assert lost(cluster, name, 0) == lost(cluster, name, 1) == resume
        peer = await cluster.peer(name)
        assert [value for one in await peer.fetch(TOPIC_ID, resume) for value in one.values()] == [b"c"]
    told = [record.getMessage() for record in caplog.records if "DATA_LOSS" in record.getMessage()]
    assert any(f"from there to offset {resume} are lost" in one for one in told)
    earliest = pb.ListOffsets(entries=[pb.ListOffsetsEntry(topic_id=TOPIC_ID, earliest=True)])
    reply = (await (await cluster.peer(owner)).ask(list_offsets=earliest)).envelope.list_offsets_reply
    assert reply.results[0].offset == resume


async def test_read_before_lost_records_ends_there(cluster: ClusterStand) -> None:
    """A replica that lagged has a prefix: readers get it, and then the bounds of what is lost."""
    owner = await cluster.owner()
    await cluster.publish(b"a")
    await cluster.agree(b"a")
    lagging = next(name for name in NODES if name != owner)
    cluster.isolate(lagging)
    await cluster.publish(b"b")
    for name in NODES:
        if name != lagging:
            await cluster.crash(name)
    cluster.isolate()
    await cluster.start(*(name for name in NODES if name != lagging))
    [result] = await cluster.publish(b"c")
    resume = result.base_offset
    assert resume > 2
    for name in NODES:
        one = cluster.partition(name)
        await reaches(cluster, name, resume + 1)
        found = await one.reader.read_log(0, 1 << 20)
        assert [unpack_header(batch).end_offset for batch in found] == [1]
        hot = one.reader.read_hot(0, 1 << 20)
        assert hot is None or [entry.end_offset for entry in hot] == [1]
        filtered = await one.filtered.read(0, 1 << 20, RecordFilter(None, "no such tag"))
        assert filtered.next_offset <= 1
        assert lost(cluster, name, 1) == resume
        one.reader.check_offset(0)
        one.reader.check_offset(resume)


async def test_subscription_gets_lost_records_as_its_end(cluster: ClusterStand) -> None:
    await cluster.publish(b"a")
    for name in NODES:
        await cluster.crash(name)
    await cluster.start()
    owner = await cluster.owner()
    [result] = await cluster.publish(b"c")
    peer = await cluster.peer(owner)
    entry = pb.SubscribeEntry(topic_id=TOPIC_ID, offset=0)
    asked = pb.Subscribe(subscription_id=1, entries=[entry], credit_records=9, credit_bytes=9999)
    error = (await peer.ask(subscribe=asked)).envelope.subscribe_reply.results[0].error
    assert (error.code, error.log_start_offset) == (pb.OFFSET_OUT_OF_RANGE, result.base_offset)
    assert "DATA_LOSS" in error.message


async def test_engine_changes_where_an_epoch_ends(cluster: ClusterStand) -> None:
    values = [b"0"]
    await cluster.publish(*values)
    for engine in ("", MEMORY, ""):
        owner = await cluster.owner()
        await cluster.agree(*values)
        before = cluster.partition(owner).state.epoch
        cluster.partition(owner).driver.roll_over(Plan(owner, NODES, 2, pb.NEVER, engine=engine))
        await entered_after(cluster, before)
        values.append(b"%d" % len(values))
        await cluster.owner()
        await cluster.publish(values[-1])
    await cluster.agree(*values)
    for name in NODES:
        assert engines(cluster, name)[-4:] == [MEMORY, "segment", MEMORY, "segment"]


async def test_readers_get_the_bounds_of_an_ended_epoch_that_all_nodes_have_lost(cluster: ClusterStand) -> None:
    """M3: a reader of lost records gets an error with the bounds, and later records have higher offsets."""
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    owner = await cluster.owner()
    before = cluster.partition(owner).state.epoch
    cluster.partition(owner).driver.roll_over(Plan(owner, NODES, 2, pb.NEVER, engine=MEMORY))
    await entered_after(cluster, before)
    for name in NODES:
        await cluster.crash(name)
    await cluster.start()
    owner = await cluster.owner()
    await cluster.publish(b"c")
    await settled(
        lambda: all(cluster.partition(name).replica.backfill.lost_below == 2 for name in NODES), "it is not known lost"
    )
    for name in NODES:
        assert lost(cluster, name, 0) == lost(cluster, name, 1) == cluster.partition(name).state.earliest
        assert cluster.partition(name).state.log_start == 0, "nothing is deleted because of a loss"


async def next_epoch(cluster: ClusterStand, *node_ids: str) -> None:
    """Have the owner end its epoch, and wait until some nodes have entered the next one."""
    owner = await cluster.owner()
    before = cluster.partition(owner).state.epoch
    cluster.partition(owner).driver.roll_over(Plan(owner, NODES, 2, pb.NEVER, engine=MEMORY))
    await settled(lambda: all(cluster.partition(name).state.epoch > before for name in node_ids), "no new epoch")
    await cluster.owner()


async def test_records_before_a_lost_epoch_are_fetched_and_read(
    cluster: ClusterStand, caplog: pytest.LogCaptureFixture
) -> None:
    """M1: of three epochs the second is lost everywhere, and only one node still has the first."""
    owner = await cluster.owner()
    await cluster.publish(b"a")
    await cluster.agree(b"a")
    lagging = next(name for name in NODES if name != owner)
    restarted = [name for name in NODES if name != lagging]
    cluster.isolate(lagging)
    await next_epoch(cluster, *restarted)
    await cluster.publish(b"b")
    await next_epoch(cluster, *restarted)
    for name in restarted:
        await cluster.crash(name)
    cluster.isolate()
    await cluster.start(*restarted)
    [result] = await cluster.publish(b"c")
    resume = result.base_offset
    for name in NODES:
        one = cluster.partition(name)
        await settled(partial(knows_losses, one, 2), f"{name} waits for lost records, or lacks others")
        await reaches(cluster, name, resume + 1)
        assert one.state.earliest == 0
        peer = await cluster.peer(name)
        assert [value for found in await peer.fetch(TOPIC_ID, 0) for value in found.values()] == [b"a"]
        assert lost(cluster, name, 1) == resume
        found = await one.filtered.read(0, 1 << 20, RecordFilter(None, "no such tag"))
        assert (found.batches, found.next_offset) == ([], 1)
        first = await one.reader.find_by_time(0)
        assert first is not None
        assert first[0] == 0
        projected = await one.projected.read(0, 1 << 20, projection_of(pb.Projection()), is_prompt=False)
        assert projected.next_offset == 1
        told = [record.getMessage() for record in caplog.records if "no node still has epoch" in record.getMessage()]
        assert any(f"offset 1 to 2 are lost, and readers continue at offset {resume}" in text for text in told)
