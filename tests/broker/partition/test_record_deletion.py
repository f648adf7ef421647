"""Deleting records on request: told once it holds for good, and never by a clock that has jumped over time off."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, others, started_cluster
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog_broker import broker as broker_module
from tidelog_broker.base.steady_clock import SteadyClock
from tidelog_broker.partition import record_deletion as record_deletion_module
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

DAY_S = 86_400


class Held:
    """Holds journal entries that note a deletion until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.waiting = 0
        append = TypedJournal.append

        def held(journal: TypedJournal[Any], entries: Sequence[Any]) -> None:
            if any(isinstance(entry, pb.FenceEntry) and entry.deleting_below for entry in entries):
                self.waiting += 1
                assert self.free.wait(20), "the test never let go"
            append(journal, entries)

        monkeypatch.setattr(TypedJournal, "append", held)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.free.set()


@pytest.fixture
async def cluster(tmp_path: Path, held: Held) -> AsyncIterator[ClusterStand]:
    """Three nodes, each with ten records in two segments, whose first notes wait for `held`."""
    async with started_cluster(tmp_path) as stand:
        await stand.start(retention_interval_ms=10, ring_bytes=0)
        owner = await stand.owner()
        for part in range(2):
            await stand.publish(*(b"%020d" % number * 1000 for number in range(5 * part, 5 * part + 5)), to=owner)
        await settled(
            lambda: all(stand.partition(name).log.end_offset == 10 for name in NODES), "a copy lacks something"
        )
        yield stand
        held.free.set()


def starts(stand: ClusterStand) -> list[tuple[int, int]]:
    """Return of each node what readers see as the first offset, and where its files begin."""
    return [(stand.partition(name).state.log_start, stand.partition(name).log.start_offset) for name in NODES]


def asked(offset: int) -> pb.DeleteRecords:
    return pb.DeleteRecords(entries=[pb.DeleteRecordsEntry(topic_id=TOPIC_ID, offset=offset)])


async def test_deletion_is_answered_after_a_quorum_has_synced_it(cluster: ClusterStand, held: Held) -> None:
    owner = await cluster.owner()
    peer = await cluster.peer(owner)
    assert len({log.segment_count for log in cluster.partition(owner).log.epochs} - {1}) == 1, "no file could go"
    deleting = peer.post(delete_records=asked(7))
    await settled(lambda: held.waiting == len(NODES), "the nodes do not note it")
    await asyncio.sleep(0.1)
    assert not peer.answered(deleting), "told before it is durable"
    assert starts(cluster) == [(0, 0)] * 3, "deleted before it is durable"
    assert (await peer.fetch(TOPIC_ID))[0].base_offset == 0
    held.free.set()
    (result,) = (await peer.reply(deleting)).envelope.delete_records_reply.results
    assert (result.log_start_offset, result.error.code) == (7, 0)
    await settled(lambda: all(0 < files <= seen == 7 for seen, files in starts(cluster)), "the files stay")


async def test_acknowledged_deletion_survives_a_kill_of_all_nodes(cluster: ClusterStand, held: Held) -> None:
    held.free.set()
    peer = await cluster.peer(await cluster.owner())
    (result,) = (await peer.ask(delete_records=asked(3))).envelope.delete_records_reply.results
    assert result.log_start_offset == 3
    for name in NODES:
        await cluster.crash(name)
    await cluster.start()
    owner = await cluster.owner()
    await settled(lambda: cluster.partition(owner).state.log_start == 3, "deleted records are visible again")
    assert (await (await cluster.peer(owner)).fetch(TOPIC_ID, 3))[0].base_offset == 3


async def test_deletion_without_a_quorum_times_out(
    cluster: ClusterStand, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_deletion_module, "AGREE_TIMEOUT_S", 0.2)
    held.free.set()
    owner = await cluster.owner()
    for name in others(owner):
        monkeypatch.setattr(cluster.partition(name).driver, "receive", lambda *_: None)
    with pytest.raises(ProtocolError, match="too few replicas agreed") as late:
        await cluster.partition(owner).deletion.agree(5, epoch=cluster.partition(owner).state.epoch)
    assert late.value.code == pb.TIMED_OUT
    assert cluster.partition(owner).state.log_start == 0


