"""A cluster with a compacted topic, and the records of its copies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.broker.cluster_stand import TOPIC_ID, ClusterStand, started_cluster
from tests.broker.stand import settled
from tests.broker.storage.build import read_all
from tests.broker.storage.partition.keyed import Row, all_records, keyed_batch

from tidelog_broker.partition.compaction import CompactionState
from tidelog_proto import broker_pb2 as pb


@asynccontextmanager
async def compacting(path: Path) -> AsyncIterator[ClusterStand]:
    """Run three nodes with a topic that is compacted when it is asked for."""
    async with started_cluster(path) as stand:
        await stand.start(retention_interval_ms=20, ring_bytes=1 << 20)
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


async def compact(stand: ClusterStand) -> CompactionState:
    return await stand.partition(await stand.owner()).compaction.run_now()


async def alike(stand: ClusterStand) -> None:
    """Wait until all copies of sealed epochs are equal byte by byte, and as decided."""

    def are_alike() -> bool:
        logs = [stand.partition(name).log for name in stand.nodes]
        digests = [[(held.epoch, held.end_offset, held.end_digest) for held in log.epochs] for log in logs]
        newest = [list(stand.partition(name).replica.state.chain.compactions) for name in stand.nodes]
        return all(one == digests[0] for one in digests) and all(one == newest[0] for one in newest)

    await settled(are_alike, "the copies do not become equal")
    first, *rest = [read_all(stand.partition(name).log) for name in stand.nodes]
    assert all(one == first for one in rest)


def latest(stand: ClusterStand, name: str) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in all_records(stand.partition(name).log)}
