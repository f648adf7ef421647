"""The tree that DuckDB reads a statement into (`json_serialize_sql`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def branches_of(parsed: object) -> Iterator[dict[str, Any]]:
    """Yield each object of a tree of JSON, whatever it is part of, in no order."""
    left = [parsed]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            left += one.values()
            yield one
