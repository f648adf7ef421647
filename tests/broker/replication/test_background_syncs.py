"""Syncs ahead run one at a time; of each caller at most one request waits, regardless of how many it sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, ClusterStand, started_cluster
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.replica_logs import chain_of, group, open_log, view_of
from tests.broker.stand import settled

from tidelog_broker.base.offload import Offload
from tidelog_broker.core.replication import planned_end
from tidelog_broker.core.replication.effects import SyncAhead
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.replication import log_writer
from tidelog_broker.replication.background_syncs import BackgroundSyncs
from tidelog_broker.replication.replica_log import ReplicaLog
from tidelog_broker.storage.io.errors import StorageFailedError
from tidelog_broker.storage.io.workers import IoWorkers
from tidelog_proto import broker_pb2 as pb


class Stand:
    """A log with an unsynced record, and the notifications about it."""

    def __init__(self, path: Path, workers: IoWorkers) -> None:
        self.disk = FaultyDisk()
        self.view: ReplicaLog = view_of(open_log(self.disk, path), chain_of())
        self.append(b"a")
        self.done: list[SyncAhead] = []
        self.failed: list[BaseException] = []
        offload = Offload(workers, asyncio.get_running_loop())
        self.ahead = BackgroundSyncs(offload, 0, self.view, done=self.done.append, failed=self.failed.append)

    def append(self, value: bytes) -> None:
        store = self.view.store
        digest = store.end_digest if store.epochs else 0
        assert log_writer.append(self.view, [group(store.end_offset, digest, value)], synced=False)

    @property
    def syncs(self) -> int:
        return sum(1 for operation, path in self.disk.log if operation == "sync" and path.suffix == ".seg")


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    workers = IoWorkers(1)
    yield Stand(tmp_path, workers)
    await asyncio.to_thread(workers.close)


async def test_requested_sync_is_done_and_reported(stand: Stand) -> None:
    stand.disk.log.clear()
    asked = SyncAhead(0, "a", 1)
    stand.ahead.add(asked)
    await settled(lambda: stand.done == [asked], "the caller is not notified")
    assert stand.syncs == 1
    stand.ahead.add(SyncAhead(0, "a", 2))
    await settled(lambda: len(stand.done) == 2, "the caller is not notified")
    assert stand.syncs == 1, "nothing has come since"


async def test_only_the_newest_pending_request_of_a_node_is_done(stand: Stand) -> None:
    stand.disk.hold("sync")
    stand.ahead.add(SyncAhead(0, "a", 1))
    await stand.disk.held_up()
    for attempt in range(2, 50):
        stand.ahead.add(SyncAhead(0, "a", attempt))
        stand.ahead.add(SyncAhead(0, "b", attempt))
    assert stand.done == []
    stand.disk.heal()
    await settled(lambda: len(stand.done) == 3, "not all callers are notified")
    assert stand.done == [SyncAhead(0, "a", 1), SyncAhead(0, "a", 49), SyncAhead(0, "b", 49)]


async def test_stop_begins_and_reports_nothing(stand: Stand) -> None:
    stand.disk.hold("sync")
    stand.ahead.add(SyncAhead(0, "a", 1))
    await stand.disk.held_up()
    stand.ahead.add(SyncAhead(0, "b", 2))
    stand.ahead.stop()
    stand.disk.heal()
    await settled(lambda: not stand.ahead._is_syncing, "the sync does not end")
    assert (stand.done, stand.failed) == ([], [])


async def test_disk_failure_is_reported_once_and_ends_syncs(stand: Stand) -> None:
    stand.disk.break_at("sync")
    stand.ahead.add(SyncAhead(0, "a", 1))
    stand.ahead.add(SyncAhead(0, "b", 1))
    await settled(lambda: len(stand.failed) == 1, "the caller is not notified")
    assert stand.done == []
    assert isinstance(stand.failed[0], StorageFailedError)
    stand.disk.heal()
    with pytest.raises(StorageFailedError):
        stand.view.store.sync()


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ClusterStand]:
    monkeypatch.setattr(planned_end, "SLACK_BYTES", 0)
    async with started_cluster(tmp_path) as made:
        await made.start(flush=pb.NEVER)
        yield made


async def test_publishes_continue_during_syncs_for_a_planned_move(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    heir = next(name for name in NODES if name != owner)
    await cluster.publish(b"a")
    await cluster.agree(b"a")
    replica = cluster.partition(owner).replica
    epoch = replica.state.active.epoch
    for name in (owner, heir):
        cluster.disks[name].hold("sync")
    cluster.partition(owner).driver.roll_over(Plan(heir, NODES, 2, pb.NEVER))
    for name in (owner, heir):
        await cluster.disks[name].held_up()
    (result,) = await cluster.publish(b"b", to=owner)
    assert (result.base_offset, result.HasField("error")) == (1, False)
    assert replica.moving
    assert replica.state.active.epoch == epoch
    for name in (owner, heir):
        cluster.disks[name].heal()
    await settled(lambda: cluster.owners() == [heir], "the partition does not move")
    assert cluster.partition(heir).state.epoch == epoch + 1
    await cluster.publish(b"c")
    await cluster.agree(b"a", b"b", b"c")


async def test_failed_sync_ahead_stops_the_node(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    broken = next(name for name in NODES if name != owner)
    await cluster.publish(b"a")
    await cluster.agree(b"a")
    cluster.disks[broken].break_at("sync")
    cluster.partition(owner).driver.roll_over(Plan(broken, NODES, 2, pb.NEVER))
    await settled(
        lambda: cluster.nodes[broken].lifecycle.health.state == "failed", "the node goes on with a broken disk"
    )
    assert cluster.partition(owner).replica.can_append, "nothing has been proposed"
    cluster.disks[broken].heal()
    await cluster.stop(broken)
    await cluster.publish(b"b")
    assert await cluster.read(owner) == [b"a", b"b"]
