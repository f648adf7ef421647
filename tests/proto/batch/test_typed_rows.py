"""Rows of any schema as batches, and back."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import CODECS, NOW_US
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, rows_of_schema

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Codec, Flags
from tidelog_proto.batch.plain_columns import plain_columns
from tidelog_proto.batch.record_batch import RecordBatch, columns_of, encode_batch, plain_columns_of
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_rows import DELETED, rows_of, stored_columns
from tidelog_proto.batch.typed_verification import verify_typed
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.data_types import INT8, INT32, INT64, LIST, STRING, STRUCT, TIMESTAMP_UTC
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

SIMPLE = schema_of(
    Field(0, "n", INT32, required=True),
    Field(0, "carrier", STRING, required=True, role=Role.KEY),
    Field(0, "note", STRING),
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME),
    Field(0, "kind", STRING, role=Role.TAG),
)
LAYOUT = row_layout(SIMPLE)
ROW = {"n": 1, "carrier": "UA", "note": "x", "at": NOW_US, "kind": "red"}


def rows(*dicts: dict[str, Any], **columns: Any) -> pa.RecordBatch:
    made = pa.RecordBatch.from_pylist(list(dicts), schema=LAYOUT.row_schema)
    for name, column in columns.items():
        made = made.append_column(name, column)
    return made


def told(batch: pa.RecordBatch) -> str:
    """Return rows as text, in which NaN equals NaN and 0.0 differs from -0.0."""
    return repr(batch.to_pylist())


def expected_rows(schema: Schema, given_rows: pa.RecordBatch, *, tombstones: bool) -> list[dict[str, Any]]:
    """Return the rows that a reader must see, made from Python values."""
    result: list[dict[str, Any]] = []
    for row in given_rows.to_pylist():
        deleted = bool(row.get(DELETED))
        if deleted and not tombstones:
            continue
        kept = {field.name: None if deleted and field.role is Role.NONE else row[field.name] for field in schema.fields}
        result.append({**kept, DELETED: deleted} if tombstones else kept)
    return result


@given(schema=schemas(), codec=st.sampled_from(CODECS), data=st.data())
@settings(max_examples=200)
def test_rows_of_any_schema_come_back(schema: Schema, codec: Codec, data: st.DataObject) -> None:
    layouts = layouts_of(schema)
    given_rows = data.draw(rows_of_schema(schema))
    at = data.draw(st.integers(0, given_rows.num_rows - 1))
    part = given_rows.slice(at, data.draw(st.integers(1, given_rows.num_rows - at)))
    raw = encoded(layouts[1], part, codec)
    header = verify_typed(raw, layouts)
    assert (header.schema_id, header.schema_digest, header.record_count) == (1, schema.digest, part.num_rows)
    batch = parsed(raw, layouts)
    for tombstones in (False, True):
        found = rows_of(batch, tombstones=tombstones)
        found.validate(full=True)
        assert told(found) == repr(expected_rows(schema, part, tombstones=tombstones))
    rest = batch.slice_from(batch.base_offset + 1)
    assert told(rows_of(rest, tombstones=True)) == repr(expected_rows(schema, part.slice(1), tombstones=True))


@given(data=st.data())
@settings(max_examples=50)
def test_columns_of_the_record_go_along(data: st.DataObject) -> None:
    schema = schema_of(Field(0, "n", INT32))
    given_rows = data.draw(rows_of_schema(schema))
    batch = parsed(encoded(row_layout(schema), given_rows), layouts_of(schema))
    names = given_rows.schema.names
    if "_timestamp" in names:
        assert batch.timestamps_us() == given_rows.column("_timestamp").cast(pa.int64()).to_pylist()
    else:
        assert batch.timestamps_us() == [NOW_US] * len(batch)
    absent = [None] * len(batch)
    assert batch.keys() == (given_rows.column("_key").to_pylist() if "_key" in names else absent)
    assert batch.tags() == (given_rows.column("_tag").to_pylist() if "_tag" in names else absent)
    if "_headers" in names:
        lists: list[Any] = given_rows.column("_headers").to_pylist()
        pairs = [[(one["key"], one["value"]) for one in each] for each in lists]
        assert [list(each) for each in batch.headers()] == pairs


def test_each_field_is_stored_once() -> None:
    batch = parsed(encoded(LAYOUT, rows(ROW)), layouts_of(SIMPLE))
    columns = batch.columns()
    assert columns.schema.names == ["timestamp", "key", "value", "tag"]
    assert columns.column("value").to_pylist() == [{"n": 1, "note": "x"}]
    assert (batch.keys(), batch.tags(), batch.timestamps_us()) == ([b"UA"], ["red"], [NOW_US])
    assert batch.header.base_timestamp_us == NOW_US


def test_fields_are_not_copied() -> None:
    given_rows = rows(*[ROW] * 100)
    stored = stored_columns(LAYOUT, given_rows)
    value: Any = stored.column("value")
    numbers: Any = given_rows.column("n")
    assert value.field(0).buffers()[1].address == numbers.buffers()[1].address
    raw = encoded(LAYOUT, given_rows)
    again: Any = rows_of(parsed(raw, layouts_of(SIMPLE)))
    start = memoryview(raw)
    address = pa.py_buffer(start).address
    assert address <= again.column("n").buffers()[1].address < address + len(raw)


def test_other_types_are_cast_and_missing_fields_are_null() -> None:
    columns: dict[str, pa.Array[Any]] = {
        "carrier": pa.array(["UA"], pa.large_string()),
        "n": pa.array([7], pa.int64()),
        "at": pa.array([NOW_US // 10**6], pa.timestamp("s", "Europe/Berlin")),
    }
    batch = parsed(encoded(LAYOUT, pa.RecordBatch.from_pydict(columns)), layouts_of(SIMPLE))
    found = rows_of(batch).to_pylist()[0]
    assert (found["n"], found["carrier"], found["note"], found["kind"]) == (7, "UA", None, None)
    assert batch.timestamps_us() == [NOW_US // 10**6 * 10**6]


def test_nested_types_need_not_name_required_fields() -> None:
    child = Field(
        0, "item", STRUCT, required=True, children=(Field(0, "a", INT8, required=True), Field(0, "b", STRING))
    )
    schema = schema_of(Field(0, "l", LIST, children=(child,)))
    plain = pa.list_(pa.struct([("a", pa.int8()), ("b", pa.string())]))
    items = [None, [], [{"a": 1, "b": None}, {"a": 2, "b": "x"}]]
    given_rows = pa.RecordBatch.from_pydict({"l": pa.array([None, *items], plain)}).slice(1)
    found = rows_of(parsed(encoded(row_layout(schema), given_rows), layouts_of(schema)))
    assert found.column("l").to_pylist() == items
    wide = pa.list_(pa.struct([("a", pa.int64()), ("b", pa.large_string())]))
    given_rows = pa.RecordBatch.from_pydict({"l": pa.array(items, wide)})
    assert rows_of(parsed(encoded(row_layout(schema), given_rows), layouts_of(schema))).column("l").to_pylist() == items


@pytest.mark.parametrize(
    ("columns", "error", "text"),
    [
        ({"what": pa.array([1])}, TypeError, "is not a field of schema 1"),
        ({"_key": pa.array([b"k"])}, TypeError, "the schema has a field for it, 'carrier'"),
        ({"_timestamp": pa.array([1])}, TypeError, "the schema has a field for it, 'at'"),
        ({"_tag": pa.array(["t"])}, TypeError, "the schema has a field for it, 'kind'"),
        ({"n": pa.array([None], pa.int32())}, ValueError, "field 'n': 1 of 1 values are null"),
        ({"n": pa.array([2**31])}, ValueError, "field 'n': "),
        ({"n": pa.array([b"x"])}, ValueError, "field 'n'"),
        ({"n": pa.array([[1]])}, TypeError, "field 'n': list<item: int64> cannot be cast"),
        ({"carrier": pa.array([None], pa.string())}, ValueError, "field 'carrier': 1 of 1 rows have no value"),
        ({"at": pa.array([None], pa.timestamp("us", "UTC"))}, ValueError, "field 'at': 1 of 1 rows"),
        ({"at": pa.array([2**62], pa.timestamp("us", "UTC"))}, ValueError, "outside the years 1 to 9999"),
        ({"kind": pa.array(["t" * 5000])}, ValueError, "a tag has 5000 bytes"),
    ],
)
def test_rows_that_do_not_fit_are_refused(columns: dict[str, Any], error: type[Exception], text: str) -> None:
    good = rows(ROW)
    given_rows = pa.RecordBatch.from_pydict({**dict(zip(good.schema.names, good.columns, strict=True)), **columns})
    with pytest.raises(error, match=text):
        stored_columns(LAYOUT, given_rows)


def test_tombstones_need_a_key_and_no_other_field() -> None:
    gone = pa.array([False, True])
    raw = encoded(LAYOUT, rows(ROW, {"carrier": "AA", "at": NOW_US}, _deleted=gone))
    batch = parsed(raw, layouts_of(SIMPLE))
    assert verify_typed(raw, layouts_of(SIMPLE)).record_count == 2
    assert [row["carrier"] for row in rows_of(batch).to_pylist()] == ["UA"]
    assert [(row["carrier"], row["n"], row[DELETED]) for row in rows_of(batch, tombstones=True).to_pylist()] == [
        ("UA", 1, False),
        ("AA", None, True),
    ]
    with pytest.raises(ValueError, match="field 'carrier': 1 of 2 rows"):
        stored_columns(LAYOUT, rows(ROW, {"at": NOW_US}, _deleted=gone))


def test_a_tombstone_adds_no_bitmaps_to_the_fields() -> None:
    columns = parsed(
        encoded(LAYOUT, rows(ROW, {"carrier": "AA", "at": NOW_US}, _deleted=pa.array([False, True]))),
        layouts_of(SIMPLE),
    ).columns()
    value: Any = columns.column("value")
    assert (value.null_count, value.field(0).null_count, value.field(1).null_count) == (1, 0, 0)


# ------------------------------------------------------------------- a reader never takes typed bytes for values


def test_readers_without_schemas_refuse_typed_batches() -> None:
    raw = encoded(LAYOUT, rows(ROW))
    with pytest.raises(ProtocolError) as refused:
        RecordBatch.parse(raw)
    assert refused.value.code == pb.UNSUPPORTED_BATCH
    with pytest.raises(ProtocolError) as refused:
        RecordBatch.parse(raw, {})
    assert (refused.value.code, "not known here" in refused.value.message) == (pb.UNSUPPORTED_BATCH, True)


def test_a_typed_batch_has_no_values_and_no_records_of_bytes() -> None:
    batch = parsed(encoded(LAYOUT, rows(ROW)), layouts_of(SIMPLE))
    with pytest.raises(TypeError, match="its values are rows"):
        batch.values()
    with pytest.raises(TypeError, match="its values are rows"):
        list(batch)
    assert plain_columns_of(batch) is None
    bare = RecordBatch(batch.header, encoded(LAYOUT, rows(ROW))[128:])
    with pytest.raises(ProtocolError, match="can only be read with this schema"):
        bare.values()


def test_the_decoder_without_pyarrow_looks_at_the_schema_and_not_only_at_the_metadata() -> None:
    body = encode_batch(columns_of([b"v"]), now_us=NOW_US).body
    batch = parsed(encoded(LAYOUT, rows(ROW)), layouts_of(SIMPLE))
    header = batch.header._replace(flags=Flags.VALUE, body_length=len(body), uncompressed_length=len(body))
    assert plain_columns(header, body) is None
    assert plain_columns(header._replace(schema_id=0), body) is not None


def test_rows_of_untyped_batches_are_refused() -> None:
    with pytest.raises(TypeError, match="has no schema"):
        rows_of(RecordBatch.parse(encode_batch(columns_of([b"v"]), now_us=NOW_US).to_bytes()))


def test_columns_of_another_schema_are_not_encoded() -> None:
    other = row_layout(schema_of(Field(0, "n", INT64), number=2))
    columns = stored_columns(other, pa.RecordBatch.from_pydict({"n": [1]}))
    with pytest.raises(TypeError, match="expected the columns of schema 1"):
        encode_batch(columns, now_us=NOW_US, layout=LAYOUT)
    with pytest.raises(TypeError, match="expected the canonical columns"):
        encode_batch(columns, now_us=NOW_US)


def test_a_schema_of_every_type_has_every_column() -> None:
    layout = row_layout(EVERY_TYPE)
    assert (layout.time, layout.key, layout.tag) == (*EVERY_TYPE.fields[:2], EVERY_TYPE.fields[2])
    assert layout.row_schema.names == [field.name for field in EVERY_TYPE.fields]
