"""Rows of a query as rows of a typed topic: the check of the columns, and the place of a row that does not fit.

The columns are the fields of the schema, in any order, and optionally `_partition`, `_timestamp`, `_key`, `_tag` (where
the schema has no field for them), `_headers`, and `_deleted`, which marks tombstones. Types are checked before a query
runs. Spark widens numbers in many expressions, so wider integers and decimals than those of a field are accepted, and
each value is checked when it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.option_values import did_you_mean
from pyspark_tidelog.outgoing import Rows, groups_by_value
from pyspark_tidelog.spark_types import spark_type
from pyspark_tidelog.typed_topic import TypedTopic
from tidelog.rows.arrow_rows import typed_columns
from tidelog.rows.value_checks import RowError
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import DataType as FieldType
from tidelog_proto.schema.data_types import Kind, decimal128
from tidelog_proto.schema.fields import Field, Role
from tidelog_proto.schema.widening import widens

_PARTITION: Final = "_partition"
_OF_RECORDS: Final[Mapping[str, tuple[str, ...]]] = {
    _PARTITION: ("int",),
    "_timestamp": ("timestamp",),
    "_key": ("binary", "string"),
    "_headers": ("array<struct<key:string,value:binary>>",),
    "_tag": ("string",),
    DELETED: ("boolean",),
}
"""Columns of records -> allowed types, as Spark DDL."""
_COLUMN_OF: Final = {Role.TIME: "_timestamp", Role.KEY: "_key", Role.TAG: "_tag"}
"""Columns of records that the schema may have a field for."""
_KIND_OF: Final[Mapping[type[DataType], Kind]] = {
    BooleanType: Kind.BOOL,
    ByteType: Kind.INT8,
    ShortType: Kind.INT16,
    IntegerType: Kind.INT32,
    LongType: Kind.INT64,
    FloatType: Kind.FLOAT32,
    DoubleType: Kind.FLOAT64,
    StringType: Kind.STRING,
    BinaryType: Kind.BINARY,
    DateType: Kind.DATE32,
    TimestampType: Kind.TIMESTAMP_UTC,
    TimestampNTZType: Kind.TIMESTAMP,
}
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)


def check_row_columns(schema: StructType, topic: TypedTopic) -> None:
    """Refuse columns that are not those of rows of a topic.

    Raises:
        OptionError: a column is unknown, repeated or of another type than its field, or a required field has no column.
    """
    names = schema.fieldNames()
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"the column {duplicate!r} is duplicate: name each column once.")
    fields = {field.name: field for field in topic.schema.fields}
    taken = {_COLUMN_OF[field.role] for field in topic.schema.fields if field.role is not Role.NONE}
    known = [*fields, *(name for name in _OF_RECORDS if name not in taken)]
    for column in schema.fields:
        if column.name not in known:
            hint = did_you_mean(column.name, {name.lower(): name for name in known})
            raise OptionError(
                f"column {column.name!r} is not a field of schema {topic.schema.number} of topic {topic.name!r}.{hint} "
                f"The columns are: {', '.join(known)}. Choose them with .select(...), or add the field with: tidelog "
                f"topic schema evolve {topic.name} --add."
            )
        if (field := fields.get(column.name)) is not None:
            _check_type(column.dataType, field, column.name)
        elif (given := column.dataType.simpleString()) not in _OF_RECORDS[column.name]:
            raise OptionError(
                f"column {column.name!r} must be {' or '.join(_OF_RECORDS[column.name])}, got {given}: cast it."
            )
    _check_complete(names, topic)


def _check_complete(names: Sequence[str], topic: TypedTopic) -> None:
    deletes = DELETED in names
    if deletes and "_key" not in names and topic.schema.field_of(Role.KEY) is None:
        raise OptionError(f"column {DELETED!r}: topic {topic.name!r} has no key field, so there is no key to delete.")
    needed = [field for field in topic.schema.fields if field.required]
    if deletes:  # a tombstone has a key and a time only
        needed = [field for field in needed if field.role in {Role.KEY, Role.TIME}]
    if missing := [field.name for field in needed if field.name not in names]:
        raise OptionError(
            f"the required fields {', '.join(map(repr, missing))} of topic {topic.name!r} have no column: select them."
        )


def _check_type(given: DataType, field: Field, path: str) -> None:
    """Refuse a type whose values do not fit a field; integers and decimals of the top level may be wider than it."""
    kind, is_top = field.type.kind, path == field.name
    if isinstance(given, NullType) and is_top:
        return None
    if kind is Kind.LIST:
        return _check_list(given, field, path)
    if kind is Kind.STRUCT and isinstance(given, StructType):
        return _check_struct(given, field, path)
    found = _field_type(given)
    if found == field.type or (found is not None and widens(found, field.type)):
        return None
    if is_top and isinstance(given, _INTEGERS) and kind in map(_KIND_OF.get, _INTEGERS):
        return None
    if is_top and isinstance(given, DecimalType) and kind is Kind.DECIMAL128:
        return None
    raise _wrong_type(given, field, path)


def _check_list(given: DataType, field: Field, path: str) -> None:
    (item,) = field.children
    if isinstance(given, ArrayType):
        _check_type(given.elementType, item, f"{path}.element")
    elif isinstance(given, MapType) and [child.name for child in item.children] == ["key", "value"]:
        _check_type(given.keyType, item.children[0], f"{path}.key")
        _check_type(given.valueType, item.children[1], f"{path}.value")
    else:
        raise _wrong_type(given, field, path)


def _check_struct(given: StructType, field: Field, path: str) -> None:
    children = {child.name: child for child in field.children}
    for column in given.fields:
        if column.name not in children:
            hint = did_you_mean(column.name, {name.lower(): name for name in children})
            raise OptionError(
                f"column {path!r}: the struct has no field {column.name!r}.{hint} The fields are: "
                f"{', '.join(children)}."
            )
        _check_type(column.dataType, children[column.name], f"{path}.{column.name}")
    names = given.fieldNames()
    if len(set(names)) != len(names):
        raise OptionError(f"column {path!r}: the struct has duplicate fields: name each field once.")
    if missing := [child.name for child in field.children if child.required and child.name not in names]:
        raise OptionError(f"column {path!r}: the struct lacks the required fields {', '.join(map(repr, missing))}.")


def _field_type(given: DataType) -> FieldType | None:
    if isinstance(given, DecimalType):
        return decimal128(given.precision, given.scale)
    kind = _KIND_OF.get(type(given))
    return None if kind is None else FieldType(kind)


def _wrong_type(given: DataType, field: Field, path: str) -> OptionError:
    wanted = spark_type(arrow_type(field)).simpleString()
    return OptionError(f"column {path!r} must be {wanted}, got {given.simpleString()}: cast it.")


def typed_rows_by_place(batch: pa.RecordBatch, topic: str) -> Iterator[Rows]:
    """Group the rows of a query by partition; the order within a group is preserved.

    Args:
        batch: the rows, with columns that `check_row_columns` has accepted.
        topic: the topic of all rows.
    """
    if batch.num_rows == 0:
        return
    names = batch.schema.names
    columns = batch.select([name for name in names if name != _PARTITION])
    if _PARTITION not in names:
        yield Rows(topic, None, columns)
        return
    for partition, mask in groups_by_value(batch, _PARTITION):
        yield Rows(topic, partition, columns if mask is None else columns.filter(mask))


def error_with_row(error: RowError, layout: RowLayout, batch: pa.RecordBatch, rows_before: int) -> Exception:
    """Return an error that names the first row that does not fit, with its field and value.

    Args:
        error: the error of the whole batch, which is returned if its columns do not fit, or each row does.
        layout: of the schema of the topic.
        batch: the rows of the query.
        rows_before: number of rows of the task before this batch.
    """
    columns = batch.select([name for name in batch.schema.names if name != _PARTITION])
    first, end = 0, columns.num_rows
    if _misfit(layout, columns.slice(0, 0)) is not None or _misfit(layout, columns) is None:
        return error
    # The first row that does not fit is in [first, end).
    while end - first > 1:
        middle = (first + end) // 2
        if _misfit(layout, columns.slice(first, middle - first)) is None:
            first = middle
        else:
            end = middle
    found = _misfit(layout, columns.slice(first, 1)) or error
    return TidelogSourceError(
        f"row {rows_before + first} of the task's rows (the first is 0) does not fit schema {layout.number} of the "
        f"topic: {found}"
    )


def _misfit(layout: RowLayout, rows: pa.RecordBatch) -> RowError | None:
    try:
        typed_columns(layout, rows)
    except RowError as error:
        return error
    return None
