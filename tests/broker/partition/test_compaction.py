"""Compaction in a cluster: the owner's passes are decided, and every copy comes to hold the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.cluster_stand import NODES, TOPIC_ID, ClusterStand, others, standing
from tests.broker.stand import settled
from tests.broker.storage.build import read_all
from tests.broker.storage.partition.keyed import Row, all_records, keyed_batch

from tidelog_broker.partition import compacted_versions
from tidelog_broker.partition.compaction import Compacted
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.storage.partition import compaction_pass
from tidelog_broker.storage.partition.compaction_pass import CompactionPass, Made
from tidelog_broker.storage.partition.partition_reader import PartitionLogReader
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import columns_of, encode_batch
from tidelog_proto.derived import Deriver
from tidelog_proto.errors import ProtocolError


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterStand]:
    async with standing(tmp_path) as stand:
        await stand.start(retention_interval_ms=20, ring_bytes=0)
        await configure(stand, cleanup=pb.COMPACT, dirty_percent=100, tombstone_retention_ms=60_000)
        yield stand


async def configure(stand: ClusterStand, **config: object) -> None:
    record = pb.TopicRecord()
    record.CopyFrom(stand.record)
    record.revision += 1
    for name, value in config.items():
        setattr(record.config, name, value)
    stand.record = record
    for node in stand.nodes.values():
        node.broker.topics.apply(record)
        await node.broker.partitions.follow(record)


async def publish(stand: ClusterStand, *rows: Row) -> None:
    await send(stand, bytes(keyed_batch(list(rows))))


async def send(stand: ClusterStand, data: bytes) -> int:
    peer = await stand.peer(await stand.owner())
    (result,) = await peer.publish(TOPIC_ID, data)
    assert not result.HasField("error"), result
    return result.base_offset


async def compact(stand: ClusterStand) -> Compacted:
    return await stand.partition(await stand.owner()).compaction.run_now()


async def alike(stand: ClusterStand) -> None:
    """Wait until all copies of what is sealed are the same bytes, and as was decided."""

    def are_alike() -> bool:
        logs = [stand.partition(name).log for name in stand.nodes]
        digests = [[(held.epoch, held.end_offset, held.end_digest) for held in log.epochs] for log in logs]
        newest = [list(stand.partition(name).replica.state.chain.compactions) for name in stand.nodes]
        return all(one == digests[0] for one in digests) and all(one == newest[0] for one in newest)

    await settled(are_alike, "the copies do not come together")
    first, *rest = [read_all(stand.partition(name).log) for name in stand.nodes]
    assert all(one == first for one in rest)


def latest(stand: ClusterStand, name: str) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in all_records(stand.partition(name).log)}


async def test_every_copy_keeps_the_latest_of_each_key(cluster: ClusterStand) -> None:
    for number in range(6):
        await publish(cluster, (b"a", b"a%d" % number), (b"b", b"b%d" % number), (b"c%d" % number, b""))
    await publish(cluster, (b"b", None))
    done = await compact(cluster)
    assert done.below == 19
    await alike(cluster)
    for name in NODES:
        records = all_records(cluster.partition(name).log)
        assert [record.offset for record in records] == [2, 5, 8, 11, 14, 15, 17, 18]
        assert latest(cluster, name)[b"a"] == b"a5"
        assert latest(cluster, name)[b"b"] is None
    await publish(cluster, (b"a", b"new"))
    await compact(cluster)
    await alike(cluster)
    assert latest(cluster, "c")[b"a"] == b"new"


async def test_tombstones_go_with_a_later_pass_than_the_first_that_sees_them(cluster: ClusterStand) -> None:
    await configure(cluster, tombstone_retention_ms=1)
    await publish(cluster, (b"a", b"1"), (b"b", b"2"))
    await publish(cluster, (b"a", None))
    await settled(
        lambda: (
            [record.offset for record in all_records(cluster.partition("a").log)] == [1, 2]
            or cluster.partition("a").replica.state.chain.compactions == {}
        ),
        "",
    )
    await compact(cluster)
    await settled(
        lambda: all([one.offset for one in all_records(cluster.partition(name).log)] == [1] for name in NODES),
        "the tombstone stays",
    )
    await alike(cluster)


async def test_a_node_that_was_away_comes_to_the_same_bytes(cluster: ClusterStand) -> None:
    await publish(cluster, *((b"k%d" % (number % 5), b"v" * 100) for number in range(200)))
    away = others(await cluster.owner())[0]
    await cluster.crash(away)
    for number in range(3):
        await publish(cluster, *((b"k%d" % each, b"%d" % number) for each in range(5)))
        await compact(cluster)
    await cluster.start(away)
    await configure(cluster)
    await alike(cluster)
    assert len(all_records(cluster.partition(away).log)) == 5


async def test_a_restart_finds_what_was_compacted(cluster: ClusterStand) -> None:
    for number in range(50):
        await publish(cluster, (b"k", b"%d" % number))
    await compact(cluster)
    await alike(cluster)
    for name in NODES:
        await cluster.crash(name)
    await cluster.start()
    await cluster.owner()
    await alike(cluster)
    assert latest(cluster, "a") == {b"k": b"49"}


async def test_a_takeover_knows_what_producers_sent_before_it_was_compacted(cluster: ClusterStand) -> None:
    def numbered(sequence: int) -> bytes:
        columns = columns_of([b"v%d" % sequence], keys=[b"k"])
        return encode_batch(columns, now_us=1, producer_id=7, base_sequence=sequence).to_bytes()

    offsets = [await send(cluster, numbered(sequence)) for sequence in range(4)]
    await compact(cluster)
    await alike(cluster)
    owner = await cluster.owner()
    await cluster.crash(owner)
    await cluster.owner(but=owner)
    assert await send(cluster, numbered(3)) == offsets[3], "a retry gets its first offset"
    assert await send(cluster, numbered(4)) == 4


async def test_an_epoch_that_fits_no_batch_is_left_and_keeps_the_tombstones_behind_it(
    cluster: ClusterStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await configure(cluster, tombstone_retention_ms=1)
    await publish(cluster, (b"a", b"1"), (b"b", b"2"), (b"b", b"3"))
    stuck = cluster.partition(await cluster.owner()).state.epoch

    class Narrow(Deriver):
        def finish(self) -> list[bytearray]:
            if self._epoch == stuck:
                raise ProtocolError(pb.BATCH_TOO_LARGE, "too large")
            return super().finish()

    monkeypatch.setattr(compaction_pass, "Deriver", Narrow)
    for number in range(3):
        await compact(cluster)
        await publish(cluster, (b"a", None), (b"b", b"later"), (b"c", b"%d" % number))
    await compact(cluster)
    await alike(cluster)
    for name in NODES:
        assert [one.offset for one in all_records(cluster.partition(name).log)] == [0, 1, 2, 9, 10, 11]
        assert latest(cluster, name)[b"a"] is None
    epoch = cluster.partition(await cluster.owner()).state.epoch
    await asyncio.sleep(0.3)
    assert cluster.partition(await cluster.owner()).state.epoch == epoch, "passes go on though nothing can be done"
    monkeypatch.undo()
    await compact(cluster)
    await settled(
        lambda: all([one.offset for one in all_records(cluster.partition(name).log)] == [10, 11] for name in NODES),
        "the epoch stays as it was",
    )


async def test_behind_an_epoch_that_differs_nothing_is_put_in_place(
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

        def run(self) -> list[Made]:
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


async def test_who_may_compact(cluster: ClusterStand) -> None:
    await publish(cluster, (b"a", b"1"))
    owner = await cluster.owner()
    with pytest.raises(ProtocolError) as caught:
        await cluster.partition(others(owner)[0]).compaction.run_now()
    assert caught.value.code == pb.NOT_OWNER
    await configure(cluster, hold=True)
    with pytest.raises(ProtocolError, match="on hold"):
        await compact(cluster)
    await configure(cluster, hold=False, cleanup=pb.DELETE)
    with pytest.raises(ProtocolError, match="not to be compacted"):
        await compact(cluster)


async def test_a_copy_that_came_compacted_brings_along_what_producers_had_sent(cluster: ClusterStand) -> None:
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
    await settled(lambda: not copy.replica.backfill.producers.is_asking, "the others do not say")
    newest = max(copy.replica.state.chain.compactions)
    assert copy.driver.view.knows_producers_at(newest)
    table, _ = copy.driver.view.producers_at(4, log_start=0)
    assert table is not None
    assert not table.is_empty


async def test_nothing_is_put_in_place_before_the_journal_has_the_decision(
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
    assert len(all_records(cluster.partition(slow).log)) == 2
    monkeypatch.undo()
    await alike(cluster)


async def test_what_is_outdated_beside_newer_epochs_is_not_read(
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
    copy.replica.backfill.incomplete.add(epoch)  # as if a later epoch had come as it was compacted
    with pytest.raises(ProtocolError, match=r"EPOCH_CHANGING|NOT_OWNER"):
        copy.reader.check_offset(0)
    copy.reader.check_offset(2)
