from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schema_chains import chains
from tests.proto.schemas import LEAF_TYPES, schema_of

from tidelog_proto.schema.data_types import (
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP_UTC,
    DataType,
    decimal128,
)
from tidelog_proto.schema.evolution_rules import changes_between
from tidelog_proto.schema.fields import ITEM, Field, Role
from tidelog_proto.schema.reading_plan import reading_plan
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.topic_schema import Schema

OLD = schema_of(
    Field(0, "at", TIMESTAMP_UTC, required=True, role=Role.TIME),  # 1
    Field(0, "carrier", STRING, required=True, role=Role.KEY),  # 2
    Field(0, "delay", INT16, required=True),  # 3
    Field(0, "price", decimal128(9, 2)),  # 4
    Field(
        0, "place", STRUCT, children=(Field(0, "city", STRING, required=True), Field(0, "height", FLOAT32))
    ),  # 5, 6, 7
    Field(0, "stops", LIST, children=(Field(0, ITEM, INT8, required=True),)),  # 8, 9
)


def with_changes(
    by_id: dict[int, dict[str, object]], added: Sequence[Field] = (), *, drop: Sequence[int] = ()
) -> Schema:
    """Return the schema after `OLD`, with new attributes of fields."""

    def changed(fields: Sequence[Field]) -> tuple[Field, ...]:
        found = []
        for field in fields:
            if field.id not in drop:
                values = {"children": changed(field.children), **by_id.get(field.id, {})}
                found.append(replace(field, **values))  # type: ignore[arg-type]
        return tuple(found)

    return Schema(2, 20, (*changed(OLD.fields), *added))


