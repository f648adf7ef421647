"""Expressions under the schema of a batch: the fields that it has, and their types, which may be narrower."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from tidelog_proto.filters.expression import (
    EVERY_ROW,
    NO_ROW,
    NULL_TESTS,
    ORDERED,
    AllOf,
    Expression,
    FilterValue,
    Leaf,
    Operator,
    all_of,
    any_of,
    leaves_of,
)
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.literal_ranges import range_of, within
from tidelog_proto.filters.record_columns import RECORD_COLUMN_NAMES
from tidelog_proto.schema.data_types import NESTED, DataType, Kind
from tidelog_proto.schema.fields import Field, path_text
from tidelog_proto.schema.schema_error import shown
from tidelog_proto.schema.topic_schema import Schema


class FieldPlace(NamedTuple):
    """Where a schema has a field.

    Attributes:
        fields: from the top level to the field.
        is_item: whether it is the item of a list, or below one: a record has any number of its values.
    """

    fields: tuple[Field, ...]
    is_item: bool

    @property
    def field(self) -> Field:
        """The field itself."""
        return self.fields[-1]


@lru_cache(maxsize=256)
def field_places(schema: Schema) -> dict[int, FieldPlace]:
    """Return the places of the fields of a schema, by id."""
    found: dict[int, FieldPlace] = {}
    _add_places(schema.fields, (), found, is_item=False)
    return found


def _add_places(
    fields: Sequence[Field], above: tuple[Field, ...], found: dict[int, FieldPlace], *, is_item: bool
) -> None:
    for field in fields:
        found[field.id] = FieldPlace((*above, field), is_item)
        below = is_item or field.type.kind is Kind.LIST
        _add_places(field.children, (*above, field), found, is_item=below)


def check_expression(expression: Expression, schema: Schema) -> None:
    """Check that an expression tests fields of a schema with literals of their types.

    Raises:
        FilterError: a field does not exist, or a test does not fit its type.
    """
    places = field_places(schema)
    for leaf in leaves_of(expression):
        place = places.get(leaf.field_id)
        if place is None:
            raise FilterError(f"schema {schema.number} has no field with the id {leaf.field_id}; bind the filter again")
        check_test(leaf, place)


def check_test(leaf: Leaf, place: FieldPlace) -> None:
    """Check that a test fits a field.

    Raises:
        FilterError: it does not.
    """
    name = f"field {shown(path_text(tuple(field.name for field in place.fields)))}"
    if place.is_item:
        raise FilterError(f"{name} is below a list, so that a row has any number of its values; test another field")
    if leaf.operator in NULL_TESTS:
        return
    check_literals(leaf, place.field.type, name)


def check_literals(leaf: Leaf, data_type: DataType, name: str) -> None:
    """Check that the operator and literals of a comparison fit a type.

    Raises:
        FilterError: they do not.
    """
    kind = data_type.kind
    if kind in NESTED:
        raise FilterError(f"{name} is a {data_type}: compare a field below it, or test it with IS NULL")
    if kind is Kind.BOOL and leaf.operator in ORDERED:
        raise FilterError(f"{name} is a bool, which has no order; compare it with = true or = false")
    expected = _CLASS_OF.get(kind, int)
    for literal in leaf.literals:
        if type(literal) is not expected or literal != literal:  # noqa: PLR0124 - NaN differs from itself
            raise FilterError(f"{name} has the type {data_type}; it was compared with {shown(literal)}")


_CLASS_OF: Final[dict[Kind, type[FilterValue]]] = {
    Kind.BOOL: bool,
    Kind.FLOAT32: float,
    Kind.FLOAT64: float,
    Kind.STRING: bytes,
    Kind.BINARY: bytes,
}
"""The classes of literals; those of the other kinds are integers."""


@lru_cache(maxsize=256)
def rebound(expression: Expression, schema: Schema) -> Expression:
    """Return an expression for batches of an earlier schema than that to which it was bound, or of the same.

    It is true of the same rows: fields that the schema does not have are null.

    Args:
        expression: one that `check_expression` accepts under the schema to which it was bound.
    """
    if not isinstance(expression, Leaf):
        join = all_of if isinstance(expression, AllOf) else any_of
        return join(rebound(node, schema) for node in expression.nodes)
    if expression.field_id in RECORD_COLUMN_NAMES:
        return expression
    place = field_places(schema).get(expression.field_id)
    if place is None:
        return EVERY_ROW if expression.operator is Operator.IS_NULL else NO_ROW
    bounds = range_of(place.field.type)
    return expression if bounds is None else within(expression, *bounds)
