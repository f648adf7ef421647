"""The columns of the source, which are those of Spark's Kafka source, with their Spark and Arrow types.

`tidelog.tables.joined_batches` converts the stored columns, and joins batches, because Spark has a fixed cost per Arrow
batch: with batches of 1,000 rows Spark loses about a third of its throughput.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.option_values import did_you_mean
from pyspark_tidelog.options import COLUMN_NAMES, ReadOptions

TIMESTAMP_TYPE_CREATE_TIME: Final = 0
"""Kafka's `timestampType` of timestamps that producers set."""

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

_TYPES: Final[dict[str, tuple[str, pa.DataType]]] = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": ("int", pa.int32()),
    "headers": ("array<struct<key:string,value:binary>>", pa.list_(pa.field("element", _HEADER))),
    "tag": ("string", pa.string()),
}
"""Spark type (as DDL) and Arrow type of each column."""

_MAY_BE_NULL: Final = {"key", "value", "headers", "tag"}

assert tuple(_TYPES) == COLUMN_NAMES


def constants(topic: str, partition: int) -> dict[str, Any]:
    """Return the columns with the same value in all rows of a partition."""
    return {
        "topic": pa.scalar(topic, pa.string()),
        "partition": pa.scalar(partition, pa.int32()),
        "timestampType": pa.scalar(TIMESTAMP_TYPE_CREATE_TIME, pa.int32()),
    }


def record_columns(options: ReadOptions) -> tuple[str, ...]:
    """Return the chosen columns of a topic without a schema; by default all except those that must be requested.

    Raises:
        OptionError: a chosen column does not exist, or an option is for typed topics.
    """
    for name, is_set in (
        ("includeRecordColumns", options.include_record_columns),
        ("includeTombstones", options.include_tombstones),
        ("schemaNumber", options.schema_number is not None),
    ):
        if is_set:
            raise OptionError(
                f"option {name!r} is for typed topics, read one at a time by 'subscribe' or 'assign': leave it out."
            )
    if options.columns is None:
        left_out = {"headers"} if not options.include_headers else set()
        left_out |= {"tag"} if not options.include_tags else set()
        return tuple(name for name in COLUMN_NAMES if name not in left_out)
    known = {name.lower(): name for name in COLUMN_NAMES}
    for name in options.columns:
        if name not in COLUMN_NAMES:
            hint = did_you_mean(name, known)
            raise OptionError(
                f"option 'columns': records have no column {name!r}.{hint} The columns are: {', '.join(COLUMN_NAMES)}."
            )
    return options.columns


def ddl_of(columns: Sequence[str]) -> str:
    """Return the schema of these columns as Spark DDL."""
    return ", ".join(f"{name} {_TYPES[name][0]}" for name in columns)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for `schema`: any subset of the columns, in any order.

    Raises:
        OptionError: a column is unknown, repeated, or has a wrong type or nullability.
    """
    known = {name.lower(): name for name in COLUMN_NAMES}
    fields: list[pa.Field[pa.DataType]] = []
    for field in schema.fields:
        if field.name not in _TYPES:
            hint = did_you_mean(field.name, known)
            raise OptionError(
                f"records have no column {field.name!r}.{hint} The columns are: {', '.join(COLUMN_NAMES)}."
            )
        spark_type, arrow = _TYPES[field.name]
        if field.dataType.simpleString() != spark_type:
            raise OptionError(
                f"column {field.name!r} is {spark_type}, not {field.dataType.simpleString()}: read it as {spark_type} "
                "and cast it in the query."
            )
        if field.name in _MAY_BE_NULL and not field.nullable:
            raise OptionError(
                f"column {field.name!r} cannot be NOT NULL, because records may lack it: declare it nullable."
            )
        fields.append(pa.field(field.name, arrow, nullable=field.nullable))
    names = [field.name for field in fields]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"the schema has the duplicate column {duplicate!r}: name each column once.")
    return pa.schema(fields)
