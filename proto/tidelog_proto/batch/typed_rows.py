"""Rows of a typed topic as the columns of a batch, and back; without an object per record.

Rows are Arrow columns named like the fields of the schema, and optionally columns of the record itself: `_timestamp`,
`_key`, `_headers` and `_tag`, where the schema has no field with that role, and `_deleted`, which marks tombstones.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.columns import canonical
from tidelog_proto.batch.exact_rows import exact_values
from tidelog_proto.batch.key_bytes import STAMP_US_MAX, STAMP_US_MIN, key_column, key_values
from tidelog_proto.batch.live_values import fault_of
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.fields import Field

DELETED: Final = "_deleted"
_RECORD_COLUMNS: Final = {"_timestamp": "timestamp", "_key": "key", "_headers": "headers", "_tag": "tag"}


def stored_columns(layout: RowLayout, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns of a batch for rows; columns that have the types of the schema are not copied.

    Args:
        layout: of the schema.
        rows: the fields of the schema, in any order; a missing one is null. A tombstone needs the required key and the
            time, and its other fields are ignored.

    Raises:
        TypeError: a column is unknown or repeated, or has a type that Arrow does not cast to that of its field.
        ValueError: a required field is null, or a value does not fit its field.
    """
    given = _given(layout, rows)
    deleted = _deleted(given.pop(DELETED, None))
    count = rows.num_rows
    arrays = {field.name: _typed(field, given.pop(field.name, None), count) for field in layout.schema.fields}
    children = [arrays[field.name] for field in layout.schema.value_fields]
    value: Any = pa.StructArray.from_arrays(children, fields=list(layout.value_type), mask=deleted)
    if deleted is not None:
        value = exact_values(value)
    if fault := fault_of(layout, value):
        raise ValueError(fault)
    given = {_RECORD_COLUMNS[name]: array for name, array in given.items()}
    if layout.key is not None:
        given["key"] = key_column(_complete(layout.key, arrays[layout.key.name]))
    if layout.tag is not None:
        given["tag"] = _complete(layout.tag, arrays[layout.tag.name], deleted)
    columns = canonical(pa.RecordBatch.from_pydict({**given, "value": pa.nulls(count, pa.binary())}))
    stored = dict(zip(columns.schema.names, columns.columns, strict=True)) | {"value": value}
    if layout.time is not None:
        stored["timestamp"] = _times(layout.time, arrays[layout.time.name])
    order = [name for name in ("timestamp", "key", "value", "headers", "tag") if name in stored]
    flags = layout.flags_of(pa.schema([(name, stored[name].type) for name in order]))
    return pa.RecordBatch.from_arrays([stored[name] for name in order], schema=layout.stored_schema(flags))


def rows_of(batch: RecordBatch, *, tombstones: bool = False) -> pa.RecordBatch:
    """Return the rows of a typed batch: all fields in the order of the schema; fields are not copied if possible.

    Args:
        batch: a typed batch or a slice of one.
        tombstones: whether tombstones are rows, too; a last column `_deleted` marks them. Their fields are null but
            for those with a role.

    Raises:
        TypeError: the batch is not typed.
        ProtocolError: CORRUPT_BATCH if the body does not decode, or the bytes of a key are not those of its type.
    """
    layout = batch.layout
    if layout is None:
        raise TypeError("the batch has no schema; read its values as bytes")
    columns = batch.columns()
    names = columns.schema.names
    value: Any = columns.column("value") if "value" in names else None
    if value is not None and value.null_count and not tombstones:
        columns = columns.filter(value.is_valid())
        value = columns.column("value")
    fields = iter(() if value is None else value.flatten() if value.null_count else _children(value))
    arrays: list[Any] = []
    for field in layout.row_schema:
        name = _column_of(layout, field.name)
        if name is None:
            arrays.append(next(fields, None))
        else:
            arrays.append(columns.column(name) if name in names else None)
            if name == "key" and arrays[-1] is not None:
                arrays[-1] = key_values(arrays[-1], field.type)
    count = columns.num_rows
    filled = [
        pa.nulls(count, field.type) if array is None else array
        for array, field in zip(arrays, layout.row_schema, strict=True)
    ]
    if not tombstones:
        return pa.RecordBatch.from_arrays(filled, schema=layout.row_schema)
    deleted = pa.repeat(pa.scalar(False), count) if value is None else value.is_null()
    schema = pa.schema([*(field.with_nullable(True) for field in layout.row_schema), pa.field(DELETED, pa.bool_())])
    return pa.RecordBatch.from_arrays([*filled, deleted], schema=schema)


