from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.filters.reference_filter import expressions, is_true, plain_rows
from tests.proto.schema_chains import chains
from tests.proto.schemas import schema_of
from tests.proto.typed_batches import encoded, parsed, rows_of_schema

from tidelog_proto.batch import projection
from tidelog_proto.batch.derived_batch import kept_rows
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.typed_projection import project_rows
from tidelog_proto.errors import ProtocolError
from tidelog_proto.filters.expression import EVERY_ROW, NO_ROW, AllOf, AnyOf, Leaf, Operator
from tidelog_proto.filters.matching_rows import matching_rows
from tidelog_proto.filters.record_columns import RECORD_COLUMN_IDS, of_fields
from tidelog_proto.schema.data_types import BOOL, FLOAT64, INT8, INT64, STRING, STRUCT, DataType, decimal128
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.topic_schema import Schema

NAN = float("nan")


def batch_of(schema: Schema, rows: list[dict[str, Any]]) -> RecordBatch:
    layout = row_layout(schema)
    columns = pa.RecordBatch.from_pylist(rows, schema=layout.row_schema)
    return parsed(encoded(layout, columns, base=100), {schema.number: layout})


def matches(batch: RecordBatch, expression: Any) -> list[bool]:
    found = matching_rows(batch, expression, 3)
    return [True] * len(batch) if found is None else found.tolist()


@given(chains(), st.data())
@settings(max_examples=100, deadline=None)
def test_rows_match_as_in_the_reference_whatever_schemas_their_batches_have(
    chain: list[Schema], data: st.DataObject
) -> None:
    target = chain[-1]
    expression = data.draw(expressions(target))
    for source in chain:
        layout = row_layout(source)
        batch = parsed(encoded(layout, data.draw(rows_of_schema(source)), base=10), {source.number: layout})
        if data.draw(st.booleans()):
            keep = np.array([data.draw(st.booleans()) for _ in range(len(batch))])
            kept = kept_rows(batch, keep)
            batch = batch if kept is None else parsed(bytes(kept), {source.number: layout})
        assert matches(batch, expression) == [is_true(expression, row) for row in plain_rows(batch, target)]


def one_field(data_type: DataType, values: list[Any]) -> RecordBatch:
    return batch_of(schema_of(Field(0, "f", data_type)), [{"f": value} for value in values])


def test_nan_matches_as_the_test_says_and_zeros_are_equal() -> None:
    batch = one_field(FLOAT64, [0.0, -0.0, NAN, None, 2.0])
    for operator, literals, expected in (
        (Operator.EQUAL, (-0.0,), [True, True, False, False, False]),
        (Operator.NOT_EQUAL, (0.0,), [False, False, False, False, True]),
        (Operator.IS_IN, (-0.0, 2.0), [True, True, False, False, True]),
        (Operator.IS_NOT_IN, (-0.0,), [False, False, False, False, True]),
        (Operator.GREATER, (1.0,), [False, False, False, False, True]),
    ):
        assert matches(batch, Leaf(1, operator, literals)) == expected
        expected[2] = True
        assert matches(batch, Leaf(1, operator, literals, nan=True)) == expected


def test_text_compares_as_bytes() -> None:
    """As UTF-16, an emoji is before U+FF5E; as UTF-8 it is after it."""
    batch = one_field(STRING, ["\uff5e", "\U0001f600", "", None])
    assert matches(batch, Leaf(1, Operator.GREATER, ("\uff5e".encode(),))) == [False, True, False, False]
    assert matches(batch, Leaf(1, Operator.LESS, (b"\xff",))) == [True, True, True, False]


def test_large_decimals_are_exact() -> None:
    batch = one_field(decimal128(38, 0), [10**38 - 1, 10**38 - 2, None])
    assert matches(batch, Leaf(1, Operator.EQUAL, (10**38 - 1,))) == [True, False, False]
    assert matches(batch, Leaf(1, Operator.LESS, (10**38,))) == [True, True, False]
    assert matches(batch, Leaf(1, Operator.IS_NOT_IN, (10**38, 10**38 - 2))) == [True, False, False]


def test_values_below_a_null_struct_are_null() -> None:
    schema = schema_of(Field(0, "s", STRUCT, children=(Field(0, "x", INT64, required=True),)))
    batch = batch_of(schema, [{"s": {"x": 0}}, {"s": None}])
    assert matches(batch, Leaf(2, Operator.EQUAL, (0,))) == [True, False]
    assert matches(batch, Leaf(2, Operator.IS_NULL)) == [False, True]
    assert matches(batch, Leaf(1, Operator.IS_NULL)) == [False, True]


