from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime

import pytest
from tests.clients.fake_node import FakeNode

from tidelog import Client, TopicPartition
from tidelog.errors import (
    ClosedError,
    ForkedError,
    InvalidRequestError,
    InvalidTopicError,
    NodeUnreachableError,
    OffsetOutOfRangeError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
    WrongEventLoopError,
)


async def test_topics_are_created_described_altered_listed_and_deleted(client: Client) -> None:
    created = await client.create_topic("flights", partitions=3, flush="interval", flush_interval_ms=20)
    assert (created.name, created.partition_count, created.flush) == ("flights", 3, "interval")
    assert [topic.name for topic in await client.topics()] == ["flights", "t", "wide"]
    assert (await client.alter_topic("flights", partitions=5)).partition_count == 5
    assert (await client.topic("flights")).partition_count == 5
    await client.delete_topic("flights")
    with pytest.raises(UnknownTopicError):
        await client.topic("flights")


async def test_invalid_topics_are_refused(client: Client) -> None:
    with pytest.raises(TopicExistsError):
        await client.create_topic("t")
    with pytest.raises(InvalidTopicError):
        await client.create_topic("no spaces")
    with pytest.raises(InvalidRequestError, match="topic setting 'colour' does not exist"):
        await client.alter_topic("t", colour="blue")
    with pytest.raises(UnknownTopicError):
        await client.fetch("nowhere", 0, 0)
    with pytest.raises(UnknownPartitionError, match="got 7"):
        await client.fetch("t", 7, 0)


async def test_fetch_returns_batches_trimmed_to_the_offset(client: Client) -> None:
    producer = client.producer("t")
    await producer.send_many([b"a", b"b", b"c"])
    await producer.send_many([b"d"])
    fetched = await client.fetch("t", 0, 1)
    assert [value for batch in fetched.batches for value in batch.values()] == [b"b", b"c", b"d"]
    assert (fetched.next_offset, fetched.high_watermark, fetched.batches[0].base_offset) == (4, 4, 1)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await client.fetch("t", 0, 9)
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (0, 4)


async def test_offsets_are_listed_for_all_partitions(client: Client) -> None:
    await client.producer("wide").send_many([b"x"] * 5, partition=2)
    offsets = await client.list_offsets("wide", "latest")
    assert {partition: offset.offset for partition, offset in offsets.items()} == {0: 0, 1: 0, 2: 5, 3: 0}
    assert list(await client.list_offsets("wide", datetime(2026, 1, 1, tzinfo=UTC), [1])) == [1]
    with pytest.raises(InvalidRequestError, match="time zone"):
        await client.list_offsets("wide", datetime(2026, 1, 1))  # noqa: DTZ001 - a datetime without a zone is refused


@pytest.mark.parametrize("position", [{0: -1}, {0: 2**63}, {0: 2**64}, {-1: 0}, {2**32: 0}])
async def test_invalid_position_is_refused_before_sending(client: Client, position: dict[int, int]) -> None:
    with pytest.raises(InvalidRequestError, match="must be 0 to"):
        await client.commit("g", "t", {3: 1} | position)
    async with client.consumer("t", group="g", partitions="all") as consumer:
        with pytest.raises(InvalidRequestError, match="must be 0 to"):
            await consumer.commit({TopicPartition("t", partition): offset for partition, offset in position.items()})
    assert await client.committed("g") == []


async def test_commits_move_forward_and_are_found_by_group(node: FakeNode, client: Client) -> None:
    node.reach("wide", 5)
    node.reach("t", 9)
    assert (await client.commit("g", "wide", {0: 5, 3: 1}, note="n"))[0].next_offset == 5
    assert (await client.commit("g", "wide", {0: 2}))[0].next_offset == 5
    assert (await client.commit("g", "wide", {0: 2}, reset=True))[0].next_offset == 2
    await client.commit("g", "t", {0: 9})
    assert [(each.topic, each.partition, each.next_offset) for each in await client.committed("g", "wide")] == [
        ("wide", 0, 2),
        ("wide", 3, 1),
    ]
    assert {each.topic for each in await client.committed("g")} == {"wide", "t"}


async def test_positions_in_uncached_topics_have_names(node: FakeNode, client: Client) -> None:
    node.reach("t", 9)
    await client.commit("g", "t", {0: 9})
    async with Client(f"127.0.0.1:{node.port}") as other:
        assert [each.topic for each in await other.committed("g")] == ["t"]


async def test_cluster_status_is_returned(node: FakeNode, client: Client) -> None:
    status = await client.cluster_status()
    assert [each.node_id for each in status.nodes] == [node.node_id]
    assert [topic.name for topic in status.topics] == ["t", "wide"]


async def test_requests_survive_a_lost_connection(node: FakeNode, client: Client) -> None:
    await client.topics()
    node.drop_connections()
    assert len(await client.topics()) == 2


async def test_recreated_topic_is_found_by_name(node: FakeNode, client: Client) -> None:
    await client.fetch("t", 0, 0)
    old = node.topics["t"].topic_id
    del node.partitions[old, 0]
    node.add_topic("t", topic_id=b"another".ljust(16))
    assert (await client.fetch("t", 0, 0)).high_watermark == 0


async def test_unreachable_cluster_is_reported(node: FakeNode) -> None:
    await node.stop()
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.2) as client:
        with pytest.raises(NodeUnreachableError, match="is the node running"):
            await client.connect()
        with pytest.raises(NodeUnreachableError) as caught:
            await client.topics()
    assert caught.value.retriable
    assert caught.value.definite


async def test_next_bootstrap_address_is_tried(node: FakeNode) -> None:
    async with Client(["127.0.0.1:1", f"127.0.0.1:{node.port}"]) as client:
        assert len(await client.topics()) == 2


@pytest.mark.parametrize("bootstrap", ["", "host:port", "host:99999", "a b", "[::1"])
def test_invalid_address_is_refused(bootstrap: str) -> None:
    with pytest.raises(InvalidRequestError, match="invalid address"):
        Client(bootstrap)


@pytest.mark.parametrize("idle_poll_us", [-1, 10_001])
def test_excessive_busy_poll_time_is_refused(idle_poll_us: int) -> None:
    with pytest.raises(InvalidRequestError, match="idle_poll_us"):
        Client("host", idle_poll_us=idle_poll_us)


async def test_closed_client_is_refused(client: Client) -> None:
    await client.topics()
    await client.close()
    await client.close()
    with pytest.raises(ClosedError):
        await client.topics()


async def test_use_in_another_event_loop_is_refused(client: Client) -> None:
    await client.topics()

    def elsewhere() -> None:
        with pytest.raises(WrongEventLoopError):
            asyncio.run(client.topics())

    await asyncio.to_thread(elsewhere)


async def test_client_created_before_a_fork_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await client.topics()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", lambda: -1)
        with pytest.raises(ForkedError):
            await client.topics()
