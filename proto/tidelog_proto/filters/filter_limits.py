"""Limits of expressions: they bound what a filter costs a node for each row."""

from __future__ import annotations

from typing import Final

from tidelog_proto.filters.expression import Expression, Leaf

DEPTH_MAX: Final = 8
"""Maximum number of levels of an expression."""
NODES_MAX: Final = 256
"""Maximum number of nodes: tests and combinations."""
LITERALS_MAX: Final = 1024
"""Maximum number of literals of all tests together."""
FILTER_BYTES_MAX: Final = 64 * 1024
"""Maximum size of the message of a filter."""


class FilterError(ValueError):
    """A filter is refused."""


def too_many_literals_error() -> FilterError:
    """Return the error for a filter with more than `LITERALS_MAX` literals."""
    return FilterError(f"the filter has more than {LITERALS_MAX} values; use ranges, or filter rows after reading")


class Extent:
    """Counts the nodes of an expression while it is read, and refuses it as soon as it passes a limit."""

    def __init__(self) -> None:
        self._nodes = 0
        self._literals = 0

    def add(self, depth: int, literals: int = 0) -> None:
        """Count a node at a level, from 1 on, with its literals.

        Raises:
            FilterError: the expression has more nodes, levels or literals than are allowed.
        """
        self._nodes += 1
        self._literals += literals
        if depth > DEPTH_MAX:
            raise FilterError(f"the filter has more than {DEPTH_MAX} levels of AND and OR; write it with fewer")
        if self._nodes > NODES_MAX:
            raise FilterError(
                f"the filter has more than {NODES_MAX} conditions; use IN for several values of a field, or filter "
                "rows after reading"
            )
        if self._literals > LITERALS_MAX:
            raise too_many_literals_error()


def check_extent(expression: Expression) -> None:
    """Check the levels, nodes and literals of an expression.

    Raises:
        FilterError: a limit is exceeded.
    """
    _add(expression, 1, Extent())


def _add(expression: Expression, depth: int, extent: Extent) -> None:
    if isinstance(expression, Leaf):
        extent.add(depth, len(expression.literals))
        return
    extent.add(depth)
    for node in expression.nodes:
        _add(node, depth + 1, extent)
