"""Shared helpers of the tests of schemas: samples, and hypothesis strategies for fields and schemas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import count

from hypothesis import strategies as st

from tidelog_proto.schema.data_types import (
    BINARY,
    BOOL,
    DATE32,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    LIST,
    STRING,
    STRUCT,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    decimal128,
)
from tidelog_proto.schema.field_checks import ROLE_KINDS
from tidelog_proto.schema.fields import ITEM, Field, Role
from tidelog_proto.schema.topic_schema import Schema

LEAF_TYPES = (
    *(BOOL, INT8, INT16, INT32, INT64, FLOAT32, FLOAT64, STRING, BINARY, DATE32, TIMESTAMP, TIMESTAMP_UTC),
    *(decimal128(1, 0), decimal128(10, 2), decimal128(38, 38)),
)

EVERY_TYPE = Schema(
    1,
    24,
    (
        Field(1, "at", TIMESTAMP_UTC, required=True, role=Role.TIME, doc="when it left"),
        Field(2, "carrier", STRING, required=True, role=Role.KEY),
        Field(3, "origin", STRING, role=Role.TAG),
        *(Field(4 + i, f"leaf{i}", leaf, required=i % 2 == 0) for i, leaf in enumerate(LEAF_TYPES[:14])),
        Field(18, "stops", LIST, children=(Field(19, ITEM, INT32, required=True),)),
        Field(
            20,
            "place",
            STRUCT,
            children=(
                Field(21, "city", STRING, required=True),
                Field(22, "Höhe über NN", FLOAT32, doc="in m"),
            ),
        ),
    ),
)
"""Each type and each role once."""


def numbered(fields: Sequence[Field], ids: count[int]) -> tuple[Field, ...]:
    """Return fields with ids in the order of a walk."""
    return tuple(replace(field, id=next(ids), children=numbered(field.children, ids)) for field in fields)


def schema_of(*fields: Field, number: int = 1) -> Schema:
    """Return a schema of fields without ids."""
    ids = count(1)
    with_ids = numbered(fields, ids)
    return Schema(number, next(ids), with_ids)


decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: decimal128(p, s)))
leaf_types: st.SearchStrategy[DataType] = st.sampled_from(LEAF_TYPES[:12]) | decimals
names = st.text(
    st.characters(
        codec="utf-8", max_codepoint=0xDFFFF, exclude_categories=["C", "Z"], exclude_characters="\u00ad\ufffc\ufffd"
    ),
    min_size=1,
    max_size=8,
).filter(lambda name: not name.startswith("_"))
docs = st.just("") | st.text(st.characters(codec="utf-8"), max_size=20)
kinds = st.sampled_from(["leaf", "leaf", "leaf", "list", "struct"])
roles = st.sets(st.sampled_from([Role.TIME, Role.KEY, Role.TAG]))


@st.composite
def fields(draw: st.DrawFn, depth: int = 4, name: str | None = None) -> Field:
    """Make a field without an id, with at most `depth` levels."""
    kind = draw(kinds) if depth > 1 else "leaf"
    children: tuple[Field, ...] = ()
    if kind == "list":
        data_type, children = LIST, (draw(_made_fields(depth - 1, ITEM)),)
    elif kind == "struct":
        data_type, children = STRUCT, draw(_made_levels(depth - 1))
    else:
        data_type = draw(leaf_types)
    own = draw(names) if name is None else name
    return Field(0, own, data_type, required=draw(st.booleans()), children=children, doc=draw(docs))


@st.composite
def levels(draw: st.DrawFn, depth: int = 4, max_size: int = 4) -> tuple[Field, ...]:
    """Make the fields of one level, whose names are unique."""
    return tuple(draw(_lists_of_fields(depth, max_size)))


# Hypothesis examines each new strategy, which takes longer than a draw, so each is made once.
_made_fields = cache(fields)
_made_levels = cache(levels)


@cache
def _lists_of_fields(depth: int, max_size: int) -> st.SearchStrategy[list[Field]]:
    return st.lists(_made_fields(depth), min_size=1, max_size=max_size, unique_by=lambda field: field.name.casefold())


@st.composite
def schemas(draw: st.DrawFn, number: int = 1) -> Schema:
    """Make a valid schema."""
    top = list(draw(_made_levels()))
    for role in draw(roles):
        taken = {field.name.casefold() for field in top}
        kind = draw(st.sampled_from(sorted(ROLE_KINDS[role])))
        name = draw(names)
        while name.casefold() in taken:
            name += "x"
        required = role is Role.TIME or draw(st.booleans())
        top.insert(draw(st.integers(0, len(top))), Field(0, name, DataType(kind), required=required, role=role))
    return schema_of(*top, number=number)
