"""Tests of integers whose literals lie outside the range of the field's type, as tests of its values."""

from __future__ import annotations

from typing import Final

from tidelog_proto.filters.expression import NO_ROW, Expression, FilterValue, Leaf, Operator
from tidelog_proto.schema.data_types import INTEGERS, DataType, Kind

_INT32: Final = (-(1 << 31), (1 << 31) - 1)
_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_RANGES: Final = {
    **{kind: (-(1 << bits - 1), (1 << bits - 1) - 1) for kind, bits in zip(INTEGERS, (8, 16, 32, 64), strict=True)},
    Kind.DATE32: _INT32,
    Kind.TIMESTAMP: _INT64,
    Kind.TIMESTAMP_UTC: _INT64,
}


def range_of(data_type: DataType) -> tuple[int, int] | None:
    """Return the least and greatest integer that a literal of this type can be; None if it is not an integer."""
    if data_type.kind is Kind.DECIMAL128:
        most = 10**data_type.precision - 1
        return -most, most
    return _RANGES.get(data_type.kind)


def within(leaf: Leaf, least: int, most: int) -> Expression:
    """Return a test that is true of the same integers from `least` to `most`, with literals in that range."""
    literals = tuple(each for each in leaf.literals if least <= each <= most)  # type: ignore[operator]  # integers
    if len(literals) == len(leaf.literals):
        return leaf
    always = Leaf(leaf.field_id, Operator.IS_NOT_NULL)
    operator = leaf.operator
    if operator in {Operator.IS_IN, Operator.IS_NOT_IN} and literals:
        return Leaf(leaf.field_id, operator, literals)
    if operator in {Operator.EQUAL, Operator.IS_IN}:
        return NO_ROW
    if operator in {Operator.NOT_EQUAL, Operator.IS_NOT_IN}:
        return always
    literal: FilterValue = leaf.literals[0]
    is_above = literal > most  # type: ignore[operator]
    return always if is_above is (operator in {Operator.LESS, Operator.LESS_OR_EQUAL}) else NO_ROW
