from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
import pytest
from tests.clients.fake_node import FakeNode, Refuse

from tidelog import Client, Producer
from tidelog.errors import ClosedError, CorruptBatchError
from tidelog.model import Receipt
from tidelog.produce.open_batch import RecordLists, record_size_bytes
from tidelog.produce.receipts import PendingRows
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import columns_of
from tidelog_proto.batch.key_partitions import partition_for_key
from tidelog_proto.batch.record_batch import RecordBatch


async def begun(client: Client, topic: str = "t", **options: Any) -> Producer:
    producer = client.producer(topic, **options)
    await producer.begin()
    return producer


def put(producer: Producer, rows: RecordLists) -> PendingRows:
    pending = producer.bulk_appender.put(rows)
    assert pending is not None
    return pending


def test_lists_have_the_size_of_their_records() -> None:
    rows = RecordLists([b"abc", None], [None, b"k"], [[("h", b"1"), ("i", None)], []], ["tag", None], [0, None], [1, 2])
    each = record_size_bytes(b"abc", None, [("h", b"1"), ("i", None)], "tag") + record_size_bytes(None, b"k", [], None)
    assert rows.size_bytes() == each


async def test_lists_and_single_records_share_a_batch_in_order(node: FakeNode, client: Client) -> None:
    producer = await begun(client)
    before = await producer.enqueue(b"0")
    first = put(producer, RecordLists([b"1", None], keys=[b"k", None], tags=[None, "x"]))
    between = producer.put(b"3", key=b"m")
    second = put(producer, RecordLists([b"4"], headers=[[("h", b"v")]]))
    await asyncio.gather(first.settled(), second.settled())
    assert [(await before).offset, (await between).offset] == [0, 3]
    assert [tuple(place) if (place := each.stored_at()) else None for each in (first, second)] == [(0, 1, 2), (0, 4, 1)]
    assert [outcome.offset for outcome in first.outcomes() if isinstance(outcome, Receipt)] == [1, 2]
    (batch,) = node.partition("t").batches
    parsed = RecordBatch.parse(batch)
    assert parsed.values() == [b"0", b"1", None, b"3", b"4"]
    assert parsed.keys() == [None, b"k", None, b"m", None]
    assert parsed.tags() == [None, None, "x", None, None]
    assert parsed.headers() == [(), (), (), (), (("h", b"v"),)]


def columns(count: int = 3, *, size: int = 10, keyed: bool = False) -> pa.RecordBatch:
    values = [b"%0*d" % (size, number) for number in range(count)]
    return columns_of(values, keys=values if keyed else None)


async def test_columns_are_stored_after_earlier_records(node: FakeNode, client: Client) -> None:
    producer = await begun(client)
    before = await producer.enqueue(b"before")
    pending = producer.bulk_appender.put_columns(columns(), 0)
    assert pending is not None
    assert [(one.partition, one.base_offset, one.stored, one.error) for one in await pending.settled()] == [
        (0, 1, 3, None)
    ]
    assert (await before).offset == 0
    stored = [value for batch in node.partition("t").batches for value in RecordBatch.parse(batch).values()]
    assert stored == [b"before", *columns().column("value").to_pylist()]


async def test_columns_that_need_waiting_or_splitting_are_not_accepted(client: Client) -> None:
    unknown = client.producer("t")
    assert unknown.bulk_appender.put_columns(columns(), None) is None, "the producer has not begun"
    producer = await begun(client, "wide", batch_bytes=4096, buffer_bytes=8000)
    refused = producer.bulk_appender.put_columns
    assert refused(columns(0), None) is None, "no record"
    assert refused(columns(size=2000), None) is None, "larger than a batch"
    assert refused(columns(), None, 4097) is None, "larger than a batch, by the size that the caller gives"
    assert refused(columns(), 99) is None, "the partition does not exist"
    assert refused(columns(keyed=True), None) is None, "the keys determine the partitions"
    held = [refused(columns(size=1000), None) for _ in range(3)]
    assert [one is None for one in held] == [False, False, True], "the buffer is full"
    for one in held:
        if one is not None:
            await one.settled()
    accepted = refused(columns(keyed=True), 1)
    assert accepted is not None, "a given partition takes keys"
    assert (await accepted.settled())[0].partition == 1


async def test_lists_go_to_the_partitions_of_their_keys(node: FakeNode, client: Client) -> None:
    producer = await begun(client, "wide")
    keys = [b"key-%d" % number for number in range(20)]
    pending = put(producer, RecordLists(keys, keys=keys, partitions=[3, *[None] * 19]))
    await pending.settled()
    assert pending.stored_at() is None, "the records are in several partitions"
    for key, outcome in zip(keys, pending.outcomes(), strict=True):
        assert isinstance(outcome, Receipt)
        assert outcome.partition == (3 if key == keys[0] else partition_for_key(key, 4))
        assert node.partition("wide", outcome.partition).values()[outcome.offset] == key


async def test_lists_with_timestamps_have_their_own_batch(node: FakeNode, client: Client) -> None:
    producer = await begun(client)
    pending = [put(producer, RecordLists([b"1"])), put(producer, RecordLists([b"2"], timestamps_us=[7]))]
    await asyncio.gather(*(each.settled() for each in pending))
    assert node.values("t") == [b"1", b"2"]
    (record,) = RecordBatch.parse(node.partition("t").batches[1])
    assert record.timestamp_us == 7


async def test_lists_are_refused_if_accepting_needs_waiting(node: FakeNode, client: Client) -> None:
    unknown = client.producer("t")
    assert unknown.bulk_appender.put(RecordLists([b"a"])) is None, "the producer has not begun"
    small = await begun(client, batch_bytes=4096)
    assert small.bulk_appender.put(RecordLists([b"a" * 5000])) is None, "larger than a batch"
    assert small.bulk_appender.put(RecordLists([b"a"], partitions=[9])) is None, "the partition does not exist"
    full = await begun(client, buffer_bytes=1000)
    node.hold = asyncio.Event()
    held = put(full, RecordLists([b"a" * 800]))
    await node.received("publish")
    assert full.bulk_appender.put(RecordLists([b"a" * 800])) is None, "the buffer is full"
    node.hold.set()
    await held.settled()
    assert node.values("t") == [b"a" * 800]


async def test_a_refused_batch_is_the_outcome_of_each_row(node: FakeNode, client: Client) -> None:
    producer = await begun(client)
    node.script.append(Refuse(pb.CORRUPT_BATCH))
    pending = put(producer, RecordLists([b"a", b"b"]))
    await pending.settled()
    assert pending.stored_at() is None
    assert [type(outcome) for outcome in pending.outcomes()] == [CorruptBatchError] * 2
    await producer.close()
    with pytest.raises(ClosedError):
        producer.bulk_appender.put(RecordLists([b"a"]))
