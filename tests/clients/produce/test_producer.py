from __future__ import annotations

import asyncio
import math
import os
from collections import Counter
from collections.abc import Awaitable, Callable

import pyarrow as pa
import pytest
from tests.clients.fake_node import Do, FakeNode, Refuse

from tidelog import Client, Producer
from tidelog.errors import (
    BatchTooLargeError,
    ClosedError,
    CorruptBatchError,
    DeliveryTimeoutError,
    ForkedError,
    InvalidRequestError,
    OutcomeUnknownError,
    TidelogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tidelog.produce.receipts import PendingReceipt
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec, unpack_header
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.batch.record_batch import RecordBatch


async def settled(receipt: PendingReceipt) -> None:
    """Wait until a record has an outcome, without awaiting its receipt."""
    async with asyncio.timeout(20):
        while not receipt.done():  # noqa: ASYNC110 - awaiting the receipt would change the result
            await asyncio.sleep(0.001)


@pytest.fixture
def producer(client: Client) -> Producer:
    return client.producer("t", delivery_timeout_s=5.0)


async def test_record_is_stored_with_all_fields(node: FakeNode, producer: Producer) -> None:
    receipt = await producer.send(b"v", key=b"k", headers=[("h", b"1"), ("h", None)], tag="blue", timestamp_us=12)
    assert receipt == (0, 0, 7)
    (record,) = RecordBatch.parse(node.partition("t").batches[0])
    assert (record.value, record.key, record.tag, record.timestamp_us) == (b"v", b"k", "blue", 12)
    assert record.headers == (("h", b"1"), ("h", None))


async def test_a_tombstone_and_mixed_columns_share_a_batch(node: FakeNode, producer: Producer) -> None:
    pending = [
        await producer.enqueue(b"a"),
        await producer.enqueue(None, key=b"k"),
        await producer.enqueue(b"c", tag="x"),
        await producer.enqueue(b"d", headers=[("n", b"v")]),
    ]
    assert [(await each).offset for each in pending] == [0, 1, 2, 3]
    (batch,) = node.partition("t").batches
    parsed = RecordBatch.parse(batch)
    assert parsed.values() == [b"a", None, b"c", b"d"]
    assert parsed.keys() == [None, b"k", None, None]
    assert parsed.tags() == [None, None, "x", None]
    assert parsed.headers() == [(), (), (), (("n", b"v"),)]


async def test_records_of_one_loop_iteration_are_one_batch(node: FakeNode, producer: Producer) -> None:
    node.hold = asyncio.Event()
    first = [await producer.enqueue(b"1"), await producer.enqueue(b"2")]
    await node.received("publish")
    rest = [await producer.enqueue(b"%d" % i) for i in range(50)]
    assert not first[0].done()
    node.hold.set()
    node.hold = None
    await asyncio.gather(*(each for each in (*first, *rest)))
    assert [[entry[2] for entry in publish] for publish in node.publishes] == [[2], [50]]


async def test_many_values_split_into_batches_and_receipts_find_each(node: FakeNode, client: Client) -> None:
    producer = client.producer("t", batch_bytes=4096)
    values = [b"%06d" % i * 10 for i in range(1000)]
    receipts = await producer.send_many(values)
    assert node.values("t") == values
    assert len(receipts) == 1000
    assert [receipt.offset for receipt in receipts] == list(range(1000))
    assert receipts[-1].offset == 999
    assert [receipt.offset for receipt in receipts[5:8]] == [5, 6, 7]
    assert sum(each.count for each in receipts.ranges) == 1000
    assert len(receipts.ranges) > 5
    with pytest.raises(IndexError):
        receipts[1000]


async def test_keys_choose_partitions_and_receipts_follow_the_input(node: FakeNode, client: Client) -> None:
    keys: list[bytes | None] = [b"key-%d" % (i * 7 % 23) if i % 10 else None for i in range(500)]
    values = [b"%d" % i for i in range(500)]
    receipts = await client.producer("wide").send_many(values, keys=keys)
    for index, (key, value) in enumerate(zip(keys, values, strict=True)):
        receipt = receipts[index]
        assert node.partition("wide", receipt.partition).values()[receipt.offset] == value
        if key is not None:
            assert receipt.partition == partition_for_key(key, 4)
    for number in range(4):
        keyed = [int(value or b"0") for value in node.partition("wide", number).values() if int(value or b"0") % 10]
        assert keyed == sorted(keyed), "records of a partition keep the input order"


async def test_an_explicit_partition_wins_over_keys(node: FakeNode, client: Client) -> None:
    producer = client.producer("wide")
    await producer.send(b"v", key=b"k", partition=3)
    await producer.send_many([b"w"], keys=[b"k"], partition=3)
    assert node.partition("wide", 3).values() == [b"v", b"w"]


async def test_keyless_records_are_spread_over_all_partitions(node: FakeNode, client: Client) -> None:
    producer = client.producer("wide", batch_bytes=1024)
    await producer.send_many([b"x" * 100] * 1000)
    sizes = Counter({number: node.partition("wide", number).end_offset for number in range(4)})
    assert sum(sizes.values()) == 1000
    assert max(sizes.values()) <= 2 * min(sizes.values())


async def test_partitions_of_one_node_share_a_publish(node: FakeNode, client: Client) -> None:
    await client.producer("wide").send_many([b"%d" % i for i in range(100)], keys=[b"%d" % i for i in range(100)])
    assert [sorted(entry[0] for entry in publish) for publish in node.publishes] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_compression(node: FakeNode, client: Client, codec: str) -> None:
    await client.producer("t", compression=codec).send_many([b"same"] * 1000)  # type: ignore[arg-type] # parametrised
    (batch,) = node.partition("t").batches
    assert unpack_header(batch).codec is Codec[codec.upper()]
    assert node.values("t") == [b"same"] * 1000


async def test_arrow_columns_are_published(node: FakeNode, client: Client) -> None:
    table = pa.table({"key": ["a", "b", "a"], "value": [b"1", None, b"3"]})
    receipts = await client.producer("wide").send_arrow(table)
    assert [receipt.partition for receipt in receipts] == [partition_for_key(key, 4) for key in (b"a", b"b", b"a")]
    assert set(node.values("wide")) == {None, b"1", b"3"}
    with pytest.raises(TypeError, match="unknown columns"):
        await client.producer("t").send_arrow(pa.table({"value": [b"1"], "colour": [b"x"]}))


async def test_arrow_integers_are_milliseconds_and_timestamps_have_any_unit(node: FakeNode, client: Client) -> None:
    moment_ms = 1_795_964_400_123
    for stamps in (
        pa.array([moment_ms], pa.int64()),
        pa.array([moment_ms], pa.timestamp("ms")),
        pa.array([moment_ms * 1000], pa.timestamp("us", "UTC")),
        pa.array([moment_ms * 10**6 + 999], pa.timestamp("ns", "Asia/Tokyo")),
    ):
        await client.producer("t").send_arrow(pa.table({"value": [b"a"], "timestamp": stamps}))
        assert RecordBatch.parse(node.partition("t").batches[-1]).columns()["timestamp"].cast(
            pa.int64()
        ).to_pylist() == [moment_ms * 1000]
    count = len(node.partition("t").batches)
    with pytest.raises(
        ValueError, match=f"column timestamp: {moment_ms * 1000} is .* in microseconds.* pass {moment_ms}"
    ):
        await client.producer("t").send_arrow(pa.table({"value": [b"a"], "timestamp": [moment_ms * 1000]}))
    assert len(node.partition("t").batches) == count


# ------------------------------------------------------------------------------------------ faults and retries


@pytest.mark.parametrize(
    "fault",
    [
        Do.DROP_BEFORE,
        Do.DROP_AFTER,
        Do.GARBAGE,
        Do.WRONG_KIND,
        Refuse(pb.OVERLOADED, retry_after_ms=1),
        Refuse(pb.NOT_OWNER),
        Refuse(pb.TIMED_OUT),
        Refuse(pb.EPOCH_CHANGING),
        Refuse(pb.INTERNAL),
    ],
)
async def test_a_retried_batch_is_stored_once(node: FakeNode, producer: Producer, fault: Do | Refuse) -> None:
    node.script.extend([Do.STORE, fault, fault])
    assert (await producer.send(b"first")).offset == 0
    assert (await producer.send(b"second")).offset == 1
    assert (await producer.send(b"third")).offset == 2
    assert node.values("t") == [b"first", b"second", b"third"]
    assert len(node.publishes) == 5


@pytest.mark.parametrize("fault", [Do.SILENT_BEFORE, Do.SILENT_AFTER])
async def test_unanswered_publish_is_resent(node: FakeNode, fault: Do) -> None:
    node.script.append(fault)
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.5) as client:
        assert (await client.producer("t").send(b"v")).offset == 0
    assert node.values("t") == [b"v"]


