"""Whether each row of an answer comes of one record alone: then following needs to ask about new records only.

Judged by the tree that DuckDB reads a statement into. Only what is known is let pass. Of anything else that a statement
may have, in this version or in a later one, nobody knows here how many records a row is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from tidelog_cli.sql.parsed import branches_of

_STATEMENT: Final = {"node", "named_param_map"}
_NODE: Final = {
    *("type", "modifiers", "cte_map", "select_list", "from_table", "where_clause", "group_expressions", "group_sets"),
    *("aggregate_handling", "having", "sample", "qualify"),
}
_EMPTY: Final = ("modifiers", "group_expressions", "group_sets", "having", "sample", "qualify")
"""ORDER BY, LIMIT and DISTINCT are modifiers."""
_EXPRESSIONS: Final = frozenset(
    {
        *("COLUMN_REF", "CONSTANT", "FUNCTION", "COMPARISON", "CONJUNCTION", "OPERATOR", "CAST", "TYPE", "CASE"),
        *("STAR", "BETWEEN", "LAMBDA"),  # so it says of value->'$.field', too
    }
)
"""Not among them: WINDOW, and SUBQUERY, which reads anew."""


def is_by_record(statements: object, is_scalar: Callable[[str], bool]) -> bool:
    """Whether a statement filters and maps the records of one topic, and does nothing else.

    Args:
        statements: what DuckDB's `json_serialize_sql` makes of it.
        is_scalar: whether a function of that name takes values and gives one, whatever its arguments are.
    """
    if not isinstance(statements, list) or len(statements) != 1 or not isinstance(statements[0], dict):
        return False
    statement = cast("dict[str, object]", statements[0])
    node = statement.get("node")
    if not isinstance(node, dict) or statement.keys() - _STATEMENT or node.keys() - _NODE:
        return False
    table = node.get("from_table")
    return (
        node.get("type") == "SELECT_NODE"
        and not any(node.get(name) for name in _EMPTY)
        and node.get("aggregate_handling") == "STANDARD_HANDLING"
        and not (node.get("cte_map") or {}).get("map")
        and isinstance(table, dict)
        and table.get("type") == "BASE_TABLE"
        and not table.get("sample")
        and _are_scalar([node.get("select_list"), node.get("where_clause")], is_scalar)
    )


def _are_scalar(expressions: list[object], is_scalar: Callable[[str], bool]) -> bool:
    for one in branches_of(expressions):
        kind = one.get("class")
        if kind is not None and kind not in _EXPRESSIONS:
            return False
        if kind == "FUNCTION" and not is_scalar(str(one.get("function_name"))):
            return False
    return True
