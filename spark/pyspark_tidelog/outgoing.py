"""From the columns that a query writes to those of records: which there may be, and which rows go where.

A query's columns are those of Spark's Kafka sink: `value`, and any of `key`, `headers`, `topic` and `partition`; `tag`
and `timestamp` are ours. Any other is refused: Kafka's sink drops it without a word.
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
"""Column -> what it may be, as Spark's DDL."""
_OF_RECORDS: Final = ("timestamp", "key", "value", "headers", "tag")
_MAY_BE_ABSENT: Final = frozenset({"key", "headers", "tag"})


def check_columns(schema: StructType, *, topic: str | None) -> None:
    """Refuse columns that are not a record's.

    Raises:
        OptionError: one is unknown or of another type, or value or the topic are missing.
    """
    for field in schema.fields:
        if field.name not in _TYPES:
            hint = did_you_mean(field.name, {name.lower(): name for name in _TYPES})
            raise OptionError(
                f"no record has a column {field.name!r}.{hint} There are: {', '.join(_TYPES)}. Choose them with "
                ".select(...), and put other columns into the value, for example with to_json(struct(*))."
            )
        if field.dataType.simpleString() not in _TYPES[field.name]:
            wanted = " or ".join(_TYPES[field.name])
            raise OptionError(f"column {field.name!r} is {wanted}, not {field.dataType.simpleString()}: cast it.")
    names = schema.fieldNames()
    if "value" not in names:
        raise OptionError("a record has a value: name a column 'value', for example to_json(struct(*)) AS value.")
    if topic is None and "topic" not in names:
        raise OptionError("where to? Set the option 'topic', or select a column 'topic'.")
    if topic is not None and "topic" in names:
        raise OptionError("the option 'topic' and a column 'topic' both say where to: drop one of them.")


class Rows(NamedTuple):
    """Rows for one topic, and of it one partition, if they say so.

    Attributes:
        topic: its name.
        partition: None: the key, or the producer, decides.
        columns: those of records.
    """

    topic: str
    partition: int | None
    columns: pa.RecordBatch


def rows_by_place(batch: pa.RecordBatch, topic: str | None) -> Iterator[Rows]:
    """Cut a query's rows by where they go; those of one place stay in their order.

    Raises:
        OptionError: a row names no topic.
    """
    # A column that no row uses is left out: rows without keys need not be sorted by partition.
    columns = batch.select([name for name in batch.schema.names if name in _OF_RECORDS and _is_used(batch, name)])
    if batch.num_rows == 0:
        return
    for name, of_topic in _groups(batch, "topic") if topic is None else [(topic, None)]:
        if name is None:
            raise OptionError("a row has no topic: its column 'topic' is null.")
        chosen = batch if of_topic is None else batch.filter(of_topic)
        taken = columns if of_topic is None else columns.filter(of_topic)
        if "partition" not in batch.schema.names:
            yield Rows(name, None, taken)
            continue
        for partition, mask in _groups(chosen, "partition"):
            yield Rows(name, partition, taken if mask is None else taken.filter(mask))


def _is_used(batch: pa.RecordBatch, name: str) -> bool:
    return name not in _MAY_BE_ABSENT or batch.column(name).null_count < batch.num_rows


def _groups(batch: pa.RecordBatch, name: str) -> Iterator[tuple[Any, Any]]:
    """Yield each value of a column and which rows have it; None for all of them."""
    column = batch.column(name)
    values = column.unique()
    if len(values) == 1:
        yield values[0].as_py(), None
        return
    for value in values:
        yield value.as_py(), pc.equal(column, value) if value.is_valid else column.is_null()
