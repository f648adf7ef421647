"""Client metrics, called once per batch or frame."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from tests.clients.counted import Counted
from tests.clients.fake_node import Do, FakeNode, Refuse

from tidelog import Client, TopicPartition, sync
from tidelog.errors import BatchTooLargeError, TidelogError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
async def client(node: FakeNode, counted: Counted) -> AsyncIterator[Client]:
    client = Client(f"127.0.0.1:{node.port}", request_timeout_s=5.0, metrics=counted)
    yield client
    await client.abort()


def stored_bytes(node: FakeNode) -> int:
    return sum(len(batch) for batch in node.partition("t").batches)


async def test_metrics_are_called_per_batch_and_not_per_record(
    node: FakeNode, client: Client, counted: Counted
) -> None:
    await client.producer("t").send_many([b"%d" % number for number in range(1000)])
    size_bytes = stored_bytes(node)
    assert counted.of("sent") == [("t", 1000, size_bytes)]
    ((topic, records, acknowledged_bytes, latency_s),) = counted.of("acknowledged")
    assert (topic, records, acknowledged_bytes) == ("t", 1000, size_bytes)
    assert isinstance(latency_s, float)
    assert 0 < latency_s < 5
    (grew,), (shrank,) = [(change,) for _, change in counted.of("buffered")]
    assert isinstance(grew, int)
    assert grew > 1000
    assert shrank == -grew
    assert len(counted.calls) == 4


async def test_latency_of_a_batch_starts_with_its_oldest_record(
    node: FakeNode, client: Client, counted: Counted
) -> None:
    producer, node.hold = client.producer("t", batch_bytes=1), asyncio.Event()
    first = [await producer.enqueue(b"v") for _ in range(2)]
    await asyncio.sleep(0.1)
    node.hold.set()
    await asyncio.gather(*first)
    assert [latency_s > 0.1 for _, _, _, latency_s in counted.of("acknowledged") if isinstance(latency_s, float)] == [
        True,
        True,
    ]


async def test_retries_and_reconnects_are_counted(node: FakeNode, client: Client, counted: Counted) -> None:
    node.script.extend([Do.DROP_AFTER, Refuse(pb.OVERLOADED)])
    await client.producer("t").send(b"v")
    size_bytes = stored_bytes(node)
    assert counted.of("sent") == [("t", 1, size_bytes)]
    assert counted.of("retried") == [("t", 1, size_bytes)] * 2
    assert len(counted.of("acknowledged")) == 1
    assert counted.of("reconnected") == [(f"127.0.0.1:{node.port}",)]
    assert counted.of("failed") == []


async def test_failures_are_counted_by_code_and_leave_the_buffer(
    node: FakeNode, client: Client, counted: Counted
) -> None:
    producer = client.producer("t")
    node.script.append(Refuse(pb.BATCH_TOO_LARGE))
    with pytest.raises(BatchTooLargeError):
        await producer.send_many([b"v"] * 3)
    assert counted.of("failed") == [("t", 3, "BATCH_TOO_LARGE")]
    node.hold = asyncio.Event()
    pending = [await producer.enqueue(b"v") for _ in range(2)]
    await node.received("publish", 2)
    pending.append(await producer.enqueue(b"queued behind those"))
    await client.abort()
    for each in pending:
        with pytest.raises(TidelogError):
            await each
    assert counted.of("failed")[1:] == [("t", 1, "CLIENT"), ("t", 2, "CLIENT")]
    assert sum(change for _, change in counted.of("buffered") if isinstance(change, int)) == 0


async def test_reserved_memory_is_not_buffered_and_callbacks_free_the_buffer(
    node: FakeNode, client: Client, counted: Counted
) -> None:
    node.hold, called = asyncio.Event(), list[object]()

    def buffered() -> int:
        return sum(change for _, change in counted.of("buffered") if isinstance(change, int))

    producer = client.producer("t")
    await producer.begin()
    producer.put(b"v")
    await node.received("publish")
    before = buffered()
    for _ in range(3):  # they accumulate during the batch in flight, in memory reserved for a whole batch
        producer.put(b"v" * 100, on_delivery=lambda receipt, _: called.append(receipt))
    await asyncio.sleep(0)
    assert 300 < buffered() - before < 3000
    node.hold.set()
    await producer.flush()
    assert len(called) == 3
    assert buffered() == 0


async def test_consumed_records_and_lag_are_reported(node: FakeNode, client: Client, counted: Counted) -> None:
    producer = client.producer("t")
    for _ in range(3):
        await producer.send_many([b"v"] * 10)
    sizes = [len(batch) for batch in node.partition("t").batches]
    async with client.consumer("t") as consumer:
        async for record in consumer:
            if record.offset == 9:  # the first batch is taken, the others wait
                break
        assert counted.of("consumed") == [("t", 0, 10, sizes[0])]
        assert counted.of("lag")[-1] == ("t", 0, 20)
        await consumer.seek(0, 25)
        assert counted.of("lag")[-1] == ("t", 0, 5)
        assert (await anext(consumer)).offset == 25
        assert counted.of("consumed")[1:] == [("t", 0, 5, _sliced(node))]
        assert counted.of("lag")[-1] == ("t", 0, 0)
        await producer.send_many([b"v"] * 7)
        # The batch is not taken, and the lag grows.
        while counted.of("lag")[-1] != ("t", 0, 7):  # noqa: ASYNC110 - metrics have no event
            await asyncio.sleep(0.001)
    assert counted.of("lag")[-1] == ("t", 0, None)


def _sliced(node: FakeNode) -> int:
    """Return the size of the last but one batch; its consumed rest keeps the header's length."""
    return unpack_header(node.partition("t").batches[2]).length


