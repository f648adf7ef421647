"""Expressions as protobuf messages, after work that the limits of filters bound."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from tidelog_proto import filter_pb2
from tidelog_proto.filters.expression import (
    NULL_TESTS,
    SETS,
    AllOf,
    AnyOf,
    Expression,
    FilterValue,
    Leaf,
    Operator,
)
from tidelog_proto.filters.filter_limits import FILTER_BYTES_MAX, LITERALS_MAX, Extent, FilterError
from tidelog_proto.limits import FIELD_ID_MAX, SCHEMAS_PER_TOPIC_MAX
from tidelog_proto.schema.schema_error import shown

_LARGE_BYTES: Final = 16


class BoundFilter(NamedTuple):
    """An expression, and the number of the schema to which it was bound."""

    schema_number: int
    expression: Expression


def message_of_filter(bound: BoundFilter) -> filter_pb2.RowFilter:
    """Return the message of a filter that tests no columns of records. It does not contain `Leaf.nan`.

    Raises:
        FilterError: the expression exceeds a limit.
    """
    message = filter_pb2.RowFilter(
        schema_number=bound.schema_number, expression=_message_of(bound.expression, 1, Extent())
    )
    _check_size(message)
    return message


def filter_of_message(message: filter_pb2.RowFilter) -> BoundFilter:
    """Return the filter of a message. In comparisons of floats, NaN matches: engines differ in what they expect.

    Raises:
        FilterError: the message exceeds a limit, or has parts that this build does not know.
    """
    _check_size(message)
    if not 1 <= message.schema_number <= SCHEMAS_PER_TOPIC_MAX:
        raise FilterError(
            f"the filter is bound to schema {message.schema_number}; schemas have the numbers 1 to "
            f"{SCHEMAS_PER_TOPIC_MAX}"
        )
    return BoundFilter(message.schema_number, _expression_of(message.expression, 1, Extent()))


def _check_size(message: filter_pb2.RowFilter) -> None:
    if (size := message.ByteSize()) > FILTER_BYTES_MAX:
        raise FilterError(
            f"the filter has {size} bytes, at most {FILTER_BYTES_MAX} are allowed; use fewer or shorter values, or "
            "filter rows after reading"
        )


def _message_of(expression: Expression, depth: int, extent: Extent) -> filter_pb2.FilterNode:
    if isinstance(expression, Leaf):
        if expression.field_id <= 0:
            raise FilterError(f"nodes do not test columns of records, got the column {expression.field_id}")
        extent.add(depth, len(expression.literals))
        return filter_pb2.FilterNode(
            test=filter_pb2.FieldTest(
                field_id=expression.field_id,
                operator=filter_pb2.TestOperator.Name(expression.operator),
                literals=map(_literal_message, expression.literals),
            )
        )
    extent.add(depth)
    nodes = filter_pb2.FilterNodes(nodes=[_message_of(node, depth + 1, extent) for node in expression.nodes])
    if isinstance(expression, AllOf):
        return filter_pb2.FilterNode(all_of=nodes)
    return filter_pb2.FilterNode(any_of=nodes)


def _literal_message(literal: FilterValue) -> filter_pb2.FilterLiteral:
    if isinstance(literal, bool):
        return filter_pb2.FilterLiteral(boolean=literal)
    if isinstance(literal, int):
        if -(1 << 63) <= literal < 1 << 63:
            return filter_pb2.FilterLiteral(integer=literal)
        return filter_pb2.FilterLiteral(large_integer=literal.to_bytes(_LARGE_BYTES, "little", signed=True))
    if isinstance(literal, float):
        return filter_pb2.FilterLiteral(number=literal)
    return filter_pb2.FilterLiteral(text=literal)


def _expression_of(message: filter_pb2.FilterNode, depth: int, extent: Extent) -> Expression:
    form = message.WhichOneof("node")
    if form == "test":
        extent.add(depth, len(message.test.literals))
        return _leaf_of(message.test)
    extent.add(depth)
    if form == "all_of":
        return AllOf(tuple(_expression_of(node, depth + 1, extent) for node in message.all_of.nodes))
    if form == "any_of":
        return AnyOf(tuple(_expression_of(node, depth + 1, extent) for node in message.any_of.nodes))
    raise FilterError("the filter has a node of an unknown form; update this build if the client is newer")


def _leaf_of(message: filter_pb2.FieldTest) -> Leaf:
    try:
        operator = Operator(message.operator)
    except ValueError:
        raise FilterError(f"the filter has the unknown operator {message.operator}; update this build") from None
    if not 1 <= message.field_id <= FIELD_ID_MAX:
        raise FilterError(f"ids of fields are 1 to {FIELD_ID_MAX}, got {message.field_id}")
    literals = tuple(map(_literal_of, message.literals))
    least, most = (0, 0) if operator in NULL_TESTS else (1, LITERALS_MAX if operator in SETS else 1)
    if not least <= len(literals) <= most:
        raise FilterError(f"the operator {operator.name} takes {least} to {most} literals, got {len(literals)}")
    return Leaf(message.field_id, operator, literals, nan=operator not in NULL_TESTS)


def _literal_of(message: filter_pb2.FilterLiteral) -> FilterValue:
    form = message.WhichOneof("literal")
    if form == "boolean":
        return message.boolean
    if form == "integer":
        return message.integer
    if form == "number" and not math.isnan(message.number):
        return message.number
    if form == "text":
        return message.text
    if form == "large_integer" and len(message.large_integer) == _LARGE_BYTES:
        return int.from_bytes(message.large_integer, "little", signed=True)
    raise FilterError(f"the filter has an invalid literal: {shown(str(message))}")
