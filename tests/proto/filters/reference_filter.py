"""A reference of filters in Python, row by row, and hypothesis strategies for expressions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Any

from hypothesis import strategies as st
from tests.proto.typed_batches import values_of as field_values

from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_reader import row_reader, values_of
from tidelog_proto.filters.expression import AllOf, AnyOf, Expression, FilterValue, Leaf, Operator
from tidelog_proto.schema.data_types import NESTED, Kind
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.topic_schema import Schema

_EXACT = Context(prec=100)
_FLOATS = {Kind.FLOAT32, Kind.FLOAT64}
_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
}


def plain_rows(batch: RecordBatch, schema: Schema) -> list[dict[int, Any]]:
    """Return the values of each record's fields under a schema, by id; all fields but items of lists, at any depth."""
    assert batch.layout is not None
    rows: list[dict[int, Any]] = [{} for _ in range(len(batch))]
    arrays = row_reader(batch.layout.schema, schema).arrays(batch)
    for field, array in zip(schema.fields, arrays, strict=True):
        for row, value in zip(rows, values_of(array, field, _leaf_values), strict=True):
            _add(row, field, value)
    return rows


def _add(row: dict[int, Any], field: Field, value: Any) -> None:
    row[field.id] = value
    if field.type.kind is Kind.STRUCT:
        for child in field.children:
            _add(row, child, None if value is None else value[child.name])


def _leaf_values(array: Any, field: Field) -> list[Any]:
    return [literal_of(value.value if hasattr(value, "value") else value.as_py(), field) for value in array]


def literal_of(value: Any, field: Field) -> Any:
    """Return a value of a field, as pyarrow's scalars and `values_of` have it, as a literal."""
    if isinstance(value, Decimal):
        return int(value.scaleb(field.type.scale, _EXACT))
    return value.encode() if isinstance(value, str) else value


def is_true(expression: Expression, row: dict[int, Any]) -> bool:
    """Return whether an expression is true of a row."""
    if isinstance(expression, AllOf):
        return all(is_true(node, row) for node in expression.nodes)
    if isinstance(expression, AnyOf):
        return any(is_true(node, row) for node in expression.nodes)
    value = row[expression.field_id]
    if expression.operator in {Operator.IS_NULL, Operator.IS_NOT_NULL}:
        return (value is None) is (expression.operator is Operator.IS_NULL)
    if value is None:
        return False
    if isinstance(value, float) and math.isnan(value):
        return expression.nan
    if expression.operator is Operator.IS_IN:
        return any(value == literal for literal in expression.literals)
    if expression.operator is Operator.IS_NOT_IN:
        return all(value != literal for literal in expression.literals)
    return _COMPARE[expression.operator](value, expression.literals[0])


def tested_fields(schema: Schema) -> list[Field]:
    """Return the fields that an expression may test."""
    found: list[Field] = []
    waiting = list(schema.fields)
    while waiting:
        field = waiting.pop()
        found.append(field)
        if field.type.kind is Kind.STRUCT:
            waiting += field.children
    return found


def literals(field: Field) -> st.SearchStrategy[FilterValue]:
    """Make literals of the type of a field."""
    values = field_values(Field(0, "", field.type, required=True)).map(lambda value: literal_of(value, field))
    return values.filter(lambda value: value == value)  # noqa: PLR0124 - not NaN


@st.composite
def leaves(draw: st.DrawFn, schema: Schema) -> Leaf:
    """Make tests of the fields of a schema."""
    field = draw(st.sampled_from(tested_fields(schema)))
    kind = field.type.kind
    operators = list(Operator)
    if kind in NESTED:
        operators = [Operator.IS_NULL, Operator.IS_NOT_NULL]
    elif kind is Kind.BOOL:
        operators = [each for each in Operator if each.name in {"EQUAL", "NOT_EQUAL", "IS_IN", "IS_NOT_IN", "IS_NULL"}]
    chosen = draw(st.sampled_from(operators))
    if chosen in {Operator.IS_NULL, Operator.IS_NOT_NULL}:
        return Leaf(field.id, chosen)
    count = draw(st.integers(1, 4)) if chosen in {Operator.IS_IN, Operator.IS_NOT_IN} else 1
    found = tuple(draw(literals(field)) for _ in range(count))
    return Leaf(field.id, chosen, found, nan=draw(st.booleans()) if kind in _FLOATS else False)


def expressions(schema: Schema) -> st.SearchStrategy[Expression]:
    """Make expressions over the fields of a schema."""

    def combined(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
        nodes = st.lists(inner, max_size=3).map(tuple)
        return nodes.map(AllOf) | nodes.map(AnyOf)

    return st.recursive(leaves(schema), combined, max_leaves=6)
