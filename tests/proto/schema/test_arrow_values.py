from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schema_chains import chains, random_values
from tests.proto.schemas import schemas

from tidelog_proto.schema.arrow_input import fields_of_arrow
from tidelog_proto.schema.arrow_types import arrow_type, value_type
from tidelog_proto.schema.arrow_values import exact_values
from tidelog_proto.schema.data_types import (
    FLOAT64,
    INT8,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    decimal128,
)
from tidelog_proto.schema.fields import ITEM, Field
from tidelog_proto.schema.topic_schema import Schema

SAMPLES = [
    (pa.array([0, 255, None], pa.uint8()), None),
    (pa.array([0, 2**64 - 1, None], pa.uint64()), [Decimal(0), Decimal(2**64 - 1), None]),
    (pa.array(["", "é", None], pa.large_string()), None),
    (pa.array(["", "a string of many bytes", None], pa.string_view()), None),
    (pa.array([b"", b"\xff" * 20, None], pa.binary_view()), None),
    (pa.array(["a", "a", None]).dictionary_encode(), None),
    (pa.array([0, 1, None], pa.timestamp("s")), None),
    (pa.array([0, 1_000, None], pa.timestamp("ns")), [datetime(1970, 1, 1), datetime(1970, 1, 1, 0, 0, 0, 1), None]),  # noqa: DTZ001
    (pa.array([[1], [], [2, 3], None], pa.large_list(pa.uint8())), None),
    (pa.array([[1], None, [], [2, 3], None], pa.list_view(pa.int8())), None),
    (pa.array([[[1]], None, [[], [2, 3]], None], pa.large_list_view(pa.list_view(pa.uint8()))), None),
    (pa.array([None, [{"a": 1}], []], pa.large_list(pa.struct([("a", pa.uint8())]))), None),
    (
        pa.array(
            [{"b": 1, "a": "x"}, None, {"b": None, "a": "y"}], pa.struct([("b", pa.uint8()), ("a", pa.large_string())])
        ),
        None,
    ),
    (
        pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.large_string(), pa.uint8())),
        [[{"key": "k", "value": 1}, {"key": "l", "value": None}], None, []],
    ),
]


@pytest.mark.parametrize(("array", "expected"), SAMPLES, ids=lambda value: str(getattr(value, "type", "")))
@pytest.mark.parametrize("begin", [0, 1])
def test_values_are_those_of_the_announced_types(array: Any, expected: list[Any] | None, begin: int) -> None:
    (field,) = fields_of_arrow(pa.schema([pa.field("x", array.type)])).fields
    exact: Any = exact_values(array[begin:], field)
    exact.validate(full=True)
    assert exact.type == arrow_type(field)
    assert exact.to_pylist() == (array.to_pylist() if expected is None else expected)[begin:]


@pytest.mark.parametrize(
    ("array", "data_type", "message"),
    [
        (
            pa.array([1], pa.timestamp("ns")),
            TIMESTAMP,
            r"field 'x': a value of timestamp\[ns\] does not fit .*lose data",
        ),
        (pa.array([2**62], pa.timestamp("s")), TIMESTAMP, r"a value of timestamp\[s\] does not fit timestamp\[us\]"),
        (
            pa.array([1], pa.timestamp("us")),
            TIMESTAMP_UTC,
            r"has the type timestamp\[us\], and the field timestamp\[us, UTC\]",
        ),
        (pa.array(["1"]), INT64, "the column has the type string, and the field int64; cast the column first"),
        (pa.array([1.0]), INT64, "has the type double, and the field int64"),
        (pa.array([1], pa.int64()), INT8, "has the type int64, and the field int8"),
        (pa.array([1], pa.int64()), FLOAT64, "has the type int64, and the field double|float64"),
        (pa.array([Decimal("1.00")]), decimal128(5, 1), r"has the type decimal128\(3, 2\)"),
        (pa.array([None], pa.null()), STRING, "has the type null, and the field string"),
        (pa.array([[1]]), STRING, "the column has the type list"),
    ],
)
def test_values_that_do_not_fit_are_refused(array: Any, data_type: DataType, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        exact_values(array, Field(1, "x", data_type))


def test_nested_types_that_do_not_fit_are_refused() -> None:
    place = Field(1, "p", STRUCT, children=(Field(2, "a", INT8), Field(3, "b", STRING, required=True)))
    for value in ({"a": 1}, {"b": "x", "c": 1}, {"b": "x", "B": "y"}):
        with pytest.raises(
            ValueError, match=r"field 'p': the struct has the fields \[.*\], and the schema has \['a', 'b'\]"
        ):
            exact_values(pa.array([value]), place)
    twice = pa.StructArray.from_arrays([pa.array(["x"]), pa.array(["y"])], ["b", "b"])
    with pytest.raises(ValueError, match=r"the struct has the fields \['b', 'b'\]"):
        exact_values(twice, place)
    with pytest.raises(ValueError, match=r"field 'p\.b': the column has the type int8"):
        exact_values(pa.array([{"a": 1, "b": 2}], pa.struct([("a", pa.int8()), ("b", pa.int8())])), place)
    with pytest.raises(ValueError, match="field 'p': the column has the type string"):
        exact_values(pa.array(["x"]), place)
    stops = Field(1, "l", LIST, children=(Field(2, ITEM, INT8),))
    for array in (pa.array(["x"]), pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8()))):
        with pytest.raises(ValueError, match="field 'l': the column has the type"):
            exact_values(array, stops)


def test_fields_of_a_struct_are_found_by_name() -> None:
    place = Field(1, "p", STRUCT, children=(Field(2, "a", INT8), Field(3, "b", INT8), Field(4, "c", INT8)))
    column = pa.array([{"c": 3, "a": 1, "b": 2}], pa.struct([(name, pa.int8()) for name in ("c", "a", "b")]))
    assert exact_values(column, place).to_pylist() == [{"a": 1, "b": 2, "c": 3}]


def test_optional_fields_that_a_struct_lacks_are_null() -> None:
    place = Field(1, "p", STRUCT, children=(Field(2, "a", INT8), Field(3, "b", STRING, required=True)))
    column = pa.array([{"b": "w"}, None, {"b": "x"}], pa.struct([("b", pa.string())]))
    exact = exact_values(column[1:], place)
    exact.validate(full=True)
    assert exact.to_pylist() == [None, {"a": None, "b": "x"}]


@given(schemas(), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_values_of_the_type_are_returned_as_they_are(schema: Schema, seed: int) -> None:
    values = random_values(schema, 5, seed)
    for field in schema.value_fields:
        column = values.field(field.name)
        assert exact_values(column, field) is column


@given(chains(2), st.integers(0, 2**32), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_narrower_values_are_widened(chain: list[Schema], seed: int, begin: int) -> None:
    old, new = chain
    before = {field.id: field for field in old.value_fields}
    values = random_values(old, 8, seed)[begin:]
    for field in new.value_fields:
        if field.id in before and not field.children:
            column = values.field(before[field.id].name)
            exact: Any = exact_values(column, field)
            assert exact.type == value_type(new).field(field.name).type
            assert repr(exact.to_pylist()) == repr(column.to_pylist())
