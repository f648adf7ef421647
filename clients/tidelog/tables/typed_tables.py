"""Batches of typed topics as tables of one schema, whatever schemas the batches have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import InvalidRequestError
from tidelog.rows.row_filter import WhereFilter
from tidelog.tables.joined_batches import JOINED_BYTES
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.batch.row_reader import RECORD_COLUMNS, columns_of_records, row_reader
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.schema.fields import Role
from tidelog_proto.schema.topic_schema import Schema


class TypedTable:
    """Makes tables of the batches of one topic.

    Args:
        schema: the schema of the rows.
        columns: names of fields and of `RECORD_COLUMNS`, in order; None for all fields.
        tombstones: whether tombstones are rows, too, with nulls in fields without a role; a last column `_deleted`
            marks them.
        where: selects the rows; None for all.

    Attributes:
        arrow: the Arrow schema of the tables.
        pushed: the filter for nodes; None if they send all records.

    Raises:
        InvalidRequestError: a column does not exist or is repeated, or none is given; or the filter does not fit the
            schema.
    """

    def __init__(
        self,
        schema: Schema,
        columns: Sequence[str] | None,
        *,
        tombstones: bool = False,
        where: WhereFilter | None = None,
    ) -> None:
        self._where = where
        self.pushed = None if where is None else where.pushed(schema)
        fields = row_layout(schema).row_schema
        taken = {field.role for field in schema.fields}
        roles = {"_key": Role.KEY, "_tag": Role.TAG}
        of_records = [field for field in RECORD_COLUMNS if roles.get(field.name) not in taken]
        known = {field.name: field for field in [*fields, *of_records]}
        names = fields.names if columns is None else list(columns)
        if (unknown := [name for name in names if name not in known]) or not names or len(set(names)) != len(names):
            what = f"{unknown} do not exist" if unknown else f"got {names}"
            raise InvalidRequestError(f"columns must be different names of {', '.join(known)}: {what}")
        self._schema = schema
        self._tombstones = tombstones
        self._names = names
        self._fields = tuple(name for name in names if name in fields.names)
        arrow = [known[name].with_nullable(known[name].nullable or tombstones) for name in names]
        self.arrow = pa.schema([*arrow, pa.field(DELETED, pa.bool_(), nullable=False)] if tombstones else arrow)

    def table(self, batch: RecordBatch, partition: int, start: int, end: int) -> pa.RecordBatch:
        """Return the rows of a batch with start <= offset < end.

        Raises:
            ProtocolError: CORRUPT_BATCH if the body does not decode.
        """
        layout = batch.layout
        assert layout is not None
        batch = batch.slice_from(start)
        if self._where is not None:
            batch = self._where.kept(batch, self._schema, partition)
        count = batch.count_below(end)
        reader = row_reader(layout.schema, self._schema, self._fields)
        by_name: dict[str, Any] = dict(zip(self._fields, reader.arrays(batch), strict=True))
        by_name |= columns_of_records(batch, partition, [name for name in self._names if name in RECORD_COLUMNS.names])
        live = reader.live(batch)
        if self._tombstones:
            by_name[DELETED] = pa.repeat(pa.scalar(False), len(batch)) if live is None else pc.invert(live)
        names = self.arrow.names
        schema = pa.schema([field.with_nullable(nullable=True) for field in self.arrow])
        rows = pa.RecordBatch.from_arrays([by_name[name] for name in names], schema=schema).slice(0, count)
        if live is not None and not self._tombstones:
            rows = rows.filter(live.slice(0, count))
        return pa.RecordBatch.from_arrays(rows.columns, schema=self.arrow)


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