def test_a_field_that_is_missing_in_an_older_schema_is_null() -> None:
    batch = one_field(INT8, [1, 2])
    assert matches(batch, Leaf(9, Operator.IS_NULL)) == [True, True]
    assert matches(batch, Leaf(9, Operator.IS_NOT_NULL)) == [False, False]
    assert matches(batch, Leaf(9, Operator.NOT_EQUAL, (5,))) == [False, False]
    assert matches(batch, AnyOf((Leaf(9, Operator.EQUAL, (5,)), Leaf(1, Operator.EQUAL, (2,))))) == [False, True]


@pytest.mark.parametrize("literal", [128, -129])
def test_literals_beyond_a_narrower_type_are_constants(literal: int) -> None:
    batch = one_field(INT8, [127, -128, None])
    less = literal > 0
    for operator, expected in (
        (Operator.EQUAL, False),
        (Operator.IS_IN, False),
        (Operator.NOT_EQUAL, True),
        (Operator.IS_NOT_IN, True),
        (Operator.LESS, less),
        (Operator.LESS_OR_EQUAL, less),
        (Operator.GREATER, not less),
        (Operator.GREATER_OR_EQUAL, not less),
    ):
        assert matches(batch, Leaf(1, operator, (literal,))) == [expected, expected, False]
    assert matches(batch, Leaf(1, Operator.IS_IN, (literal, 127))) == [True, False, False]
    assert matches(batch, Leaf(1, Operator.IS_NOT_IN, (literal, 127))) == [False, True, False]


def test_columns_of_records_and_fields_with_a_role() -> None:
    schema = schema_of(Field(0, "k", INT64, required=True, role=Role.KEY), Field(0, "v", INT8))
    batch = batch_of(schema, [{"k": -7, "v": 1}, {"k": 7, "v": None}])
    assert matches(batch, Leaf(1, Operator.LESS, (0,))) == [True, False]
    assert matches(batch, Leaf(RECORD_COLUMN_IDS["_offset"], Operator.EQUAL, (101,))) == [False, True]
    assert matches(batch, Leaf(RECORD_COLUMN_IDS["_partition"], Operator.EQUAL, (3,))) == [True, True]
    assert matches(batch, Leaf(RECORD_COLUMN_IDS["_timestamp"], Operator.GREATER, (0,))) == [True, True]
    assert matches(batch, Leaf(RECORD_COLUMN_IDS["_tag"], Operator.IS_NULL)) == [True, True]


def test_without_record_columns_an_expression_keeps_more_rows() -> None:
    offset, field = Leaf(RECORD_COLUMN_IDS["_offset"], Operator.EQUAL, (1,)), Leaf(1, Operator.IS_NULL)
    assert of_fields(AllOf((offset, field))) == field
    assert of_fields(AnyOf((offset, field))) == EVERY_ROW
    assert of_fields(AnyOf((AllOf((offset, field)), NO_ROW))) == field


def test_constants_and_empty_batches() -> None:
    batch = one_field(BOOL, [True, None])
    assert matching_rows(batch, EVERY_ROW) is None
    assert matches(batch, NO_ROW) == [False, False]
    assert matching_rows(batch.slice_from(batch.end_offset), Leaf(1, Operator.EQUAL, (True,))) is None


def test_a_field_that_was_not_sent_is_reported_and_not_null(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "WHOLE_BYTES_MAX", 0)
    inner = Field(0, "s", STRUCT, children=(Field(0, "x", INT8), Field(0, "y", INT8)))
    schema = schema_of(Field(0, "k", STRING, required=True, role=Role.KEY), inner, Field(0, "v", INT8))
    layout = row_layout(schema)
    rows = pa.RecordBatch.from_pylist([{"k": "a", "s": {"x": 1, "y": 2}, "v": 3}] * 9, schema=layout.row_schema)
    raw = encoded(layout, rows, base=0)
    for columns, sent, tested in (
        (Flags.VALUE, {3}, 1),
        (Flags.VALUE, {3}, 4),
        (Flags.VALUE, {3}, 5),
        (Flags.VALUE, {5}, 3),
        (Flags.KEY, set[int](), 5),
    ):
        part = parsed(bytes(project_rows(raw, layout, columns=columns, fields=frozenset(sent))), {1: layout})
        with pytest.raises(ProtocolError, match="the batch was sent without the field"):
            matching_rows(part, Leaf(tested, Operator.IS_NULL))
    part = parsed(bytes(project_rows(raw, layout, columns=Flags.VALUE, fields=frozenset({3}))), {1: layout})
    assert matches(part, Leaf(3, Operator.EQUAL, (1,))) == [True] * 9
