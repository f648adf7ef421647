"""Publishing to and reading from typed topics, on a running node."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from tests.broker.metric import counted
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand, settled
from tests.broker.typed import (
    FIRST,
    NOW_US,
    SECOND,
    THIRD,
    create_typed,
    evolve,
    fetched,
    greet_typed,
    read_rows,
    rows_in,
    typed_batch,
)
from tests.proto.schemas import schema_of
from tests.proto.typed_batches import layouts_of, retyped, with_columns

from tidelog_broker import broker
from tidelog_broker.core.schemas import SchemaRegistry
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import encode_batch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_rows import stored_columns
from tidelog_proto.schema.data_types import DATE32, INT32, STRING, TIMESTAMP_UTC
from tidelog_proto.schema.fields import Field, Role


@pytest.fixture
async def reader(stand: Stand, node: Node) -> Peer:
    """A connection of a client that reads typed batches."""
    peer = await stand.peer(greet=False)
    await greet_typed(peer)
    return peer


async def refusal(peer: Peer, topic_id: bytes, *batches: bytes) -> pb.Error:
    (result,) = await peer.publish(topic_id, *batches)
    assert result.HasField("error"), result
    return result.error


async def test_rows_of_all_schemas_are_stored_and_read(reader: Peer) -> None:
    topic = await create_typed(reader)
    await evolve(reader, SECOND)
    results = await reader.publish(
        topic.topic_id,
        typed_batch(FIRST, 1),
        typed_batch(SECOND, 2, 3, codec=Codec.LZ4),
        typed_batch(FIRST, 4, None, codec=Codec.ZSTD, keys=["4", "x"]),
        typed_batch(SECOND, *range(2000), keys=["k"] * 2000),
    )
    assert [result.base_offset for result in results] == [0, 1, 3, 5]
    assert not any(result.HasField("error") for result in results)
    found = await read_rows(reader, topic.topic_id)
    assert found[:5] == [(0, 1, "1", 1), (1, 2, "2", 2), (2, 2, "3", 3), (3, 1, "4", 4), (4, 1, "x", None)]
    assert [n for _, _, _, n in found[5:]] == list(range(2000))


async def test_retry_of_a_typed_batch_is_stored_once(reader: Peer) -> None:
    topic = await create_typed(reader)
    one = typed_batch(FIRST, 1, producer_id=7)
    (first,) = await reader.publish(topic.topic_id, one)
    (second,) = await reader.publish(topic.topic_id, one)
    assert (first.duplicate, second.duplicate, second.base_offset) == (False, True, 0)
    other = typed_batch(FIRST, 2, producer_id=7)
    assert (await refusal(reader, topic.topic_id, other)).code == pb.PRODUCER_ID_SHARED


def in_untyped(_: Any = None) -> bytes:
    return batch(b"value")


DATED = schema_of(
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME), Field(0, "day", DATE32), Field(0, "k", STRING)
)


@pytest.mark.parametrize(
    ("make", "code", "text"),
    [
        (
            in_untyped,
            pb.SCHEMA_MISMATCH,
            "'t' is typed, and the batch has values without a schema; send rows of schema 3",
        ),
        (lambda: typed_batch(FIRST, 1), pb.SCHEMA_MISMATCH, "has schema 1, and producers must use 2"),
        (
            lambda: retyped(typed_batch(SECOND, 1), schema_digest=7),
            pb.SCHEMA_MISMATCH,
            "schema 2 with digest 0x00000007, and that of the topic has",
        ),
        (lambda: retyped(typed_batch(SECOND, 1), schema_id=3), pb.SCHEMA_MISMATCH, "schema 3 with digest"),
        (lambda: retyped(typed_batch(SECOND, 1), schema_id=9), pb.UNKNOWN_SCHEMA, "'t' has no schema 9"),
        (lambda: batch(b"v", control=True), pb.SCHEMA_MISMATCH, "values without a schema"),
    ],
    ids=["id 0", "below the floor", "wrong digest", "other number", "unknown number", "control"],
)
async def test_batch_of_a_wrong_schema_is_refused_alone(
    node: Node, reader: Peer, make: Any, code: int, text: str
) -> None:
    topic = await create_typed(reader)
    await evolve(reader, SECOND)
    await evolve(reader, THIRD, floor=2)
    good = typed_batch(SECOND, 1, codec=Codec.LZ4)
    first, bad, last = await reader.publish(topic.topic_id, good, make(), good)
    assert (bad.error.code, bad.error.retriable, bad.error.definite) == (code, False, True), bad.error
    assert text in bad.error.message
    assert [first.base_offset, last.base_offset] == [0, 1]
    assert len(await read_rows(reader, topic.topic_id)) == 2
    assert counted(node.broker.metrics.batches_refused) == 1


def raw_key() -> bytes:
    """Return a batch whose string key is no UTF-8."""
    layout = row_layout(FIRST)
    value = pa.StructArray.from_arrays([pa.array([1], pa.int32())], fields=list(layout.value_type))
    return with_columns(layout, pa.RecordBatch.from_arrays([pa.array([b"\xff"]), value], names=["key", "value"]))


def null_key() -> bytes:
    layout = row_layout(FIRST)
    value = pa.StructArray.from_arrays([pa.array([1], pa.int32())], fields=list(layout.value_type))
    keys = pa.array([None], pa.binary())
    return with_columns(layout, pa.RecordBatch.from_arrays([keys, value], names=["key", "value"]))


def missing_key() -> bytes:
    layout = row_layout(FIRST)
    value = pa.StructArray.from_arrays([pa.array([1], pa.int32())], fields=list(layout.value_type))
    return with_columns(layout, pa.RecordBatch.from_arrays([value], names=["value"]))


def wrong_width() -> bytes:
    layout = row_layout(FIRST)
    value = pa.StructArray.from_arrays([pa.array([1] * 99, pa.int64())], ["n"])
    return with_columns(layout, pa.RecordBatch.from_arrays([pa.array([b"k"] * 99), value], names=["key", "value"]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (raw_key, "UTF-8"),
        (null_key, "1 nulls in 1 entries"),
        (missing_key, "lack the column"),
        (wrong_width, "bytes of data"),
    ],
    ids=["key of no UTF-8", "null key", "missing key", "int64 for int32"],
)
async def test_batch_that_breaks_a_rule_of_values_is_refused(reader: Peer, make: Any, text: str) -> None:
    topic = await create_typed(reader)
    refused = await refusal(reader, topic.topic_id, make())
    assert (refused.code, text in refused.message) == (pb.CORRUPT_BATCH, True), refused
    assert await read_rows(reader, topic.topic_id) == []


async def test_nulls_and_dates_are_checked(reader: Peer) -> None:
    schema = schema_of(Field(0, "n", INT32, required=True), Field(0, "day", DATE32))
    topic = await create_typed(reader, schema=schema)
    layout = row_layout(schema)

    def of(n: list[int | None], days: list[int | None]) -> bytes:
        fields = [pa.field(field.name, field.type) for field in layout.value_type]
        value = pa.StructArray.from_arrays([pa.array(n, pa.int32()), pa.array(days, pa.date32())], fields=fields)
        return with_columns(layout, pa.RecordBatch.from_arrays([value], names=["value"]))

    for made, text in (
        (of([1, None], [0, 0]), "field 'n'"),
        (of([1, 2], [0, 2_932_897]), "field 'day'"),  # 10000-01-01
        (of([1, 2], [-719_163, 0]), "field 'day'"),  # before 0001-01-01
    ):
        refused = await refusal(reader, topic.topic_id, made)
        assert (refused.code, text in refused.message) == (pb.CORRUPT_BATCH, True), refused
    (good,) = await reader.publish(topic.topic_id, of([1, 2], [2_932_896, None]))
    assert not good.HasField("error")


async def test_times_are_checked(reader: Peer) -> None:
    topic = await create_typed(reader, schema=DATED)
    layout = row_layout(DATED)

    def of(stamp_us: int) -> bytes:
        stamps = pa.array([stamp_us], pa.int64()).view(layout.stored_schema(1).field(0).type)
        fields = list(layout.value_type)
        value = pa.StructArray.from_arrays([pa.array([0], pa.date32()), pa.array(["k"])], fields=fields)
        columns = pa.RecordBatch.from_arrays([stamps, value], names=["timestamp", "value"])
        return with_columns(layout, columns)

    refused = await refusal(reader, topic.topic_id, of(253_402_300_800_000_000))
    assert (refused.code, "outside the years 1 to 9999" in refused.message) == (pb.CORRUPT_BATCH, True), refused
    (good,) = await reader.publish(topic.topic_id, of(253_402_300_799_999_999))
    assert not good.HasField("error")


async def test_damaged_typed_batch_is_corrupt(reader: Peer) -> None:
    topic = await create_typed(reader)
    raw = bytearray(typed_batch(FIRST, 1))
    raw[-1] ^= 1
    assert (await refusal(reader, topic.topic_id, bytes(raw))).code == pb.CORRUPT_BATCH
    raw = bytearray(typed_batch(FIRST, 1))
    raw[30] ^= 1
    assert (await refusal(reader, topic.topic_id, bytes(raw))).code == pb.CORRUPT_BATCH
    assert (await refusal(reader, topic.topic_id, b"TLRB\x02")).code == pb.CORRUPT_BATCH


async def test_client_without_the_feature_gets_no_typed_bytes(peer: Peer, reader: Peer) -> None:
    topic = await create_typed(reader)
    await reader.publish(topic.topic_id, typed_batch(FIRST, 1))
    for entry in (
        pb.FetchEntry(topic_id=topic.topic_id),
        pb.FetchEntry(topic_id=topic.topic_id, newest=True, filter=pb.RecordFilter(key=b"1")),
        pb.FetchEntry(topic_id=topic.topic_id, projection=pb.Projection(columns=2)),
    ):
        frame = await peer.ask(fetch=pb.Fetch(entries=[entry]))
        (result,) = frame.envelope.fetch_reply.results
        assert (result.error.code, result.length, bytes(frame.attachment)) == (pb.UNSUPPORTED_BATCH, 0, b"")
        assert "'t' is typed, and the client 'test-peer/9.8' does not read typed batches" in result.error.message
    entries = [pb.SubscribeEntry(topic_id=topic.topic_id)]
    subscribe = pb.Subscribe(subscription_id=1, entries=entries, credit_records=9, credit_bytes=9999)
    (followed,) = (await peer.ask(subscribe=subscribe)).envelope.subscribe_reply.results
    assert followed.error.code == pb.UNSUPPORTED_BATCH
    assert peer.events.empty()
    (followed,) = (await reader.ask(subscribe=subscribe)).envelope.subscribe_reply.results
    assert not followed.HasField("error")
    assert (await reader.event()).envelope.message_event.record_count == 1
    plain = await peer.create("plain")
    await peer.publish(plain.topic_id, batch(b"as ever"))
    assert await peer.read_all(plain.topic_id) == [b"as ever"]


async def test_producer_begins_in_a_typed_topic(reader: Peer) -> None:
    topic = await create_typed(reader)
    entry = pb.ProducerBeginEntry(topic_id=topic.topic_id, producer_id=5, producer_epoch=1024)
    reply = (await reader.ask(producer_begin=pb.ProducerBegin(entries=[entry]))).envelope.producer_begin_reply
    (begun,) = reply.results
    assert not begun.HasField("error")
    await reader.publish(topic.topic_id, typed_batch(FIRST, 1))
    assert await read_rows(reader, topic.topic_id) == [(1, 1, "1", 1)]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("engine", ["segment", "memory", "rocksdb"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
async def test_filters_and_searches_find_rows(
    reader: Peer, node: Node, indexed: bool, engine: str, codec: Codec
) -> None:
    flush = pb.NEVER if engine == "memory" else pb.ALWAYS
    topic = await create_typed(reader, index_key=indexed, segment_bytes=1 << 16, engine=engine, flush=flush)
    await evolve(reader, SECOND)
    for schema in (FIRST, SECOND) * 3:
        await reader.publish(topic.topic_id, typed_batch(schema, *range(400), codec=codec))
    one = pb.RecordFilter(key=b"7")
    node.broker.rings.drop_below(node.broker.partitions.get(topic.topic_id, 0).ring, 1 << 30)
    found = [row for made in await fetched(reader, topic.topic_id, filter=one) for row in rows_in(made)]
    assert [(number, key, n) for _, number, key, n in found] == [(1, "7", 7), (2, "7", 7)] * 3
    newest = await fetched(reader, topic.topic_id, filter=one, newest=True)
    assert [row for made in newest for row in rows_in(made)] == [(5 * 400 + 7, 2, "7", 7)]
    entry = pb.ListOffsetsEntry(topic_id=topic.topic_id, latest_of_key=b"9")
    by_time = pb.ListOffsetsEntry(topic_id=topic.topic_id, timestamp_us=NOW_US)
    located = (await reader.ask(list_offsets=pb.ListOffsets(entries=[entry, by_time]))).envelope.list_offsets_reply
    assert [(one.found, one.offset) for one in located.results] == [(True, 5 * 400 + 9), (True, 0)]
    heads = await fetched(reader, topic.topic_id, projection=pb.Projection(columns=0))
    assert sum(len(made) for made in heads) == 6 * 400
    keys = await fetched(reader, topic.topic_id, projection=pb.Projection(columns=2))
    assert [row for made in keys for row in rows_in(made)][-1] == (2399, 2, "399", 399), "whole, more than asked"


async def test_deduplication_compares_rows_of_all_schemas(reader: Peer) -> None:
    topic = await create_typed(reader, deduplicate_s=3600)
    await evolve(reader, SECOND)
    results = await reader.publish(
        topic.topic_id,
        typed_batch(FIRST, 1, 2, 3),
        typed_batch(SECOND, 2, 4, 3),
        typed_batch(SECOND, 1, 4, codec=Codec.LZ4),
    )
    assert [result.duplicates for result in results] == [0, 2, 2]
    assert [(key, number) for _, number, key, _ in await read_rows(reader, topic.topic_id)] == [
        *(("1", 1), ("2", 1), ("3", 1)),
        ("4", 2),
    ]


async def test_deduplication_window_is_read_back(stand: Stand, reader: Peer) -> None:
    topic = await create_typed(reader, deduplicate_s=3600)
    await reader.publish(topic.topic_id, typed_batch(FIRST, 1, 2, 3))
    await stand.restart()
    reader = await stand.peer(greet=False)
    await greet_typed(reader)
    (again,) = await reader.publish(topic.topic_id, typed_batch(FIRST, 3, 4))
    assert again.duplicates == 1


async def test_compaction_keeps_the_newest_row_of_each_key(stand: Stand, reader: Peer) -> None:
    topic = await create_typed(reader, cleanup=pb.COMPACT, segment_bytes=1 << 16)
    await evolve(reader, SECOND)
    for schema, first in ((FIRST, 0), (SECOND, 100), (FIRST, 200), (SECOND, 300)):
        keys = [str(n % 5) for n in range(40)]
        await reader.publish(topic.topic_id, typed_batch(schema, *range(first, first + 40), keys=keys))
    await reader.publish(topic.topic_id, typed_batch(FIRST, 7, 8, keys=["2", "3"]))
    await reader.publish(topic.topic_id, typed_batch(FIRST, None, keys=["4"]))
    (done,) = (
        await reader.ask(compact=pb.Compact(entries=[pb.CompactEntry(topic_id=topic.topic_id)]))
    ).envelope.compact_reply.results
    assert not done.HasField("error"), done
    expected = [
        *((155, 2, "0", 335), (156, 2, "1", 336)),
        *((160, 1, "2", 7), (161, 1, "3", 8), (162, 1, "4", None)),
    ]
    assert await read_rows(reader, topic.topic_id) == expected
    await stand.restart()
    reader = await stand.peer(greet=False)
    await greet_typed(reader)
    assert await read_rows(reader, topic.topic_id) == expected


async def test_typed_topic_is_read_after_a_restart(stand: Stand, reader: Peer) -> None:
    topic = await create_typed(reader)
    await reader.publish(topic.topic_id, typed_batch(FIRST, *range(50)))
    await stand.crash()
    await stand.start()
    reader = await stand.peer(greet=False)
    await greet_typed(reader)
    assert [n for *_, n in await read_rows(reader, topic.topic_id)] == list(range(50))
    (more,) = await reader.publish(topic.topic_id, typed_batch(FIRST, 50))
    assert more.base_offset == 50


async def test_floor_is_raised_while_producers_write(node: Node, reader: Peer) -> None:
    topic = await create_typed(reader)
    numbers = [reader.post_publish(topic.topic_id, typed_batch(FIRST, n)) for n in range(20)]
    await evolve(reader, SECOND, floor=2)
    numbers += [reader.post_publish(topic.topic_id, typed_batch(FIRST, n)) for n in range(20)]
    results = [(await reader.published(number))[0] for number in numbers]
    assert [one.error.code for one in results[20:]] == [pb.SCHEMA_MISMATCH] * 20
    await settled(lambda: node.broker.topics.named("t").config.schema_floor == 2, "the floor is not applied")
    refused = await reader.refused(schema_change=pb.SchemaChange(topic="t", expected_number=1, floor=1))
    assert refused.code == pb.SCHEMA_MISMATCH
    lowered = pb.SchemaChange(topic="t", expected_number=2, floor=1)
    assert (await reader.ask(schema_change=lowered)).envelope.schema_change_reply.floor == 1
    (result,) = await reader.publish(topic.topic_id, typed_batch(FIRST, 1))
    assert not result.HasField("error")


async def test_many_schemas_are_used_at_once_with_a_small_cache(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "SchemaRegistry", partial(SchemaRegistry, layout_bytes=1))
    await stand.start()
    reader = await stand.peer(greet=False)
    await greet_typed(reader)
    topic = await create_typed(reader)
    schemas = [FIRST, SECOND]
    await evolve(reader, SECOND)
    for number in range(3, 30):
        last = schemas[-1]
        fields = (*last.fields[:2], replace(last.fields[2], name=f"note{number}"))
        schemas.append(replace(last, number=number, fields=fields))
        await evolve(reader, schemas[-1])
    for schema in schemas:
        layout = row_layout(schema)
        number = pa.array([schema.number], layout.row_schema.field("n").type)
        rows = pa.RecordBatch.from_pydict({"key": ["k"], "n": number})
        made = encode_batch(stored_columns(layout, rows), now_us=NOW_US, codec=Codec.LZ4, layout=layout).to_bytes()
        (result,) = await reader.publish(topic.topic_id, made)
        assert not result.HasField("error")
    found = await read_rows(reader, topic.topic_id, layouts=layouts_of(*schemas))
    assert [number for _, number, _, _ in found] == list(range(1, 30))
