"""Three nodes: offsets beyond the end of a partition are refused to readers and committers, as on one node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.broker.peer import Peer
from tests.e2e.test_cluster import cluster

from tidelog import Client, Consumer, Group, TopicPartition
from tidelog.errors import OffsetOutOfRangeError
from tidelog.subscriptions.consumer_options import OnOutOfRange
from tidelog_proto import broker_pb2 as pb

pytestmark = pytest.mark.e2e

PARTITIONS = 3
RECORDS = 5
"""In each partition."""
BEYOND = 1_000
PATIENCE_S = 30.0


async def test_beyond_the_end(tmp_path: Path) -> None:
    async with cluster(tmp_path / "three") as up, Client(up.bootstrap) as client:
        await client.create_topic("t", partitions=PARTITIONS)
        async with client.producer("t") as producer:
            for partition in range(PARTITIONS):
                await producer.send_many([b"x"] * RECORDS, partition=partition)
        await a_fetch_is_refused(client)
        await a_commit_is_refused(client)
        policies: list[OnOutOfRange] = ["error", "earliest", "latest"]
        for policy in policies:
            await says_its_policy(client, client.consumer("t", start=BEYOND, on_out_of_range=policy), policy)
            await foreign_commit(client, up.bootstrap, policy)
            await says_its_policy(client, client.consumer("t", group=policy, on_out_of_range=policy), policy)


async def a_fetch_is_refused(client: Client) -> None:
    for partition in range(PARTITIONS):
        assert not (await client.fetch("t", partition, RECORDS)).batches, "there the next record comes"
        with pytest.raises(OffsetOutOfRangeError) as refused:
            await client.fetch("t", partition, RECORDS + 1)
        assert refused.value.high_watermark == RECORDS


async def a_commit_is_refused(client: Client) -> None:
    for partition in range(PARTITIONS):
        with pytest.raises(OffsetOutOfRangeError, match="beyond the end"):
            await client.commit("by hand", "t", {partition: BEYOND})
    async with client.consumer("t", group=Group("member", commit="manual")) as consumer:
        assert await consumer.poll(1, timeout_s=PATIENCE_S)
        for partition in range(PARTITIONS):
            with pytest.raises(OffsetOutOfRangeError, match="beyond the end"):
                await consumer.commit({TopicPartition("t", partition): BEYOND})
    assert [*await client.committed("by hand"), *await client.committed("member")] == []


async def foreign_commit(client: Client, bootstrap: str, group: str) -> None:
    """Commit as a client does that looks at no ends."""
    (topic,) = [topic for topic in await client.topics() if topic.name == "t"]
    peer = await Peer.connect(int(bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)[1]))
    try:
        await peer.greet()
        entries = [
            pb.CommitEntry(topic_id=topic.topic_id, partition=partition, next_offset=BEYOND)
            for partition in range(PARTITIONS)
        ]
        frame = await peer.ask(commit=pb.Commit(group=group, entries=entries))
        assert not any(result.HasField("error") for result in frame.envelope.commit_reply.results)
    finally:
        await peer.close()


async def says_its_policy(client: Client, consumer: Consumer, policy: OnOutOfRange) -> None:
    """A consumer that starts beyond the end reports it, starts at the beginning, or reads records from now on."""
    try:
        async with asyncio.timeout(2 * PATIENCE_S):
            if policy == "error":
                with pytest.raises(OffsetOutOfRangeError):
                    await consumer.poll(1, timeout_s=PATIENCE_S)
                return
            ends = {number: each.offset for number, each in (await client.list_offsets("t", "latest")).items()}
            begins = dict.fromkeys(ends, 0) if policy == "earliest" else ends
            left = {(partition, begins[partition]) for partition in ends}
            while left:
                if policy == "latest":
                    async with client.producer("t") as producer:
                        for partition in ends:
                            await producer.send(b"y", partition=partition)
                records = await consumer.poll(100, timeout_s=0.2)
                assert all(record.offset >= begins[record.partition] for record in records)
                left = {(number, offset) for number, offset in left if number not in {one.partition for one in records}}
    finally:
        await consumer.abort()