async def test_deletion_beyond_the_end_is_refused(cluster: ClusterStand, held: Held) -> None:
    held.free.set()
    partition = cluster.partition(await cluster.owner())
    with pytest.raises(ProtocolError) as refused:
        await partition.deletion.delete_below(11)
    assert refused.value.code == pb.OFFSET_OUT_OF_RANGE
    assert partition.state.log_start == 0
    await partition.deletion.delete_below(10)
    assert partition.state.log_start == 10


async def test_deletion_that_waits_for_a_quorum_is_refused_once_its_topic_is_held(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    for name in others(owner):
        monkeypatch.setattr(cluster.partition(name).driver, "receive", lambda *_: None)
    deleting = asyncio.create_task(partition.deletion.agree(5, epoch=partition.state.epoch))
    await asyncio.sleep(0)
    assert not deleting.done()
    partition.state.topic.config.hold = True
    partition.changes.changed()
    with pytest.raises(ProtocolError, match="is on hold"):
        await deleting


@pytest.mark.parametrize("call", ["agree", "delete_below"])
async def test_offset_beyond_its_ended_epoch_deletes_nothing(cluster: ClusterStand, held: Held, call: str) -> None:
    """Other records have these offsets now than those that were to be deleted."""
    held.free.set()
    partition = cluster.partition(await cluster.owner())
    epoch = partition.state.epoch - 1
    assert partition.replica.state.decision(epoch).end_offset < 5
    with pytest.raises(ProtocolError) as refused:
        await getattr(partition.deletion, call)(5, epoch=epoch)
    assert refused.value.code == pb.OFFSET_OUT_OF_RANGE
    assert partition.state.log_start == 0
    await getattr(partition.deletion, call)(5, epoch=partition.state.epoch)
    assert partition.state.log_start == 5


# ------------------------------------------------------------------------------- how old records are


class Wall:
    """Clocks of nodes that start from now on: they advance together, or jump while no node runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.off_s = self.passed_s = 0
        monkeypatch.setattr(broker_module, "SteadyClock", self.clock)

    def clock(self, settle_s: float) -> SteadyClock:
        return SteadyClock(
            settle_s,
            wall_ns=lambda: time.time_ns() + (self.off_s + self.passed_s) * 10**9,
            steady_ns=lambda: time.monotonic_ns() + self.passed_s * 10**9,
        )


@pytest.mark.parametrize("end", ["stop", "crash"])
async def test_nothing_expires_before_the_clock_is_steady_after_long_downtime(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    wall = Wall(monkeypatch)
    node = await stand.start(retention_interval_ms=3_600_000, clock_settle_s=3600, ring_bytes=0)
    peer = await stand.peer()
    topic = await peer.create(retention_ms=7 * DAY_S * 1000)
    await peer.publish(topic.topic_id, batch(b"a"), batch(b"b"))
    assert node.broker.partitions.get(topic.topic_id, 0).log.roll()
    await peer.publish(topic.topic_id, batch(b"c"))
    await getattr(stand, end)()
    wall.off_s = 365 * DAY_S
    node = await stand.start()
    peer = await stand.peer()
    await peer.publish(topic.topic_id, batch(b"d"))
    partition = node.broker.partitions.get(topic.topic_id, 0)
    for wall.passed_s in (0, 3_500):
        await partition.retention.check()
        await asyncio.sleep(0.05)
        assert (partition.state.log_start, partition.log.start_offset) == (0, 0), "records of the last day were deleted"
    wall.passed_s = 3_700
    await partition.retention.check()
    await settled(lambda: partition.state.log_start == 3, "expired records were kept after the clock had stopped")
    assert [one.values() for one in await peer.fetch(topic.topic_id, 3)] == [[b"d"]]
