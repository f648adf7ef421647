from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from tests.proto.schemas import schema_of

from tidelog_proto.filters.binding import bound
from tidelog_proto.filters.conditions import Comparison, ExactTime, Not, StartsWith
from tidelog_proto.filters.expression import NO_ROW, AllOf, AnyOf, Leaf, Operator
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.schema.data_types import (
    BINARY,
    DATE32,
    FLOAT32,
    FLOAT64,
    INT8,
    STRING,
    TIMESTAMP,
    TIMESTAMP_UTC,
    DataType,
    decimal128,
)
from tidelog_proto.schema.fields import Field

LT, LE, GT, GE = Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL
EQ, NE, IN = Operator.EQUAL, Operator.NOT_EQUAL, Operator.IS_IN
EXISTS = Leaf(1, Operator.IS_NOT_NULL)


def of(data_type: DataType, operator: Operator, *values: Any, negated: bool = False) -> Any:
    condition = Comparison("f", operator, values)
    return bound(Not(condition) if negated else condition, schema_of(Field(0, "f", data_type)))


def leaf(operator: Operator, *literals: Any, nan: bool = False) -> Leaf:
    return Leaf(1, operator, literals, nan=nan)


def test_numbers_between_values_and_outside_the_range() -> None:
    money = decimal128(5, 2)
    assert of(money, LT, Decimal("1.005")) == leaf(LE, 100)
    assert of(money, GT, Decimal("-1.005")) == leaf(GE, -100)
    assert of(money, EQ, Decimal("1.005")) == NO_ROW
    assert of(money, NE, Decimal("1.005")) == EXISTS
    assert of(money, IN, Decimal("1.005"), 1, Decimal("1.00")) == leaf(IN, 100)
    assert of(money, LT, 10**6) == EXISTS
    assert of(INT8, GT, 190) == NO_ROW
    assert of(INT8, GT, 190, negated=True) == EXISTS
    assert of(INT8, LE, 1.5, negated=True) == leaf(GE, 2)


def test_floats_become_those_of_the_field_and_nan_follows_negation() -> None:
    assert of(FLOAT32, EQ, 0.1).literals == (0.10000000149011612,)
    assert of(FLOAT64, EQ, Decimal("0.1")).literals == (0.1,)
    assert of(FLOAT32, GT, 1e300) == leaf(GT, 1e300)
    assert of(FLOAT64, GT, 1) == leaf(GT, 1.0)
    assert of(FLOAT64, GT, 1, negated=True) == leaf(LE, 1.0, nan=True)
    assert of(FLOAT64, NE, 1) == leaf(NE, 1.0, nan=True)
    assert of(FLOAT64, NE, 1, negated=True) == leaf(EQ, 1.0)
    assert of(FLOAT64, EQ, float("nan")) == NO_ROW
    assert of(FLOAT64, LT, float("nan"), negated=True) == EXISTS
    assert of(FLOAT64, NE, float("nan")) == EXISTS
    assert of(FLOAT64, IN, float("nan"), 2) == leaf(IN, 2.0)


def test_times() -> None:
    assert of(DATE32, EQ, date(1970, 1, 2)) == of(DATE32, EQ, "1970-01-02") == leaf(EQ, 1)
    assert of(TIMESTAMP_UTC, EQ, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == leaf(EQ, 1_000_000)
    assert of(TIMESTAMP_UTC, EQ, "1970-01-01T01:00:00.5+01:00") == leaf(EQ, 500_000)
    assert of(TIMESTAMP, EQ, "1970-01-01 00:00:01") == leaf(EQ, 1_000_000)
    assert of(TIMESTAMP, LT, ExactTime(Fraction(1, 1000), is_utc=False)) == leaf(LE, 0)


@pytest.mark.parametrize(
    ("data_type", "value", "message"),
    [
        (TIMESTAMP_UTC, "2026-01-01T00:00:00", "give a time with a time zone"),
        (TIMESTAMP_UTC, datetime(2026, 1, 1), "give a time with a time zone"),  # noqa: DTZ001
        (TIMESTAMP_UTC, "2026-01-01", "give a time with a time zone"),
        (TIMESTAMP_UTC, "2026-01-01T00:00:00.1234567Z", "in whole microseconds"),
        (TIMESTAMP, "2026-01-01T00:00:00Z", "give a time without a time zone"),
        (TIMESTAMP, "2026-13-01T00:00:00", "give a time without a time zone"),
        (DATE32, "2026-02-30", "give a date, such as '2026-01-31'"),
        (DATE32, datetime(2026, 1, 1), "give a date"),  # noqa: DTZ001
        (INT8, "5", "and '5' is not a value of it; give a number"),
        (INT8, True, "give a number"),
        (INT8, float("inf"), "give a number"),
        (INT8, Decimal("1e1000000000"), "give a number"),
        (FLOAT64, Decimal("1e999"), "give a number"),
        (FLOAT64, 10**400, "give a number"),
        (decimal128(5, 2), 0.1, "in Python, a Decimal instead of a float"),
        (decimal128(5, 2), Decimal("NaN"), "give an integer or a decimal number"),
        (STRING, 5, "give text, in single quotes"),
        (STRING, "\ud800", "give text"),
        (STRING, b"x", "give text"),
    ],
)
def test_values_that_do_not_fit_a_field_are_refused(data_type: DataType, value: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        of(data_type, EQ, value)


def test_prefixes_are_ranges() -> None:
    schema = schema_of(Field(0, "f", STRING))
    assert bound(StartsWith("f", "UA"), schema) == AllOf((leaf(GE, b"UA"), leaf(LT, b"UB")))
    assert bound(Not(StartsWith("f", "UA")), schema) == AnyOf((leaf(LT, b"UA"), leaf(GE, b"UB")))
    assert bound(StartsWith("f", ""), schema) == leaf(GE, b"")
    schema = schema_of(Field(0, "f", BINARY))
    assert bound(StartsWith("f", b"a\xff\xff"), schema) == AllOf((leaf(GE, b"a\xff\xff"), leaf(LT, b"b")))
    assert bound(StartsWith("f", b"\xff"), schema) == leaf(GE, b"\xff")
    assert bound(Not(StartsWith("f", b"\xff")), schema) == leaf(LT, b"\xff")
