"""The plan of a typed message has the arrays that Arrow writes for rows of any schema, and fits the limits."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schemas import EVERY_TYPE, schema_of, schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, rows_of_schema

from tidelog_proto.batch.columns import HEADERS_TYPE
from tidelog_proto.batch.header import COLUMN_FLAGS, Codec, Flags
from tidelog_proto.batch.ipc_message import TYPED_METADATA_BYTES_MAX, TYPED_VECTOR_ITEMS_MAX, parse_message
from tidelog_proto.batch.row_layout import RowLayout, check_arrays, row_layout
from tidelog_proto.batch.typed_verification import verify_typed
from tidelog_proto.limits import HEADER_BYTES, SCHEMA_LEAVES_MAX
from tidelog_proto.schema.data_types import BOOL, INT32, LIST, STRING, STRUCT
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema


@given(schema=schemas(), data=st.data())
@settings(max_examples=100)
def test_arrow_writes_what_is_planned(schema: Schema, data: st.DataObject) -> None:
    layout = row_layout(schema)
    rows = data.draw(rows_of_schema(schema))
    raw = encoded(layout, rows)
    message = parse_message(raw[HEADER_BYTES:], typed=True)
    plan = layout.plan(verify_typed(raw, layouts_of(schema)).flags)
    assert (len(plan.arrays), plan.buffer_count) == (len(message.nodes), len(message.buffers))
    suspects = check_arrays(plan, message, [length for _, length in message.buffers], rows.num_rows)
    assert suspects <= set(range(len(schema.value_fields)))


def test_flags_and_stored_columns_belong_together() -> None:
    layout = row_layout(EVERY_TYPE)
    for flags in range(COLUMN_FLAGS + 1):
        stored = layout.stored_schema(flags)
        assert ("value" in stored.names) == bool(flags & Flags.VALUE)
        if flags & Flags.VALUE:
            assert layout.flags_of(stored) == flags
            assert stored.field("value").type == layout.value_type
    assert layout.stored_schema(int(Flags.DERIVED | Flags.VALUE)).names == ["offset_delta", "value"]


def test_layouts_of_equal_schemas_are_equal() -> None:
    same, other = schema_of(Field(0, "n", INT32)), schema_of(Field(0, "n", STRING))
    assert row_layout(same) is row_layout(schema_of(Field(0, "n", INT32)))
    assert RowLayout(same) == RowLayout(same)
    assert hash(RowLayout(same)) == hash(RowLayout(same))
    assert RowLayout(same) != RowLayout(other)
    assert RowLayout(same) != "another"


def test_a_schema_with_the_most_fields_fits_a_message() -> None:
    schema = schema_of(*(Field(0, f"f{at}", STRING) for at in range(SCHEMA_LEAVES_MAX)))
    layouts = layouts_of(schema)
    rows = parsed(encoded(layouts[1], one_row(schema)), layouts).columns()
    assert rows.num_rows == 1
    raw = encoded(layouts[1], one_row(schema))
    metadata_bytes = int.from_bytes(raw[HEADER_BYTES + 4 : HEADER_BYTES + 8], "little")
    assert 4096 < metadata_bytes <= TYPED_METADATA_BYTES_MAX
    assert verify_typed(raw, layouts).record_count == 1
    compressed = encoded(layouts[1], one_row(schema), Codec.LZ4)
    assert verify_typed(compressed, layouts).record_count == 1


def one_row(schema: Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{}], schema=row_layout(schema).row_schema)


def lists(count: int) -> Schema:
    return schema_of(*(Field(0, f"f{at}", LIST, children=(Field(0, "item", STRING),)) for at in range(count)))


def structs(count: int) -> Schema:
    leaf = (Field(0, "leaf", BOOL),)
    inner = (Field(0, "b", STRUCT, children=(Field(0, "c", STRUCT, children=leaf),)),)
    return schema_of(*(Field(0, f"f{at}", STRUCT, children=inner) for at in range(count)))


@pytest.mark.parametrize("make", [lists, structs])
def test_the_rules_of_schemas_bound_messages(make: Callable[[int], Schema]) -> None:
    """The most lists or structs that a schema may have; one with more is refused."""
    count = next(count for count in range(SCHEMA_LEAVES_MAX, 0, -1) if is_schema(make, count))
    assert 100 < count < SCHEMA_LEAVES_MAX
    schema = make(count)
    layouts = layouts_of(schema)
    rows = pa.RecordBatch.from_pylist([{}, {}], schema=layouts[1].row_schema)
    for codec in (Codec.NONE, Codec.LZ4):
        everything = rows.append_column("_headers", pa.array([[("k", b"v")], []], HEADERS_TYPE))
        raw = encoded(layouts[1], everything, codec)
        assert verify_typed(raw, layouts).record_count == 2
    plan = layouts[1].plan(COLUMN_FLAGS | Flags.DERIVED)
    assert max(len(plan.arrays), plan.buffer_count) <= TYPED_VECTOR_ITEMS_MAX
    assert 16 * (len(plan.arrays) + plan.buffer_count) + 512 <= TYPED_METADATA_BYTES_MAX


def is_schema(make: Callable[[int], Schema], count: int) -> bool:
    try:
        make(count)
    except SchemaError:
        return False
    return True
