"""`Producer.put` and delivery callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.clients.fake_node import Do, FakeNode, Refuse

from tidelog import Client, Producer, Receipt, TidelogError
from tidelog.errors import (
    BufferFullError,
    ClosedError,
    CorruptBatchError,
    InvalidRequestError,
    NotBegunError,
    SerializationError,
    UnknownPartitionError,
    UnknownTopicError,
    WrongEventLoopError,
)
from tidelog.produce import delivery_callbacks
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.batch.record_batch import RecordBatch

Told = list[tuple[Receipt | None, TidelogError | None]]


def recording(told: Told) -> Any:
    return lambda receipt, error: told.append((receipt, error))


async def test_records_of_a_loop_are_one_batch_with_receipts(node: FakeNode, client: Client) -> None:
    async with client.producer("t") as producer:
        receipts = [producer.put(b"%d" % number) for number in range(100)]
        assert not receipts[0].done()
        assert [(await receipt).offset for receipt in receipts] == list(range(100))
    assert [[entry[2] for entry in publish] for publish in node.publishes] == [[100]]


async def test_all_fields_of_a_record_are_stored(node: FakeNode, client: Client) -> None:
    async with client.producer("t") as producer:
        producer.put(b"a")
        producer.put(None, key=b"k")
        producer.put(b"c", key=b"k", tag="x", headers=[("n", b"v")])
        producer.put(b"d")
        await producer.flush()
        producer.put(b"e", timestamp_us=12)
        producer.put(b"f")
    first, second, third = map(RecordBatch.parse, node.partition("t").batches)
    assert first.values() == [b"a", None, b"c", b"d"]
    assert first.keys() == [None, b"k", b"k", None]
    assert first.tags() == [None, None, "x", None]
    assert first.headers() == [(), (), (("n", b"v"),), ()]
    assert [record.timestamp_us for record in second] == [12]
    assert third.values() == [b"f"]


@pytest.mark.parametrize("count", [10, 1_000])
async def test_records_of_a_key_keep_their_order_in_one_partition(node: FakeNode, client: Client, count: int) -> None:
    async with client.producer("wide") as producer:
        keys = [None if number % 7 == 0 else b"key-%d" % (number % 23) for number in range(count)]
        receipts = [producer.put(b"%d" % number, key=key) for number, key in enumerate(keys)]
        for number, (key, pending) in enumerate(zip(keys, receipts, strict=True)):
            receipt = await pending
            assert node.partition("wide", receipt.partition).values()[receipt.offset] == b"%d" % number
            assert key is None or receipt.partition == partition_for_key(key, 4)
    for partition in range(4):
        numbers = [int(value or b"") for value in node.partition("wide", partition).values()]
        assert numbers == sorted(numbers)
    sent_to = [entry[0] for publish in node.publishes for entry in publish]
    assert len(sent_to) == len(set(sent_to)), "one batch for each partition"


async def test_order_is_kept_across_all_publishing_calls(node: FakeNode, client: Client) -> None:
    node.hold = asyncio.Event()
    async with client.producer("wide") as producer:
        for number in range(0, 300, 5):
            producer.put(b"%d" % number, key=b"k")
            producer.put(b"%d" % (number + 1), partition=partition_for_key(b"k", 4))
            await producer.enqueue(b"%d" % (number + 2), key=b"k", tag="t")
            await producer.enqueue_many([b"%d" % (number + 3)], keys=[b"k"])
            producer.put(b"%d" % (number + 4), key=b"k", timestamp_us=number)
            if number % 50 == 0:
                await asyncio.sleep(0)
        node.hold.set()
    assert node.partition("wide", partition_for_key(b"k", 4)).values() == [b"%d" % number for number in range(300)]


async def test_put_before_begin_is_refused(node: FakeNode, client: Client) -> None:
    producer = client.producer("t")
    with pytest.raises(NotBegunError, match="begin"):
        producer.put(b"v")
    await producer.begin()
    await producer.begin()
    producer.put(b"v")
    await producer.close()
    with pytest.raises(ClosedError):
        producer.put(b"w")
    with pytest.raises(ClosedError):
        await producer.ready()
    assert node.values("t") == [b"v"]
    with pytest.raises(UnknownTopicError):
        await client.producer("nowhere").begin()
    with pytest.raises(UnknownTopicError):
        async with client.producer("nowhere"):
            pass


async def test_put_into_full_buffer_is_refused_until_memory_is_free(node: FakeNode, client: Client) -> None:
    node.hold = asyncio.Event()
    async with client.producer("t", buffer_bytes=1_000) as producer:
        producer.put(b"x" * 800)
        with pytest.raises(BufferFullError, match="ready"):
            producer.put(b"y" * 800)
        with pytest.raises(BufferFullError, match="ready") as caught:
            producer.put(b"y" * 800)
        assert caught.value.definite
        assert caught.value.retriable
        ready = asyncio.ensure_future(producer.ready())
        await node.received("publish")
        assert not ready.done()
        node.hold.set()
        await ready
        producer.put(b"z" * 800)
    assert node.values("t") == [b"x" * 800, b"z" * 800]


async def test_record_larger_than_the_buffer_is_sent_alone(node: FakeNode, client: Client) -> None:
    async with client.producer("t", buffer_bytes=100) as producer:
        for letter in (b"a", b"b"):
            while True:
                try:
                    producer.put(letter * 5_000)
                    break
                except BufferFullError:
                    await producer.ready()
    assert node.values("t") == [b"a" * 5_000, b"b" * 5_000]


async def test_put_does_not_overtake_waiting_calls(node: FakeNode, client: Client) -> None:
    node.hold = asyncio.Event()
    async with client.producer("t", buffer_bytes=1_000) as producer:
        producer.put(b"a" * 500)
        waiting = asyncio.ensure_future(producer.enqueue(b"b" * 800))
        await node.received("publish")
        with pytest.raises(BufferFullError):
            producer.put(b"c")
        node.hold.set()
        await waiting
        await producer.ready()
        producer.put(b"c")
    assert [(value or b"")[:1] for value in node.values("t")] == [b"a", b"b", b"c"]


async def put_ready(producer: Producer, value: bytes, timeout_s: float | None = None) -> None:
    while True:
        try:
            producer.put(value, key=b"k")
            break
        except BufferFullError:
            ready = producer.ready()
            await (ready if timeout_s is None else asyncio.wait_for(ready, timeout_s))


async def put_wait_for(producer: Producer, value: bytes) -> None:
    await put_ready(producer, value, 30)


async def put_once_ready(producer: Producer, value: bytes) -> None:
    try:
        producer.put(value, key=b"k")
    except BufferFullError:
        await producer.ready()
        producer.put(value, key=b"k")


async def enqueue(producer: Producer, value: bytes) -> None:
    await producer.enqueue(value, key=b"k")


async def enqueue_list(producer: Producer, value: bytes) -> None:
    await producer.enqueue_many([value], keys=[b"k"])


@pytest.mark.parametrize(
    "ways",
    [
        [put_ready] * 2,
        [put_once_ready] * 10,
        [put_wait_for] * 5,
        [put_ready] + [enqueue] * 3,
        [put_ready, put_wait_for, put_once_ready, enqueue, enqueue_list] * 4,
    ],
)
async def test_tasks_that_share_a_full_producer_all_make_progress_in_order(
    node: FakeNode, client: Client, ways: list[Callable[[Producer, bytes], Awaitable[None]]]
) -> None:
    async def work(number: int, give: Callable[[Producer, bytes], Awaitable[None]]) -> None:
        for index in range(40):
            await give(producer, b"%d %d" % (number, index) + b" " * 300)

    async with client.producer("t", buffer_bytes=2_000) as producer, asyncio.timeout(20):
        await asyncio.gather(*(work(number, give) for number, give in enumerate(ways)))
    stored: dict[int, list[int]] = {}
    for value in node.values("t"):
        number, index = (value or b"").split()
        stored.setdefault(int(number), []).append(int(index))
    assert stored == {number: list(range(40)) for number in range(len(ways))}


async def test_put_after_ready_goes_ahead_of_later_waiters(node: FakeNode, client: Client) -> None:
    node.hold = asyncio.Event()
    async with client.producer("t", buffer_bytes=1_000) as producer:
        producer.put(b"a" * 800)
        with pytest.raises(BufferFullError):
            producer.put(b"b" * 800)
        waiting = asyncio.ensure_future(producer.ready())
        behind = asyncio.ensure_future(producer.enqueue(b"c" * 800))
        await node.received("publish")
        node.hold.set()
        await waiting
        producer.put(b"b" * 800)
        await behind
    assert [(value or b"")[:1] for value in node.values("t")] == [b"a", b"b", b"c"]


async def test_loop_without_await_sends_full_batches(node: FakeNode, client: Client) -> None:
    async with client.producer("t", batch_bytes=10_000) as producer:
        await producer.send(b"first")
        for number in range(1_000):
            producer.put(b"%d" % number)
        await producer.flush()
        receipts = [await producer.enqueue(b"%d" % number) for number in range(1_000)]
        assert receipts[0].done(), "the producer yields to the event loop once for each batch"
        await producer.flush()
    assert node.values("t") == [b"first", *[b"%d" % number for number in range(1_000)] * 2]
    assert max(entry[2] for publish in node.publishes for entry in publish) <= 10_000 // 97


async def test_loop_of_enqueue_many_sends_batches_before_it_ends(node: FakeNode, client: Client) -> None:
    async with client.producer("t", batch_bytes=10_000) as producer:
        await producer.send(b"first")
        pending = [await producer.enqueue_many([b"%d" % number] * 100) for number in range(100)]
        assert pending[0].done()
        assert not pending[-1].done()
    assert node.values("t") == [b"first", *[b"%d" % (number // 100) for number in range(10_000)]]


async def test_batch_of_empty_records_is_limited_by_record_count(node: FakeNode, client: Client) -> None:
    async with client.producer("t", batch_bytes=64 << 20) as producer:
        for _ in range(70_000):
            producer.put(None)
    assert [entry[2] for publish in node.publishes for entry in publish] == [65_536, 4_464]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "text"}, TypeError),
        ({"value": b"", "key": "text"}, TypeError),
        ({"value": b"", "tag": "x" * 5000}, ValueError),
        ({"value": b"", "headers": [("a",)]}, TypeError),
        ({"value": b"", "timestamp_us": -1}, ValueError),
        ({"value": b"", "on_delivery": 7}, TypeError),
        ({"value": b"", "partition": 1}, UnknownPartitionError),
        ({"value": b"", "partition": -1}, UnknownPartitionError),
    ],
)
async def test_invalid_record_is_refused_and_others_are_stored(
    node: FakeNode, client: Client, arguments: dict[str, Any], error: type[Exception]
) -> None:
    async with client.producer("t") as producer:
        for _ in range(2):  # the second is appended to the open batch
            with pytest.raises(error):
                producer.put(**arguments)
            producer.put(b"v")
    assert node.values("t") == [b"v", b"v"]


async def test_lists_of_text_are_refused_by_every_call(node: FakeNode, client: Client) -> None:
    texts: Any = ["a", "b"]
    async with client.producer("t") as producer:
        for call in (producer.send_many, producer.enqueue_many):
            with pytest.raises(TypeError, match="got str"):
                await call(texts)
            with pytest.raises(TypeError, match="got str"):
                await call([b"a"], keys=texts)
            with pytest.raises(TypeError, match="got str"):
                await call("")
        await producer.send_many([b"v"])
    assert node.values("t") == [b"v"]


async def test_recreated_topic_gets_no_records_of_the_old_one(node: FakeNode, client: Client) -> None:
    producer = client.producer("t")
    await producer.send(b"v")
    await client.delete_topic("t")
    with pytest.raises(NotBegunError):
        producer.put(b"w")
    node.add_topic("t", topic_id=b"anew".ljust(16))
    with pytest.raises(UnknownTopicError, match="create a new producer"):
        await producer.begin()
    with pytest.raises(UnknownTopicError, match="create a new producer"):
        producer.put(b"w")
    assert node.values("t") == []


async def test_abort_fails_the_open_batch(client: Client) -> None:
    told: Told = []
    producer = client.producer("t")
    await producer.begin()
    pending = producer.put(b"v", on_delivery=recording(told))
    await producer.abort()
    with pytest.raises(ClosedError):
        await pending
    await asyncio.sleep(0)
    assert [(receipt, type(error)) for receipt, error in told] == [(None, ClosedError)]


# ----------------------------------------------------------------------------------------------- callbacks


async def test_callback_gets_receipt_and_flush_waits_for_it(node: FakeNode, client: Client) -> None:
    told: Told = []
    async with client.producer("wide") as producer:
        for number in range(300):
            key = b"%d" % number if number % 3 else None
            producer.put(b"%d" % number, key=key, on_delivery=recording(told) if number % 2 else None)
        await producer.flush()
        assert len(told) == 150
    values = [node.partition("wide", receipt.partition).values()[receipt.offset] for receipt, _ in told if receipt]
    assert sorted(int(value or b"") for value in values) == list(range(1, 300, 2))
    assert all(error is None for _, error in told)


async def test_flush_raises_failures_without_callback(node: FakeNode, client: Client) -> None:
    told: Told = []
    producer = client.producer("t")
    await producer.begin()
    node.script.append(Refuse(pb.CORRUPT_BATCH))
    producer.put(b"a", on_delivery=recording(told))
    await producer.flush()
    assert [(receipt, type(error)) for receipt, error in told] == [(None, CorruptBatchError)]
    node.script.append(Refuse(pb.CORRUPT_BATCH))
    producer.put(b"a", on_delivery=recording(told))
    producer.put(b"a", on_delivery=recording(told))
    producer.put(b"b")
    with pytest.raises(CorruptBatchError):
        await producer.flush()
    assert len(told) == 3
    assert told[1][1] is not told[2][1], "each error can be raised and get notes independently"


async def test_error_of_a_callback_is_reported_and_others_are_called(node: FakeNode, client: Client) -> None:
    told: Told = []
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))

    def bad(*_: object) -> None:
        raise RuntimeError("mine")

    async with client.producer("t") as producer:
        producer.put(b"a", on_delivery=bad)
        producer.put(b"b", on_delivery=recording(told))
    assert len(told) == 1
    assert [str(context["exception"]) for context in seen] == ["mine"]


async def test_callbacks_are_called_in_slices_before_memory_is_released(
    node: FakeNode, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_callbacks, "SLICE", 3)
    turns = 0
    at: list[int] = []
    async with client.producer("t", buffer_bytes=1_000) as producer:
        for _ in range(7):
            producer.put(b"v", on_delivery=lambda _receipt, _error: at.append(turns))
        while len(at) < 7:
            turns += 1
            await asyncio.sleep(0)
            if 0 < len(at) < 7:
                with pytest.raises(BufferFullError):
                    producer.put(b"x" * 800)
        await producer.ready()
        producer.put(b"x" * 800)
    assert [at.count(turn) for turn in sorted(set(at))] == [3, 3, 1]


# --------------------------------------------------------------------------------- serializers, partitioners


async def test_serializers_apply_to_every_call(node: FakeNode, client: Client) -> None:
    async with client.producer("t", key_serializer="utf-8", value_serializer="json") as producer:
        producer.put({"a": 1}, key="k")
        await producer.enqueue([2])
        await producer.send_many([3, None], keys=["x", None])
        producer.put("text")
        for value, key in ((b"bytes", "k"), (1, b"bytes")):
            with pytest.raises(SerializationError):
                producer.put(value, key=key)
        with pytest.raises(SerializationError):
            await producer.send_many([1, b"bytes"])
        with pytest.raises(SerializationError):
            await producer.send(object())
    assert node.values("t") == [b'{"a":1}', b"[2]", b"3", None, b'"text"']


@pytest.mark.parametrize("partitioner", ["crc32", lambda key, count: len(key or b"") % count])
async def test_partitioner_applies_to_every_call_without_explicit_partition(
    node: FakeNode, client: Client, partitioner: Any
) -> None:
    async with client.producer("wide", partitioner=partitioner) as producer:
        one = producer.put(b"a", key=b"ab")
        many = await producer.send_many([b"b", b"c"], keys=[b"ab", b"abc"])
        given = await producer.send(b"d", key=b"ab", partition=3)
        assert ((await one).partition, many[0].partition, many[1].partition, given.partition) == (
            (1, 1, 2, 3) if partitioner == "crc32" else (2, 2, 3, 3)
        )
    async with client.producer("wide", partitioner="round_robin") as producer:
        receipts = await producer.send_many([b"x"] * 6)
        assert [receipt.partition for receipt in receipts] == [0, 1, 2, 3, 0, 1]


async def test_failing_partitioner_accepts_nothing(node: FakeNode, client: Client) -> None:
    def fails(key: bytes | None, _: int) -> int:
        if key == b"bad":
            raise KeyError("mine")
        return 0

    async with client.producer("wide", partitioner=fails) as producer:
        with pytest.raises(KeyError, match="mine"):
            producer.put(b"v", key=b"bad")
        with pytest.raises(KeyError, match="mine"):
            await producer.enqueue(b"v", key=b"bad")
        with pytest.raises(KeyError, match="mine"):
            await producer.send_many([b"v", b"w"], keys=[b"good", b"bad"])
        await producer.send(b"v")
    assert node.values("wide") == [b"v"]


async def test_producer_has_its_own_request_timeout(node: FakeNode, client: Client) -> None:
    seen: list[int] = []

    def look(publish: pb.Publish) -> Any:
        seen.append(publish.timeout_ms)
        return Do.STORE

    node.script.extend([look, look])
    async with client.producer("t", request_timeout_s=0.75) as producer:
        await producer.send(b"v")
    async with client.producer("t") as other:
        await other.send(b"v")
    assert seen[0] == 750
    assert seen[1] > 750


@pytest.mark.parametrize(
    "options",
    [{"request_timeout_s": 0}, {"request_timeout_s": float("nan")}, {"partitioner": "md5"}, {"value_serializer": "x"}],
)
def test_wrong_options_are_refused(client: Client, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        client.producer("t", **options)


async def test_put_in_another_loop_is_refused(client: Client) -> None:
    producer: Producer = client.producer("t")
    await producer.begin()
    with pytest.raises(WrongEventLoopError):
        await asyncio.to_thread(producer.put, b"v")


async def test_unknown_partition_does_not_fail_other_records(node: FakeNode, client: Client) -> None:
    wrong: Any = True
    async with client.producer("t") as producer:
        before = producer.put(b"a")
        for call in (producer.put, producer.send, producer.enqueue):
            with pytest.raises(TypeError, match="partition must be an integer"):
                await call(b"b", partition=wrong)
        for many in (producer.send_many, producer.enqueue_many):
            with pytest.raises(TypeError, match="partition must be an integer"):
                await many([b"b"], partition=wrong)
        with pytest.raises(TypeError, match="partition must be an integer"):
            await producer.send_arrow(pa.table({"value": [b"b"]}), partition=wrong)
        assert (await before).offset == 0
    assert node.values("t") == [b"a"]
