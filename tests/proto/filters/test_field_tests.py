"""Values of callers become literals of the field's type: exactly, or not at all."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from tidelog_proto.filters.expression import NO_ROW, AllOf, AnyOf, Leaf, Operator
from tidelog_proto.filters.field_tests import FieldTests
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.schema.data_types import (
    BINARY,
    BOOL,
    DATE32,
    FLOAT32,
    FLOAT64,
    INT8,
    INT64,
    STRING,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    decimal128,
)

EQUAL, LESS, AT_MOST, GREATER, AT_LEAST = (
    Operator.EQUAL,
    Operator.LESS,
    Operator.LESS_OR_EQUAL,
    Operator.GREATER,
    Operator.GREATER_OR_EQUAL,
)
EVERY_VALUE = Leaf(7, Operator.IS_NOT_NULL)


def compared(data_type: DataType, operator: Operator, *values: Any, negated: bool = False) -> Any:
    return FieldTests(7, data_type, "f").compared(operator, values, negated=negated)


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        (LESS, 1.5, Leaf(7, AT_MOST, (1,))),
        (AT_MOST, Decimal("1.5"), Leaf(7, AT_MOST, (1,))),
        (GREATER, -1.5, Leaf(7, AT_LEAST, (-1,))),
        (AT_LEAST, 1.5, Leaf(7, AT_LEAST, (2,))),
        (LESS, 2.0, Leaf(7, LESS, (2,))),
        (EQUAL, 1.5, NO_ROW),
        (Operator.NOT_EQUAL, 1.5, EVERY_VALUE),
        (EQUAL, 1000, NO_ROW),
        (LESS, 1000, EVERY_VALUE),
        (GREATER, 1000, NO_ROW),
        (GREATER, -129, EVERY_VALUE),
        (EQUAL, 127, Leaf(7, EQUAL, (127,))),
    ],
)
def test_numbers_between_and_outside_the_integers_of_a_field(operator: Operator, value: Any, expected: Any) -> None:
    assert compared(INT8, operator, value) == expected


def test_sets_keep_the_values_that_the_field_can_have() -> None:
    assert compared(INT8, Operator.IS_IN, 1, 1.0, 2.5, 900) == Leaf(7, Operator.IS_IN, (1,))
    assert compared(INT8, Operator.IS_IN, 2.5) == NO_ROW
    assert compared(INT8, Operator.IS_IN, 2.5, negated=True) == EVERY_VALUE
    assert compared(INT64, Operator.IS_IN, 2**53 + 1, negated=True) == Leaf(7, Operator.IS_NOT_IN, (2**53 + 1,))


def test_decimals_are_compared_in_their_unit() -> None:
    assert compared(decimal128(6, 2), LESS, Decimal("1.005")) == Leaf(7, AT_MOST, (100,))
    assert compared(decimal128(6, 2), EQUAL, Decimal("1.5")) == Leaf(7, EQUAL, (150,))
    assert compared(decimal128(6, 2), EQUAL, Decimal("1.005")) == NO_ROW
    with pytest.raises(FilterError, match="a Decimal instead of a float"):
        compared(decimal128(6, 2), EQUAL, 1.5)


def test_nan_matches_inequalities_and_negated_comparisons_only() -> None:
    assert compared(FLOAT64, LESS, 1.0) == Leaf(7, LESS, (1.0,))
    assert compared(FLOAT64, LESS, 1.0, negated=True) == Leaf(7, AT_LEAST, (1.0,), nan=True)
    assert compared(FLOAT64, Operator.NOT_EQUAL, 1.0) == Leaf(7, Operator.NOT_EQUAL, (1.0,), nan=True)
    assert compared(FLOAT64, EQUAL, math.nan) == NO_ROW
    assert compared(FLOAT64, EQUAL, math.nan, negated=True) == EVERY_VALUE
    assert compared(FLOAT32, EQUAL, 0.1).literals == (0.10000000149011612,)
    for wrong in (10**400, "1", True):
        with pytest.raises(FilterError, match="give a number"):
            compared(FLOAT64, EQUAL, wrong)


def test_dates_and_times_are_whole_units_of_the_right_kind() -> None:
    assert compared(DATE32, EQUAL, date(1970, 1, 2)) == compared(DATE32, EQUAL, "1970-01-02") == Leaf(7, EQUAL, (1,))
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert compared(TIMESTAMP_UTC, LESS, at) == Leaf(7, LESS, (1_000_000,))
    assert compared(TIMESTAMP_UTC, LESS, "1970-01-01T01:00:01+01:00") == Leaf(7, LESS, (1_000_000,))
    assert compared(TIMESTAMP, LESS, "1970-01-01 00:00:01") == Leaf(7, LESS, (1_000_000,))
    for data_type, wrong in (
        (TIMESTAMP, at),
        (TIMESTAMP_UTC, "1970-01-01T00:00:00"),
        (DATE32, at),
        (DATE32, "1970-02-30"),
    ):
        with pytest.raises(FilterError, match="'f' has the type"):
            compared(data_type, EQUAL, wrong)


def test_text_bytes_and_bools_are_not_converted() -> None:
    assert compared(STRING, EQUAL, "ä") == Leaf(7, EQUAL, ("ä".encode(),))
    assert compared(BINARY, Operator.IS_IN, b"a", bytearray(b"a")) == Leaf(7, Operator.IS_IN, (b"a",))
    assert compared(BOOL, EQUAL, True) == Leaf(7, EQUAL, (True,))
    for data_type, wrong in ((STRING, b"a"), (STRING, 1), (STRING, "\ud800"), (BINARY, "a"), (BOOL, 1)):
        with pytest.raises(FilterError, match="is not a value of it"):
            compared(data_type, EQUAL, wrong)
    with pytest.raises(FilterError, match="no order"):
        compared(BOOL, LESS, True)


def test_tests_of_null_have_no_values() -> None:
    assert compared(INT8, Operator.IS_NULL) == Leaf(7, Operator.IS_NULL)
    assert compared(INT8, Operator.IS_NULL, negated=True) == EVERY_VALUE


def test_a_prefix_is_a_range() -> None:
    tests = FieldTests(7, BINARY, "f")
    begin, end = Leaf(7, AT_LEAST, (b"a\xff",)), Leaf(7, LESS, (b"b",))
    assert tests.starts_with(b"a\xff", negated=False) == AllOf((begin, end))
    assert tests.starts_with(b"a\xff", negated=True) == AnyOf((Leaf(7, LESS, (b"a\xff",)), Leaf(7, AT_LEAST, (b"b",))))
    assert tests.starts_with(b"\xff", negated=False) == Leaf(7, AT_LEAST, (b"\xff",))
    with pytest.raises(FilterError, match="only string and binary fields have prefixes"):
        FieldTests(7, INT8, "f").starts_with("1", negated=False)