def test_each_allowed_change_is_listed() -> None:
    by_id: dict[int, dict[str, object]] = {
        1: {"name": "when"},
        2: {"doc": "IATA"},
        3: {"type": INT64, "required": False},
        4: {"type": decimal128(12, 2)},
        6: {"required": False},
        7: {"type": FLOAT64},
        9: {"type": INT16, "required": False},
    }
    new = with_changes(by_id, [Field(10, "gate", STRING), Field(11, "at", INT64)])
    new = replace(new, fields=(new.fields[-1], *new.fields[:-1]))
    assert [str(change) for change in changes_between(OLD, new)] == [
        "'at' added: int64",
        "'when' renamed: from 'at' to 'when'",
        "'carrier' described: 'IATA'",
        "'delay' made optional",
        "'delay' widened: from int16 to int64",
        "'price' widened: from decimal128(9, 2) to decimal128(12, 2)",
        "'place.city' made optional",
        "'place.height' widened: from float32 to float64",
        "'stops.item' made optional",
        "'stops.item' widened: from int8 to int16",
        "'gate' added: string",
    ]
    dropped = with_changes({}, drop=[3, 7, 8])
    assert [str(change) for change in changes_between(OLD, dropped)] == [
        "'place.height' dropped: float32",
        "'delay' dropped: int16",
        "'stops' dropped: list",
    ]
    reordered = replace(OLD, number=2, fields=OLD.fields[::-1])
    (change,) = changes_between(OLD, reordered)
    assert str(change) == "the schema reordered: stops, place, price, delay, carrier, at"


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (replace(OLD, number=2), "the new schema equals schema 1; change something"),
        (replace(with_changes({3: {"doc": "x"}}), number=3), "the new schema has the number 3; the next one is 2"),
        (replace(with_changes({3: {"doc": "x"}}), number=1), "the new schema has the number 1"),
        (with_changes({4: {"required": True}}), "field 'price': it becomes required, and records may have no value"),
        (with_changes({7: {"required": True}}), "field 'place.height': it becomes required"),
        (with_changes({3: {"type": INT8}}), "field 'delay': its type changes from int16 to int8; .*add a new field"),
        (with_changes({3: {"type": FLOAT64}}), "from int16 to float64"),
        (with_changes({3: {"type": decimal128(10, 0)}}), "from int16 to decimal"),
        (with_changes({4: {"type": decimal128(8, 2)}}), r"from decimal128\(9, 2\) to decimal128\(8, 2\)"),
        (with_changes({4: {"type": decimal128(12, 3)}}), r"to decimal128\(12, 3\)"),
        (with_changes({5: {"type": STRING, "children": ()}}), "field 'place': its type changes from struct to string"),
        (with_changes({}, [Field(10, "new", STRING, required=True)]), "field 'new': it is new and required"),
        (
            with_changes(
                {5: {"children": (Field(6, "city", STRING, required=True), Field(10, "n", INT8, required=True))}}
            ),
            "field 'place.n': it is new and required",
        ),
        (with_changes({}, [Field(10, "new", STRING, role=Role.TAG)]), "field 'new': it is new and the tag"),
        (with_changes({2: {"role": Role.NONE}}), "field 'carrier': its role changes from key to none; the roles"),
        (
            with_changes({3: {"role": Role.KEY}, 2: {"role": Role.TAG}}),
            "field 'delay': its role changes from none to key",
        ),
        (with_changes({}, drop=[2]), "field 'carrier': it is dropped and the key"),
        (with_changes({}, drop=[1]), "field 'at': it is dropped and the time"),
        (
            with_changes({}, [Field(7, "height", FLOAT32)], drop=[7]),
            "field 'height': the field with the id 7 moves to it; fields stay",
        ),
        (
            with_changes({8: {"children": (Field(10, ITEM, STRING),)}}),
            "field 'stops': its item is replaced by another field",
        ),
    ],
)
def test_other_changes_are_refused(new: Schema, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        changes_between(OLD, new)


def test_an_id_is_never_used_again() -> None:
    second = with_changes({}, drop=[3])
    third = replace(second, number=3, fields=(*second.fields, Field(3, "delay", INT16)))
    with pytest.raises(SchemaError, match="field 'delay': the id 3 belonged to a dropped field; use ids from 20 on"):
        changes_between(second, third)
    inside = Field(30, "s", STRUCT, children=(Field(19, "x", INT16),))
    with pytest.raises(SchemaError, match="field 's': the id 19 belonged to a dropped field"):
        changes_between(second, replace(third, next_field_id=40, fields=(*second.fields, inside)))
    with pytest.raises(SchemaError, match="the next field id is 19; it was 20, and never decreases"):
        changes_between(second, replace(second, number=3, next_field_id=19))


def test_all_faults_of_a_change_are_listed() -> None:
    new = with_changes({3: {"type": STRING}, 4: {"required": True}}, [Field(10, "new", INT8, required=True)])
    with pytest.raises(SchemaError, match=r"^3 faults: ") as caught:
        changes_between(OLD, new)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["field 'delay'", "field 'price'", "field 'new'"]


@pytest.mark.parametrize("old", LEAF_TYPES, ids=str)
@pytest.mark.parametrize("new", LEAF_TYPES, ids=str)
def test_only_wider_types_are_allowed(old: DataType, new: DataType) -> None:
    wider = {INT8: (INT16, INT32, INT64), INT16: (INT32, INT64), INT32: (INT64,), FLOAT32: (FLOAT64,)}
    first = schema_of(Field(0, "f", old), Field(0, "g", INT8))
    second = replace(first, number=2, fields=(Field(1, "f", new, doc="new"), first.fields[1]))
    if old == new or new in wider.get(old, ()):
        changes_between(first, second)
    else:
        with pytest.raises(SchemaError, match="its type changes"):
            changes_between(first, second)


@given(chains())
@settings(max_examples=100, deadline=None)
def test_steps_that_are_generated_by_the_rules_are_allowed(chain: list[Schema]) -> None:
    for old, new in pairwise(chain):
        assert changes_between(old, new)


@st.composite
def any_followers(draw: st.DrawFn, schema: Schema) -> Schema:
    """Make a valid schema with the next number whose fields have arbitrary ids, types, roles and requirements."""
    every = draw(st.integers(2, 6))

    def changed(fields: Sequence[Field]) -> tuple[Field, ...]:
        found = []
        for field in fields:
            what = draw(st.integers(0, every))
            children = changed(field.children)
            other = replace(field, children=children)
            if what == 0 and not field.children:
                other = replace(other, type=draw(st.sampled_from(LEAF_TYPES)))
            elif what == 1:
                other = replace(other, required=not field.required)
            elif what == 2:
                other = replace(other, id=draw(st.integers(1, schema.next_field_id + 1)))
            found.append(other)
        return tuple(found)

    return Schema(schema.number + 1, schema.next_field_id + 2, changed(schema.fields))


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_schema_that_may_follow_the_newest_reads_all(data: st.DataObject) -> None:
    chain = data.draw(chains(3))
    try:
        new = data.draw(any_followers(chain[-1]))
        changes_between(chain[-1], new)
    except SchemaError:
        return
    for old in (*chain, new):
        assert reading_plan(old, new).target == reading_plan(new, new).target
