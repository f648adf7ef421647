"""Batches of typed topics as tables of one schema, whatever schemas the batches have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import InvalidRequestError
from tidelog.requests.record_filters import RecordFilter
from tidelog.tables.joined_batches import JOINED_BYTES
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import RECORD_COLUMNS, columns_of_records, row_reader
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema

_EVERY: Final = RecordFilter()
_DELETED_FIELD: Final = pa.field(DELETED, pa.bool_(), nullable=False)


def columns_of_table(schema: Schema, *, tombstones: bool = False) -> pa.Schema:
    """Return all columns that tables of a topic may have: the fields, then columns of records, then `_deleted`.

    `_key` and `_tag` are missing if a field has that role.

    Args:
        schema: the schema of the rows.
        tombstones: whether tombstones are rows, too; then only `_deleted` is never null.
    """
    taken = {field.role for field in schema.fields}
    roles = {"_key": Role.KEY, "_tag": Role.TAG}
    of_records = [field for field in RECORD_COLUMNS if roles.get(field.name) not in taken]
    columns = [*row_layout(schema).row_schema, *of_records]
    if not tombstones:
        return pa.schema(columns)
    return pa.schema([*(field.with_nullable(True) for field in columns), _DELETED_FIELD])


class TypedTable:
    """Makes tables of the batches of one topic.

    Args:
        schema: the schema of the rows.
        columns: names of fields and of `RECORD_COLUMNS`, in order; None for all fields.
        tombstones: whether tombstones are rows, too, with nulls in fields without a role; a last column `_deleted`
            marks them.

    Attributes:
        arrow: the Arrow schema of the tables.

    Raises:
        InvalidRequestError: a column does not exist or is repeated, or none is given.
    """

    def __init__(self, schema: Schema, columns: Sequence[str] | None, *, tombstones: bool = False) -> None:
        fields = row_layout(schema).row_schema
        known = {field.name: field for field in columns_of_table(schema, tombstones=tombstones)}
        known.pop(DELETED, None)
        names = fields.names if columns is None else list(columns)
        if (unknown := [name for name in names if name not in known]) or not names or len(set(names)) != len(names):
            what = f"{unknown} do not exist" if unknown else f"got {names}"
            raise InvalidRequestError(f"columns must be different names of {', '.join(known)}: {what}")
        self._schema = schema
        self._tombstones = tombstones
        self._names = names
        self._fields = tuple(name for name in names if name in fields.names)
        arrow = [known[name] for name in names]
        self.arrow = pa.schema([*arrow, _DELETED_FIELD] if tombstones else arrow)

    def table(
        self, batch: RecordBatch, partition: int, start: int, end: int, only: RecordFilter = _EVERY
    ) -> pa.RecordBatch:
        """Return the rows of a batch with start <= offset < end.

        Args:
            batch: a typed batch.
            partition: its partition.
            start, end: bounds of the offsets.
            only: the key and tag of the returned rows, whatever the node has sent.

        Raises:
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        layout = batch.layout
        assert layout is not None
        batch = batch.slice_from(start)
        count = batch.count_below(end)
        reader = row_reader(layout.schema, self._schema, self._fields)
        by_name: dict[str, Any] = dict(zip(self._fields, reader.arrays(batch), strict=True))
        by_name |= columns_of_records(batch, partition, [name for name in self._names if name in RECORD_COLUMNS.names])
        live = reader.live(batch)
        chosen = _matching(batch, only)
        if self._tombstones:
            by_name[DELETED] = pa.repeat(pa.scalar(False), len(batch)) if live is None else pc.invert(live)
        elif live is not None:
            chosen = live if chosen is None else pc.and_(chosen, live)
        names = self.arrow.names
        schema = pa.schema([field.with_nullable(nullable=True) for field in self.arrow])
        rows = pa.RecordBatch.from_arrays([by_name[name] for name in names], schema=schema).slice(0, count)
        if chosen is not None:
            rows = rows.filter(chosen.slice(0, count))
        return pa.RecordBatch.from_arrays(rows.columns, schema=self.arrow)


def _matching(batch: RecordBatch, only: RecordFilter) -> Any:
    """Return which records have the key and tag of a filter; None for all."""
    chosen: Any = None
    for name, value in only._asdict().items():
        if value is None or not len(batch):
            continue
        columns = batch.columns()
        if name not in columns.schema.names:  # all of its values are null
            return pa.repeat(pa.scalar(False), len(batch))
        column = columns.column(name)
        equal: Any = pc.equal(column, pa.scalar(value, column.type)).fill_null(False)
        chosen = equal if chosen is None else pc.and_(chosen, equal)
    return chosen


class TableJoiner:
    """Joins small tables of one schema, and divides large ones.

    Args:
        max_records: maximum number of rows.
    """

    def __init__(self, *, max_records: int) -> None:
        self._max_records = max_records
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, table: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add a table, and yield those that are full."""
        start = 0
        while start < table.num_rows:
            part = table.slice(start, self._max_records - self._rows)
            self._parts.append(part)
            self._rows += part.num_rows
            self._bytes += part.nbytes
            start += part.num_rows
            if self._rows >= self._max_records or self._bytes >= JOINED_BYTES:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows, if any."""
        parts, self._parts, self._rows, self._bytes = self._parts, [], 0, 0
        if parts:
            yield parts[0] if len(parts) == 1 else pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
