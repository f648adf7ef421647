"""A reference of conditions in Python, row by row, and hypothesis strategies for them."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st
from tests.proto.filters.reference_filter import tested_fields
from tests.proto.typed_batches import values_of

from tidelog_proto.filters.conditions import And, Comparison, Condition, ExactTime, Not, Or, StartsWith
from tidelog_proto.filters.expression import Operator
from tidelog_proto.schema.data_types import INTEGERS, NESTED, Kind
from tidelog_proto.schema.fields import Field, path_text, paths_below
from tidelog_proto.schema.topic_schema import Schema

_EXACT = Context(prec=100)
_ORDER = {
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}
_STAMPS = {Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}


def truth(condition: Condition, row: dict[int, Any], fields: dict[str, Field]) -> bool | None:
    """Return whether a condition is true of a row, as `plain_rows` has it; None if that is unknown."""
    if isinstance(condition, Not):
        inner = truth(condition.condition, row, fields)
        return None if inner is None else not inner
    if isinstance(condition, (And, Or)):
        found = {truth(each, row, fields) for each in condition.conditions}
        decisive = isinstance(condition, Or)
        return decisive if decisive in found else None if None in found else not decisive
    field = fields[condition.name]
    value = row[field.id]
    if isinstance(condition, StartsWith):
        prefix = condition.prefix
        return None if value is None else value.startswith(prefix.encode() if isinstance(prefix, str) else prefix)
    return _comparison(condition, value, field)


def _comparison(condition: Comparison, value: Any, field: Field) -> bool | None:
    if condition.operator in {Operator.IS_NULL, Operator.IS_NOT_NULL}:
        return (value is None) is (condition.operator is Operator.IS_NULL)
    if value is None:
        return None
    own = Fraction(value, 10**field.type.scale) if field.type.kind is Kind.DECIMAL128 else value
    others = [_comparable(each, field) for each in condition.values]
    if condition.operator in {Operator.EQUAL, Operator.IS_IN}:
        return any(own == other for other in others)
    if condition.operator in {Operator.NOT_EQUAL, Operator.IS_NOT_IN}:
        return all(own != other for other in others)
    return bool(_ORDER[condition.operator](own, others[0]))


def _comparable(value: Any, field: Field) -> Any:
    kind = field.type.kind
    if kind is Kind.FLOAT64:
        return float(value)
    if kind is Kind.FLOAT32:
        try:
            return float(struct.unpack("f", struct.pack("f", float(value)))[0])
        except OverflowError:
            return float(value)
    if isinstance(value, ExactTime):
        return value.us
    if isinstance(value, datetime):
        epoch = datetime(1970, 1, 1, tzinfo=value.tzinfo)
        return (value - epoch) // timedelta(microseconds=1)
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    if isinstance(value, str):
        return value.encode()
    return Fraction(value) if kind in INTEGERS or kind is Kind.DECIMAL128 else value


def _numbers(field: Field) -> st.SearchStrategy[Any]:
    own = values_of(Field(0, "", field.type, required=True))
    near = own.flatmap(lambda value: st.sampled_from([Decimal("0.5"), Decimal("-0.5"), 1, -1]).map(_plus(value)))
    far = st.sampled_from([10**40, -(10**40), 0, Decimal("1e-50"), Decimal("-1e300"), 2**63, -(2**63) - 1])
    return own | near | far | (st.floats(allow_nan=False, allow_infinity=False) if _is_integer(field) else far)


def _plus(value: Any) -> Callable[[Any], Any]:
    return lambda more: _EXACT.add(Decimal(value), Decimal(more))


def _is_integer(field: Field) -> bool:
    return field.type.kind in INTEGERS


def field_values(field: Field) -> st.SearchStrategy[Any]:
    """Make values with which a caller may compare a field."""
    kind = field.type.kind
    own = values_of(Field(0, "", field.type, required=True))
    if kind in INTEGERS or kind is Kind.DECIMAL128:
        return _numbers(field)
    if kind is Kind.DATE32:
        return own.map(lambda days: date(1970, 1, 1) + timedelta(days=days))
    if kind in _STAMPS:
        zone = UTC if kind is Kind.TIMESTAMP_UTC else None
        epoch = datetime(1970, 1, 1, tzinfo=zone)
        finer = st.tuples(own, st.integers(-1000, 1000)).map(
            lambda pair: ExactTime(pair[0] + Fraction(pair[1], 1000), zone is not None)
        )
        return own.map(lambda us: epoch + timedelta(microseconds=us)) | finer
    if kind is Kind.FLOAT32:
        return own | st.sampled_from([0.1, 1e300, -1e300, Decimal("0.1"), 2**24 + 1])
    return own


@st.composite
def comparisons(draw: st.DrawFn, schema: Schema) -> Condition:
    """Make conditions that test one field each."""
    named = {field.id: path_text(path) for path, field in paths_below(schema.fields)}
    field = draw(st.sampled_from(tested_fields(schema)))
    name, kind = named[field.id], field.type.kind
    operators = list(Operator)
    if kind in NESTED:
        operators = [Operator.IS_NULL, Operator.IS_NOT_NULL]
    elif kind is Kind.BOOL:
        operators = [each for each in Operator if each not in _ORDER]
    chosen = draw(st.sampled_from(operators))
    if chosen in {Operator.IS_NULL, Operator.IS_NOT_NULL}:
        return Comparison(name, chosen)
    if kind in {Kind.STRING, Kind.BINARY} and draw(st.integers(0, 3)) == 0:
        return StartsWith(name, draw(field_values(field)))
    count = draw(st.integers(1, 3)) if chosen in {Operator.IS_IN, Operator.IS_NOT_IN} else 1
    return Comparison(name, chosen, tuple(draw(field_values(field)) for _ in range(count)))


def conditions(schema: Schema) -> st.SearchStrategy[Condition]:
    """Make conditions on rows of a schema."""

    def combined(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
        several = st.lists(inner, max_size=3).map(tuple)
        return inner.map(Not) | several.map(And) | several.map(Or)

    return st.recursive(comparisons(schema), combined, max_leaves=6)


def has_unclear_names(schema: Schema) -> bool:
    """Return whether a path is that of several fields, because names have dots."""
    paths = [path_text(path) for path, _ in paths_below(schema.fields)]
    return len(set(paths)) != len(paths)


def is_nan(value: Any) -> bool:
    """Return whether a value is a float without a number."""
    return isinstance(value, float) and math.isnan(value)
