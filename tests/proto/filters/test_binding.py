from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.proto.filters.condition_reference import conditions, has_unclear_names, truth
from tests.proto.filters.reference_filter import plain_rows
from tests.proto.schema_chains import chains
from tests.proto.schemas import EVERY_TYPE, schema_of
from tests.proto.typed_batches import encoded, parsed, rows_of_schema

from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.filters.binding import bound
from tidelog_proto.filters.conditions import And, Comparison, ExactTime, Not, Or, StartsWith
from tidelog_proto.filters.expression import EVERY_ROW, NO_ROW, AllOf, AnyOf, Leaf, Operator
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.matching_rows import matching_rows
from tidelog_proto.filters.rebinding import check_expression
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
from tidelog_proto.schema.fields import Field, path_text, paths_below
from tidelog_proto.schema.topic_schema import Schema

LT, LE, GT, GE = Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL
EQ, NE, IN, NOT_IN = Operator.EQUAL, Operator.NOT_EQUAL, Operator.IS_IN, Operator.IS_NOT_IN
EXISTS = Leaf(1, Operator.IS_NOT_NULL)


@given(chains(), st.data())
@settings(max_examples=150, deadline=None)
def test_rows_match_where_the_reference_is_true(chain: list[Schema], data: st.DataObject) -> None:
    """The reference has true, false and unknown, NOT, and values of any scale and range."""
    target = chain[-1]
    assume(not has_unclear_names(target))
    fields = {path_text(path): field for path, field in paths_below(target.fields)}
    condition = data.draw(conditions(target))
    expression = bound(condition, target)
    check_expression(expression, target)
    for source in {chain[0].number: chain[0], target.number: target}.values():
        layout = row_layout(source)
        batch = parsed(encoded(layout, data.draw(rows_of_schema(source)), base=10), {source.number: layout})
        found = matching_rows(batch, expression)
        mask = [True] * len(batch) if found is None else found.tolist()
        assert mask == [truth(condition, row, fields) is True for row in plain_rows(batch, target)]


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


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        (
            Comparison("carier", EQ, ("UA",)),
            r"no field is named 'carier'; there are, for example: 'carrier' \(schema 1",
        ),
        (Comparison("stops.item", EQ, (1,)), "'stops.item' is below a list"),
        (Comparison("stops", EQ, (1,)), "the type list; compare a field below it, or test it with IS NULL"),
        (Comparison("leaf0", LT, (True,)), "a bool, which has no order"),
        (StartsWith("leaf1", "x"), "only string and binary fields have prefixes"),
        (Comparison("_headers", Operator.IS_NULL), "no column '_headers' can be tested"),
        (Comparison("_key", EQ, (b"x",)), "'_key' is the field 'carrier' in this topic; test that field"),
        (And((Comparison("leaf1", Operator.IS_NULL),) * 256), "more than 256 conditions"),
    ],
)
def test_conditions_that_do_not_fit_a_schema_are_refused(condition: Any, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        bound(condition, EVERY_TYPE)


def test_negation_of_combinations_and_constants() -> None:
    schema = schema_of(Field(0, "a", INT8), Field(0, "b", INT8))
    one, two = (Comparison(name, EQ, (1,)) for name in "ab")
    not_one, not_two = Leaf(1, NE, (1,)), Leaf(2, NE, (1,))
    assert bound(Not(And((one, two))), schema) == AnyOf((not_one, not_two))
    assert bound(Not(Or((one, Not(two)))), schema) == AllOf((not_one, Leaf(2, EQ, (1,))))
    assert bound(Not(And(())), schema) == NO_ROW
    assert bound(Not(Or(())), schema) == EVERY_ROW


def test_prefixes_are_ranges() -> None:
    schema = schema_of(Field(0, "f", STRING))
    assert bound(StartsWith("f", "UA"), schema) == AllOf((leaf(GE, b"UA"), leaf(LT, b"UB")))
    assert bound(Not(StartsWith("f", "UA")), schema) == AnyOf((leaf(LT, b"UA"), leaf(GE, b"UB")))
    assert bound(StartsWith("f", ""), schema) == leaf(GE, b"")
    schema = schema_of(Field(0, "f", BINARY))
    assert bound(StartsWith("f", b"a\xff\xff"), schema) == AllOf((leaf(GE, b"a\xff\xff"), leaf(LT, b"b")))
    assert bound(StartsWith("f", b"\xff"), schema) == leaf(GE, b"\xff")
    assert bound(Not(StartsWith("f", b"\xff")), schema) == leaf(LT, b"\xff")
