"""Reads of some fields of a typed topic, by FETCH and SUBSCRIBE, on a running node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.broker.peer import Peer, batch
from tests.broker.stand import Stand
from tests.broker.typed import (
    FIRST,
    LAYOUTS,
    NOW_US,
    SECOND,
    THIRD,
    create_typed,
    evolve,
    fetched,
    greet_typed,
    typed_batch,
)

from tidelog_broker.core.schemas import TopicSchemas
from tidelog_broker.node.node import Node
from tidelog_broker.partition.projected_reader import projection_of
from tidelog_broker.storage.partition import projecting
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import COLUMN_FLAGS, OFFSET_MAX, Codec, Flags
from tidelog_proto.batch.projection import Projection
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch, iter_batches
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.batch.typed_rows import stored_columns
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.topic_schema import Schema

KEY, N, NOTE = (field.id for field in SECOND.fields)
COUNT = 2000


@pytest.fixture
async def reader(stand: Stand, node: Node) -> Peer:
    """A connection of a client that reads typed batches."""
    peer = await stand.peer(greet=False)
    await greet_typed(peer)
    return peer


@pytest.fixture(autouse=True)
def batches_are_examined_one_by_one() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(projecting, "SMALL_BATCH_BYTES", 0)
        yield


def wide_batch(schema: Schema, count: int = COUNT, codec: Codec = Codec.NONE, first: int = 0) -> bytes:
    """Return a batch whose notes, if the schema has them, are most of its bytes."""
    layout = row_layout(schema)
    numbers = range(first, first + count)
    columns: dict[str, Any] = {
        "key": [str(number) for number in numbers],
        "n": pa.array(numbers, layout.row_schema.field("n").type),
    }
    columns |= {name: [f"{number}" * 9 for number in numbers] for name in layout.row_schema.names[2:]}
    rows = pa.RecordBatch.from_pydict(columns)
    return encode_batch(stored_columns(layout, rows), now_us=NOW_US, codec=codec, layout=layout).to_bytes()


def fields(*ids: int, columns: int = Flags.VALUE) -> pb.Projection:
    return pb.Projection(columns=columns, fields=pb.FieldSelection(ids=ids))


def numbers_in(batches: list[RecordBatch], schema: Schema = SECOND) -> list[int]:
    names = ("n",)
    found: list[int] = []
    for each in batches:
        if not each.control:
            assert each.layout is not None
            found += row_reader(each.layout.schema, schema, names).table(each).column("n").to_pylist()  # type: ignore[arg-type]
    return found


def kept(made: RecordBatch) -> list[str]:
    """Return the fields of `value` that a batch was sent with."""
    assert made.layout is not None
    return [field.name for field in made.layout.value_fields]


@pytest.mark.parametrize("engine", ["segment", "memory", "rocksdb"])
@pytest.mark.parametrize("in_memory", [True, False], ids=["from memory", "from the log"])
async def test_fetch_of_some_fields_leaves_the_others_at_the_node(
    reader: Peer, node: Node, engine: str, in_memory: bool
) -> None:
    flush = pb.NEVER if engine == "memory" else pb.ALWAYS
    topic = await create_typed(reader, engine=engine, flush=flush)
    await evolve(reader, SECOND)
    made = [wide_batch(FIRST), wide_batch(SECOND, codec=Codec.LZ4), wide_batch(SECOND), typed_batch(SECOND, 1)]
    await reader.publish(topic.topic_id, *made)
    if not in_memory:
        node.broker.rings.drop_below(node.broker.partitions.get(topic.topic_id, 0).ring, 1 << 30)
    found = await fetched(reader, topic.topic_id, projection=fields(N))
    assert [kept(each) for each in found] == [["n"], ["n"], ["n"], ["n", "note"]], "a small batch is sent whole"
    assert [bool(each.header.flags & Flags.KEY) for each in found] == [False, False, False, True]
    assert numbers_in(found) == [*range(COUNT)] * 3 + [1]
    assert sum(each.header.length for each in found[1:3]) < sum(map(len, made[1:3])) / 4
    with_keys = await fetched(reader, topic.topic_id, projection=fields(N, KEY, columns=Flags.VALUE | Flags.KEY))
    assert with_keys[0].header.flags & Flags.KEY, "a key is a column"
    none = await fetched(reader, topic.topic_id, projection=fields())
    assert [kept(each) for each in none[:3]] == [[], [], []]
    later = await fetched(reader, topic.topic_id, COUNT + 5, projection=fields(N))
    assert numbers_in([each.slice_from(COUNT + 5) for each in later]) == [*range(5, COUNT), *range(COUNT), 1]
    matching = await fetched(reader, topic.topic_id, projection=fields(NOTE), filter=pb.RecordFilter(key=b"7"))
    assert [len(each) for each in matching] == [1, 1, 1]


async def test_odd_selections_have_the_rows_of_a_plain_one(reader: Peer) -> None:
    topic = await create_typed(reader)
    await evolve(reader, SECOND)
    await reader.publish(topic.topic_id, wide_batch(FIRST), wide_batch(SECOND))
    for ids in ((N, N, N), (N, 77, 2**32 - 1, 0), (NOTE, N, KEY), tuple(range(1, 257))):
        found = await fetched(reader, topic.topic_id, projection=fields(*ids))
        assert numbers_in(found) == [*range(COUNT)] * 2
    whole = await fetched(reader, topic.topic_id, projection=fields(N, NOTE, columns=COLUMN_FLAGS))
    assert not any(each.header.flags & Flags.PROJECTED for each in whole)
    older = await fetched(reader, topic.topic_id, projection=pb.Projection(columns=Flags.VALUE))
    assert [kept(each) for each in older] == [["n"], ["n", "note"]], "clients that name no fields get whole batches"


async def test_too_many_fields_are_refused(reader: Peer) -> None:
    topic = await create_typed(reader)
    await reader.publish(topic.topic_id, wide_batch(FIRST))
    entry = pb.FetchEntry(topic_id=topic.topic_id, projection=fields(*range(300)))
    (result,) = (await reader.ask(fetch=pb.Fetch(entries=[entry]))).envelope.fetch_reply.results
    assert (result.error.code, result.length) == (pb.INVALID_REQUEST, 0)
    assert "at most 256 fields, got 300" in result.error.message
    (followed,) = await subscribed(reader, topic.topic_id, projection=fields(*range(300)))
    assert followed.error.code == pb.INVALID_REQUEST


async def test_fields_of_an_untyped_topic_are_ignored(reader: Peer) -> None:
    topic = await reader.create("plain")
    await reader.publish(topic.topic_id, batch(b"v" * 9000, b"w"))
    entry = pb.FetchEntry(topic_id=topic.topic_id, projection=fields(1))
    frame = await reader.ask(fetch=pb.Fetch(entries=[entry]))
    assert [RecordBatch.parse(view).values() for view in iter_batches(frame.attachment)] == [[b"v" * 9000, b"w"]]
    await subscribed(reader, topic.topic_id, projection=fields(1))
    event = await reader.event()
    assert [RecordBatch.parse(view).values() for view in iter_batches(event.attachment)] == [[b"v" * 9000, b"w"]]


async def test_control_batches_keep_their_place_in_a_projection(node: Node) -> None:
    control = encode_batch(
        pa.RecordBatch.from_pydict({"value": pa.array([b"c" * 9000], pa.binary())}), now_us=NOW_US, control=True
    ).to_bytes()
    projection = Projection(Flags.VALUE, fields=frozenset({N}))
    (sent, typed) = projecting.project_all([memoryview(control), memoryview(wide_batch(SECOND))], projection, LAYOUTS)
    assert bytes(sent) == control
    assert kept(RecordBatch.parse(typed, LAYOUTS)) == ["n"]


async def test_node_that_does_not_know_a_schema_says_retry(
    reader: Peer, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await create_typed(reader)
    await evolve(reader, SECOND)
    await reader.publish(topic.topic_id, wide_batch(FIRST), wide_batch(SECOND))
    known = TopicSchemas.__getitem__

    def lacking(self: TopicSchemas, number: int) -> Any:
        if number == 2:
            raise ProtocolError(pb.EPOCH_CHANGING, "this node does not know schema 2 of the topic yet; retry")
        return known(self, number)

    monkeypatch.setattr(TopicSchemas, "__getitem__", lacking)
    entry = pb.FetchEntry(topic_id=topic.topic_id, projection=fields(N))
    for in_memory in (True, False):
        if not in_memory:
            node.broker.rings.drop_below(node.broker.partitions.get(topic.topic_id, 0).ring, 1 << 30)
        (result,) = (await reader.ask(fetch=pb.Fetch(entries=[entry]))).envelope.fetch_reply.results
        assert (result.error.code, result.error.retriable) == (pb.EPOCH_CHANGING, True)
    await subscribed(reader, topic.topic_id, projection=fields(N))
    ended = (await reader.event()).envelope.subscription_ended
    assert (ended.error.code, ended.error.retriable) == (pb.EPOCH_CHANGING, True)
    assert (await fetched(reader, topic.topic_id))[1].header.schema_id == 2, "whole batches need no schema"
    assert not node.broker.partitions.get(topic.topic_id, 0).state.refusal
    monkeypatch.setattr(TopicSchemas, "__getitem__", known)
    assert numbers_in(await fetched(reader, topic.topic_id, projection=fields(N))) == [*range(COUNT)] * 2


async def subscribed(reader: Peer, topic_id: bytes, offset: int = 0, **entry: Any) -> list[pb.SubscribeResult]:
    asked = pb.SubscribeEntry(topic_id=topic_id, offset=offset, **entry)
    subscribe = pb.Subscribe(subscription_id=1, entries=[asked], credit_records=10**6, credit_bytes=1 << 28)
    return list((await reader.ask(subscribe=subscribe)).envelope.subscribe_reply.results)


async def followed(reader: Peer, end_offset: int) -> list[RecordBatch]:
    found: list[RecordBatch] = []
    async with asyncio.timeout(30):
        while not found or found[-1].end_offset < end_offset:
            event = await reader.event()
            assert event.envelope.WhichOneof("kind") == "message_event", event.envelope
            made = [RecordBatch.parse(view, LAYOUTS) for view in iter_batches(event.attachment)]
            assert sum(each.header.record_count for each in made) == event.envelope.message_event.record_count
            assert not made or made[-1].end_offset == event.envelope.message_event.next_offset
            found += made
    return found


@pytest.mark.parametrize("in_memory", [True, False], ids=["from memory", "from the log"])
async def test_subscription_to_some_fields_crosses_a_schema_change(reader: Peer, node: Node, in_memory: bool) -> None:
    topic = await create_typed(reader)
    await reader.publish(topic.topic_id, wide_batch(FIRST), typed_batch(FIRST, 1, None))
    if not in_memory:
        node.broker.rings.drop_below(node.broker.partitions.get(topic.topic_id, 0).ring, 1 << 30)
    (result,) = await subscribed(reader, topic.topic_id, 7, projection=fields(N))
    assert not result.HasField("error")
    before = await followed(reader, COUNT + 2)
    await evolve(reader, SECOND)
    await evolve(reader, THIRD)
    results = await reader.publish(
        topic.topic_id, typed_batch(SECOND, 5), wide_batch(SECOND), wide_batch(THIRD, codec=Codec.ZSTD)
    )
    assert [result.base_offset for result in results] == [COUNT + 2, COUNT + 3, 2 * COUNT + 3], results
    after = await followed(reader, 3 * COUNT + 3)
    assert numbers_in([before[0].slice_from(7), *before[1:]]) == [*range(7, COUNT), 1]
    assert numbers_in(after, THIRD) == [5, *range(COUNT), *range(COUNT)]
    assert [kept(each) for each in (before[0], *after[1:])] == [["n"], ["n"], ["n"]]


async def test_subscription_with_filter_and_fields(reader: Peer) -> None:
    topic = await create_typed(reader)
    await evolve(reader, SECOND)
    await reader.publish(topic.topic_id, wide_batch(SECOND))
    await subscribed(reader, topic.topic_id, projection=fields(N), filter=pb.RecordFilter(key=b"12"))
    event = await reader.event()
    assert numbers_in([RecordBatch.parse(view, LAYOUTS) for view in iter_batches(event.attachment)]) == [12]


@pytest.mark.parametrize("bound", [{"from_us": 0}, {"until_us": 5}, {"end_offset": 9}])
async def test_bounds_of_a_subscription_are_refused(reader: Peer, bound: dict[str, int]) -> None:
    topic = await create_typed(reader)
    (result,) = await subscribed(reader, topic.topic_id, projection=pb.Projection(columns=COLUMN_FLAGS, **bound))  # type: ignore[arg-type]
    assert result.error.code == pb.INVALID_REQUEST
    assert "leave them unset" in result.error.message


def test_projection_of_a_message() -> None:
    assert projection_of(pb.Projection(columns=255)) == Projection(COLUMN_FLAGS, None, None, OFFSET_MAX, None)
    parsed = projection_of(pb.Projection(columns=4, from_us=1, until_us=2, end_offset=3, fields=fields(7, 7).fields))
    assert parsed == Projection(4, 1, 2, 3, frozenset({7}))
    assert projection_of(pb.Projection(fields=pb.FieldSelection())).fields == frozenset()