def _given(layout: RowLayout, rows: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns of rows by name; refuse unknown and repeated ones."""
    names = rows.schema.names
    roles = {"_timestamp": layout.time, "_key": layout.key, "_tag": layout.tag, "_headers": None}
    fields = layout.row_schema.names
    for name in names:
        if (role := roles.get(name)) is not None:
            raise TypeError(f"column {name}: the schema has a field for it, {role.name!r}; set that field")
        if name not in fields and name not in roles and name != DELETED:
            raise TypeError(f"column {name!r} is not a field of schema {layout.number}; its fields are {fields}")
    if len(set(names)) != len(names):
        raise TypeError(f"the columns of rows must have different names, got {names}")
    return dict(zip(names, rows.columns, strict=True))


def _deleted(column: Any) -> Any:
    """Return the marks of tombstones, None if no record is a tombstone."""
    if column is None:
        return None
    marks = column.cast(pa.bool_()).fill_null(False)
    return marks if marks.true_count else None


def _typed(field: Field, array: Any, count: int) -> Any:
    """Return the values of a field with its type; cast if necessary."""
    target: Any = arrow_type(field)
    if array is None:
        return pa.nulls(count, target)
    if array.type.equals(target):
        return array
    try:
        return _relabelled(array if _same_layout(array.type, target) else array.cast(_all_nullable(target)), target)
    except pa.ArrowNotImplementedError as error:
        raise TypeError(f"field {field.name!r}: {array.type} cannot be cast to {target}; convert it first") from error
    except pa.ArrowInvalid as error:
        raise ValueError(f"field {field.name!r}: {error}; correct the value, or widen the field") from error


def _same_layout(kind: pa.DataType, target: pa.DataType) -> bool:
    return _all_nullable(kind).equals(_all_nullable(target))


def _all_nullable(kind: Any) -> pa.DataType:
    """Return a type without the marks of required fields below it, which Arrow's casts compare."""
    if pa.types.is_struct(kind):
        return pa.struct([(kind.field(at).name, _all_nullable(kind.field(at).type)) for at in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("item", _all_nullable(kind.value_type)))
    return kind  # type: ignore[no-any-return]  # pyarrow's types are untyped here


def _relabelled(array: Any, target: Any) -> Any:
    """Return the same memory under a type that differs in names of items and marks of required fields only."""
    if pa.types.is_struct(target):
        # `field` of a sliced array is sliced, so the validity bitmap is, too.
        children = [_relabelled(array.field(at), target.field(at).type) for at in range(target.num_fields)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)
    if pa.types.is_list(target):
        items = _relabelled(array.values, target.value_type)
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], array.null_count, array.offset, [items])
    return array


def _complete(field: Field, array: Any, deleted: Any = None) -> Any:
    """Return the values of a field with a role; refuse nulls of rows in a required one."""
    if field.required and array.null_count:
        missing = array.is_null() if deleted is None else pc.and_not(array.is_null(), deleted)
        if missing.true_count:
            raise ValueError(
                f"field {field.name!r}: {missing.true_count} of {len(array)} rows have no value; it is required"
            )
    return array


def _times(field: Field, array: Any) -> Any:
    _complete(field, array)
    numbers = array.view(pa.int64()).to_numpy()
    low, high = int(numbers.min(initial=STAMP_US_MAX)), int(numbers.max(initial=STAMP_US_MIN))
    if low < STAMP_US_MIN or high > STAMP_US_MAX:
        raise ValueError(f"field {field.name!r}: {low} to {high} µs since 1970 are outside the years 1 to 9999")
    return array


def _column_of(layout: RowLayout, name: str) -> str | None:
    """Return the column that holds a field with a role, None for a field of `value`."""
    for column, field in (("timestamp", layout.time), ("key", layout.key), ("tag", layout.tag)):
        if field is not None and field.name == name:
            return column
    return None


def _children(value: Any) -> list[Any]:
    return [value.field(at) for at in range(value.type.num_fields)]
