"""Hypothesis strategies for rows of any schema as applications have them."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from tests.proto.batches import NOW_US
from tests.proto.typed_batches import values_of

from tidelog.rows.row_writer import row_writer
from tidelog_proto.batch.record_batch import RecordBatch, encode_batch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_python(value: Any, field: Field) -> Any:
    """Return a value of `values_of` as an application has it."""
    kind = field.type.kind
    if value is None:
        return None
    if kind is Kind.DATE32:
        return date(1970, 1, 1) + timedelta(days=value)
    if kind is Kind.TIMESTAMP_UTC:
        return EPOCH + timedelta(microseconds=value)
    if kind is Kind.TIMESTAMP:
        return EPOCH.replace(tzinfo=None) + timedelta(microseconds=value)
    if kind is Kind.LIST:
        return [as_python(each, field.children[0]) for each in value]
    if kind is Kind.STRUCT:
        return {child.name: as_python(value[child.name], child) for child in field.children}
    return value


@st.composite
def python_rows(draw: st.DrawFn, schema: Schema, max_size: int = 5) -> list[dict[str, Any]]:
    """Make rows of a schema."""
    rows = []
    for _ in range(draw(st.integers(1, max_size))):
        row = {field.name: as_python(draw(values_of(field)), field) for field in schema.fields}
        time = schema.field_of(Role.TIME)
        if time is not None:
            row[time.name] = EPOCH + timedelta(microseconds=draw(st.integers(0, NOW_US)))
        rows.append(row)
    return rows


def stored(schema: Schema, rows: list[dict[str, Any]]) -> RecordBatch:
    """Return the batch of rows as a reader sees it."""
    writer = row_writer(schema)
    values, keys, tags, stamps, _ = (list(column) for column in zip(*map(writer.copy, rows), strict=True))
    columns = writer.columns(
        values,
        keys=keys if schema.field_of(Role.KEY) is not None else None,
        tags=tags if schema.field_of(Role.TAG) is not None else None,
        timestamps_us=stamps if schema.field_of(Role.TIME) is not None else None,
    )
    layout = row_layout(schema)
    batch = encode_batch(columns, now_us=NOW_US, layout=layout).to_bytes()
    return RecordBatch.parse(batch, {schema.number: layout})


def read(batch: RecordBatch, target: Schema) -> list[dict[str, Any] | None]:
    """Return the rows of a batch under a schema."""
    assert batch.layout is not None
    return row_reader(batch.layout.schema, target).rows(batch)
