"""Typed topics for tests of nodes: schemas, batches as producers send them, and requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from tests.broker.peer import Peer
from tests.proto.schemas import schema_of
from tests.proto.typed_batches import layouts_of

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch, iter_batches
from tidelog_proto.batch.row_layout import Layouts, row_layout
from tidelog_proto.batch.typed_rows import DELETED, rows_of, stored_columns
from tidelog_proto.hello_features import TYPED_TOPICS
from tidelog_proto.limits import PROTOCOL_VERSION
from tidelog_proto.schema.data_types import INT32, INT64, STRING
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.next_schema import Edits, edited_schema
from tidelog_proto.schema.schema_messages import message_of_schema
from tidelog_proto.schema.topic_schema import Schema

NOW_US = 1_700_000_000_000_000
FIRST = schema_of(Field(0, "key", STRING, required=True, role=Role.KEY), Field(0, "n", INT32))
SECOND, _ = edited_schema(FIRST, Edits(add=[("", Field(0, "note", STRING))], widen={"n": INT64}))
THIRD, _ = edited_schema(SECOND, Edits(rename={"note": "remark"}))
LAYOUTS: Layouts = layouts_of(FIRST, SECOND, THIRD)


async def greet_typed(peer: Peer, *, api_key: str = "") -> None:
    """Greet as a client that reads typed batches."""
    hello = pb.Hello(version=PROTOCOL_VERSION, client_id="typed", software="test/1", features=[TYPED_TOPICS])
    if api_key:
        hello.credentials.api_key = api_key
    assert (await peer.ask(hello=hello)).envelope.hello_reply.features


async def create_typed(peer: Peer, name: str = "t", schema: Schema = FIRST, **config: Any) -> pb.TopicInfo:
    """Create a typed topic."""
    request = pb.TopicCreate(name=name, config=pb.TopicConfig(**config), schema=message_of_schema(schema))
    envelope = (await peer.ask(topic_create=request)).envelope
    assert envelope.WhichOneof("kind") == "topic_reply", envelope
    return envelope.topic_reply.topics[0]


def change_to(schema: Schema, topic: str = "t", **more: Any) -> pb.SchemaChange:
    """Return the change that registers a schema."""
    return pb.SchemaChange(topic=topic, schema=message_of_schema(schema), expected_number=schema.number - 1, **more)


async def evolve(peer: Peer, schema: Schema, topic: str = "t", **more: Any) -> pb.SchemaChangeReply:
    """Register the next schema of a topic."""
    envelope = (await peer.ask(schema_change=change_to(schema, topic, **more))).envelope
    assert envelope.WhichOneof("kind") == "schema_change_reply", envelope
    return envelope.schema_change_reply


def rows(schema: Schema, numbers: Sequence[int | None], *, keys: Sequence[str] | None = None) -> pa.RecordBatch:
    """Return rows of one of the three schemas, with keys like their numbers; None for a tombstone."""
    names = [str(number) for number in numbers] if keys is None else list(keys)
    values = pa.array(numbers, row_layout(schema).row_schema.field("n").type)
    deleted = pa.array([number is None for number in numbers])
    return pa.RecordBatch.from_pydict({"key": pa.array(names), "n": values, DELETED: deleted})


def typed_batch(
    schema: Schema,
    *numbers: int | None,
    keys: Sequence[str] | None = None,
    codec: Codec = Codec.NONE,
    producer_id: int = 0,
    sequence: int = 0,
) -> bytes:
    """Return a batch of rows as a producer sends it."""
    layout = row_layout(schema)
    return encode_batch(
        stored_columns(layout, rows(schema, numbers, keys=keys)),
        now_us=NOW_US,
        codec=codec,
        producer_id=producer_id,
        base_sequence=sequence,
        layout=layout,
    ).to_bytes()


async def fetched(
    peer: Peer, topic_id: bytes, offset: int = 0, *, partition: int = 0, layouts: Layouts = LAYOUTS, **entry: Any
) -> list[RecordBatch]:
    """Fetch batches of a typed topic."""
    asked = pb.FetchEntry(topic_id=topic_id, partition=partition, offset=offset, **entry)
    frame = await peer.ask(fetch=pb.Fetch(entries=[asked]))
    (result,) = frame.envelope.fetch_reply.results
    assert not result.HasField("error"), result.error
    return [RecordBatch.parse(view, layouts) for view in iter_batches(frame.attachment)]


async def read_rows(
    peer: Peer, topic_id: bytes, *, partition: int = 0, layouts: Layouts = LAYOUTS
) -> list[tuple[int, int, str, int | None]]:
    """Return offset, schema number, key and `n` of each record, tombstones with None; control batches are skipped."""
    found: list[tuple[int, int, str, int | None]] = []
    offset = 0
    while batches := await fetched(peer, topic_id, offset, partition=partition, layouts=layouts):
        for batch in batches:
            found += rows_in(batch.slice_from(offset))
            offset = batch.end_offset
    return found


def rows_in(batch: RecordBatch) -> list[tuple[int, int, str, int | None]]:
    """Return offset, schema number, key and `n` of each record of a batch."""
    if batch.control or not len(batch):
        return []
    table = rows_of(batch, tombstones=True)
    keys: list[Any] = table.column("key").to_pylist()
    numbers: list[Any] = table.column("n").to_pylist()
    return [
        (offset, batch.header.schema_id, key, n)
        for offset, key, n in zip(batch.offset_list(), keys, numbers, strict=True)
    ]
