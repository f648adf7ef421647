"""Conditions on rows as callers state them: by names of fields and with values of Python, not bound to a schema.

They are true, false or unknown, as in SQL: a comparison with null is unknown. Rows match if the condition is true.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from tidelog_proto.filters.expression import Operator


class ExactTime(NamedTuple):
    """A time that may be finer than a microsecond.

    Attributes:
        us: µs since 1970.
        is_utc: whether it is an instant; False without a time zone.
    """

    us: Fraction
    is_utc: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """A test of one field.

    Attributes:
        name: the path of the field, such as `place.city`, or a column of records, such as `_offset`.
        values: as many as the operator takes; none of them is None.
    """

    name: str
    operator: Operator
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class StartsWith:
    """True of text or bytes that begin with a prefix."""

    name: str
    prefix: Any


@dataclass(frozen=True, slots=True)
class Not:
    """True where the condition is false."""

    condition: Condition


@dataclass(frozen=True, slots=True)
class And:
    """True where all conditions are true."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True where at least one condition is true."""

    conditions: tuple[Condition, ...]


Condition = Comparison | StartsWith | Not | And | Or


def names_of(condition: Condition) -> Iterator[str]:
    """Yield the names in a condition, from left to right."""
    if isinstance(condition, (Comparison, StartsWith)):
        yield condition.name
    elif isinstance(condition, Not):
        yield from names_of(condition.condition)
    else:
        for each in condition.conditions:
            yield from names_of(each)
