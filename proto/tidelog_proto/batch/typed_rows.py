"""Rows of a typed topic as the columns of a batch, and back; without an object per record.

Rows are Arrow columns named like the fields of the schema, and optionally columns of the record itself: `_timestamp`,
`_key`, `_headers` and `_tag`, where the schema has no field with that role, and `_deleted`, which marks tombstones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import FLAG_OF_NAME, canonical, short_tags
from tidelog_proto.batch.exact_rows import exact_values
from tidelog_proto.batch.field_selection import narrowed_layout, selection_of
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.key_bytes import STAMP_US_MAX, STAMP_US_MIN, key_column, key_values
from tidelog_proto.batch.live_values import fault_of
from tidelog_proto.batch.record_batch import RecordBatch, timestamp_range
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.fields import Field, Role, fields_below
from tidelog_proto.schema.reading_plan import struct_step

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
    if rows.schema.equals(layout.row_schema):
        given, deleted, arrays = {}, None, rows.columns
    else:
        given = _given(layout, rows)
        deleted = _deleted(given.pop(DELETED, None))
        fields = layout.schema.fields
        arrays = [_typed(field, given.pop(field.name, None), rows.num_rows) for field in fields]
    places = _places_of(layout)
    children = [arrays[at] for at in places.value]
    value: Any
    if deleted is None:
        value = pa.Array.from_buffers(layout.value_type, rows.num_rows, [None], 0, 0, children)
    else:
        # `exact_values` makes nulls of tombstones values, so that only those of rows are faults.
        value = exact_values(pa.StructArray.from_arrays(children, fields=list(layout.value_type), mask=deleted))
    if fault := fault_of(layout, value):
        raise ValueError(fault)
    stored: dict[str, Any] = {}
    if given:
        by_name = {_RECORD_COLUMNS[name]: array for name, array in given.items()}
        others = canonical(pa.RecordBatch.from_pydict({**by_name, "value": pa.nulls(rows.num_rows, pa.binary())}))
        stored = dict(zip(others.schema.names, others.columns, strict=True))
    stored["value"] = value
    if layout.time is not None and places.time is not None:
        stored["timestamp"] = _times(layout.time, arrays[places.time])
    if layout.key is not None and places.key is not None:
        stored["key"] = key_column(_complete(layout.key, arrays[places.key]))
    if layout.tag is not None and places.tag is not None:
        stored["tag"] = short_tags(_complete(layout.tag, arrays[places.tag], deleted))
    flags = sum(FLAG_OF_NAME[name] for name in stored)
    return pa.RecordBatch.from_arrays(
        [stored[name] for name in FLAG_OF_NAME if name in stored], schema=layout.stored_schema(flags)
    )


class _Places(NamedTuple):
    """Indices in the fields of a schema: of those in `value`, and of those with a role."""

    value: tuple[int, ...]
    time: int | None
    key: int | None
    tag: int | None


@lru_cache(maxsize=1024)
def _places_of(layout: RowLayout) -> _Places:
    by_role = {field.role: at for at, field in enumerate(layout.schema.fields)}
    value = tuple(at for at, field in enumerate(layout.schema.fields) if field.role is Role.NONE)
    return _Places(value, by_role.get(Role.TIME), by_role.get(Role.KEY), by_role.get(Role.TAG))


def rows_of(batch: RecordBatch, *, tombstones: bool = False, fields: frozenset[int] | None = None) -> pa.RecordBatch:
    """Return the rows of a typed batch: its fields in the order of the schema; they are not copied if possible.

    Args:
        batch: a typed batch or a slice of one, as it is stored or projected.
        tombstones: whether tombstones are rows, too; a last column `_deleted` marks them. Their fields are null but
            for those with a role.
        fields: ids of the fields that the reader requested of the node, which may have sent more; other fields are left
            out, and ids that the schema does not have are ignored. None for all fields of the batch: a projected batch
            does not have those of columns that were not sent.

    Raises:
        TypeError: the batch is not typed, or was sent without the column `value`, which tells tombstones from rows.
        ProtocolError: CORRUPT_BATCH if the body does not decode, the bytes of a key are not those of its type, or the
            node did not send a requested field.
    """
    layout = batch.layout
    if layout is None:
        raise TypeError("the batch has no schema; read its values as bytes")
    if not batch.header.flags & Flags.VALUE:
        raise TypeError("the batch was sent without the column value; request it to know which records are rows")
    columns = batch.columns()
    names = columns.schema.names
    value: Any = columns.column("value")
    if value.null_count and not tombstones:
        columns = columns.filter(value.is_valid())
        value = columns.column("value")
    shown, step = (layout, None) if fields is None else _requested(layout, fields)
    if step is not None and shown.value_fields:
        value = step(value)
    below = iter(() if not shown.value_fields else value.flatten() if value.null_count else _children(value))
    count = columns.num_rows
    arrays: list[Any] = []
    row_fields: list[pa.Field[Any]] = []
    for field in shown.row_schema:
        name = _column_of(layout, field.name)
        if name is None:
            arrays.append(next(below))
        elif name in names:
            if fields is not None and _role_field(layout, name).id not in fields:
                continue
            column = columns.column(name)
            arrays.append(key_values(column, field.type) if name == "key" else column)
        elif _is_missing(batch, name, fields):
            continue
        else:
            arrays.append(pa.nulls(count, field.type))
        row_fields.append(field)
    if tombstones:
        arrays.append(value.is_null())
        row_fields = [*(field.with_nullable(True) for field in row_fields), pa.field(DELETED, pa.bool_())]
    if not arrays:
        rows: Any = pa.Array.from_buffers(pa.struct([]), count, [None])
        return pa.RecordBatch.from_struct_array(rows)
    schema = shown.row_schema if len(arrays) == len(shown.row_schema) and not tombstones else pa.schema(row_fields)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@lru_cache(maxsize=256)
def _requested(layout: RowLayout, fields: frozenset[int]) -> tuple[RowLayout, Callable[[Any], Any] | None]:
    """Return the layout of the requested fields, and the conversion of the column `value`; None if it stays as it is.

    Raises:
        ProtocolError: CORRUPT_BATCH if `layout`, that of a batch, lacks a requested field of its schema.
    """
    shown = narrowed_layout(layout.schema, selection_of(layout.schema, fields))
    sent = {field.id for field in fields_below(layout.value_fields)}
    if missing := [field.name for field in fields_below(shown.value_fields) if field.id not in sent]:
        raise ProtocolError(pb.CORRUPT_BATCH, f"the batch was sent without the requested fields {missing}")
    return shown, struct_step(layout.value_fields, shown.value_fields)


def _is_missing(batch: RecordBatch, name: str, fields: frozenset[int] | None) -> bool:
    """Return whether a field with a role is left out of rows, because its column `name` was not sent or requested.

    A column that is missing in the log is null everywhere.

    Raises:
        ProtocolError: CORRUPT_BATCH if the field was requested, and each batch in the log has its column.
    """
    if fields is None:
        return bool(batch.header.flags & Flags.PROJECTED)
    assert batch.layout is not None, "the batch is typed"
    field = _role_field(batch.layout, name)
    if field.id not in fields:
        return True
    if field.required and field.role is not Role.TAG:
        raise ProtocolError(pb.CORRUPT_BATCH, f"the batch was sent without the requested field {field.name!r}")
    return False


def _role_field(layout: RowLayout, name: str) -> Field:
    """Return the field that is in a column."""
    field = {"timestamp": layout.time, "key": layout.key, "tag": layout.tag}[name]
    assert field is not None, "the column holds a field of the schema"
    return field


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
    if not len(array):
        return array
    low, high = timestamp_range(array)
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
