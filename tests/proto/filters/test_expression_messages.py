from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proto.filters.reference_filter import expressions
from tests.proto.schemas import EVERY_TYPE

from tidelog_proto import filter_pb2
from tidelog_proto.filters.expression import AllOf, AnyOf, Expression, Leaf, Operator, leaves_of
from tidelog_proto.filters.expression_messages import BoundFilter, filter_of_message, message_of_filter
from tidelog_proto.filters.filter_limits import (
    DEPTH_MAX,
    FILTER_BYTES_MAX,
    LITERALS_MAX,
    NODES_MAX,
    FilterError,
    check_extent,
)


def round_trip(expression: Expression) -> Expression:
    raw = message_of_filter(BoundFilter(1, expression)).SerializeToString()
    found = filter_of_message(filter_pb2.RowFilter.FromString(raw))
    assert found.schema_number == 1
    return found.expression


def with_nan(expression: Expression) -> Expression:
    if isinstance(expression, Leaf):
        return Leaf(expression.field_id, expression.operator, expression.literals, nan=bool(expression.literals))
    return type(expression)(tuple(map(with_nan, expression.nodes)))


@given(expressions(EVERY_TYPE))
@settings(max_examples=100, deadline=None)
def test_an_expression_survives_its_message_and_nodes_match_nan(expression: Expression) -> None:
    found = round_trip(expression)
    assert found == with_nan(expression)
    classes = [[type(each) for each in leaf.literals] for leaf in leaves_of(expression)]
    assert [[type(each) for each in leaf.literals] for leaf in leaves_of(found)] == classes


@pytest.mark.parametrize("number", [0, 2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 10**38 - 1, 1 - 10**38])
def test_integers_of_any_size_survive(number: int) -> None:
    assert next(leaves_of(round_trip(Leaf(1, Operator.EQUAL, (number,))))).literals == (number,)


def nested(depth: int) -> Expression:
    expression: Expression = Leaf(1, Operator.IS_NULL)
    for level in range(depth - 1):
        expression = (AllOf if level % 2 else AnyOf)((expression,))
    return expression


@pytest.mark.parametrize(
    ("fits", "exceeds", "message"),
    [
        (nested(DEPTH_MAX), nested(DEPTH_MAX + 1), "more than 8 levels"),
        (
            AllOf((Leaf(1, Operator.IS_NULL),) * (NODES_MAX - 1)),
            AllOf((Leaf(1, Operator.IS_NULL),) * NODES_MAX),
            "more than 256 conditions",
        ),
        (
            AllOf((Leaf(1, Operator.IS_IN, (5,) * (LITERALS_MAX // 2)),) * 2),
            AllOf((Leaf(1, Operator.IS_IN, (5,) * (LITERALS_MAX // 2)),) * 2 + (Leaf(1, Operator.EQUAL, (5,)),)),
            "more than 1024 values",
        ),
        (
            Leaf(1, Operator.EQUAL, (b"x" * (FILTER_BYTES_MAX - 100),)),
            Leaf(1, Operator.EQUAL, (b"x" * FILTER_BYTES_MAX,)),
            "at most 65536 are allowed",
        ),
    ],
)
def test_limits(fits: Expression, exceeds: Expression, message: str) -> None:
    assert round_trip(fits) == with_nan(fits)
    check_extent(fits)
    with pytest.raises(FilterError, match=message):
        message_of_filter(BoundFilter(1, exceeds))
    with pytest.raises(FilterError, match=message):
        filter_of_message(filter_pb2.RowFilter(schema_number=1, expression=_unchecked(exceeds)))


def _unchecked(expression: Expression) -> filter_pb2.FilterNode:
    if isinstance(expression, Leaf):
        literals: list[dict[str, Any]] = [
            {"text": each} if isinstance(each, bytes) else {"integer": each} for each in expression.literals
        ]
        test = filter_pb2.FieldTest(field_id=1, operator=expression.operator.name, literals=literals)
        return filter_pb2.FilterNode(test=test)
    nodes = filter_pb2.FilterNodes(nodes=map(_unchecked, expression.nodes))
    if isinstance(expression, AllOf):
        return filter_pb2.FilterNode(all_of=nodes)
    return filter_pb2.FilterNode(any_of=nodes)


def _test(**fields: Any) -> filter_pb2.FilterNode:
    return filter_pb2.FilterNode(test=filter_pb2.FieldTest(**{"field_id": 1, "operator": "EQUAL", **fields}))


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (filter_pb2.FilterNode(), "a node of an unknown form"),
        (filter_pb2.FilterNode(any_of={"nodes": [filter_pb2.FilterNode()]}), "a node of an unknown form"),
        (_test(operator=77, literals=[{"integer": 1}]), "the unknown operator 77"),
        (_test(operator=0, literals=[{"integer": 1}]), "the unknown operator 0"),
        (_test(field_id=0, literals=[{"integer": 1}]), "ids of fields are 1 to 2147483647, got 0"),
        (_test(), "EQUAL takes 1 to 1 literals, got 0"),
        (_test(literals=[{"integer": 1}, {"integer": 2}]), "EQUAL takes 1 to 1 literals, got 2"),
        (_test(operator="IS_IN"), "IS_IN takes 1 to 1024 literals, got 0"),
        (_test(operator="IS_NULL", literals=[{"integer": 1}]), "IS_NULL takes 0 to 0 literals, got 1"),
        (_test(literals=[{}]), "an invalid literal"),
        (_test(literals=[{"number": float("nan")}]), "an invalid literal"),
        (_test(literals=[{"large_integer": b"x"}]), "an invalid literal"),
    ],
)
def test_messages_that_are_not_a_filter_are_refused(node: filter_pb2.FilterNode, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        filter_of_message(filter_pb2.RowFilter(schema_number=1, expression=node))


@pytest.mark.parametrize("number", [0, 257])
def test_schema_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(FilterError, match=f"bound to schema {number}"):
        filter_of_message(filter_pb2.RowFilter(schema_number=number, expression=_unchecked(AllOf(()))))


def test_columns_of_records_are_not_sent() -> None:
    with pytest.raises(FilterError, match="nodes do not test columns of records"):
        message_of_filter(BoundFilter(1, Leaf(-1, Operator.EQUAL, (1,))))


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_filter_or_refused(raw: bytes) -> None:
    try:
        message = filter_pb2.RowFilter.FromString(raw)
    except DecodeError:
        return
    try:
        found = filter_of_message(message)
    except FilterError:
        return
    assert round_trip(found.expression) == found.expression
