"""Rules of the values of typed batches that Arrow does not have: no null in a required field, years 1 to 9999.

Values of tombstones do not count, and neither do values below structs and lists that are null. Each field
is looked at as a whole first, with everything under nulls. Only a field that breaks a rule there is looked at again
without it, which copies the field.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.key_bytes import number_range
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field


def fault_of(layout: RowLayout, value: Any, suspects: Collection[int] | None = None) -> str | None:
    """Return what is wrong with a column `value`, None if nothing is.

    Args:
        layout: of the schema.
        value: the column; Arrow has validated it in full.
        suspects: indices of the fields that have nulls in a required field; None if that is not known.
    """
    for at, field in layout.ruled_fields:
        array = value.field(at)
        is_suspect = _has_missing(field, array) if suspects is None else at in suspects
        if not is_suspect and not (layout.dated[at] and _is_outside(field, array)):
            continue
        live = array.filter(value.is_valid()) if value.null_count else array
        if fault := _live_fault(field, field.name, live):
            return fault
    return None


def _has_missing(field: Field, array: Any) -> bool:
    """Return whether a required field has a null at any place, with those that do not count."""
    if field.required and array.null_count:
        return True
    if not field.children:
        return False
    return any(_has_missing(child, below) for child, below in _below(field, array))


def _is_outside(field: Field, array: Any) -> bool:
    """Return whether a date or timestamp is outside the years 1 to 9999 at any place, with those that do not count."""
    if not field.children:
        return _date_fault(field, field.name, array) is not None
    return any(_is_outside(child, below) for child, below in _below(field, array))


def _below(field: Field, array: Any) -> list[tuple[Field, Any]]:
    """Return the children of a field with all of their values."""
    if field.type.kind is Kind.LIST:
        return [(field.children[0], array.values)]
    return [(child, array.field(at)) for at, child in enumerate(field.children)]


def _live_fault(field: Field, name: str, array: Any) -> str | None:
    """Return what is wrong with values of which all count."""
    if field.required and array.null_count:
        return f"field {name!r}: {array.null_count} of {len(array)} values are null; it is required"
    if not field.children:
        return _date_fault(field, name, array)
    if array.null_count:
        array = array.drop_null()
    if field.type.kind is Kind.LIST:
        return _live_fault(field.children[0], f"{name}.item", array.flatten())
    for at, child in enumerate(field.children):
        if fault := _live_fault(child, f"{name}.{child.name}", array.field(at)):
            return fault
    return None


def _date_fault(field: Field, name: str, array: Any) -> str | None:
    if field.type.kind not in {Kind.DATE32, Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}:
        return None
    is_date = field.type.kind is Kind.DATE32
    extremes: Any = pc.min_max(array.view(pa.int32() if is_date else pa.int64()))
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    least, most = number_range(array.type) or (0, 0)
    if low is None or (low >= least and high <= most):
        return None
    unit = "days" if is_date else "µs"
    return f"field {name!r}: {low} to {high} {unit} since 1970 are outside the years 1 to 9999"
