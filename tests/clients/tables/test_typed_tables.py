from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schema_chains import chains
from tests.proto.typed_batches import encoded, parsed, rows_of_schema

from tidelog.errors import InvalidRequestError
from tidelog.tables.typed_tables import TableJoiner, TypedTable
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text


@given(chains(3), st.data())
@settings(max_examples=100, deadline=None)
def test_tables_have_the_rows_of_a_range_under_the_newest_schema(chain: list[Schema], data: st.DataObject) -> None:
    source, newest = row_layout(chain[0]), chain[-1]
    batch = parsed(encoded(source, data.draw(rows_of_schema(chain[0]))), {source.number: source})
    start = data.draw(st.integers(0, len(batch)))
    end = data.draw(st.integers(start, len(batch) + 1))
    rows = row_reader(chain[0], newest).rows(batch)[start:end]
    table = TypedTable(newest, None).table(batch, 0, start, end)
    assert repr(_rows(table)) == repr([row for row in rows if row is not None]) or _has_times(newest)
    assert table.num_rows == sum(row is not None for row in rows)
    columns = ["_offset", newest.fields[0].name, "_headers", "_timestamp", "_partition"]
    whole = TypedTable(newest, columns, tombstones=True)
    marked = whole.table(batch, 3, start, end)
    assert marked.schema == whole.arrow
    assert marked.schema.names == [*columns, "_deleted"]
    assert marked.column("_offset").to_pylist() == list(range(start, min(end, len(batch))))
    assert marked.column("_deleted").to_pylist() == [row is None for row in rows]
    assert set(marked.column("_partition").to_pylist()) <= {3}


def _rows(table: pa.RecordBatch) -> list[dict[str, Any]]:
    return table.to_pylist()


def _has_times(schema: Schema) -> bool:
    return "timestamp" in repr([str(field) for field in row_layout(schema).row_schema])


def test_columns_must_exist() -> None:
    schema = first_schema(
        [field_of_text("a int8"), field_of_text("k string"), field_of_text("g string")], key="k", tag="g"
    )
    for columns in (["b"], ["a", "a"], [], ["_key"], ["_tag"]):
        with pytest.raises(InvalidRequestError, match="columns must be different names of a, k, g, _partition"):
            TypedTable(schema, columns)


def test_small_tables_are_joined_and_large_ones_divided() -> None:
    joiner = TableJoiner(max_records=10)
    parts = [pa.record_batch({"a": list(range(count))}) for count in (3, 4, 25, 1)]
    joined = [each for part in parts for each in joiner.add(part)] + list(joiner.finish())
    assert [each.num_rows for each in joined] == [10, 10, 10, 3]
    assert [row for each in joined for row in each.column("a").to_pylist()] == [
        row for part in parts for row in part.column("a").to_pylist()
    ]
    assert list(joiner.finish()) == []


def test_records_without_headers_have_null_whatever_others_of_their_batch_have() -> None:
    schema = first_schema([field_of_text("a int8")])
    layout = row_layout(schema)
    headers: Any = pa.array([[], [{"key": "h", "value": b"x"}]])
    numbers: Any = pa.array([1, 2], pa.int8())
    for rows, expected in (
        (pa.record_batch({"a": numbers}), [None, None]),
        (pa.record_batch({"a": numbers, "_headers": headers}), [None, [{"key": "h", "value": b"x"}]]),
    ):
        batch = parsed(encoded(layout, rows), {1: layout})
        table = TypedTable(schema, ["_headers"]).table(batch, 0, 0, 2)
        table.validate(full=True)
        assert table.column("_headers").to_pylist() == expected
