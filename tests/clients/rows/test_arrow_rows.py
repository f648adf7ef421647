from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schemas import schemas
from tests.proto.typed_batches import rows_of_schema

from tidelog.rows.arrow_rows import typed_columns
from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_rows import stored_columns
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.type_text import field_of_text

SCHEMA = first_schema(
    [field_of_text(text) for text in ("a int32", "s string", "d decimal128(4, 1)", "t timestamp[us, UTC]", "f float32")]
)
LAYOUT = row_layout(SCHEMA)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_columns_of_the_types_of_the_schema_are_taken_unchanged(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    rows = data.draw(rows_of_schema(schema))
    layout = row_layout(schema)
    taken, expected = typed_columns(layout, rows), stored_columns(layout, rows)
    assert taken.schema == expected.schema
    assert repr(taken.to_pylist()) == repr(expected.to_pylist())


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("a", pa.array([1, None], pa.int64())),
        ("a", pa.array([1, None], pa.uint64())),
        ("a", pa.array([1, None], pa.int8())),
        ("a", pa.nulls(2)),
        ("s", pa.array(["x", None]).dictionary_encode()),
        ("s", pa.array(["x", None], pa.large_string())),
        ("d", pa.array([1, None], pa.decimal128(20, 3))),
        ("t", pa.array([1, None], pa.timestamp("ms", "Europe/Berlin"))),
        ("t", pa.array([1000, None], pa.timestamp("ns", "UTC"))),
    ],
)
def test_exact_values_of_other_types_are_cast(name: str, array: pa.Array[Any]) -> None:
    columns = typed_columns(LAYOUT, pa.RecordBatch.from_arrays([array], [name]))
    value: Any = columns.column("value")
    field = value.field(name)
    assert field.type == LAYOUT.row_schema.field(name).type
    assert field.null_count == array.null_count


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("a", pa.array([2**31], pa.int64())),
        ("a", pa.array(["1"])),
        ("a", pa.array([1.0])),
        ("a", pa.array([True])),
        ("s", pa.array([1])),
        ("s", pa.array([b"x"])),
        ("d", pa.array([1, None], pa.float64())),
        ("t", pa.array([1], pa.timestamp("us"))),
        ("t", pa.array([1], pa.timestamp("ns", "UTC"))),
        ("t", pa.array([1], pa.int64())),
        ("f", pa.array([0.1])),
        ("other", pa.array([1])),
    ],
)
def test_values_that_are_not_exact_are_refused_with_the_column(name: str, array: pa.Array[Any]) -> None:
    with pytest.raises(RowError, match=f"'{name}'"):
        typed_columns(LAYOUT, pa.RecordBatch.from_arrays([array], [name]))
