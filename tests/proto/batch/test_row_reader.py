from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clients.rows.python_rows import python_rows, read, stored
from tests.proto.batches import CODECS
from tests.proto.schema_chains import chains
from tests.proto.typed_batches import encoded, parsed, rows_of_schema

from tidelog.rows.row_writer import row_writer
from tidelog_proto.batch import projection
from tidelog_proto.batch.derived_batch import kept_rows
from tidelog_proto.batch.header import COLUMN_FLAGS, Flags
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.batch.typed_projection import project_rows
from tidelog_proto.batch.typed_rows import rows_of
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.fields import Field, Role
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


@pytest.fixture
def small_batches_are_cut() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(projection, "WHOLE_BYTES_MAX", 0)
        yield


_FLAG_OF_ROLE = {Role.NONE: Flags.VALUE, Role.TIME: Flags.TIMESTAMP, Role.KEY: Flags.KEY, Role.TAG: Flags.TAG}


@pytest.mark.usefixtures("small_batches_are_cut")
@given(chains(), st.data())
@settings(max_examples=150, deadline=None)
def test_projected_batches_of_earlier_schemas_have_the_rows_of_whole_ones(
    chain: list[Schema], data: st.DataObject
) -> None:
    """The reader requests ids of the newest schema that it knows; the batch has any schema before it."""
    target = chain[-1]
    source = data.draw(st.sampled_from(chain))
    layout = row_layout(source)
    layouts = {source.number: layout}
    codec = data.draw(st.sampled_from(CODECS))
    stored_batch = encoded(layout, data.draw(rows_of_schema(source)), codec, base=10)
    if data.draw(st.booleans()):
        whole = parsed(stored_batch, layouts)
        keep = np.array([data.draw(st.booleans()) for _ in range(len(whole))])
        stored_batch = bytes(kept_rows(whole, keep) or stored_batch)
    wanted = data.draw(st.lists(st.sampled_from(target.fields), unique=True, min_size=1))
    names = tuple(field.name for field in wanted)
    columns = Flags.VALUE | sum({_FLAG_OF_ROLE[field.role] for field in wanted} - {Flags.VALUE})
    columns |= data.draw(st.integers(0, COLUMN_FLAGS))
    more = data.draw(st.sets(st.sampled_from([10_000, *(field.id for field in source.fields)])))
    ids = frozenset(field.id for field in wanted) | more
    whole = parsed(stored_batch, layouts)
    sent = parsed(bytes(project_rows(stored_batch, layout, columns=columns, fields=ids)), layouts)
    reader = row_reader(source, target, names)
    at = data.draw(st.integers(0, len(whole)))
    start = whole.offset_list()[at] if at < len(whole) else whole.end_offset
    for one, other in ((sent, whole), (sent.slice_from(start), whole.slice_from(start))):
        assert repr(reader.rows(one)) == repr(reader.rows(other))
        assert repr(reader.table(one).to_pylist()) == repr(reader.table(other).to_pylist())


@pytest.mark.usefixtures("small_batches_are_cut")
def test_fields_that_were_not_sent_are_reported_and_not_null() -> None:
    schema = first_schema(
        [field_of_text(each) for each in ("t timestamp[us, UTC] required", "k string required", "a int8", "b int8")],
        key="k",
        time="t",
    )
    layout = row_layout(schema)
    batch = encoded(
        layout, pa.RecordBatch.from_pylist([{"t": 5, "k": "x", "a": 1, "b": 2}] * 9, schema=layout.row_schema)
    )
    a = next(field.id for field in schema.fields if field.name == "a")
    for columns, ids, names, missing in (
        (COLUMN_FLAGS, {a}, ("a", "b"), "['b']"),
        (COLUMN_FLAGS, set[int](), None, "['a', 'b']"),
        (Flags.VALUE, {a}, ("k", "a"), "['k']"),
        (Flags.VALUE, {a}, ("t",), "['t']"),
        (Flags.KEY, {a}, ("a",), "['a']"),
    ):
        sent = parsed(bytes(project_rows(batch, layout, columns=columns, fields=frozenset(ids))), {1: layout})
        with pytest.raises(ProtocolError, match="the batch was sent without the fields") as caught:
            row_reader(schema, schema, names).rows(sent)
        assert missing in str(caught.value)