@pytest.mark.parametrize("fault", [Do.DROP_BEFORE, Do.DROP_AFTER, Refuse(pb.OVERLOADED), Do.SILENT_AFTER])
@pytest.mark.parametrize("at", [0, 1, 2, 3])
async def test_pipelined_batches_keep_their_order_through_a_fault(node: FakeNode, fault: Do | Refuse, at: int) -> None:
    node.script.extend([Do.STORE] * at + [fault])
    values = [b"%04d" % i * 25 for i in range(200)]
    async with Client(f"127.0.0.1:{node.port}", request_timeout_s=0.5) as client:
        receipts = await client.producer("t", batch_bytes=2048).send_many(values)
    assert node.values("t") == values
    assert [receipt.offset for receipt in receipts] == list(range(200))


async def test_refused_batch_fails_alone_and_later_ones_are_renumbered(node: FakeNode, client: Client) -> None:
    node.script.extend([Do.STORE, Refuse(pb.CORRUPT_BATCH)])
    producer = client.producer("t", batch_bytes=2048)
    pieces = [await producer.enqueue_many([b"%d" % i * 2000]) for i in range(6)]
    outcomes = await asyncio.gather(*(piece for piece in pieces), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(CorruptBatchError) == 1
    assert isinstance(outcomes[1], CorruptBatchError)
    assert outcomes[1].definite
    assert node.values("t") == [b"%d" % i * 2000 for i in (0, 2, 3, 4, 5)]


async def test_a_refusal_after_an_unknown_outcome_is_not_definite(node: FakeNode, producer: Producer) -> None:
    node.script.extend([Do.DROP_AFTER, Refuse(pb.CORRUPT_BATCH)])
    with pytest.raises(OutcomeUnknownError) as caught:
        await producer.send(b"maybe")
    assert not caught.value.definite
    assert (await producer.send(b"next")).offset == 1
    assert node.values("t") == [b"maybe", b"next"]


async def test_forgotten_producer_begins_a_new_epoch_without_batches_in_doubt(
    node: FakeNode, producer: Producer
) -> None:
    await producer.send(b"one")
    node.partition("t").producers = type(node.partition("t").producers)()
    assert (await producer.send(b"two")).offset == 1
    assert node.values("t") == [b"one", b"two"]


async def test_forgotten_producer_with_batch_in_doubt_has_unknown_outcome(node: FakeNode, producer: Producer) -> None:
    await producer.send(b"one")

    def forget(_: pb.Publish) -> Do:
        node.partition("t").producers = type(node.partition("t").producers)()
        return Do.STORE

    node.script.extend([Do.DROP_AFTER, forget])
    with pytest.raises(OutcomeUnknownError):
        await producer.send(b"two")
    assert (await producer.send(b"three")).offset == 2
    assert node.values("t") == [b"one", b"two", b"three"]


async def test_the_delivery_deadline(node: FakeNode, client: Client) -> None:
    node.script.extend([Refuse(pb.OVERLOADED)] * 100)
    producer = client.producer("t", delivery_timeout_s=1)
    with pytest.raises(DeliveryTimeoutError, match="scripted") as caught:
        await producer.send(b"never")
    assert caught.value.definite
    node.script.clear()
    assert (await producer.send(b"later")).offset == 0


async def test_producer_waits_for_an_unreachable_node(node: FakeNode, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b"one")
    port = node.port
    await node.stop()
    pending = await producer.enqueue(b"two")
    await asyncio.sleep(0.05)  # lets some attempts fail; the outcome does not depend on how many
    await node.start(port)
    assert (await pending).offset == 1


async def test_an_unknown_topic_or_partition_fails_at_once(client: Client) -> None:
    with pytest.raises(UnknownTopicError):
        await client.producer("nowhere").send(b"v")
    with pytest.raises(UnknownPartitionError):
        await client.producer("wide").send(b"v", partition=4)
    with pytest.raises(UnknownPartitionError):
        await client.producer("wide").send_many([b"v"], partition=-1)


async def test_producer_of_deleted_topic_fails(node: FakeNode, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b"v")
    await client.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        await producer.send(b"w")
    node.add_topic("t", topic_id=b"anew".ljust(16))
    for way in (producer.send(b"x"), producer.send_many([b"x"])):
        with pytest.raises(UnknownTopicError, match="create a new producer"):
            await way
    assert node.values("t") == [], "a recreated topic is another topic"
    assert (await client.producer("t").send(b"y")).offset == 0


@pytest.mark.parametrize("awaited_late", [False, True])
async def test_awaited_error_is_not_raised_by_flush(node: FakeNode, client: Client, *, awaited_late: bool) -> None:
    producer = client.producer("t")
    node.script.append(Refuse(pb.BATCH_TOO_LARGE))
    receipt = await producer.enqueue(b"v")
    if awaited_late:
        await settled(receipt)
    with pytest.raises(BatchTooLargeError):
        await receipt
    node.script.append(Refuse(pb.INVALID_REQUEST))
    await settled(await producer.enqueue(b"w"))
    with pytest.raises(InvalidRequestError):
        await producer.flush()
    await producer.close()


async def test_unreported_failures_are_bounded(node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.produce.unreported_failures.FAILED_MAX", 3)
    producer = client.producer("t")
    await producer.send(b"v")
    for code in (pb.BATCH_TOO_LARGE, *[pb.INVALID_REQUEST] * 5):
        node.script.append(Refuse(code))
        await settled(await producer.enqueue(b"v"))
    assert len(producer._failures.failed) == 3
    with pytest.raises(BatchTooLargeError):
        await producer.close()


# ------------------------------------------------------------------------------------------- bounds, lifecycle


async def test_all_producers_refuse_records_from_the_beginning_of_the_clients_end(client: Client) -> None:
    columns = pa.record_batch({"value": [b"v"]})
    producers = [client.producer("t") for _ in range(2)]
    refused: list[str] = []
    for producer in producers:
        await producer.send_arrow(columns)
        await producer.send_arrow(columns)  # with a route that the first call has looked up
        aborted = producer.abort

        async def abort(aborted: Callable[[], Awaitable[None]] = aborted) -> None:
            for each in producers:
                with pytest.raises(ClosedError, match="client is closed") as error:
                    await each.enqueue_arrow(columns)
                refused.append(str(error.value))
            await aborted()

        producer.abort = abort  # type: ignore[method-assign]
    await client.abort()
    assert len(refused) == 4


async def test_other_process_is_refused_at_the_next_check(producer: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = pa.record_batch({"value": [b"v"]})
    await producer.send_arrow(columns)
    await producer.send_arrow(columns)  # with a route that the first call has looked up
    monkeypatch.setattr(os, "getpid", lambda: -1)
    producer.recheck()
    with pytest.raises(ForkedError):
        await producer.enqueue_arrow(columns)
    monkeypatch.undo()


async def test_full_buffer_makes_callers_wait(node: FakeNode, client: Client) -> None:
    node.hold = asyncio.Event()
    producer = client.producer("t", buffer_bytes=1000)
    first = await producer.enqueue(b"x" * 800)
    second = asyncio.ensure_future(producer.enqueue(b"y" * 800))
    third = asyncio.ensure_future(producer.enqueue(b"z"))
    await node.received("publish")
    assert not second.done()
    assert not third.done(), "a small record does not overtake a large one"
    second.cancel()
    node.hold.set()
    await first
    await (await third)
    assert node.values("t") == [b"x" * 800, b"z"]


async def test_record_larger_than_the_buffer_is_sent(client: Client) -> None:
    producer = client.producer("t", buffer_bytes=100)
    assert (await producer.send(b"x" * 1000)).offset == 0
    assert (await producer.send_many([b"x" * 1000, b"y" * 1000]))[1].offset == 2


async def test_too_large_record_does_not_fail_others(client: Client, producer: Producer) -> None:
    small = await producer.enqueue(b"small")
    large = await producer.enqueue(b"x" * (17 * 1024 * 1024))
    after = await producer.enqueue(b"after")
    with pytest.raises(BatchTooLargeError):
        await large
    assert [(await small).offset, (await after).offset] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "text"}, TypeError),
        ({"value": b"", "key": "text"}, TypeError),
        ({"value": b"", "tag": b"bytes"}, TypeError),
        ({"value": b"", "tag": "x" * 5000}, ValueError),
        ({"value": b"", "tag": "\ud800"}, ValueError),
        ({"value": b"", "headers": [("a",)]}, TypeError),
        ({"value": b"", "headers": [(b"a", b"b")]}, TypeError),
        ({"value": b"", "timestamp_us": 1.5}, TypeError),
        ({"value": b"", "timestamp_us": 2**63}, ValueError),
        ({"value": b"", "timestamp_us": -1}, ValueError),
    ],
)
async def test_invalid_record_is_refused_before_it_is_appended(
    producer: Producer, arguments: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await producer.enqueue(**arguments)  # type: ignore[arg-type] # refused at runtime


@pytest.mark.parametrize(
    "options",
    [
        {"acks": 1},
        {"compression": "rar"},
        {"buffer_bytes": 0},
        {"buffer_bytes": math.nan},
        {"delivery_timeout_s": math.nan},
    ],
)
async def test_wrong_options_are_refused(client: Client, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError):
        client.producer("t", **options)  # type: ignore[arg-type] # refused at runtime


async def test_flush_waits_for_all_and_raises_unawaited_failure(node: FakeNode, producer: Producer) -> None:
    for i in range(10):
        await producer.enqueue(b"%d" % i)
    await producer.flush()
    assert len(node.values("t")) == 10
    node.script.append(Refuse(pb.CORRUPT_BATCH))
    await producer.enqueue(b"refused")
    with pytest.raises(CorruptBatchError):
        await producer.flush()
    await producer.flush()


async def test_a_failure_that_was_awaited_is_not_raised_again(node: FakeNode, producer: Producer) -> None:
    node.script.append(Refuse(pb.CORRUPT_BATCH))
    with pytest.raises(CorruptBatchError):
        await producer.send(b"refused")
    await producer.flush()


async def test_leaving_the_context_flushes(node: FakeNode, client: Client) -> None:
    async with client.producer("t") as producer:
        await producer.enqueue(b"v")
    assert node.values("t") == [b"v"]
    with pytest.raises(ClosedError):
        await producer.send(b"w")


async def test_closing_the_client_flushes_its_producers(node: FakeNode) -> None:
    async with Client(f"127.0.0.1:{node.port}") as client:
        await client.producer("t").enqueue(b"v")
    assert node.values("t") == [b"v"]


async def test_abort_fails_pending_records(node: FakeNode, client: Client) -> None:
    await node.stop()
    node.topics.clear()
    async with Client(f"127.0.0.1:{node.port}") as other:
        producer = other.producer("t")
        sending = asyncio.ensure_future(producer.send(b"v"))
        await asyncio.sleep(0)
        await other.abort()
        with pytest.raises(TidelogError):
            await sending


async def test_cancelled_waiter_does_not_cancel_others(node: FakeNode, producer: Producer) -> None:
    node.hold = asyncio.Event()
    sends = [asyncio.ensure_future(producer.send(b"%d" % i)) for i in range(3)]
    await node.received("publish")
    sends[1].cancel()
    node.hold.set()
    assert [(await sends[index]).offset for index in (0, 2)] == [0, 2]


async def test_partitions_with_two_owners_are_sent_to_each(node: FakeNode, client: Client) -> None:
    other = FakeNode()
    other.node_id = "fake-2"
    await other.start()
    other.add_topic("wide", 4)
    node.others.append(pb.NodeInfo(node_id="fake-2", host="127.0.0.1", port=other.port))
    node.owner_of = {1: "fake-2", 2: "fake-2"}
    try:
        producer = client.producer("wide")
        await asyncio.gather(*(producer.send(b"%d" % number, partition=number) for number in range(4)))
        assert node.values("wide") == [b"0", b"3"]
        assert other.values("wide") == [b"1", b"2"]
    finally:
        await client.abort()
        await other.stop()


async def test_a_partition_that_moves_is_followed(node: FakeNode, client: Client) -> None:
    other = FakeNode()
    other.node_id = "fake-2"
    await other.start()
    other.add_topic("t")
    try:
        producer = client.producer("t")
        await producer.send(b"before")
        node.others.append(pb.NodeInfo(node_id="fake-2", host="127.0.0.1", port=other.port))
        node.owner_of = {0: "fake-2"}
        node.epoch = 1
        # The new owner of this test does not know the producer; real owners do.
        node.script.extend([Refuse(pb.NOT_OWNER)] * 1000)  # until the client's metadata is refreshed
        await producer.send(b"after")
        assert node.values("t") == [b"before"]
        assert other.values("t") == [b"after"]
    finally:
        await client.abort()
        await other.stop()
