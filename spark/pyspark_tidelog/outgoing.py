"""Conversion of a query's columns to those of records, and grouping of rows by topic and partition.

The columns are those of Spark's Kafka sink: `value`, and optionally `key`, `headers`, `topic` and `partition`; `tag`
and `timestamp` are additional. Other columns are refused, while Kafka's sink silently ignores them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.option_values import did_you_mean

_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "tag": ("string",),
    "timestamp": ("timestamp",),
    "topic": ("string",),
    "partition": ("int",),
}
"""Column -> allowed types, as Spark DDL."""
_OF_RECORDS: Final = ("timestamp", "key", "value", "headers", "tag")
_MAY_BE_ABSENT: Final = frozenset({"key", "headers", "tag"})


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Refuse columns that records do not have.

    Raises:
        OptionError: a column is unknown or has a wrong type, the value or the topic is missing, or both the option and
            a column give the topic.
    """
    for field in schema.fields:
        if field.name not in _TYPES:
            hint = did_you_mean(field.name, {name.lower(): name for name in _TYPES})
            raise OptionError(
                f"records have no column {field.name!r}.{hint} The columns are: {', '.join(_TYPES)}. Choose them with "
                ".select(...), and put other columns into the value, for example with to_json(struct(*))."
            )
        if field.dataType.simpleString() not in _TYPES[field.name]:
            types = " or ".join(_TYPES[field.name])
            raise OptionError(f"column {field.name!r} must be {types}, got {field.dataType.simpleString()}: cast it.")
    names = schema.fieldNames()
    if "value" not in names:
        raise OptionError("column 'value' is missing: select one, for example to_json(struct(*)) AS value.")
    if topic is None and "topic" not in names:
        raise OptionError("the topic is missing: set the option 'topic', or select a column 'topic'.")
    if topic is not None and "topic" in names:
        raise OptionError("the option 'topic' and the column 'topic' are mutually exclusive: drop one of them.")


class Rows(NamedTuple):
    """Rows for one topic, and possibly one partition.

    Attributes:
        partition: None if the key or the producer chooses it.
    """

    topic: str
    partition: int | None
    columns: pa.RecordBatch


def rows_by_place(batch: pa.RecordBatch, topic: str | None) -> Iterator[Rows]:
    """Group a query's rows by topic and partition; the order within a group is preserved.

    Args:
        batch: the rows, with columns that `check_columns` has accepted.
        topic: the topic of all rows; None if they have the column `topic`.

    Raises:
        OptionError: a row has no topic.
    """
    # Columns with only nulls are dropped, so that rows without keys are not grouped by partition.
    columns = batch.select([name for name in batch.schema.names if name in _OF_RECORDS and _is_used(batch, name)])
    if batch.num_rows == 0:
        return
    for name, of_topic in groups_by_value(batch, "topic") if topic is None else [(topic, None)]:
        if name is None:
            raise OptionError("a row has no topic: its column 'topic' is null. Set it, or filter such rows.")
        chosen = batch if of_topic is None else batch.filter(of_topic)
        selected = columns if of_topic is None else columns.filter(of_topic)
        if "partition" not in batch.schema.names:
            yield Rows(name, None, selected)
            continue
        for partition, mask in groups_by_value(chosen, "partition"):
            yield Rows(name, partition, selected if mask is None else selected.filter(mask))


def _is_used(batch: pa.RecordBatch, name: str) -> bool:
    return name not in _MAY_BE_ABSENT or batch.column(name).null_count < batch.num_rows


def groups_by_value(batch: pa.RecordBatch, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield each value of a column with a mask of its rows; None for all rows."""
    column = batch.column(name)
    values = column.unique()
    if len(values) == 1:
        yield values[0].as_py(), None
        return
    for value in values:
        yield value.as_py(), pc.equal(column, value) if value.is_valid else column.is_null()
