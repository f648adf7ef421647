from __future__ import annotations

import pytest
from tests.proto.schemas import EVERY_TYPE, schema_of

from tidelog_proto.filters.expression import NO_ROW, AllOf, AnyOf, Leaf, Operator
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.rebinding import check_expression, field_places, rebound
from tidelog_proto.schema.data_types import INT8, INT64, STRING
from tidelog_proto.schema.fields import Field


def test_every_field_has_a_place() -> None:
    places = field_places(EVERY_TYPE)
    assert sorted(places) == [*range(1, 23)]
    assert [field.name for field in places[21].fields] == ["place", "city"]
    assert [number for number, place in places.items() if place.is_item] == [19]


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (Leaf(99, Operator.IS_NULL), "schema 1 has no field with the id 99; bind the filter again"),
        (Leaf(19, Operator.IS_NULL), "field 'stops.item' is below a list"),
        (Leaf(20, Operator.EQUAL, (1,)), "field 'place' is a struct: compare a field below it"),
        (Leaf(4, Operator.LESS, (True,)), "field 'leaf0' is a bool, which has no order"),
        (Leaf(4, Operator.EQUAL, (1,)), "field 'leaf0' has the type bool; it was compared with 1"),
        (Leaf(5, Operator.EQUAL, (True,)), "has the type int8; it was compared with True"),
        (Leaf(5, Operator.EQUAL, (1.0,)), "has the type int8; it was compared with 1.0"),
        (Leaf(10, Operator.EQUAL, (1,)), "has the type float64; it was compared with 1"),
        (Leaf(10, Operator.EQUAL, (float("nan"),)), "has the type float64; it was compared with nan"),
        (Leaf(21, Operator.IS_IN, (b"x", 1)), "field 'place.city' has the type string; it was compared with 1"),
    ],
)
def test_tests_that_do_not_fit_a_field_are_refused(leaf: Leaf, message: str) -> None:
    for expression in (leaf, AnyOf((Leaf(1, Operator.IS_NULL), AllOf((leaf,))))):
        with pytest.raises(FilterError, match=message):
            check_expression(expression, EVERY_TYPE)


def test_an_expression_is_simplified_under_an_older_schema() -> None:
    older = schema_of(Field(0, "a", INT8), Field(0, "b", STRING))
    newer = schema_of(Field(0, "a", INT64), Field(0, "b", STRING), Field(0, "c", STRING), number=2)
    b = Leaf(2, Operator.EQUAL, (b"x",))
    expression = AnyOf((AllOf((Leaf(1, Operator.EQUAL, (200,)), b)), b))
    check_expression(expression, newer)
    assert rebound(expression, newer) == expression
    assert rebound(expression, older) == b
    assert rebound(AllOf((Leaf(3, Operator.EQUAL, (b"x",)), b)), older) == NO_ROW
