from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schema_chains import chains, random_values
from tests.proto.schemas import schema_of

from tidelog_proto.schema.arrow_types import value_type
from tidelog_proto.schema.data_types import INT8, INT16, INT64, LIST, STRING, STRUCT, decimal128
from tidelog_proto.schema.fields import ITEM, Field
from tidelog_proto.schema.reading_plan import reading_plan
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema


def read_by_reference(value: Any, source: Sequence[Field], target: Sequence[Field]) -> Any:
    """Return a struct's Python value under another schema; no value changes, only names and which are present."""
    if value is None:
        return None
    by_id = {field.id: field for field in source}
    found = {}
    for field in target:
        old = by_id.get(field.id)
        found[field.name] = None if old is None else below(value[old.name], old, field)
    return found


def below(value: Any, old: Field, new: Field) -> Any:
    if value is None or not old.children:
        return value
    if old.type == LIST:
        return [below(item, old.children[0], new.children[0]) for item in value]
    return read_by_reference(value, old.children, new.children)


@given(chains(), st.integers(0, 2**32), st.integers(0, 20), st.data())
@settings(max_examples=200, deadline=None)
def test_a_later_schema_reads_every_value_unchanged(
    chain: list[Schema], seed: int, count: int, data: st.DataObject
) -> None:
    target = chain[-1]
    for source in chain:
        values = random_values(source, count, seed)
        begin = data.draw(st.integers(0, count))
        values = values[begin : data.draw(st.integers(begin, count))]
        read = reading_plan(source, target).read(values)
        read.validate(full=True)
        assert read.type == value_type(target)
        expected = [read_by_reference(row, source.value_fields, target.value_fields) for row in values.to_pylist()]
        assert repr(read.to_pylist()) == repr(expected)


@given(chains(3), st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_reading_in_steps_gives_the_same_values(chain: list[Schema], seed: int) -> None:
    """A field that was dropped and added again by name stays null."""
    values = random_values(chain[0], 10, seed)
    stepwise: Any = values
    for source, target in pairwise(chain):
        stepwise = reading_plan(source, target).read(stepwise)
    assert repr(reading_plan(chain[0], chain[-1]).read(values).to_pylist()) == repr(stepwise.to_pylist())


def test_a_name_that_is_used_again_is_another_field() -> None:
    old = schema_of(Field(0, "a", INT64), Field(0, "s", STRUCT, children=(Field(0, "x", STRING),)))
    new = Schema(2, 6, (Field(4, "a", INT64), Field(2, "s", STRUCT, children=(Field(5, "x", STRING),))))
    values = pa.array([{"a": 1, "s": {"x": "one"}}], value_type(old))
    assert value_type(old) == value_type(new)
    assert reading_plan(old, new).read(values).to_pylist() == [{"a": None, "s": {"x": None}}]


def test_equal_fields_are_not_copied() -> None:
    old = schema_of(Field(0, "a", INT64), Field(0, "l", LIST, children=(Field(0, ITEM, STRING),)))
    described = replace(old, number=2, fields=(replace(old.fields[0], doc="described"), old.fields[1]))
    values: Any = pa.array([{"a": 1, "l": ["x"]}], value_type(old))
    assert reading_plan(old, described).read(values) is values
    renamed = replace(old, number=2, fields=(replace(old.fields[0], name="b"), old.fields[1]))
    read: Any = reading_plan(old, renamed).read(values)
    assert read.to_pylist() == [{"b": 1, "l": ["x"]}]
    assert [b and b.address for b in read.buffers()] == [b and b.address for b in values.buffers()]


def test_a_plan_is_made_once() -> None:
    old = schema_of(Field(0, "a", INT64), Field(0, "b", INT64))
    assert reading_plan(old, old) is reading_plan(replace(old), replace(old))


def test_fields_by_name() -> None:
    old = schema_of(Field(0, "a", INT8), Field(0, "b", STRING), Field(0, "c", INT8))
    new = replace(old, number=2, fields=(replace(old.fields[0], type=INT16, name="z"), *old.fields[1:]))
    values = pa.array([{"a": 1, "b": "x", "c": 3}, None], value_type(old))
    assert reading_plan(old, new, ("c", "z")).read(values).to_pylist() == [{"c": 3, "z": 1}, None]
    with pytest.raises(ValueError, match="name at least one"):
        reading_plan(old, new, ())
    with pytest.raises(KeyError, match="unknown"):
        reading_plan(old, new, ("unknown",))


def test_a_pinned_reader_leaves_newer_fields_out_and_refuses_wider_ones() -> None:
    pinned = schema_of(Field(0, "a", INT8), Field(0, "b", STRING, required=True), Field(0, "c", INT8))
    a, b, _ = pinned.fields
    later = Schema(2, 5, (a, Field(4, "new", INT8), b))
    values = pa.array([{"a": 1, "new": 2, "b": "x"}], value_type(later))
    assert reading_plan(later, pinned).read(values).to_pylist() == [{"a": 1, "b": "x", "c": None}]
    for changed, message in (
        (
            (replace(a, type=INT16), b),
            "field 'a' has the type int8, and int16 in schema 2; read again with that schema",
        ),
        ((a, replace(b, required=False)), "field 'b' is required, and optional in schema 2"),
        ((a,), "field 'b' is required, and was dropped in schema 2"),
    ):
        with pytest.raises(SchemaError, match=message):
            reading_plan(Schema(2, 5, changed), pinned)
    assert reading_plan(Schema(2, 5, (replace(a, type=INT16), b)), pinned, ("b",)).target.names == ["b"]


def test_bytes_below_nulls_do_not_fail_a_plan() -> None:
    """Only rows that are not null have to fit the schema: 12 fits no decimal of one digit."""
    old = schema_of(Field(0, "d", decimal128(1, 0)))
    new = replace(old, number=2, fields=(replace(old.fields[0], type=decimal128(3, 0)),))
    large: Any = pa.array([12, 5], pa.int64()).cast(pa.decimal128(19, 0)).buffers()[1]
    child = pa.Array.from_buffers(pa.decimal128(1, 0), 2, [None, large])
    values = pa.StructArray.from_arrays([child], fields=list(value_type(old)), mask=pa.array([True, False]))
    assert reading_plan(old, new).read(values).to_pylist() == [None, {"d": 5}]


def test_values_of_another_type_are_refused() -> None:
    old = schema_of(Field(0, "a", INT8), Field(0, "b", INT8))
    with pytest.raises(
        ValueError, match="the column value has the type struct<a: int8>, and its schema struct<a: int8, b"
    ):
        reading_plan(old, old).read(pa.array([{"a": 1}], pa.struct([("a", pa.int8())])))
