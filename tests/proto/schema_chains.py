"""Generated histories of a topic's schemas, and values of a schema."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from tests.proto.schemas import LEAF_TYPES, numbered, schemas

from tidelog_proto.limits import SCHEMA_DEPTH_MAX
from tidelog_proto.schema.arrow_types import value_type
from tidelog_proto.schema.data_types import INTEGERS, LIST, STRUCT, DataType, Kind
from tidelog_proto.schema.fields import ITEM, Field, Role
from tidelog_proto.schema.topic_schema import Schema

WIDER = {
    Kind.INT8: (Kind.INT16, Kind.INT32, Kind.INT64),
    Kind.INT16: (Kind.INT32, Kind.INT64),
    Kind.INT32: (Kind.INT64,),
    Kind.FLOAT32: (Kind.FLOAT64,),
}
"""Written by hand, so that the tests do not repeat the code."""


class _Step:
    """Makes the fields of the schema that follows another one."""

    def __init__(self, random: Random, ids: count[int]) -> None:
        self._random = random
        self._ids = ids

    def _is_one_of(self, cases: int) -> bool:
        return self._random.randrange(cases) == 0

    def level(self, old: Sequence[Field], depth: int) -> tuple[Field, ...]:
        """Keep, change, drop and add fields; a dropped name may be used again for another field."""
        kept = [self._field(field, depth) for field in old if field.role or not self._is_one_of(6)]
        freed = [field.name for field in old if field.id not in {each.id for each in kept}]
        if self._is_one_of(3) or not any(field.role is Role.NONE for field in kept):
            name = freed[0] if freed else f"new{next(self._ids)}"
            (added,) = numbered([replace(self._new(depth, name), required=False)], self._ids)
            kept.append(added)
        if self._is_one_of(4):
            self._random.shuffle(kept)
        return tuple(kept)

    def _new(self, depth: int, name: str) -> Field:
        required = self._is_one_of(2)
        data_type = self._random.choice((*LEAF_TYPES, *((LIST, STRUCT) * 4 if depth < SCHEMA_DEPTH_MAX else ())))
        names = {LIST: [ITEM], STRUCT: ["x", "y"]}.get(data_type, [])
        return Field(
            0, name, data_type, required=required, children=tuple(self._new(depth + 1, each) for each in names)
        )

    def _field(self, field: Field, depth: int) -> Field:
        name = f"renamed{next(self._ids)}" if field.name != ITEM and self._is_one_of(6) else field.name
        required = field.required and (field.role is Role.TIME or not self._is_one_of(4))
        data_type = self._wider(field.type) if self._is_one_of(3) else field.type
        children = field.children
        if field.type == STRUCT:
            children = self.level(children, depth + 1)
        elif children:
            children = (self._field(children[0], depth + 1),)
        doc = "described" if self._is_one_of(6) else field.doc
        return replace(field, name=name, required=required, type=data_type, children=children, doc=doc)

    def _wider(self, data_type: DataType) -> DataType:
        kind, precision, scale = data_type
        if kind is Kind.DECIMAL128:
            return DataType(kind, self._random.randint(precision, 38), scale)
        return DataType(self._random.choice((kind, *WIDER.get(kind, ()))), precision, scale)


def follower(schema: Schema, random: Random) -> Schema:
    """Return a schema that may follow another one, with at least one change."""
    while True:
        ids = count(schema.next_field_id)
        fields = _Step(random, ids).level(schema.fields, 1)
        if fields != schema.fields:
            return Schema(schema.number + 1, next(ids), fields)


@st.composite
def chains(draw: st.DrawFn, max_size: int = 5) -> list[Schema]:
    """Make the schemas of one topic, oldest first."""
    chain = [draw(schemas())]
    for seed in draw(st.lists(st.integers(0, 2**32), min_size=1, max_size=max_size - 1)):
        chain.append(follower(chain[-1], Random(seed)))
    return chain


def random_values(schema: Schema, count: int, seed: int) -> Any:
    """Return a column `value` with nulls at each level, extremes, NaN and both zeros."""
    random = Random(seed)
    whole = Field(0, "value", STRUCT, children=schema.value_fields)
    rows = [_value(whole, random) for _ in range(count)]
    return pa.array(rows, value_type(schema))


def _value(field: Field, random: Random) -> Any:
    if not field.required and random.random() < 0.3:
        return None
    kind, precision, scale = field.type
    if kind is Kind.STRUCT:
        return {child.name: _value(child, random) for child in field.children}
    if kind is Kind.LIST:
        return [_value(field.children[0], random) for _ in range(random.choice([0, 0, 1, 2, 3]))]
    if kind in INTEGERS:
        bits = 8 << INTEGERS.index(kind)
        return random.choice([0, 1, -1, -(1 << bits - 1), (1 << bits - 1) - 1])
    if kind is Kind.DECIMAL128:
        digits = random.choice([0, 1, 10**precision - 1])
        return Decimal(f"{random.choice('+-')}{digits}E-{scale}")
    leaves: dict[Kind, Sequence[Any]] = {
        Kind.BOOL: (False, True),
        Kind.FLOAT32: (0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 2.0**-149, (2 - 2.0**-23) * 2.0**127),
        Kind.FLOAT64: (0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 5e-324, 1.7976931348623157e308),
        Kind.STRING: ("", "a", "é" * 20, "\0"),
        Kind.BINARY: (b"", b"\xff", b"a" * 20),
        Kind.DATE32: (date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)),
        Kind.TIMESTAMP: (datetime.min, datetime.max),  # noqa: DTZ901
        Kind.TIMESTAMP_UTC: (datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC) + timedelta(0, 0, 1)),
    }
    return random.choice(leaves[kind])
