"""The newest decided versions of epochs: when a copy takes them, and its content until then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.cluster_stand import NODES, ClusterStand, others
from tests.broker.partition.compaction_stand import alike, compact, compacting, configure, latest, publish, send
from tests.broker.stand import settled
from tests.broker.storage.partition.keyed import all_records

from tidelog_broker.core.replication.epoch_versions import EpochVersions
from tidelog_broker.partition import compacted_versions
from tidelog_broker.partition.compacted_versions import CompactedVersions
from tidelog_broker.partition.partition import Partition
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.partition.compaction_pass import CompactionPass, FinishedVersion, Terms
from tidelog_broker.storage.partition.copied_batches import LogPosition
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_proto.batch.record_batch import columns_of, encode_batch
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with compacting(tmp_path) as stand:
        yield stand


async def test_no_epoch_is_replaced_after_one_that_differs(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of a library, say: the copy keeps the value, so it has to keep the tombstone, too."""
    await configure(cluster, tombstone_retention_ms=1)
    odd = others(await cluster.owner())[0]
    compaction = cluster.partition(odd).compaction
    first = cluster.partition(odd).state.epoch

    class Odd(CompactionPass):
        def __init__(self, reader: PartitionLogReader, *rest: Any, **named: Any) -> None:
            super().__init__(reader, *rest, **named)
            self.is_odd = reader is cluster.partition(odd).log.reader

        def run(self) -> list[FinishedVersion]:
            made = super().run()
            if not self.is_odd:
                return made
            return [one._replace(end=one.end._replace(digest=1)) if one.epoch == first else one for one in made]

    monkeypatch.setattr(compacted_versions, "CompactionPass", Odd)
    await publish(cluster, (b"a", b"1"), (b"b", b"2"))
    await compact(cluster)
    await publish(cluster, (b"a", None))
    await compact(cluster)
    await asyncio.sleep(0.01)
    await compact(cluster)
    usual = [name for name in NODES if name != odd]
    await settled(lambda: all(b"a" not in latest(cluster, name) for name in usual), "the tombstone stays")
    await settled(lambda: compaction.is_behind, "nothing differs")
    for _ in range(20):
        assert latest(cluster, odd)[b"a"] is None
        await asyncio.sleep(0.02)


async def test_fetched_compacted_copy_has_the_producer_state(cluster: ClusterStand) -> None:
    def numbered(sequence: int) -> bytes:
        columns = columns_of([b"v%d" % sequence], keys=[b"k"])
        return encode_batch(columns, now_us=1, producer_id=7, base_sequence=sequence).to_bytes()

    away = others(await cluster.owner())[0]
    await cluster.crash(away)
    for sequence in range(4):
        await send(cluster, numbered(sequence))
    await compact(cluster)
    await cluster.start(away)
    await configure(cluster)
    await alike(cluster)
    copy = cluster.partition(away)
    await settled(lambda: not copy.replica.backfill.producers.is_asking, "the others do not answer")
    newest = max(copy.replica.state.chain.compactions)
    assert copy.driver.view.producers.knows_at(newest)
    table, _ = copy.driver.view.producers.at(4, log_start=0)
    assert table is not None
    assert len(table) > 0


