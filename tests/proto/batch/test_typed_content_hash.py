"""Hashes of the contents of rows: by field id, equal under all schemas of a topic, different for different rows."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.batches import NOW_US
from tests.proto.schemas import schema_of, schemas
from tests.proto.typed_batches import encoded, layouts_of, parsed, rows_of_schema

from tidelog_proto.batch.content_hash import ContentHasher
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_rows import DELETED, rows_of
from tidelog_proto.schema.data_types import (
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP_UTC,
    decimal128,
)
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

HASHER = ContentHasher(b"0123456789abcdef")


def hashes(schema: Schema, rows: pa.RecordBatch) -> list[tuple[int, ...]]:
    found = HASHER.hashes(parsed(encoded(row_layout(schema), rows), layouts_of(schema)))
    return [tuple(each) for each in found.tolist()]


def one(schema: Schema, **row: Any) -> tuple[int, ...]:
    deleted = row.pop(DELETED, False)
    rows = pa.RecordBatch.from_pylist([row], schema=row_layout(schema).row_schema)
    return hashes(schema, rows.append_column(DELETED, pa.array([deleted])))[0]


OLD = schema_of(
    Field(0, "k", INT8, required=True, role=Role.KEY),
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME),
    Field(0, "i", INT8),
    Field(0, "f", FLOAT32),
    Field(0, "d", decimal128(4, 2)),
    Field(0, "s", STRING),
    Field(0, "st", STRUCT, children=(Field(0, "a", INT8), Field(0, "b", STRING))),
    Field(0, "l", LIST, children=(Field(0, "item", INT16),)),
)
k, at, i, f, d, s, nested, items = OLD.fields
NEW = Schema(
    2,
    20,
    (
        s,
        Field(15, "added", STRING),
        Field(k.id, "renamed", INT64, required=True, role=Role.KEY),
        Field(items.id, "l", LIST, children=(Field(items.children[0].id, "item", INT64),)),
        Field(i.id, "wide", INT64),
        Field(f.id, "f", FLOAT64),
        at,
        Field(d.id, "d", decimal128(20, 2)),
        Field(nested.id, "st", STRUCT, children=(nested.children[1], Field(16, "more", INT8), nested.children[0])),
    ),
)
"""As OLD, after fields were widened, renamed, reordered and added."""
ROWS: list[dict[str, Any]] = [
    {"k": 1, "at": NOW_US, "i": -5, "f": 1.5, "d": Decimal("1.25"), "s": "x", "st": {"a": 1, "b": "y"}, "l": [1, None]},
    {"k": 1, "at": NOW_US, "i": None, "f": None, "d": None, "s": None, "st": None, "l": None},
    {"k": -1, "at": NOW_US, "i": 0, "f": float("nan"), "d": Decimal(0), "s": "", "st": {"a": None, "b": None}, "l": []},
    {"k": 1, "at": NOW_US, "i": 127, "f": -0.0, "d": Decimal("-9.99"), "s": "é" * 300, "st": None, "l": [0] * 40},
]


def test_equal_rows_have_equal_hashes_under_all_schemas() -> None:
    old = hashes(OLD, pa.RecordBatch.from_pylist(ROWS, schema=row_layout(OLD).row_schema))
    names = {"k": "renamed", "i": "wide"}
    renamed = [{names.get(name, name): value for name, value in row.items()} for row in ROWS]
    new = hashes(NEW, pa.RecordBatch.from_pylist(renamed, schema=row_layout(NEW).row_schema))
    assert new == old
    assert len(set(old)) == len(ROWS)
    renamed[0]["added"] = ""
    assert hashes(NEW, pa.RecordBatch.from_pylist(renamed, schema=row_layout(NEW).row_schema))[0] != old[0]


@given(schema=schemas(), data=st.data())
@settings(max_examples=100)
def test_a_hash_depends_on_the_row_alone(schema: Schema, data: st.DataObject) -> None:
    rows = data.draw(rows_of_schema(schema))
    found = hashes(schema, rows)
    cut = data.draw(st.integers(0, rows.num_rows - 1))
    assert hashes(schema, rows.slice(cut)) == found[cut:]
    batch = parsed(encoded(row_layout(schema), rows), layouts_of(schema))
    fields = rows_of(batch, tombstones=True).to_pylist()
    seen = {repr(each) for each in zip(fields, others(batch), strict=True)}
    assert len(seen) == len(set(found))


def others(batch: Any) -> list[Any]:
    """Return the hashed parts of records besides the fields."""
    return list(zip(batch.keys(), batch.tags(), batch.headers(), strict=True))


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
@pytest.mark.parametrize(
    "change",
    [
        {"k": 2},
        {"at": NOW_US + 1},
        {"i": 6},
        {"f": 2.5},
        {"d": Decimal("7.25")},
        {"s": "z"},
        {"st": {"a": 2, "b": None}},
        {"l": [None, 1]},
        {"l": [None]},
        {"l": [None, None]},
    ],
    ids=str,
)
def test_each_field_counts_and_so_does_the_time(row: dict[str, Any], change: dict[str, Any]) -> None:
    assert one(OLD, **row) != one(OLD, **row | change)


def test_values_that_are_easily_confused() -> None:
    row = ROWS[1]
    different: list[dict[str, Any]] = [
        {},
        {"i": 0},
        {"s": ""},
        {"f": 0.0},
        {"f": -0.0},
        {"d": Decimal(0)},
        {"l": []},
        {"l": [None]},
        {"l": [0]},
        {"st": {"a": None, "b": None}},
        {"st": {"a": 0, "b": None}},
        {"st": {"a": None, "b": ""}},
        {DELETED: True},
    ]
    assert len({one(OLD, **row | change) for change in different}) == len(different)


def test_the_place_of_a_value_counts() -> None:
    pair = schema_of(Field(0, "a", INT64), Field(0, "b", INT64), Field(0, "c", STRING), Field(0, "d", STRING))
    assert one(pair, a=1, b=2) != one(pair, a=2, b=1)
    assert one(pair, c="x") != one(pair, d="x")


def test_nothing_under_a_tombstone_counts() -> None:
    rows = pa.RecordBatch.from_pylist([ROWS[0], ROWS[1]], schema=row_layout(OLD).row_schema)
    found = hashes(OLD, rows.append_column(DELETED, pa.array([True, True])))
    assert found[0] == found[1]


def test_a_hasher_of_another_key_gives_other_hashes() -> None:
    batch = parsed(
        encoded(row_layout(OLD), pa.RecordBatch.from_pylist(ROWS, schema=row_layout(OLD).row_schema)), layouts_of(OLD)
    )
    assert not np.array_equal(ContentHasher(b"fedcba9876543210").hashes(batch), HASHER.hashes(batch))
