"""Tests of one field: a caller's values as literals of the field's type, exactly.

Numbers between two values of a type, and those outside its range, become tests that are true of the same values:
`n < 1.5` is `n <= 1`, and `n < 1000` of an int8 is true of all values. Floats are the exception: as in rows, a number
becomes the nearest float of the field's type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np

from tidelog_proto.filters.conditions import ExactTime
from tidelog_proto.filters.expression import (
    NO_ROW,
    NULL_TESTS,
    SETS,
    Expression,
    Leaf,
    Operator,
    all_of,
    any_of,
)
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.literal_ranges import range_of, within
from tidelog_proto.filters.rebinding import check_literals
from tidelog_proto.schema.data_types import INTEGERS, DataType, Kind
from tidelog_proto.schema.schema_error import shown

_EXPONENT_MAX: Final = 400
"""Larger than that of each float and decimal; beyond it, exact arithmetic would take long."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the origin of timestamps without a time zone
_FIRST_DAY: Final = date(1970, 1, 1)
_DATE_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME_TEXT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,6}0*)?)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII)


class FieldTests:
    """Makes the tests of one field or column of records.

    Args:
        field_id: see `Leaf`.
        data_type: of the values.
        name: of the field, for messages.
    """

    def __init__(self, field_id: int, data_type: DataType, name: str) -> None:
        self._id = field_id
        self._type = data_type
        self._name = name

    def compared(self, operator: Operator, values: Sequence[Any], *, negated: bool) -> Expression:
        """Return the expression that is true where a comparison is true, or, if `negated`, where it is false.

        Raises:
            FilterError: a value or the operator does not fit the type.
        """
        meant = operator.negated if negated else operator
        if operator in NULL_TESTS:
            return Leaf(self._id, meant)
        kind = self._type.kind
        if kind in {Kind.FLOAT32, Kind.FLOAT64}:
            return self._of_floats(operator, values, negated=negated)
        if (scale := self._scale()) is not None:
            return self._on_grid(meant, [self._exact(value) * 10**scale for value in values])
        literals = dict.fromkeys(map(self._plain, values))
        leaf = Leaf(self._id, meant, tuple(literals))
        check_literals(leaf, self._type, f"field {shown(self._name)}")
        return leaf

    def starts_with(self, prefix: Any, *, negated: bool) -> Expression:
        """Return the expression that is true of values that begin with `prefix`, or of those that do not.

        Raises:
            FilterError: the field is neither text nor bytes, or the prefix is not of its type.
        """
        if self._type.kind not in {Kind.STRING, Kind.BINARY}:
            raise self._error(f"the type {self._type}; only string and binary fields have prefixes")
        first = self._plain(prefix)
        stem = first.rstrip(b"\xff")
        not_before = Leaf(self._id, Operator.GREATER_OR_EQUAL, (first,))
        before = Leaf(self._id, Operator.LESS, (first,))
        if not stem:
            return before if negated else not_before
        after = stem[:-1] + bytes([stem[-1] + 1])
        if negated:
            return any_of((before, Leaf(self._id, Operator.GREATER_OR_EQUAL, (after,))))
        return all_of((not_before, Leaf(self._id, Operator.LESS, (after,))))

    def _scale(self) -> int | None:
        """Return the number of decimal digits after the point; None if the literals are not integers."""
        return None if range_of(self._type) is None else self._type.scale

    def _on_grid(self, operator: Operator, values: list[Fraction]) -> Expression:
        """Return a test of integers for a test with any numbers."""
        if operator in SETS or operator in {Operator.EQUAL, Operator.NOT_EQUAL}:
            literals = dict.fromkeys(int(value) for value in values if value.denominator == 1)
            if not literals:
                return self._constant(holds=operator in {Operator.NOT_EQUAL, Operator.IS_NOT_IN})
        else:
            (value,) = values
            if value.denominator != 1 and operator in {Operator.LESS, Operator.LESS_OR_EQUAL}:
                operator, value = Operator.LESS_OR_EQUAL, Fraction(math.floor(value))
            elif value.denominator != 1:
                operator, value = Operator.GREATER_OR_EQUAL, Fraction(math.ceil(value))
            literals = {int(value): None}
        bounds = range_of(self._type)
        assert bounds is not None
        return within(Leaf(self._id, operator, tuple(literals)), *bounds)

    def _of_floats(self, operator: Operator, values: Sequence[Any], *, negated: bool) -> Expression:
        """Return a test of floats; NaN is not equal to anything, less or greater, and so matches if `negated`."""
        is_inequality = operator in {Operator.NOT_EQUAL, Operator.IS_NOT_IN}
        nan_matches = is_inequality is not negated
        literals = dict.fromkeys(each for each in map(self._float, values) if not math.isnan(each))
        if not literals:
            return self._constant(holds=nan_matches)
        return Leaf(self._id, operator.negated if negated else operator, tuple(literals), nan=nan_matches)

    def _constant(self, *, holds: bool) -> Expression:
        """Return the test that has the same result for each value but null."""
        return Leaf(self._id, Operator.IS_NOT_NULL) if holds else NO_ROW

    def _float(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
            raise self._wrong(value)
        try:
            number = float(value)
        except (OverflowError, ValueError):
            raise self._wrong(value) from None
        if math.isinf(number) and not (isinstance(value, float) or value.is_infinite()):  # type: ignore[union-attr]
            raise self._wrong(value)
        if self._type.kind is Kind.FLOAT32:
            with np.errstate(over="ignore"):
                nearest = float(np.float32(number))
            return number if math.isinf(nearest) else nearest
        return number

    def _exact(self, value: Any) -> Fraction:
        """Return the number for a value of a type whose literals are integers, in its unit."""
        kind = self._type.kind
        if kind is Kind.DATE32:
            return Fraction(self._days(value))
        if kind in {Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}:
            return self._microseconds(value)
        takes_float = kind in INTEGERS
        if isinstance(value, bool) or not isinstance(value, (int, Decimal, float) if takes_float else (int, Decimal)):
            raise self._wrong(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise self._wrong(value)
        if isinstance(value, Decimal) and (
            not value.is_finite() or max(abs(value.adjusted()), len(value.as_tuple().digits)) > _EXPONENT_MAX
        ):
            raise self._wrong(value)
        return Fraction(value)

    def _days(self, value: Any) -> int:
        if isinstance(value, str) and _DATE_TEXT.fullmatch(value):
            try:
                value = date.fromisoformat(value)
            except ValueError:
                raise self._wrong(value) from None
        if not isinstance(value, date) or isinstance(value, datetime):
            raise self._wrong(value)
        return (value - _FIRST_DAY).days

    def _microseconds(self, value: Any) -> Fraction:
        is_utc = self._type.kind is Kind.TIMESTAMP_UTC
        if isinstance(value, ExactTime) and value.is_utc is is_utc:
            return value.us
        given = value
        if isinstance(value, str) and _TIME_TEXT.fullmatch(value):
            try:
                given = datetime.fromisoformat(value)
            except ValueError:
                raise self._wrong(value) from None
        if not isinstance(given, datetime) or (given.utcoffset() is not None) is not is_utc:
            raise self._wrong(value)
        if getattr(given, "nanosecond", 0):
            raise self._wrong(value)
        return Fraction((given - (_EPOCH if is_utc else _LOCAL_EPOCH)) // timedelta(microseconds=1))

    def _plain(self, value: Any) -> Any:
        """Return the literal for a bool, text or bytes."""
        kind = self._type.kind
        if kind is Kind.STRING and isinstance(value, str):
            try:
                return value.encode()
            except UnicodeEncodeError:
                raise self._wrong(value) from None
        if kind is Kind.BINARY and isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if kind is Kind.BOOL and isinstance(value, bool):
            return value
        if kind in {Kind.LIST, Kind.STRUCT}:
            raise self._error(f"the type {self._type}; compare a field below it, or test it with IS NULL")
        raise self._wrong(value)

    def _wrong(self, value: Any) -> FilterError:
        given = value.us if isinstance(value, ExactTime) else value
        return self._error(f"the type {self._type}, and {shown(given)} is not a value of it; {_FORMS[self._type.kind]}")

    def _error(self, problem: str) -> FilterError:
        return FilterError(f"field {shown(self._name)} has {problem}")


_NUMBER: Final = "give a number"
_FORMS: Final[dict[Kind, str]] = {
    Kind.BOOL: "give true or false",
    **dict.fromkeys(INTEGERS, _NUMBER),
    Kind.FLOAT32: _NUMBER,
    Kind.FLOAT64: _NUMBER,
    Kind.DECIMAL128: "give an integer or a decimal number; in Python, a Decimal instead of a float",
    Kind.STRING: "give text, in single quotes",
    Kind.BINARY: "give bytes, such as x'00ff'",
    Kind.DATE32: "give a date, such as '2026-01-31'",
    Kind.TIMESTAMP: "give a time without a time zone, such as '2026-01-31T08:00:00', in whole microseconds",
    Kind.TIMESTAMP_UTC: "give a time with a time zone, such as '2026-01-31T08:00:00Z', in whole microseconds",
}
