from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import TOPIC_ID, ClusterStand, others, started_cluster
from tests.broker.faulty_disk import FaultyDisk
from tests.broker.peer import batch
from tests.broker.stand import Stand, settled

from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.retention import ENDS_MAX, LAGGARD_GROWTH_FACTOR
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.partition.log_start import NAME, load_log_start, raise_log_start
from tidelog_broker.storage.partition.snapshots import ProducerSnapshot
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KIB

BOUND_BYTES = 192 * KIB
SEGMENT_BYTES = 64 * KIB


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as stand:
        await stand.start(retention_bytes=BOUND_BYTES, retention_interval_ms=10, ring_bytes=0)
        yield stand


async def publish(stand: ClusterStand, owner: str, sequence: int) -> None:
    peer = await stand.peer(owner)
    (result,) = await peer.publish(TOPIC_ID, batch(b"%020d" % sequence * 1500, producer_id=7, sequence=sequence))
    assert not result.HasField("error"), result


async def test_full_disk_overwrites_the_stored_log_start(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    disk, partition = cluster.disks[owner], cluster.partition(owner)
    await publish(cluster, owner, 0)
    await publish(cluster, owner, 1)
    await publish(cluster, owner, 2)
    await settled(partition.log.directory.joinpath(NAME).exists, "it is made when the second segment has begun")
    full = OSError(errno.ENOSPC, "no space")
    disk.fail = lambda operation, path: full if operation == "create" and NAME in path.name else None
    for sequence in range(3, 20):
        await publish(cluster, owner, sequence)
    await settled(lambda: partition.log.start_offset > 0, "a full disk kept expired records")
    directory = partition.log.directory
    await settled(lambda: load_log_start(disk, directory) == partition.log.start_offset, "that is not written down")
    assert cluster.nodes[owner].lifecycle.health.state == "running"


async def test_log_start_file_is_created_when_an_epoch_begins_the_second_segment(
    cluster: ClusterStand,
) -> None:
    first = await cluster.owner()
    await publish(cluster, first, 0)
    await cluster.stop(first)
    second = await cluster.owner()
    await publish(cluster, second, 1)
    log = cluster.partition(second).log
    assert [one.segment_count for one in log.epochs] == [1, 1]
    await settled(log.directory.joinpath(NAME).exists, "there is nothing to write over on a full disk")
    assert load_log_start(cluster.disks[second], log.directory) == 0


async def test_full_disk_for_the_log_start_file_deletes_nothing_and_retries(
    cluster: ClusterStand, caplog: pytest.LogCaptureFixture
) -> None:
    owner = await cluster.owner()
    disk, partition = cluster.disks[owner], cluster.partition(owner)
    full = OSError(errno.ENOSPC, "no space")
    disk.fail = lambda operation, path: full if NAME in path.name and operation in {"create", "write"} else None
    for sequence in range(20):
        await publish(cluster, owner, sequence)
    await settled(lambda: "old segments cannot be deleted" in caplog.text, "the refusal was not logged")
    assert partition.log.start_offset == 0
    assert (cluster.nodes[owner].lifecycle.health.state, cluster.nodes[owner].lifecycle.exit_code) == ("running", 0)
    disk.heal()
    await settled(lambda: partition.log.start_offset > 0, "it was not tried again")
    assert caplog.text.count("old segments cannot be deleted") <= 2, "once for the look and once for the roll at most"


def fall_behind(stand: ClusterStand, owner: str, late: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower receives nothing more, and the owner regards it as outside the push window."""
    monkeypatch.setattr(stand.partition(late).driver, "receive", lambda *_: None)
    (follower,) = [each for each in stand.partition(owner).replica.followers if each.node_id == late]
    follower.streaming = False


async def publish_past_bound(stand: ClusterStand, owner: str) -> None:
    """Publish half as much again as may stay, and let the looks come that would delete it, every 10 ms."""
    for sequence in range(10):
        await publish(stand, owner, sequence)
    await asyncio.sleep(0.1)
    assert stand.partition(owner).log.start_offset == 0
    assert stand.partition(owner).log.size_bytes > BOUND_BYTES


async def test_partial_copy_below_the_log_start_is_removed_from_a_log_that_begins_there(cluster: ClusterStand) -> None:
    first = await cluster.owner()
    await publish(cluster, first, 0)
    await cluster.stop(first)
    owner = await cluster.owner()
    await publish(cluster, owner, 1)
    (follower,) = {*cluster.nodes} - {first, owner}
    log = cluster.partition(follower).log
    await settled(lambda: len(log.epochs) == 2, "the follower stores both epochs")
    oldest = log.epochs[0].epoch
    log.copies.demote(1)
    assert log.copies.partial_epochs == (oldest,)
    await cluster.partition(owner).deletion.delete_below(log.start_offset)
    await settled(lambda: not [*log.directory.glob("*.fill")], "the copy occupies the disk for ever")
    assert not log.copies.partial_epochs


async def test_records_that_a_live_replica_lacks_are_kept_up_to_twice_the_bound(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await cluster.owner()
    slow = others(owner)[0]
    partition, late = cluster.partition(owner), cluster.partition(slow)
    epoch = partition.replica.state.active.epoch
    with monkeypatch.context() as deaf:
        fall_behind(cluster, owner, slow, deaf)
        await publish_past_bound(cluster, owner)
    await settled(lambda: late.log.end_offset == partition.log.end_offset, "the copy does not catch up")
    await settled(lambda: partition.log.size_bytes <= BOUND_BYTES, "segments that no copy lacks were kept")
    await settled(
        lambda: late.replica.state.log_start == partition.log.start_offset, "with nothing published it is not told"
    )
    assert partition.replica.state.active.epoch == epoch, "an epoch ended for a copy that was only late"

    fall_behind(cluster, owner, slow, monkeypatch)
    for sequence in range(10, 30):
        await publish(cluster, owner, sequence)
    await settled(lambda: partition.log.start_offset > late.log.end_offset, "a copy that never comes is waited for")
    assert partition.replica.state.active.epoch > epoch, "records of the open epoch that a copy lacks were deleted"
    assert partition.log.size_bytes <= LAGGARD_GROWTH_FACTOR * BOUND_BYTES + SEGMENT_BYTES


async def test_epoch_ends_before_deleting_records_that_a_down_replica_lacks(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    away = others(owner)[0]
    partition = cluster.partition(owner)
    epoch = partition.replica.state.active.epoch
    for sequence in range(2):
        await publish(cluster, owner, sequence)
    await cluster.stop(away)
    starts: list[tuple[int, int]] = []
    for sequence in range(2, 30):
        await publish(cluster, await cluster.owner(), sequence)
        starts.append((partition.replica.state.active.epoch, partition.log.start_offset))
    held = 2  # it may have acknowledged earlier records
    assert all(start <= held for at, start in starts if at == epoch), (
        "records of the open epoch that a copy lacks were deleted"
    )
    await settled(lambda: partition.log.size_bytes <= BOUND_BYTES, "a copy that is gone is waited for")
    assert partition.replica.state.active.epoch > epoch


async def test_replica_in_the_push_window_is_waited_for(cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    with monkeypatch.context() as deaf:
        deaf.setattr(cluster.partition(others(owner)[0]).driver, "receive", lambda *_: None)
        await publish_past_bound(cluster, owner)
    await publish(cluster, owner, 10)
    await settled(lambda: partition.log.size_bytes <= BOUND_BYTES, "segments that no copy lacks were kept")


async def test_producer_is_known_after_all_of_its_records_are_deleted(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    once = batch(b"once", producer_id=8, sequence=0)
    await (await cluster.peer(owner)).publish(TOPIC_ID, once)
    for sequence in range(20):
        await publish(cluster, owner, sequence)
    for name in (owner, *others(owner)):
        log = cluster.partition(name).log
        await settled(lambda log=log: log.start_offset > 1, "nothing was deleted")  # type: ignore[misc]
    for name in (owner, *others(owner)):
        await cluster.crash(name)
    await cluster.start()
    (retried,) = await (await cluster.peer(await cluster.owner())).publish(TOPIC_ID, once)
    assert (retried.duplicate, retried.base_offset) == (True, 0)


async def test_uncommitted_records_are_not_deleted(cluster: ClusterStand) -> None:
    partition = cluster.partition(await cluster.owner())
    for sequence in range(6):
        await publish(cluster, partition.replica.state.node_id, sequence)
    assert (partition.log.epochs[0].segment_count, partition.log.epochs[0].oldest_end_offset) == (3, 2)
    assert partition.log.outdated(below=0, bytes_max=1, committed=3) == 2
    assert partition.log.outdated(below=0, bytes_max=1, committed=6) == 4


async def test_full_disk_does_not_wait_for_lagging_replicas(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    fall_behind(cluster, owner, others(owner)[0], monkeypatch)
    await publish_past_bound(cluster, owner)
    partition.tools.disk.note_full()
    await settled(lambda: partition.log.size_bytes <= BOUND_BYTES, "space is kept that the disk needs")


async def begun_late(stand: ClusterStand) -> Partition:
    """The owner's partition when retention has deleted something."""
    owner = await stand.owner()
    for sequence in range(20):
        await publish(stand, owner, sequence)
    partition = stand.partition(owner)
    await settled(lambda: partition.replica.state.log_start > 0, "nothing was deleted")
    return partition


async def test_missing_history_is_not_reported_as_deleted(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion is reported if an epoch has begun after a gap meanwhile: the log begins there for now."""
    partition = await begun_late(cluster)
    told: list[int] = []
    monkeypatch.setattr(partition.driver, "raise_log_start", told.append)
    deleted = partition.log.start_offset - 1
    partition.retention._log_start_stored(deleted, None)
    assert told == [deleted]


async def test_nothing_after_a_pending_truncation_is_deleted(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log start of a later epoch is received before the log is truncated to the end of this one."""
    partition = await begun_late(cluster)
    log_start = partition.log.start_offset
    monkeypatch.setattr(ReplicaDriver, "cut_offset", log_start + 1)
    assert partition.retention._outdated(partition.log.end_offset, 0, partition.log.end_offset) <= log_start + 1
    monkeypatch.setattr(ReplicaDriver, "cut_offset", None)
    assert partition.retention._outdated(partition.log.end_offset, 0, partition.log.end_offset) > log_start + 1


async def test_bound_deletes_nothing_while_older_history_is_being_fetched(cluster: ClusterStand) -> None:
    """The size of the log excludes missing history: existing records are newer than those that the bound applies to."""
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    partition.state.topic.config.hold = True
    for sequence in range(20):
        await publish(cluster, owner, sequence)
    assert partition.retention.due() > 0
    partition.replica.backfill.incomplete.add(0)
    assert partition.retention.due() == 0
    partition.replica.backfill.incomplete.clear()


async def test_epoch_ends_for_a_down_replica_only_if_it_lacks_records_to_delete(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    for sequence in range(6):
        await publish(cluster, owner, sequence)
    await settled(lambda: all(each.held_offset == 6 for each in partition.replica.followers), "a copy lags")
    await cluster.stop(others(owner)[0])
    assert not partition.retention.lacked_by_down_replica(6)
    assert partition.retention.lacked_by_down_replica(7)


async def test_full_disk_ends_the_epoch_before_deleting_missing_records(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    fall_behind(cluster, owner, others(owner)[0], monkeypatch)
    monkeypatch.setattr(partition.retention, "check", lambda: asyncio.sleep(0))
    monkeypatch.setattr(partition.retention, "check_soon", lambda: None)
    monkeypatch.setattr(partition.retention, "records_deleted", lambda: None)
    for sequence in range(10):
        await publish(cluster, owner, sequence)
    await partition.deletion.agree(6, epoch=partition.state.epoch)
    partition.tools.disk.note_full()
    for tried, goes in ((1, False), (ENDS_MAX, False), (ENDS_MAX + 1, True)):
        monkeypatch.setattr(partition.retention, "end_epoch", lambda tried=tried: tried)
        assert (partition.retention.removable() > 0) is goes


async def test_deletion_below_an_uncommitted_offset_deletes_nothing(cluster: ClusterStand) -> None:
    """A log start may be received before it is committed here, and the end of the epoch may still be below it."""
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    await publish(cluster, owner, 0)
    for name in others(owner):
        cluster.disks[name].hold("sync")
    peer = await cluster.peer(owner)
    for sequence in range(1, 7):
        peer.post_publish(TOPIC_ID, batch(b"%020d" % sequence * 1500, producer_id=7, sequence=sequence))
    await settled(lambda: partition.log.end_offset == 7, "the owner has not written them")
    assert partition.log.epochs[-1].oldest_end_offset < 7, "there is no whole segment to delete"
    committed = partition.state.high_watermark
    for offset in (committed + 1, 6):
        await partition.tools.io.call(partition.io_key, partition.retention.delete_files_below, offset)
        assert (partition.state.high_watermark, partition.log.start_offset) == (committed, 0)


@pytest.mark.parametrize("why", ["hold", "damage"])
async def test_begun_deletion_stops_on_a_hold_or_damage(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    partition = await begun_late(cluster)
    log_start, end = partition.log.start_offset, partition.state.high_watermark
    assert partition.log.outdated(below=end, bytes_max=0, committed=end) > log_start, "nothing could be deleted"
    looked: list[int] = []
    monkeypatch.setattr(partition.retention, "producers_before", lambda offset, _: looked.append(offset))
    with monkeypatch.context() as patched:
        if why == "hold":
            partition.state.topic.config.hold = True
        else:
            patched.setattr(type(partition.log), "limbo", property(lambda self: self is partition.log or None))
        await partition.tools.io.call(partition.io_key, partition.retention.delete_files_below, end)
    assert (looked, partition.log.start_offset) == ([], log_start)


async def test_hold_during_a_deletion_keeps_the_rest(cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = await begun_late(cluster)
    log, retention = partition.log, partition.retention
    usual, log_starts, end = retention.producers_before, list[int](), partition.state.high_watermark

    def held_meanwhile(offset: int, committed: int) -> ProducerSnapshot | None:
        snapshot = usual(offset, committed)
        assert log.outdated(below=end, bytes_max=0, committed=end) > log.start_offset, "nothing could be deleted"
        log_starts.append(log.start_offset)
        partition.state.topic.config.hold = True
        return snapshot

    monkeypatch.setattr(retention, "producers_before", held_meanwhile)
    await partition.tools.io.call(partition.io_key, retention.delete_files_below, end)
    assert [log.start_offset] == log_starts


async def test_late_log_start_does_not_regress(cluster: ClusterStand) -> None:
    partition = await begun_late(cluster)
    fs, directory = partition.tools.disk.fs, partition.log.directory
    further = partition.log.end_offset
    await partition.tools.notes.call(partition.io_key, raise_log_start, fs, directory, further)
    partition.retention.note_log_start()
    await partition.tools.notes.call(partition.io_key, lambda: None)
    assert load_log_start(fs, directory) == further


async def test_disk_failure_in_background_log_start_stops_the_node(cluster: ClusterStand) -> None:
    partition = await begun_late(cluster)
    owner = await cluster.owner()
    broken = OSError(errno.EIO, "broken")
    partition.log.directory.joinpath(NAME).unlink()
    cluster.disks[owner].fail = lambda operation, path: broken if NAME in path.name else None
    partition.retention.note_log_start()
    await settled(lambda: partition.state.refusal is not None, "the node continued with a broken disk")
    assert cluster.nodes[owner].lifecycle.exit_code == 74


async def test_disk_failure_stops_the_node(cluster: ClusterStand) -> None:
    owner = await cluster.owner()
    await publish(cluster, owner, 0)
    broken = OSError(errno.EIO, "broken")
    cluster.disks[owner].fail = lambda operation, path: broken if NAME in path.name else None
    partition = cluster.partition(owner)
    peer = await cluster.peer(owner)
    for sequence in range(1, 20):
        await peer.publish(TOPIC_ID, batch(b"%020d" % sequence * 1500, producer_id=7, sequence=sequence))
    await settled(lambda: partition.state.refusal is not None, "the node continued with a broken disk")
    assert cluster.nodes[owner].lifecycle.exit_code == 74


async def test_single_copy_deletes_without_storing_a_log_start(stand: Stand) -> None:
    node = await stand.start(retention_interval_ms=10, ring_bytes=0)
    peer = await stand.peer()
    topic = await peer.create(segment_bytes=64 * KIB, retention_bytes=64 * KIB)
    partition = node.broker.partitions.get(topic.topic_id, 0)
    full = OSError(errno.ENOSPC, "no space")
    stand.disk.fail = lambda operation, path: full if NAME in path.name else None
    for _ in range(8):
        await peer.publish(topic.topic_id, batch(b"x" * 30_000))
    await settled(lambda: partition.state.log_start > 0, "nothing was deleted")


async def test_replica_follows_the_owners_deletion_at_once(tmp_path: Path) -> None:
    async with started_cluster(tmp_path) as stand:
        await stand.start(retention_bytes=BOUND_BYTES, retention_interval_ms=3_600_000)
        owner = await stand.owner()
        for sequence in range(40):
            await publish(stand, owner, sequence)
        copies = [stand.partition(name) for name in stand.nodes]
        await settled(lambda: all(copy.log.start_offset > 0 for copy in copies), "a copy keeps what its owner has not")
        await settled(lambda: len({copy.log.end_offset for copy in copies}) == 1, "a copy lacks something")
        assert max(copy.log.size_bytes for copy in copies) < 2 * 192 * KIB


async def held_note(stand: ClusterStand, operation: str) -> tuple[FaultyDisk, Partition]:
    """The owner's disk and partition, while an operation on the note before a deletion is slow."""
    owner = await stand.owner()
    disk, partition = stand.disks[owner], stand.partition(owner)
    for sequence in range(4):
        await publish(stand, owner, sequence)
    await settled(partition.log.directory.joinpath(NAME).exists, "there is nothing to write over")
    disk.hold(operation, NAME)
    for sequence in range(4, 20):
        await publish(stand, owner, sequence)
    await disk.held_up()
    return disk, partition


async def test_publishes_do_not_wait_for_syncs_before_a_deletion(cluster: ClusterStand) -> None:
    disk, partition = await held_note(cluster, "sync")
    assert partition.log.start_offset == 0, "something was deleted before it was noted"
    assert partition.tools.notes.pending <= 4, "every segment that begins asks for a note of its own"
    assert partition.log.size_bytes > BOUND_BYTES, "nothing has to be deleted"
    disk.heal()
    await settled(lambda: partition.log.size_bytes <= BOUND_BYTES, "it was not deleted later")
    directory = partition.log.directory
    await settled(lambda: load_log_start(disk, directory) == partition.log.start_offset, "that is not written down")


async def test_topic_deleted_during_a_log_start_write_affects_no_other(
    cluster: ClusterStand,
) -> None:
    disk, partition = await held_note(cluster, "write")
    partition.refuse(ProtocolError(pb.UNKNOWN_TOPIC, "it was deleted"))
    await partition.remove()
    disk.heal()
    await partition.tools.notes.call(partition.io_key, lambda: None)
    await asyncio.sleep(0.05)
    assert not partition.log.directory.exists(), "a note came back to a directory that was removed"
    node = cluster.nodes[partition.replica.state.node_id]
    assert (node.lifecycle.health.state, node.lifecycle.exit_code) == ("running", 0)
