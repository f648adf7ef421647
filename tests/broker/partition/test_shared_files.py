"""Partitions whose newest records share the commit log of their node: failovers, and changes of the file model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.cluster_stand import NODES, ClusterStand, started_cluster
from tests.broker.stand import Stand, settled

from tidelog import Client, Partition
from tidelog.errors import InvalidRequestError
from tidelog.model import FileModel
from tidelog_broker.storage.commit_log.shared_engine import SharedEngine
from tidelog_broker.storage.engine.store import SEGMENT, SHARED
from tidelog_proto import broker_pb2 as pb

FLUSHES = {"always": pb.ALWAYS, "interval": pb.INTERVAL, "never": pb.NEVER}


@pytest.fixture(params=FLUSHES)
async def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ClusterStand]:
    async with started_cluster(tmp_path) as made:
        await made.start(flush=FLUSHES[request.param], engine=SHARED)
        yield made


def engines(cluster: ClusterStand, node_id: str) -> list[str]:
    return [held.engine for held in cluster.partition(node_id).log.epochs]


async def test_records_are_in_the_commit_log_of_every_node(cluster: ClusterStand) -> None:
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    for name in NODES:
        assert engines(cluster, name)[-1] == SHARED
        assert list((cluster.path / name / "commit-log").glob("*.clog"))


async def test_epochs_that_have_ended_are_in_segments(cluster: ClusterStand) -> None:
    """Each node is killed in turn; the epochs that end on the way become epochs of the segment engine."""
    values = [b"0"]
    await cluster.publish(*values)
    for name in NODES * 2:
        await cluster.agree(*values)
        await cluster.crash(name)
        await cluster.owner()
        values.append(b"%d" % len(values))
        await cluster.publish(values[-1])
        await cluster.start(name)
        await cluster.owner()
    await cluster.agree(*values)
    for name in NODES:
        older = engines(cluster, name)[:-1]
        assert older
        assert older == [SEGMENT] * len(older)


async def test_clean_restart_keeps_every_record(cluster: ClusterStand) -> None:
    await cluster.publish(b"a", b"b")
    await cluster.agree(b"a", b"b")
    for name in NODES:
        await cluster.stop(name)
    await cluster.start()
    await cluster.owner()
    await cluster.agree(b"a", b"b")


def runs(partition: Partition) -> list[str]:
    return [one.engine for one in partition.stored]


async def publish(stand: Stand, *values: bytes) -> None:
    async with Client(f"127.0.0.1:{stand.node.port}") as client, client.producer("t") as producer:
        for value in values:
            await producer.send(value, partition=0)


async def test_topic_changes_its_file_model_where_an_epoch_ends(stand: Stand) -> None:
    """Records written with both file models are read as one sequence; each restart begins an epoch."""
    node = await stand.start()
    expected: list[bytes] = []
    async with Client(f"127.0.0.1:{node.port}") as client:
        topic = await client.create_topic("t", partitions=2, file_model="shared")
        assert (topic.file_model, topic.engine) == ("shared", "segment")
    models: list[FileModel] = ["shared", "per-partition", "shared", "per-partition", "shared"]
    for turn, model in enumerate(models):
        values = [b"%d-%d" % (turn, number) for number in range(20)]
        await publish(stand, *values)
        expected += values
        async with Client(f"127.0.0.1:{stand.node.port}") as client:
            described = await client.topic("t")
            assert described.file_model == model
            newest = [SHARED] if model == "shared" else []
            older = [SEGMENT] if turn or not newest else []
            assert runs(described.partitions[0]) == [*older, *newest], "epochs that have ended are in segments"
            await client.alter_topic("t", file_model=models[(turn + 1) % len(models)])
        await stand.restart()
    async with Client(f"127.0.0.1:{stand.node.port}") as client:
        async with client.consumer("t") as consumer:
            found: list[bytes | None] = []
            while len(found) < len(expected):
                found += [record.value for record in await consumer.poll(timeout_s=5)]
        assert found == expected
        await client.delete_topic("t")
        engine = stand.node.broker.disk.engines[SHARED]
        assert isinstance(engine, SharedEngine)
        await settled(lambda: not engine.log.tails, "the commit log has records of a deleted topic")


async def test_names_of_the_engine_are_refused(stand: Stand) -> None:
    """A client chooses the file model by the setting, and only with the segment engine."""
    node = await stand.start()
    async with Client(f"127.0.0.1:{node.port}") as client:
        with pytest.raises(InvalidRequestError, match="set file_model to shared"):
            await client.create_topic("t", engine=SHARED)
        with pytest.raises(InvalidRequestError, match="set file_model to per-partition"):
            await client.create_topic("t", engine="memory", flush="never", file_model="shared")
