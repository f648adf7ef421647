"""The rows of a typed topic in a Spark task, under the schema of the DataFrame.

Batches keep the schema with which they were written. Those of earlier schemas are read under the DataFrame's: a field
that they lack is null, and narrower values are cast. Of later schemas, new fields are left out; if a field has become
wider or optional, its values may not fit the declared column, and the read stops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from pyspark_tidelog.errors import TidelogSourceError
from pyspark_tidelog.reader import report_loss
from pyspark_tidelog.typed_columns import TypedColumns
from tidelog.errors import error_of_read
from tidelog.fetch_options import FetchOptions
from tidelog.requests.offset_ranges import Fetch, OffsetRange, fetch_range
from tidelog.requests.record_filters import RecordFilter
from tidelog.tables.typed_tables import TableJoiner, TypedTable
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, fields_below
from tidelog_proto.schema.schema_error import SchemaError
from tidelog_proto.schema.struct_arrays import with_children
from tidelog_proto.schema.topic_schema import Schema

_EVERY: Final = RecordFilter()


def read_rows(
    offset_range: OffsetRange,
    fetch: Fetch,
    rows: TypedRows,
    *,
    max_records: int,
    fail_on_data_loss: bool,
    only: RecordFilter = _EVERY,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `offset_range`, in order, as Arrow batches with at most `max_records` rows.

    Args:
        offset_range: the range.
        fetch: fetches batches, which may have more records than `only`.
        rows: converts batches.
        max_records: maximum number of rows of a batch.
        fail_on_data_loss: whether missing records fail the read; otherwise a warning is logged.
        only: the key and tag of the rows.

    Raises:
        DataLossError: records of the range are missing, and `fail_on_data_loss` is on.
        TidelogSourceError: a record was written with a schema that does not fit the columns.
        TidelogError: as `fetch`; CorruptBatchError for a batch that cannot be read.
    """
    joiner = TableJoiner(max_records=max_records)
    lost = partial(report_loss, fail_on_data_loss=fail_on_data_loss)
    for batch in fetch_range(offset_range, fetch, lost):
        try:
            table = rows.table(batch, offset_range, only)
        except ProtocolError as error:
            raise error_of_read(error, offset_range.topic, offset_range.partition, batch.base_offset) from error
        for joined in joiner.add(table):
            yield rows.for_spark(joined)
    for joined in joiner.finish():
        yield rows.for_spark(joined)


class TypedRows:
    """Converts the batches of a typed topic to the columns of a DataFrame.

    Args:
        columns: those of the DataFrame.
        pinned: the schema with which a stream has planned the records, if it is older than that of the DataFrame: a
            restarted query repeats a micro-batch with the values of the first attempt, and leaves fields that this
            schema lacks null.
    """

    def __init__(self, columns: TypedColumns, pinned: Schema | None = None) -> None:
        self._columns = columns
        schema = columns.topic.schema
        # A table has at least one column besides `_deleted`.
        names = [name for name in columns.arrow.names if name != DELETED] or ["_offset"]
        self._table = TypedTable(schema, names, tombstones=columns.tombstones)
        shown = None if pinned is None else frozenset(field.id for field in fields_below(pinned.fields))
        fields = {field.name: field for field in schema.fields}
        self._steps = [None if shown is None else _hiding(fields.get(name), shown) for name in columns.arrow.names]

    def narrow(self, options: FetchOptions, only: RecordFilter) -> None:
        """Make a fetch request no more than the columns and the filter need."""
        self._table.narrow(options, only)

    def table(self, batch: RecordBatch, offset_range: OffsetRange, only: RecordFilter = _EVERY) -> pa.RecordBatch:
        """Return the rows of a batch that are in a range.

        Raises:
            TidelogSourceError: the schema of the batch does not fit the columns.
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        topic, partition = offset_range.topic, offset_range.partition
        if batch.layout is None:
            raise TidelogSourceError(
                f"topic {topic!r}, partition {partition}, offset {batch.base_offset}: the record has no schema, and "
                "the DataFrame has the columns of a typed topic: create the DataFrame again."
            )
        try:
            return self._table.table(batch, partition, offset_range.start, offset_range.end, only)
        except SchemaError as error:
            number = self._columns.topic.schema.number
            raise TidelogSourceError(
                f"topic {topic!r}, partition {partition}, offset {batch.base_offset}: the record has schema "
                f"{batch.layout.number}, and the columns of the DataFrame are those of schema {number}: {error}. "
                "Create the DataFrame again without the option 'schemaNumber'; for a stream, restart the query with "
                "its checkpoint: it continues with the newest schema."
            ) from error

    def for_spark(self, table: pa.RecordBatch) -> pa.RecordBatch:
        """Return a table with the columns, types and nulls that Spark expects; memory is not copied if possible."""
        arrays: list[Any] = []
        for column, step in zip(self._columns.arrow, self._steps, strict=True):
            array: Any = table.column(column.name)
            array = array if step is None else step(array)
            arrays.append(array if array.type.equals(column.type) else array.cast(column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns.arrow)


def _hiding(field: Field | None, shown: frozenset[int]) -> Callable[[Any], Any] | None:
    """Return what makes nulls of the values that are not shown; None if all are.

    Args:
        field: the field of an array; None for a column of records.
        shown: ids of the fields whose values are shown. Fields that were added to the schema later are optional.
    """
    if field is None or all(each.id in shown for each in fields_below([field])):
        return None
    return partial(_hidden, field=field, shown=shown)


def _hidden(array: Any, *, field: Field, shown: frozenset[int]) -> Any:
    if field.id not in shown:
        return pa.nulls(len(array), array.type)
    if field.type.kind is Kind.STRUCT:
        children = [_hidden(array.field(at), field=child, shown=shown) for at, child in enumerate(field.children)]
        return with_children(array, children, array.type)
    if field.type.kind is Kind.LIST:
        items = _hidden(array.values, field=field.children[0], shown=shown)
        return pa.Array.from_buffers(array.type, len(array), array.buffers()[:2], offset=array.offset, children=[items])
    return array
