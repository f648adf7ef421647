from __future__ import annotations

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
from tidelog_proto.filters.conditions import And, Comparison, Not, Or, StartsWith
from tidelog_proto.filters.expression import EVERY_ROW, NO_ROW, AllOf, AnyOf, Leaf, Operator
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.matching_rows import matching_rows
from tidelog_proto.filters.rebinding import check_expression
from tidelog_proto.schema.data_types import (
    INT8,
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
