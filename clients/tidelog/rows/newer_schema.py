"""Columns of a batch under a newer schema of the topic, before they are sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidelog.errors import SchemaMismatchError
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Path, fields_below, path_text
from tidelog_proto.schema.reading_plan import reading_plan
from tidelog_proto.schema.schema_error import shown


def under_newer_schema(columns: pa.RecordBatch, layout: RowLayout, newest: RowLayout) -> pa.RecordBatch:
    """Return the columns of a batch of one schema as those of a later one. No value changes or is lost.

    Raises:
        SchemaMismatchError: the later schema lacks a field that has values here.
    """
    at = columns.schema.get_field_index("value")
    value: Any = columns.column(at)
    kept = {field.id for field in fields_below(newest.schema.fields)}
    if (lost := _lost(layout.schema.value_fields, value.flatten(), kept, ())) is not None:
        raise SchemaMismatchError(
            f"field {shown(path_text(lost))} was dropped from the topic's schema before these records were stored, and "
            f"they have values in it: they are not stored; send them without it, as schema {newest.number} says",
            definite=True,
        )
    arrays: list[Any] = list(columns.columns)
    arrays[at] = reading_plan(layout.schema, newest.schema).read(value)
    flags = layout.flags_of(columns.schema)
    return pa.RecordBatch.from_arrays(arrays, schema=newest.stored_schema(flags))


def _lost(fields: Sequence[Field], arrays: Sequence[Any], kept: set[int], parent: Path) -> Path | None:
    """Return the path of a field with values that are not kept; None if all values are kept."""
    for field, array in zip(fields, arrays, strict=True):
        path = (*parent, field.name)
        if array.null_count == len(array):
            continue
        if field.id not in kept:
            return path
        below = [array.flatten()] if field.type.kind is Kind.LIST else array.flatten() if field.children else []
        if (found := _lost(field.children, below, kept, path)) is not None:
            return found
    return None
