"""Shared helpers of the tests of typed topics with Spark."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from pyspark_tidelog.options import ReadOptions, parse_options
from pyspark_tidelog.typed_columns import TypedColumns, default_columns, typed_columns
from pyspark_tidelog.typed_topic import TypedTopic
from tidelog.admin.schema_proposals import SchemaEdits
from tidelog.rows import arrow_rows
from tidelog_proto.batch.content_hash import CONTENT_KEY_BYTES, ContentHasher
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.next_schema import first_schema
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.type_text import field_of_text

_HASHER = ContentHasher(bytes(CONTENT_KEY_BYTES))


def options(**given: str) -> ReadOptions:
    return parse_options({"bootstrap": "a:1", "subscribe": "t", **given})


def content_of(schema: Schema, rows: pa.Table | pa.RecordBatch) -> Counter[tuple[Any, ...]]:
    """Return how often each row occurs, as a hash that tells each bit of each value, NaN and -0.0 among them."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    layout = row_layout(schema)
    hashes = [_HASHER.hashes_of(arrow_rows.typed_columns(layout, batch), layout) for batch in batches]
    return Counter(tuple(row) for each in hashes for row in each.tolist())


def schema_of(*fields: str, **roles: str) -> Schema:
    """Return schema 1 with fields such as "n int8" and roles such as key="n"."""
    return first_schema([field_of_text(field) for field in fields], **roles)


def evolved(schema: Schema, **changes: Any) -> Schema:
    """Return the next schema, see `SchemaChanges`."""
    return SchemaEdits(**changes).next_of(schema)[0]


def topic_of(schema: Schema) -> TypedTopic:
    return TypedTopic("t", b"i" * 16, schema)


def columns_of(schema: Schema, **given: str) -> TypedColumns:
    """Return the columns of a load with options."""
    return typed_columns(options(**given), topic_of(schema), default_columns(options(**given), topic_of(schema)))
