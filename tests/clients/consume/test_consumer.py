from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.clients.fake_node import FakeConnection, FakeNode
from tests.proto.derived_batches import END_OFFSET, STARTS, SURVIVORS, compacted_log, survivors_from

from tidelog import Client, Consumer, TopicPartition
from tidelog.errors import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    OverloadedError,
    StorageFailedError,
    TidelogError,
    UnknownPartitionError,
    UnknownTopicError,
    UsageError,
)
from tidelog.subscriptions.resubscribe_backoff import LOG_AFTER_FAILURES
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

T0 = TopicPartition("t", 0)


async def publish(node: FakeNode, *values: bytes, topic: str = "t", partition: int = 0, batch: int = 2) -> None:
    """Publish values with a separate client, `batch` per batch."""
    async with Client(f"127.0.0.1:{node.port}") as client:
        producer = client.producer(topic)
        for at in range(0, len(values), batch):
            await producer.send_many(values[at : at + batch], partition=partition)


async def take(consumer: Consumer, count: int) -> list[bytes | None]:
    """Return the values of `count` records."""
    values: list[bytes | None] = []
    async for record in consumer:
        values.append(record.value)
        if len(values) == count:
            break
    return values


async def places(consumer: Consumer, count: int) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of `count` records."""
    records = [await anext(consumer) for _ in range(count)]
    return [(record.topic, record.partition, record.offset) for record in records]


async def nothing_comes(consumer: Consumer) -> bool:
    return await consumer.poll(timeout_s=0.05) == []


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def test_records_are_delivered_in_order_with_offsets(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(5))
    async with client.consumer("t") as consumer:
        records = [await anext(consumer) for _ in range(5)]
    assert [(each.topic, each.partition, each.offset, each.value) for each in records] == [
        ("t", 0, number, b"%d" % number) for number in range(5)
    ]


async def test_later_records_are_pushed(node: FakeNode, client: Client) -> None:
    async with client.consumer("t") as consumer:
        waiting = asyncio.ensure_future(take(consumer, 3))
        await node.received("subscribe")
        await publish(node, *numbered(3))
        assert await waiting == numbered(3)


async def test_latest_starts_at_the_end(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(4))
    async with client.consumer("t", start="latest") as consumer:
        await publish(node, b"new")
        assert await take(consumer, 1) == [b"new"]


@pytest.mark.parametrize("start", [3, {0: 3}])
async def test_offset_inside_a_batch_is_exact(node: FakeNode, client: Client, start: int | dict[int, int]) -> None:
    await publish(node, *numbered(6), batch=6)
    async with client.consumer("t", start=start) as consumer:
        assert await take(consumer, 3) == numbered(3, 3)


async def test_batches_have_columns(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(6), batch=3)
    async with client.consumer("t") as consumer:
        first = await anext(consumer)
        assert first.value == b"0"
        taken = []
        async for batch in consumer.batches():
            taken.append(batch.batch.columns().column("value").to_pylist())
            if batch.batch.end_offset == 6:
                break
    assert taken == [[b"1", b"2"], [b"3", b"4", b"5"]]


async def test_commit_stores_delivered_positions_and_group_continues_there(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(10), batch=5)
    async with client.consumer("t", group="g", partitions="all") as consumer:
        assert await take(consumer, 3) == numbered(3)
        assert consumer.position() == {T0: 3}
        assert (await consumer.commit())[T0].next_offset == 3
        assert await consumer.commit() == {}, "nothing has moved since"
    async with client.consumer("t", group="g", partitions="all") as consumer:
        assert await take(consumer, 7) == numbered(7, 3)
    async with client.consumer("t", group="g", start={0: 8}) as consumer:
        assert await take(consumer, 2) == numbered(2, 8), "given offsets override committed ones"


async def test_commit_without_a_group_is_refused(client: Client) -> None:
    async with client.consumer("t") as consumer:
        with pytest.raises(InvalidRequestError, match="no group"):
            await consumer.commit()


async def test_seek_moves_back_and_forth(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(10))
    async with client.consumer("t") as consumer:
        assert await take(consumer, 5) == numbered(5)
        await consumer.seek(0, 1)
        assert await take(consumer, 2) == numbered(2, 1)
        await consumer.seek(0, 9)
        assert await take(consumer, 1) == [b"9"]
        with pytest.raises(UnknownPartitionError):
            await consumer.seek(5, 0)
        with pytest.raises(InvalidRequestError):
            await consumer.seek(0, -1)


async def test_all_or_chosen_partitions_are_read(node: FakeNode, client: Client) -> None:
    for partition in range(4):
        await publish(node, b"%d" % partition, topic="wide", partition=partition)
    async with client.consumer("wide") as consumer:
        assert sorted(value or b"" for value in await take(consumer, 4)) == numbered(4)
    async with client.consumer("wide", partitions=[2]) as consumer:
        assert await take(consumer, 1) == [b"2"]
        assert consumer.position() == {TopicPartition("wide", 2): 1}


async def test_credit_bounds_prefetched_records(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(100), batch=5)
    async with client.consumer("t", prefetch_records=10) as consumer:
        assert await take(consumer, 1) == [b"0"]
        (connection,) = (each for each in node.connections if each.subscriptions)
        (subscription,) = connection.subscriptions.values()
        (position,) = subscription.positions.values()
        assert position <= 20, "one window, plus the credit returned by its first half"
        assert await take(consumer, 99) == numbered(99, 1)


async def take_all(consumer: Consumer, into: list[bytes | None]) -> None:
    async for record in consumer:
        into.append(record.value)  # noqa: PERF401 - keeps records before an error


async def test_refused_batch_ends_reading_after_admitted_ones(node: FakeNode, client: Client) -> None:
    await publish(node, *[b"v%d" % at for at in range(20)])
    asked: list[int] = []

    def admit(size_bytes: int) -> bool:
        asked.append(size_bytes)
        return len(asked) != 3

    seen: list[bytes | None] = []
    async with client.consumer("t", prefetch_records=2, admit=admit) as consumer:
        with pytest.raises(OverloadedError, match="`admit` refused the memory for received batches"):
            await take_all(consumer, seen)
        position = consumer.position()[T0]
    assert seen == [b"v%d" % at for at in range(position)], "records after a gap are never delivered"
    assert 0 < position < 20
    assert all(size_bytes > 0 for size_bytes in asked)
    async with client.consumer("t", start={0: position}) as consumer:
        assert await take(consumer, 20 - position) == [b"v%d" % at for at in range(position, 20)]


async def test_lost_connection_neither_loses_nor_repeats_records(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(60), batch=4)
    async with client.consumer("t", prefetch_records=8) as consumer:
        taken: list[bytes | None] = []
        for number in range(60):
            taken += await take(consumer, 1)
            if number % 7 == 3:
                node.drop_connections()
        assert taken == numbered(60)


async def test_ended_subscription_is_restarted(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(4))
    async with client.consumer("t") as consumer:
        assert await take(consumer, 4) == numbered(4)
        end_all(node, pb.NOT_OWNER)
        await publish(node, b"4")
        assert await take(consumer, 1) == [b"4"]


async def test_final_error_is_raised_after_received_records(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(4))
    async with client.consumer("t") as consumer:
        assert await take(consumer, 1) == [b"0"]
        end_all(node, pb.UNKNOWN_TOPIC)
        with pytest.raises(UnknownTopicError):
            await take(consumer, 10)


def end_all(node: FakeNode, code: pb.ErrorCode) -> None:
    for connection in node.connections:
        connection.end_subscriptions(code)


async def test_deleted_offset_is_an_error_with_bounds(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(6), batch=1)
    node.partition("t").log_start = 4
    async with client.consumer("t", start=1) as consumer:
        with pytest.raises(OffsetOutOfRangeError) as caught:
            await anext(consumer)
    assert (caught.value.log_start_offset, caught.value.high_watermark) == (4, 6)


@pytest.mark.parametrize(("policy", "expected"), [("earliest", b"4"), ("latest", b"6")])
async def test_deleted_offset_can_be_skipped(node: FakeNode, client: Client, policy: str, expected: bytes) -> None:
    await publish(node, *numbered(6), batch=1)
    node.partition("t").log_start = 4
    async with client.consumer("t", start=1, on_out_of_range=policy) as consumer:  # type: ignore[arg-type] # parametrised
        taken = asyncio.ensure_future(take(consumer, 1))
        await node.received("subscribe", 2)
        await publish(node, b"6")
        assert await taken == [expected]


async def test_damaged_bytes_are_an_error(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(2))
    stored = bytearray(node.partition("t").batches[0])
    stored[-1] ^= 1
    node.partition("t").batches[0] = bytes(stored)
    async with client.consumer("t") as consumer:
        with pytest.raises(TidelogError, match="CRC32C"):
            await anext(consumer)


async def test_missing_records_are_an_error(node: FakeNode, client: Client) -> None:
    await publish(node, *numbered(4))
    del node.partition("t").batches[0]
    async with client.consumer("t") as consumer:
        with pytest.raises(TidelogError, match="the node skipped records 0 to 1"):
            await anext(consumer)


async def test_refused_subscription_is_raised(node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(connection: FakeConnection, frame: object) -> None:
        connection.fail(frame, pb.FORBIDDEN)  # type: ignore[arg-type] # the frame as it came

    monkeypatch.setattr(FakeConnection, "on_subscribe", refuse)
    async with client.consumer("t") as consumer:
        with pytest.raises(TidelogError, match="scripted") as caught:
            await anext(consumer)
    assert caught.value.code == pb.FORBIDDEN


async def test_retry_reason_is_logged_once_and_retry_hint_is_observed(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked_s: list[float] = []

    def refuse(connection: FakeConnection, frame: Frame) -> None:
        asked_s.append(asyncio.get_running_loop().time())
        error = ProtocolError(pb.EPOCH_CHANGING, "epoch 0 is being fetched", retry_after_ms=100).to_message()
        reply = pb.SubscribeReply(results=[pb.SubscribeResult(error=error)])
        connection.reply(frame, pb.Envelope(subscribe_reply=reply))

    monkeypatch.setattr(FakeConnection, "on_subscribe", refuse)
    async with client.consumer("t"):
        await node.received("subscribe", LOG_AFTER_FAILURES + 2)
    gaps_s = [later - earlier for earlier, later in pairwise(asked_s)]
    assert min(gaps_s) > 0.09
    start = "t/0: cannot subscribe to this partition, still retrying"
    assert [record.message for record in caplog.records if "epoch 0 is being fetched" in record.message] == [
        f"{start}: epoch 0 is being fetched (from 127.0.0.1:{node.port})"
    ]


async def test_storage_failure_is_retried(node: FakeNode, client: Client) -> None:
    assert StorageFailedError("x").retriable
    await publish(node, b"0")
    async with client.consumer("t") as consumer:
        assert await take(consumer, 1) == [b"0"]
        end_all(node, pb.STORAGE_FAILED)
        await publish(node, b"1")
        assert await take(consumer, 1) == [b"1"]


async def test_close_ends_the_iteration(client: Client) -> None:
    consumer = client.consumer("t")
    waiting = asyncio.ensure_future(take(consumer, 1))
    await asyncio.sleep(0)
    await consumer.begin()
    await consumer.close()
    assert await waiting == []


async def test_second_iterating_task_is_refused(node: FakeNode, client: Client) -> None:
    async with client.consumer("t") as consumer:
        first = asyncio.ensure_future(take(consumer, 1))
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="another task is reading"):
            await anext(consumer)
        await publish(node, b"0")
        assert await first == [b"0"]


async def test_new_partitions_are_read(node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.consume.topic_discovery.NEW_PARTITIONS_S", 0.01)
    async with client.consumer("t") as consumer:
        taken = asyncio.ensure_future(take(consumer, 1))
        await node.received("subscribe")
        node.add_topic("t", 2)
        await publish(node, b"late", partition=1)
        assert await taken == [b"late"]


async def test_unknown_topics_and_partitions_are_refused(client: Client) -> None:
    with pytest.raises(UnknownTopicError):
        await client.consumer("nowhere").begin()
    with pytest.raises(UnknownPartitionError):
        await client.consumer("t", partitions=[1]).begin()


@pytest.mark.parametrize(
    "options",
    [{"start": "first"}, {"start": -1}, {"start": {0: -1}}, {"on_out_of_range": "skip"}, {"prefetch_bytes": 0}],
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        Client("127.0.0.1:1").consumer("t", **options)  # type: ignore[arg-type] # that is the point


# ------------------------------------------------------------------- logs with gaps


@pytest.mark.parametrize("start", STARTS)
async def test_compacted_log_is_read_from_any_offset(node: FakeNode, client: Client, start: int) -> None:
    node.partition("t").plant(compacted_log())
    async with client.consumer("t", start=start) as consumer:
        left = survivors_from(start)
        records = [await anext(consumer) for _ in left]
        assert [(record.offset, record.value) for record in records] == [(each, b"%d" % each) for each in left]
        if not left:
            return
        assert consumer.position() == {T0: 62}, "nothing after the last record was requested yet"
        following = asyncio.ensure_future(anext(consumer))
        await publish(node, b"next")
        assert (await following).offset == END_OFFSET


async def test_batches_of_a_compacted_log_are_read(node: FakeNode, client: Client) -> None:
    node.partition("t").plant(compacted_log())
    async with client.consumer("t", start=6) as consumer:
        offsets: list[int] = []
        async for batch in consumer.batches():
            assert len(batch)
            columns: Any = batch.to_arrow()
            assert columns.column("value").to_pylist() == batch.batch.values() == [record.value for record in batch]
            assert columns.column("offset").to_pylist() == [record.offset for record in batch]
            offsets += columns.column("offset").to_pylist()
            if offsets[-1] == SURVIVORS[-1]:
                break
        assert offsets == survivors_from(6)
        last = await consumer.next_batch()
        assert last is not None
        assert (len(last), last.batch.end_offset, list(last), last.to_arrow().num_rows) == (0, END_OFFSET, [], 0)


@pytest.mark.parametrize("start", STARTS)
async def test_compacted_log_is_fetched(node: FakeNode, client: Client, start: int) -> None:
    node.partition("t").plant(compacted_log())
    offset, offsets = start, list[int]()
    while offset < END_OFFSET:
        fetched = await client.fetch("t", 0, offset, max_bytes=1)
        assert fetched.next_offset > offset
        assert all(len(batch) for batch in fetched.batches)
        offsets += [record.offset for batch in fetched.batches for record in batch]
        offset = fetched.next_offset
    assert offsets == survivors_from(start)


async def test_batch_without_records_moves_the_position(node: FakeNode, client: Client) -> None:
    node.partition("t").plant(compacted_log())
    async with client.consumer("t", start=SURVIVORS[-1]) as consumer:
        assert (await anext(consumer)).offset == SURVIVORS[-1]
        await asyncio.sleep(0.05)
        assert await consumer.poll(timeout_s=0.05) == []
        assert consumer.position() == {T0: END_OFFSET}
