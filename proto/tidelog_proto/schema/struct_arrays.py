"""Structs with new children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def with_children(array: Any, children: Sequence[Any], wanted: Any) -> pa.Array[Any]:
    """Return a struct array of the type `wanted` with the nulls of `array` and at least one child."""
    if array.offset and array.null_count:
        return pa.StructArray.from_arrays(children, fields=list(wanted), mask=array.is_null())
    validity = array.buffers()[0] if array.null_count else None
    return pa.Array.from_buffers(wanted, len(array), [validity], children=list(children))
