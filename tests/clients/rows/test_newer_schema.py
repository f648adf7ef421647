from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schema_chains import chains
from tests.proto.typed_batches import rows_of_schema

from tidelog.errors import SchemaMismatchError
from tidelog.rows.newer_schema import under_newer_schema
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_rows import stored_columns
from tidelog_proto.schema.next_schema import Edits, edited_schema, first_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text

FIRST = first_schema(
    [field_of_text(text) for text in ("k string", "a int8", "s struct<x: int8, y: list<struct<z: int8>>>")], key="k"
)


def columns(**fields: Any) -> pa.RecordBatch:
    rows: Any = {"k": ["1", "2"], "a": [1, None], "s": [None, {"x": 1, "y": [{"z": None}]}]} | fields
    layout = row_layout(FIRST)
    return stored_columns(layout, pa.RecordBatch.from_pydict(rows, schema=layout.row_schema))


def later(**edits: Any) -> Schema:
    return edited_schema(FIRST, Edits(**edits))[0]


def test_values_are_kept_and_new_fields_are_null() -> None:
    newest = later(add=[("", field_of_text("n string"))], rename={"a": "b"})
    moved = under_newer_schema(columns(), row_layout(FIRST), row_layout(newest))
    value: Any = moved.column("value")
    assert value.field("b").to_pylist() == [1, None]
    assert value.field("n").null_count == 2
    assert moved.column("key").equals(columns().column("key"))


@pytest.mark.parametrize(("drop", "lost"), [("a", True), ("s", True), ("s.x", True), ("s.y", True)])
def test_a_dropped_field_with_values_is_refused(drop: str, lost: bool) -> None:
    newest = row_layout(later(drop=[drop]))
    with pytest.raises(SchemaMismatchError, match=f"'{drop}' was dropped") as caught:
        under_newer_schema(columns(), row_layout(FIRST), newest)
    assert caught.value.definite is lost


@pytest.mark.parametrize(("drop", "fields"), [("a", {"a": [None, None]}), ("s", {"s": [None, None]})])
def test_a_dropped_field_without_values_is_left_out(drop: str, fields: Any) -> None:
    newest = row_layout(later(drop=[drop]))
    moved = under_newer_schema(columns(**fields), row_layout(FIRST), newest)
    assert moved.schema == newest.stored_schema(newest.flags_of(moved.schema))


@given(chains(3), st.data())
@settings(max_examples=100, deadline=None)
def test_no_value_is_lost_or_changed_silently(chain: list[Schema], data: st.DataObject) -> None:
    source, newest = row_layout(chain[0]), row_layout(chain[-1])
    before = stored_columns(source, data.draw(rows_of_schema(chain[0])))
    try:
        after = under_newer_schema(before, source, newest)
    except SchemaMismatchError:
        return
    assert after.num_rows == before.num_rows
    assert after.column("value").null_count == before.column("value").null_count
    after.validate(full=True)
    newest.flags_of(after.schema)
