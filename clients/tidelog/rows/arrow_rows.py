"""Arrow columns of an application as the columns of a typed batch, without an object per record."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.batch.typed_rows import DELETED, stored_columns
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.arrow_values import exact_values
from tidelog_proto.schema.data_types import INTEGERS, Kind
from tidelog_proto.schema.fields import Field
from tidelog_proto.schema.schema_error import shown

_OF_RECORDS: Final = frozenset({"_timestamp", "_key", "_headers", "_tag", DELETED})


def typed_columns(layout: RowLayout, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a batch for rows whose columns are named like the fields of a schema.

    Columns of the types of the schema are not copied. Others are cast if each value stays exact: narrower types to
    wider ones, wider integers whose values fit, plain for dictionary-encoded, other time units.

    Args:
        rows: the fields in any order, a missing one is null, and optionally `_timestamp`, `_key`, `_tag` where the
            schema has no field for them, `_headers`, and `_deleted`, which marks tombstones.

    Raises:
        RowError: a column is unknown or repeated, or a value does not fit its field exactly.
    """
    fields = {field.name: field for field in layout.schema.fields}
    unknown = [name for name in rows.schema.names if name not in fields and name not in _OF_RECORDS]
    if unknown:
        raise RowError(
            f"the columns {shown(unknown)} are not fields of the schema, which has {shown(sorted(fields))}; rename or "
            "drop them, or add the fields with evolve_schema"
        )
    arrays = [
        _exact(array, fields[name]) if name in fields else array
        for name, array in zip(rows.schema.names, rows.columns, strict=True)
    ]
    try:
        return stored_columns(layout, pa.RecordBatch.from_arrays(arrays, names=rows.schema.names))
    except (TypeError, ValueError) as error:
        raise RowError(str(error)) from error


def _exact(array: Any, field: Field) -> pa.Array[Any]:
    wanted: Any = arrow_type(field)
    if pa.types.is_null(array.type):
        nulls: pa.Array[Any] = pa.nulls(len(array), wanted)
        return nulls
    try:
        if _only_narrows(array.type, field):
            exact: pa.Array[Any] = array.cast(wanted)
            return exact
        return exact_values(array, field)
    except ValueError as error:  # also pyarrow's
        text = str(error)
        raise RowError(text if text.startswith("field ") else f"column {shown(field.name)}: {text}") from error


def _only_narrows(kind: pa.DataType, field: Field) -> bool:
    """Return whether a cast is exact for each value that it accepts, and so may be to a narrower type."""
    if field.type.kind in INTEGERS:
        # Sums of integers are decimals without a fraction in SQL.
        return pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and not getattr(kind, "scale", 1))
    return field.type.kind is Kind.DECIMAL128 and pa.types.is_decimal(kind)