async def test_no_epoch_is_replaced_before_the_decision_is_journalled(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the epoch would be the open one, with bytes that its owner never appended."""
    slow = others(await cluster.owner())[0]
    driver = cluster.partition(slow).driver
    monkeypatch.setattr(
        ReplicaDriver, "is_learning", property(lambda self: self is driver or self._decisions_queued > 0)
    )
    await publish(cluster, (b"a", b"1"), (b"a", b"2"))
    await compact(cluster)
    usual = [name for name in NODES if name != slow]
    await settled(lambda: all(len(all_records(cluster.partition(name).log)) == 1 for name in usual), "it stays")
    for _ in range(20):  # some looks of its own
        assert len(all_records(cluster.partition(slow).log)) == 2
        await asyncio.sleep(0.02)
    monkeypatch.undo()
    await alike(cluster)


async def test_no_pass_runs_while_the_log_is_being_truncated(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records beyond the cut are not committed: a pass over them would drop the newest committed record of a key."""
    slow = others(await cluster.owner())[0]
    copy = cluster.partition(slow)
    await publish(cluster, (b"a", b"1"), (b"a", b"2"))
    await settled(lambda: copy.log.end_offset == 2, "the copy does not follow")
    monkeypatch.setattr(ReplicaDriver, "cut_offset", property(lambda self: 2 if self is copy.driver else None))
    await compact(cluster)
    usual = [name for name in NODES if name != slow]
    await settled(lambda: all(len(all_records(cluster.partition(name).log)) == 1 for name in usual), "it stays")
    await settled(lambda: copy.compaction.is_behind, "the copy has not received the decision")
    for _ in range(20):  # the copy looks again and again
        assert len(all_records(copy.log)) == 2
        await asyncio.sleep(0.02)
    monkeypatch.undo()
    await alike(cluster)


async def outdated_copy(stand: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> tuple[Partition, CompactedVersions]:
    """A copy of two records that was decided to keep one of them, and looks at nothing by itself."""
    copy = stand.partition(others(await stand.owner())[0])
    monkeypatch.setattr(copy.compaction, "check", lambda: asyncio.sleep(0))
    await publish(stand, (b"a", b"1"), (b"a", b"2"))
    await compact(stand)
    await settled(lambda: copy.compaction.is_behind, "the copy has not received the decision")
    assert len(all_records(copy.log)) == 2
    return copy, copy.compaction.versions


async def test_copy_is_not_replaced_while_producer_state_is_requested(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted_versions, "COMPLETE_COPY_TIMEOUT_S", 0.05)
    copy, versions = await outdated_copy(cluster, monkeypatch)
    with monkeypatch.context() as asking:
        asking.setattr(type(copy.replica.backfill.producers), "is_asking", property(lambda _: True))
        await versions.converge()
        assert len(all_records(copy.log)) == 2
    await versions.converge()
    assert len(all_records(copy.log)) == 1


async def test_copy_of_a_topic_on_hold_is_not_replaced(cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, versions = await outdated_copy(cluster, monkeypatch)
    await configure(cluster, hold=True)
    await versions.converge()
    assert len(all_records(copy.log)) == 2
    await configure(cluster, hold=False)
    await versions.converge()
    assert len(all_records(copy.log)) == 1


async def test_copy_with_a_damaged_log_is_not_replaced(cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch) -> None:
    copy, versions = await outdated_copy(cluster, monkeypatch)
    with monkeypatch.context() as damaged:
        damaged.setattr(type(copy.log), "limbo", property(lambda self: "damaged" if self is copy.log else None))
        await versions.converge()
        assert len(all_records(copy.log)) == 2
    await versions.converge()
    assert len(all_records(copy.log)) == 1


async def test_copy_below_the_log_start_is_left_to_retention(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, _ = await outdated_copy(cluster, monkeypatch)
    end = copy.log.epochs[0].end_offset
    for log_start, is_behind in ((end - 1, True), (end, False)):
        monkeypatch.setattr(copy.replica.state, "log_start", log_start)
        assert copy.compaction.is_behind is is_behind


async def test_version_for_another_decision_is_compacted_again(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, versions = await outdated_copy(cluster, monkeypatch)
    held = next(held for held in copy.log.epochs if held.end_offset)
    versions.keep([FinishedVersion(held.epoch, LogPosition(held.end_offset, 1), held.size_bytes)])
    await versions.converge()
    assert (len(all_records(copy.log)), copy.compaction.is_behind) == (1, False)


async def test_pass_needs_the_whole_log_from_its_first_epoch_or_the_floor_to_the_horizon(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, versions = await outdated_copy(cluster, monkeypatch)
    (first,) = (held.epoch for held in copy.log.epochs if held.start_offset == 0 and held.end_offset)
    end = copy.log.end_offset
    assert versions.can_pass(Terms(end, 0, 0), [first])
    assert not versions.can_pass(Terms(end + 1, 0, 0), [first])
    monkeypatch.setattr(type(copy.log), "start_offset", property(lambda _: 1))
    assert not versions.can_pass(Terms(end, 0, 0), [first])
    assert versions.can_pass(Terms(end, 0, 1), [first])


async def test_ring_is_dropped_below_a_replaced_epoch(cluster: ClusterStand) -> None:
    owner = cluster.partition(await cluster.owner())
    await publish(cluster, (b"a", b"1"))
    await publish(cluster, (b"a", b"2"))
    await settled(lambda: len(owner.reader.read_hot(0, 1 << 20) or ()) == 2, "tailing readers do not get all records")
    await compact(cluster)
    assert owner.reader.read_hot(0, 1 << 20) is None
    assert len(all_records(owner.log)) == 1
    await publish(cluster, (b"b", b"3"))
    await settled(lambda: bool(owner.reader.read_hot(2, 1 << 20)), "tailing readers do not get the next record")


async def test_outdated_epoch_is_not_read_beside_newer_versions(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = others(await cluster.owner())[0]
    copy = cluster.partition(slow)
    epoch = copy.state.epoch
    await publish(cluster, (b"a", b"1"), (b"a", b"2"))
    monkeypatch.setattr(ReplicaDriver, "is_learning", property(lambda self: self is copy.driver))
    await compact(cluster)
    await settled(lambda: epoch in copy.replica.state.chain.compactions, "the decision does not come")
    copy.reader.check_offset(0)
    copy.replica.backfill.incomplete.add(epoch)
    copy.reader.check_offset(0)  # the copy lacks only its first segments; the others are intact
    monkeypatch.setattr(
        EpochVersions, "has_later", lambda *_: False
    )  # as if a later epoch had come as it was compacted
    with pytest.raises(ProtocolError, match=r"EPOCH_CHANGING|NOT_OWNER"):
        copy.reader.check_offset(0)
    copy.reader.check_offset(2)


async def test_owner_with_differing_copies_converges_in_the_next_round(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a takeover by a node with another version of a library, which has got the same one by then."""
    old = await cluster.owner()
    usual = cluster.partition(old).log.reader

    class Odd(CompactionPass):
        def __init__(self, reader: PartitionLogReader, *rest: Any, **named: Any) -> None:
            super().__init__(reader, *rest, **named)
            self.is_odd = reader is not usual

        def run(self) -> list[FinishedVersion]:
            made = super().run()
            return [one._replace(end=one.end._replace(digest=1)) for one in made] if self.is_odd else made

    monkeypatch.setattr(compacted_versions, "CompactionPass", Odd)
    await publish(cluster, (b"a", b"1"), (b"a", b"2"))
    await compact(cluster)
    odd = others(old)
    await settled(lambda: all(cluster.partition(name).compaction.is_behind for name in odd), "nothing differs")
    await cluster.crash(old)
    await cluster.owner(but=old)
    monkeypatch.undo()
    await publish(cluster, (b"a", b"3"))
    await compact(cluster)
    await settled(lambda: all(latest(cluster, name) == {b"a": b"3"} for name in odd), "an older value stays")
    await settled(lambda: all(len(all_records(cluster.partition(name).log)) == 1 for name in odd), "older records stay")
