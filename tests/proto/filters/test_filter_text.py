from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog_proto.filters.conditions import And, Comparison, Condition, Not, Or, StartsWith, names_of
from tidelog_proto.filters.expression import Operator
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.filter_text import condition_of_text

EQ, GT, LT, LE, GE, IN = (
    Operator.EQUAL,
    Operator.GREATER,
    Operator.LESS,
    Operator.LESS_OR_EQUAL,
    Operator.GREATER_OR_EQUAL,
    Operator.IS_IN,
)
A, B, C = (Comparison(name, EQ, (Decimal(1),)) for name in "abc")


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        (
            "arr_delay > 190 and carrier in ('UA', 'AA')",
            And((Comparison("arr_delay", GT, (Decimal(190),)), Comparison("carrier", IN, ("UA", "AA")))),
        ),
        ("a=1 or b=1 and c=1", Or((A, And((B, C))))),
        ("(a=1 OR b=1) AND c=1", And((Or((A, B)), C))),
        ("not a=1 and b=1", And((Not(A), B))),
        ("NOT (a=1 and not b=1)", Not(And((A, Not(B))))),
        ("1 < a", Comparison("a", GT, (Decimal(1),))),
        ("1 >= a", Comparison("a", LE, (Decimal(1),))),
        ("a == -1.50", Comparison("a", EQ, (Decimal("-1.50"),))),
        ("a <> .5e-3", Comparison("a", Operator.NOT_EQUAL, (Decimal("0.0005"),))),
        ("a = 'it''s' ", Comparison("a", EQ, ("it's",))),
        ("a = X'00fF'", Comparison("a", EQ, (b"\0\xff",))),
        ("a = TRUE", Comparison("a", EQ, (True,))),
        ("delayed and not late", And((Comparison("delayed", EQ, (True,)), Not(Comparison("late", EQ, (True,)))))),
        ("a is null", Comparison("a", Operator.IS_NULL)),
        ("a IS NOT NULL", Comparison("a", Operator.IS_NOT_NULL)),
        ("a not in (1)", Not(Comparison("a", IN, (Decimal(1),)))),
        (
            "a between 1 and 2 and b=1",
            And((And((Comparison("a", GE, (Decimal(1),)), Comparison("a", LE, (Decimal(2),)))), B)),
        ),
        ("a < date '2026-01-31'", Comparison("a", LT, ("2026-01-31",))),
        ("date = '2026-01-31'", Comparison("date", EQ, ("2026-01-31",))),
        ("timestamp '2026-01-31T08:00:00Z' > a", Comparison("a", LT, ("2026-01-31T08:00:00Z",))),
        ("place.city = 'x'", Comparison("place.city", EQ, ("x",))),
        ('place."in ""the"" city" = \'x\'', Comparison('place.in "the" city', EQ, ("x",))),
        ('"and" = 1', Comparison("and", EQ, (Decimal(1),))),
        ("Größe = 1", Comparison("Größe", EQ, (Decimal(1),))),
        ("starts_with(a, 'U')", StartsWith("a", "U")),
        ("starts_with = 'U'", Comparison("starts_with", EQ, ("U",))),
    ],
)
def test_texts(text: str, condition: Condition) -> None:
    assert condition_of_text(text) == condition


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the filter has the end at character 1; expected the name of a field"),
        ("a >", "the filter has the end at character 4; expected a value"),
        ("a = null", "'null' at character 5; expected a value: test for null with IS NULL"),
        ("a = b", "'b' at character 5; expected a value"),
        ("a = 'x", '"\'" at character 5: a quote that is not closed'),
        ("a = 5x", "'5' at character 5: a character that is not part of a filter"),
        ("a = x'0'", "at character 6: a quote that is not closed|at character 5; expected a value"),
        ("a ; b", "';' at character 3: a character that is not part"),
        ("a = 1 b", "'b' at character 7; expected AND, OR or the end"),
        ("(a = 1", r"the end at character 7; expected \)"),
        ("a in ()", r"'\)' at character 7; expected a value"),
        ("a in 1", r"'1' at character 6; expected \("),
        ("a not like 'x'", "'like' at character 7; expected IN or BETWEEN"),
        ("and = 1", r"'and' at character 1; expected the name of a field \(in double quotes\)"),
        ("1", "the end at character 2; expected an operator"),
        ("a is 5", "'5' at character 6; expected NULL"),
        ("(" * 70 + "a" + ")" * 70, "more than 64 levels at character 65"),
        ("not " * 70 + "a", "more than 64 levels"),
        ("a" * 70_000, "70000 characters, at most 65536"),
    ],
)
def test_errors_have_positions(text: str, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        condition_of_text(text)


PIECES = st.sampled_from(
    [
        "a",
        "b.c",
        '"x y"',
        "and",
        "or",
        "not",
        "in",
        "is",
        "null",
        "between",
        "(",
        ")",
        ",",
        "=",
        "<=",
        "'t'",
        "1.5",
        "x'00'",
    ]
)


@given(st.lists(PIECES, max_size=12) | st.lists(st.text(max_size=3), max_size=5))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_condition_or_refused(pieces: list[str]) -> None:
    try:
        found = condition_of_text(" ".join(pieces))
    except FilterError:
        return
    assert list(names_of(found))
