"""Expressions of which a filter consists: tests of fields, combined by AND and OR.

Literals have the type of the field in one schema of the topic: a bool; an integer for int8 to int64, days since 1970
for a date, microseconds since 1970 for a timestamp, and the value times 10^scale for a decimal; a float other than NaN;
bytes for a binary, and the UTF-8 of a string.

A test of a null is not true, with the exception of `IS_NULL`. As expressions have no NOT, "unknown" and "false" need no
distinction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

FilterValue = bool | int | float | bytes


class Operator(IntEnum):
    """Tests of a field. The numbers are those of `filter.proto`; they never change."""

    EQUAL = 1
    NOT_EQUAL = 2
    LESS = 3
    LESS_OR_EQUAL = 4
    GREATER = 5
    GREATER_OR_EQUAL = 6
    IS_IN = 7
    IS_NOT_IN = 8
    IS_NULL = 9
    IS_NOT_NULL = 10

    @property
    def negated(self) -> Operator:
        """The operator that is true of each value, other than null and NaN, of which this one is false."""
        return _NEGATED[self]


_NEGATED: Final = {
    Operator.EQUAL: Operator.NOT_EQUAL,
    Operator.NOT_EQUAL: Operator.EQUAL,
    Operator.LESS: Operator.GREATER_OR_EQUAL,
    Operator.LESS_OR_EQUAL: Operator.GREATER,
    Operator.GREATER: Operator.LESS_OR_EQUAL,
    Operator.GREATER_OR_EQUAL: Operator.LESS,
    Operator.IS_IN: Operator.IS_NOT_IN,
    Operator.IS_NOT_IN: Operator.IS_IN,
    Operator.IS_NULL: Operator.IS_NOT_NULL,
    Operator.IS_NOT_NULL: Operator.IS_NULL,
}
NULL_TESTS: Final = frozenset({Operator.IS_NULL, Operator.IS_NOT_NULL})
SETS: Final = frozenset({Operator.IS_IN, Operator.IS_NOT_IN})
ORDERED: Final = frozenset({Operator.LESS, Operator.LESS_OR_EQUAL, Operator.GREATER, Operator.GREATER_OR_EQUAL})


@dataclass(frozen=True, slots=True)
class Leaf:
    """A test of one field.

    Attributes:
        field_id: of the field; negative for a column of records (`record_columns.py`).
        literals: one, at least one for `SETS`, or none for `NULL_TESTS`.
        nan: whether NaN matches, for fields of floats.
    """

    field_id: int
    operator: Operator
    literals: tuple[FilterValue, ...] = ()
    nan: bool = False


@dataclass(frozen=True, slots=True)
class AllOf:
    """True of rows of which each of `nodes` is true; without any, of all rows."""

    nodes: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """True of rows of which at least one of `nodes` is true; without any, of no row."""

    nodes: tuple[Expression, ...]


Expression = Leaf | AllOf | AnyOf

EVERY_ROW: Final = AllOf(())
NO_ROW: Final = AnyOf(())


def all_of(nodes: Iterable[Expression]) -> Expression:
    """Return the conjunction of expressions, without needless levels."""
    return _joined(AllOf, nodes, NO_ROW)


def any_of(nodes: Iterable[Expression]) -> Expression:
    """Return the disjunction of expressions, without needless levels."""
    return _joined(AnyOf, nodes, EVERY_ROW)


def _joined(kind: type[AllOf | AnyOf], nodes: Iterable[Expression], decisive: Expression) -> Expression:
    """Return the combination of nodes; it equals `decisive` as soon as one of them does."""
    found: list[Expression] = []
    for node in nodes:
        if node == decisive:
            return decisive
        found += node.nodes if isinstance(node, kind) else (node,)
    return found[0] if len(found) == 1 else kind(tuple(found))


def leaves_of(expression: Expression) -> Iterator[Leaf]:
    """Yield the tests of an expression, from left to right."""
    if isinstance(expression, Leaf):
        yield expression
        return
    for node in expression.nodes:
        yield from leaves_of(node)
