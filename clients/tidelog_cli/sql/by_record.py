"""Detection of statements whose result rows each depend on one record, so that --follow only needs new records.

The decision is based on DuckDB's syntax tree of the statement. A statement with a node type that is not listed here,
such as one of a later DuckDB version, runs on all records.
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
"""Clauses that make a row depend on several records; modifiers are ORDER BY, LIMIT and DISTINCT."""
_EXPRESSIONS: Final = frozenset(
    {
        *("COLUMN_REF", "CONSTANT", "FUNCTION", "COMPARISON", "CONJUNCTION", "OPERATOR", "CAST", "TYPE", "CASE"),
        *("STAR", "BETWEEN", "LAMBDA"),  # the class of value->'$.field', too
    }
)
"""Allowed expressions. WINDOW and SUBQUERY are excluded, because they read other records."""


def is_by_record(statements: object, is_scalar: Callable[[str], bool]) -> bool:
    """Return whether a statement only filters and maps the records of one topic.

    Args:
        statements: the statement as parsed by DuckDB's `json_serialize_sql`.
        is_scalar: returns whether all functions of a name are scalar functions.
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
