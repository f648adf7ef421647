"""Traversal of DuckDB's syntax tree of a statement (`json_serialize_sql`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def branches_of(parsed: object) -> Iterator[dict[str, Any]]:
    """Yield each object of a JSON tree, at any depth and in any order."""
    left = [parsed]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += one.values()
            yield one
