"""Scrubbing in a cluster: segments damaged on one node are fetched from the others; the only copy is kept."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import pytest
from prometheus_client import Counter
from tests.broker.cluster_stand import NODES, ClusterStand, bound_windows, others, started_cluster
from tests.broker.partition.compaction_stand import alike, compacting, publish
from tests.broker.stand import settled
from tests.broker.storage.build import read_all
from tests.broker.storage.partition.keyed import all_records

from tidelog_broker.partition import scrubber
from tidelog_broker.partition.partition import Partition
from tidelog_broker.partition.scrubber import Scrubber
from tidelog_broker.storage.io.workers import WorkersFullError
from tidelog_broker.storage.partition.scrub import parts_of


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with compacting(tmp_path) as stand:
        yield stand


@pytest.fixture
async def keeping(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    """A cluster that compacts nothing, which would end epochs by itself."""
    async with started_cluster(tmp_path) as stand:
        await stand.start(retention_interval_ms=20)
        yield stand


def scrubber_of(stand: ClusterStand, name: str) -> Scrubber:
    partitions = stand.nodes[name].broker.partitions
    return Scrubber(partitions.all, partitions.tools)


def flip(partition: Partition) -> Path:
    """Flip a bit in the first segment that takes nothing more."""
    path = parts_of(partition.log)[0].path
    raw = bytearray(path.read_bytes())
    raw[raw.index(b"precious")] ^= 1
    path.write_bytes(raw)
    return path


def is_back(partition: Partition, path: Path) -> bool:
    """Whether the rotten copy is kept aside, and another one in its place."""
    is_aside = path.parent.with_name(path.parent.name + ".bad-1").exists()
    return is_aside and path.exists() and not partition.replica.backfill.incomplete


def count(counter: Counter) -> float:
    (metric,) = counter.collect()
    return next(sample.value for sample in metric.samples if sample.name.endswith("_total"))


async def sealed(cluster: ClusterStand) -> None:
    """Let the first epoch end with a record in it, on all nodes."""
    await publish(cluster, (b"a", b"precious"))
    owner = cluster.partition(await cluster.owner())
    epoch = owner.state.epoch
    owner.driver.roll_over(owner.replica.ownership.plan_next())
    await settled(
        lambda: all(cluster.partition(name).replica.state.active.epoch > epoch for name in NODES),
        "the epoch did not end",
    )
    await publish(cluster, (b"b", b"2"))
    await settled(lambda: all(len(all_records(cluster.partition(name).log)) == 2 for name in NODES), "they differ")


async def test_rotten_segment_is_fetched_from_another_node(cluster: ClusterStand) -> None:
    await sealed(cluster)
    node = others(await cluster.owner())[0]
    partition = cluster.partition(node)
    before = read_all(partition.log)
    one = scrubber_of(cluster, node)
    assert await one.run_once() == 0
    path = flip(partition)
    assert await one.run_once() == 1
    await settled(lambda: is_back(partition, path), "it does not come back")
    assert read_all(partition.log) == before
    assert await one.run_once() == 0
    metrics = cluster.nodes[node].broker.metrics
    assert (count(metrics.scrub_passes), count(metrics.scrub_damaged)) == (3, 1)
    assert count(metrics.scrubbed_bytes) > 0
    await alike(cluster)


async def test_owner_with_rotten_history_fetches_it(cluster: ClusterStand) -> None:
    await sealed(cluster)
    owner = await cluster.owner()
    partition = cluster.partition(owner)
    path = flip(partition)
    assert await scrubber_of(cluster, owner).run_once() == 1
    await settled(lambda: is_back(partition, path), "it does not come back")
    await publish(cluster, (b"c", b"3"))  # the others may be faster than its own disk
    await settled(lambda: len(all_records(partition.log)) == 3, "the copy does not catch up")


async def full_segment(cluster: ClusterStand) -> None:
    """Let the open epoch have a segment that takes nothing more, and begin the next one."""
    for key in (b"a", b"b"):
        await publish(cluster, (key, b"precious" + os.urandom(70_000)))


async def test_owner_ends_its_epoch_if_it_has_rotted(keeping: ClusterStand) -> None:
    await full_segment(keeping)
    owner = await keeping.owner()
    partition = keeping.partition(owner)
    epoch, before = partition.state.epoch, read_all(partition.log)
    path = flip(partition)
    await scrubber_of(keeping, owner).run_once()
    await settled(lambda: is_back(partition, path), "it does not come back")
    assert partition.state.epoch == epoch + 1
    assert read_all(partition.log) == before


async def test_lagging_replica_makes_the_owner_find_rot(keeping: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = await keeping.owner()
    partition, behind = keeping.partition(owner), others(owner)[0]
    keeping.isolate(behind)
    bound_windows(keeping, owner, 0, monkeypatch)
    await full_segment(keeping)
    path = flip(partition)
    keeping.isolate()
    lagging = keeping.partition(behind)
    await settled(lambda: len(all_records(lagging.log)) == 2, "it never gets the records damaged at its owner")
    await settled(lambda: is_back(partition, path), "the owner does not repair its own copy")


async def test_rot_on_all_nodes_leaves_valid_parts_readable(cluster: ClusterStand) -> None:
    await sealed(cluster)
    for name in NODES:
        flip(cluster.partition(name))
    for name in NODES:
        assert await scrubber_of(cluster, name).run_once() == 1
    for _ in range(20):
        assert all(len(cluster.partition(name).log.epochs) == 2 for name in NODES), "an intact copy was removed"
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM, errno.EACCES])
async def test_unreadable_segment_is_not_reported_as_damage(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    await sealed(cluster)
    node = others(await cluster.owner())[0]
    fs = cluster.nodes[node].broker.partitions.tools.disk.fs

    def fails(path: Path) -> None:
        raise OSError(number, "not now", path)

    monkeypatch.setattr(scrubber, "PAUSE_S", 0)
    with monkeypatch.context() as patched:
        patched.setattr(fs, "open_readonly", fails)
        assert await scrubber_of(cluster, node).run_once() == 0
    assert len(all_records(cluster.partition(node).log)) == 2


async def test_segment_deleted_meanwhile_is_not_damage(cluster: ClusterStand) -> None:
    await sealed(cluster)
    node = others(await cluster.owner())[0]
    partition = cluster.partition(node)
    parts = parts_of(partition.log)
    with patch.object(scrubber, "is_held", lambda *_: True), patch.object(scrubber, "parts_of", lambda _: parts):
        parts[0].path.unlink()
        assert await scrubber_of(cluster, node).run_once() == 0


async def test_pass_continues_after_full_workers(cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    await sealed(cluster)
    monkeypatch.setattr(scrubber, "PAUSE_S", 0)
    name = await cluster.owner()
    readers = cluster.nodes[name].broker.threads.readers

    async def full(*_: object, **__: object) -> None:
        raise WorkersFullError("65536 tasks are queued for a thread of the workers 'read'")

    monkeypatch.setattr(readers, "call", full)
    assert await scrubber_of(cluster, name).run_once() == 0
