from __future__ import annotations

import functools
import operator
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.schemas import EVERY_TYPE
from tests.proto.typed_batches import encoded, parsed, rows_of_schema, values_of

from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import row_reader
from tidelog_proto.filters.arrow_expression import condition_of_arrow
from tidelog_proto.filters.binding import bound
from tidelog_proto.filters.conditions import And, Comparison, Condition, ExactTime, Not, Or, StartsWith
from tidelog_proto.filters.expression import Operator
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.matching_rows import matching_rows
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field

f = pc.field
EQ, GT, LT, IN = Operator.EQUAL, Operator.GREATER, Operator.LESS, Operator.IS_IN


@pytest.mark.parametrize(
    ("expression", "condition"),
    [
        (f("a") > 190, Comparison("a", GT, (190,))),
        (pc.scalar(190) > f("a"), Comparison("a", LT, (190,))),
        (f("s", "t") == "x", Comparison("s.t", EQ, ("x",))),
        (f("a").is_null(), Comparison("a", Operator.IS_NULL)),
        (~f("a").is_valid(), Not(Comparison("a", Operator.IS_NOT_NULL))),
        (
            f("a") & f("b") | f("c"),
            Or((And(tuple(Comparison(n, EQ, (True,)) for n in "ab")), Comparison("c", EQ, (True,)))),
        ),
        (f("a").isin([1, 2]), And((Comparison("a", Operator.IS_NOT_NULL), Comparison("a", IN, (1, 2))))),
        (f("a").isin([1, None]), Or((Comparison("a", Operator.IS_NULL), Comparison("a", IN, (1,))))),
        (f("a").isin(pa.array([], pa.int8())), And((Comparison("a", Operator.IS_NOT_NULL), Or(())))),
        (pc.starts_with(f("a"), "U"), StartsWith("a", "U")),
        (f("a") < datetime(1970, 1, 1, tzinfo=UTC), Comparison("a", LT, (ExactTime(Fraction(0), is_utc=True),))),
        (
            f("a") < pa.scalar(1500, pa.timestamp("ns")),
            Comparison("a", LT, (ExactTime(Fraction(3, 2), is_utc=False),)),
        ),
        (f("a") == Decimal("1.50"), Comparison("a", EQ, (Decimal("1.50"),))),
        (pc.scalar(True), And(())),
        (pc.scalar(False), Or(())),
    ],
)
def test_expressions(expression: pc.Expression, condition: Condition) -> None:
    assert condition_of_arrow(expression) == condition


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f("a") + 1 > 2, "'add_checked' within 'greater', which a filter cannot have"),
        (f("a") > f("b"), "'greater' of 2 fields"),
        (f("a").cast(pa.int8()) > 1, "'cast' within 'greater'"),
        (pc.is_nan(f("a")), "the function 'is_nan'"),
        (f("a").is_null(nan_is_null=True), "is_null with nan_is_null"),
        (pc.starts_with(f("a"), "U", ignore_case=True), "starts_with with ignore_case"),
        (pc.match_like(f("a"), "U%"), "the function 'match_like'"),
        (f("a") == pa.scalar(None, pa.int8()), "compares with null"),
        (f("a") == pa.scalar([1]), "a literal of the type list"),
        (f(3) > 1, "cannot be read: .*; name fields by text"),
        (pc.scalar(5), "the literal .* as a condition"),
        (functools.reduce(operator.or_, [f("a") > 1] * 600), "more than 150 levels"),
        (f("a").isin(list(range(1025))), "more than 1024 values"),
    ],
)
def test_expressions_that_filters_cannot_have_are_refused(expression: pc.Expression, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        condition_of_arrow(expression)


_OPERATORS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
_FIELDS = [field for field in EVERY_TYPE.fields if field.is_leaf]


@st.composite
def field_tests(draw: st.DrawFn) -> pc.Expression:
    field = draw(st.sampled_from(_FIELDS))
    column = f(field.name)
    form = draw(st.sampled_from(["compare", "compare", "isin", "null"]))
    if form == "null":
        return column.is_null()
    kind = field.type.kind
    literals: Any = values_of(Field(0, "", field.type, required=True))
    if form == "isin" and kind not in {Kind.FLOAT32, Kind.FLOAT64}:  # Arrow equates NaN there, and tells 0.0 from -0.0
        return column.isin(pa.array(draw(st.lists(st.none() | literals, max_size=3)), arrow_type(field)))
    compare = draw(st.sampled_from(_OPERATORS[:2] if kind is Kind.BOOL else _OPERATORS))
    return compare(column, pa.scalar(draw(literals), arrow_type(field)))  # type: ignore[no-any-return]


_EXPRESSIONS = st.recursive(
    field_tests(),
    lambda inner: (
        inner.map(operator.invert)
        | st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
        | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
    ),
    max_leaves=5,
)


@given(_EXPRESSIONS, st.data())
@settings(max_examples=150, deadline=None)
def test_rows_match_as_arrow_itself_filters_them(expression: pc.Expression, data: st.DataObject) -> None:
    layout = row_layout(EVERY_TYPE)
    rows = data.draw(rows_of_schema(EVERY_TYPE, tombstones=False))
    batch = parsed(encoded(layout, rows, base=0), {1: layout})
    expression_of_rows = bound(condition_of_arrow(expression), EVERY_TYPE)
    found = matching_rows(batch, expression_of_rows)
    table = pa.Table.from_batches([row_reader(EVERY_TYPE, EVERY_TYPE).table(batch)])
    numbered = table.append_column("number", pa.array(range(len(table))))
    expected = ds.dataset(numbered).to_table(filter=expression)["number"].to_pylist()
    assert (list(range(len(batch))) if found is None else found.nonzero()[0].tolist()) == expected