async def test_exceptions_of_metrics_are_contained_and_logged_once(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    counted = Counted("sent", "consumed")
    async with Client(f"127.0.0.1:{node.port}", metrics=counted) as client:
        producer = client.producer("t")
        for number in range(2):
            assert (await producer.send(b"v")).offset == number
        async with client.consumer("t") as consumer:
            assert [(await anext(consumer)).offset for _ in range(2)] == [0, 1]
    assert len(counted.of("acknowledged")) == 2
    (told,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "incomplete from now on" in told.message
    assert told.exc_info is not None


async def test_blocking_client_reports_the_same_metrics(node: FakeNode, counted: Counted) -> None:
    def use() -> None:
        with sync.Client(f"127.0.0.1:{node.port}", metrics=counted) as client:
            client.producer("t").send(b"v")
            with client.consumer("t") as consumer:
                next(consumer)

    await asyncio.to_thread(use)
    assert [kind for kind, *_ in counted.calls if kind not in {"buffered", "lag"}] == [
        "sent",
        "acknowledged",
        "consumed",
    ]


async def test_lag_is_per_partition_and_removed_after_unassign(
    node: FakeNode, client: Client, counted: Counted
) -> None:
    await client.producer("t").send_many([b"v"] * 10)
    await client.producer("wide").send_many([b"v"] * 5, partition=3)
    left = TopicPartition("wide", 3)
    async with client.consumer("t", "wide") as consumer:
        assert len(await consumer.poll(15, timeout_s=60.0)) == 15
        consumed = counted.of("consumed")
        assert sorted(call[:3] for call in consumed) == [("t", 0, 10), ("wide", 3, 5)]
        last = {call[:2]: call[2] for call in counted.of("lag")}
        assert last == {("t", 0): 0, ("wide", 3): 0}
        await consumer.unassign([left])
        assert counted.of("lag")[-1] == ("wide", 3, None)
        await consumer.assign({left: 2})
        assert len(await consumer.poll(15, timeout_s=60.0)) == 3
        assert counted.of("consumed")[-1][:3] == ("wide", 3, 3)
        assert counted.of("lag")[-1] == ("wide", 3, 0)
    assert sorted(counted.of("lag")[-2:], key=str) == [("t", 0, None), ("wide", 3, None)]


async def test_batch_put_back_by_a_pause_is_counted_once(node: FakeNode, client: Client, counted: Counted) -> None:
    await client.producer("t").send_many([b"v"] * 10)
    await client.producer("t").send_many([b"v"] * 10)
    where = TopicPartition("t", 0)
    async with client.consumer("t") as consumer:
        assert len(await consumer.poll(4, timeout_s=60.0)) == 4
        consumer.pause(where)
        consumer.resume(where)
        rest: list[int] = []
        while len(rest) < 16:
            rest += [record.offset for record in await consumer.poll(16)]
        assert rest == list(range(4, 20))
        assert [call[2] for call in counted.of("consumed")] == [10, 10]
        await consumer.seek(where, 5)
        assert len(await consumer.poll(5, timeout_s=60.0)) == 5
        assert counted.of("consumed")[2][:3] == ("t", 0, 5), "records sought again are counted again"
