from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.rows.python_rows import python_rows, read, stored
from tests.proto.schema_chains import chains
from tests.proto.typed_batches import encoded, parsed, rows_of_schema

from tidelog.rows.row_writer import row_writer
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.batch.typed_rows import rows_of
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text


def under(row: Any, source: tuple[Field, ...], target: tuple[Field, ...]) -> Any:
    """Return a row under a later schema: no value changes, only names and which are present."""
    by_id = {field.id: field for field in source}
    return {
        field.name: None if (old := by_id.get(field.id)) is None else _below(row[old.name], old, field)
        for field in target
    }


def _below(value: Any, old: Field, new: Field) -> Any:
    if value is None or not old.children:
        return value
    if isinstance(value, list):
        return [_below(each, old.children[0], new.children[0]) for each in value]
    return under(value, old.children, new.children)


@given(chains(), st.data())
@settings(max_examples=150, deadline=None)
def test_rows_of_earlier_schemas_are_read_under_the_newest(chain: list[Schema], data: st.DataObject) -> None:
    newest = chain[-1]
    for schema in chain:
        rows = data.draw(python_rows(schema, max_size=3))
        batch = stored(schema, rows)
        expected = [under(row, schema.fields, newest.fields) for row in rows]
        assert repr(read(batch, newest)) == repr(expected)
        table = row_reader(schema, newest).table(batch)
        assert table.schema == row_layout(newest).row_schema
        assert table.num_rows == len(rows)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_tables_are_the_rows_without_tombstones(data: st.DataObject) -> None:
    schema = data.draw(chains(2))[0]
    layout = row_layout(schema)
    batch = parsed(encoded(layout, data.draw(rows_of_schema(schema))), {schema.number: layout})
    reader = row_reader(schema, schema)
    assert repr(reader.table(batch).to_pylist()) == repr(rows_of(batch).to_pylist())
    assert reader.table(batch).schema == rows_of(batch).schema
    rows = reader.rows(batch)
    assert len(rows) == len(batch)
    assert sum(row is not None for row in rows) == rows_of(batch).num_rows
    cut = batch.slice_from(1)
    assert repr(reader.rows(cut)) == repr(rows[1:])


def test_names_select_fields_in_their_order() -> None:
    schema = first_schema([field_of_text("a int8"), field_of_text("k string"), field_of_text("b string")], key="k")
    batch = stored(schema, [{"a": 1, "k": "x", "b": "y"}])
    for names in [("b", "k"), ("k",), ("a",)]:
        (row,) = row_reader(schema, schema, names).rows(batch)
        assert row is not None
        assert tuple(row) == names


def test_batches_without_records_have_no_rows() -> None:
    schema = first_schema([field_of_text("a int8")])
    batch = stored(schema, [{"a": 1}])
    reader = row_reader(schema, schema)
    assert reader.rows(batch.slice_from(1)) == []
    assert reader.table(batch.slice_from(1)).num_rows == 0
    assert row_writer(schema).columns([]).num_rows == 0
