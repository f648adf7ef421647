"""Batches of typed topics as columns whose values are JSON objects, in parts of a bounded size.

A part has at most `ROWS_RENDERED` records and about `ROWS_BYTES`; rendering one takes some milliseconds. A part that is
much larger, because it has a large record, is rendered in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final, Protocol

import pyarrow as pa

from tidelog.model import ConsumedBatch
from tidelog_gateway.problems import Problem
from tidelog_gateway.records.json_encoding import BatchReader, JsonRecords, Rows
from tidelog_proto.batch.columns import TIMESTAMP_TYPE, no_headers
from tidelog_proto.batch.json_view import json_values
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.record_schema import RECORDS_SCHEMA
from tidelog_proto.batch.row_reader import RowReader
from tidelog_proto.limits import KIB

ROWS_RENDERED: Final = 500
ROWS_BYTES: Final = 128 * KIB
_IN_THREAD_BYTES: Final = 4 * ROWS_BYTES
"""Size from which a part is rendered in a thread."""
_OF_RECORDS: Final = ("timestamp", "key", "headers", "tag")


class RecordReader(Protocol):
    """Returns the records of one batch in order, some at a time; see `BatchReader`."""

    next_offset: int

    @property
    def first_offset(self) -> int: ...  # noqa: D102 - see `BatchReader`

    def __len__(self) -> int: ...

    async def prepare(self) -> None:
        """Decode what the next calls need; awaited before each of them while records remain."""

    def json_bytes_max(self, records_max: int, bytes_max: int) -> int: ...  # noqa: D102 - see `BatchReader`

    def peek(self, records_max: int, bytes_max: int) -> Rows: ...  # noqa: D102 - see `BatchReader`

    def take_json(self, records_max: int, bytes_max: int, json_bytes_max: int) -> JsonRecords: ...  # noqa: D102

    def advance(self, count: int) -> None: ...  # noqa: D102 - see `BatchReader`


def reader_of(consumed: ConsumedBatch) -> RecordReader:
    """Return a reader of a batch; the values of a typed one are JSON objects with the consumer's columns.

    Raises:
        Problem: 422, the newest schema lacks a column.
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """
    try:
        rows = consumed.reader()
    except ValueError as error:
        raise Problem(422, "invalid_request", str(error)) from error
    return BatchReader(consumed.batch) if rows is None else RowBatchReader(consumed.batch, rows)


class RowBatchReader:
    """Returns the records of one typed batch in order, some at a time; each call returns records of one part.

    Attributes:
        next_offset: the position after the returned records.
    """

    def __init__(self, batch: RecordBatch, rows: RowReader) -> None:
        self.next_offset = batch.base_offset
        self._end_offset = batch.end_offset
        self._rows = rows
        self._parts = parts_of(batch)
        self._left = len(batch)
        self._part: BatchReader | None = None

    def __len__(self) -> int:
        """Return the number of remaining records."""
        return self._left

    @property
    def first_offset(self) -> int:
        """The offset of the next record; requires a remaining record, and `prepare`."""
        return self._prepared.first_offset

    async def prepare(self) -> None:
        """Render the next part, unless records of the last one remain.

        Raises:
            ProtocolError: CORRUPT_BATCH when the body does not decode.
        """
        if self._left and (self._part is None or not len(self._part)):
            part = next(self._parts)
            self._part = BatchReader(part, await rendered(part, self._rows))

    def json_bytes_max(self, records_max: int, bytes_max: int) -> int:
        """See `BatchReader`."""
        return self._prepared.json_bytes_max(records_max, bytes_max)

    def peek(self, records_max: int, bytes_max: int) -> Rows:
        """See `BatchReader`."""
        return self._prepared.peek(records_max, bytes_max)

    def take_json(self, records_max: int, bytes_max: int, json_bytes_max: int) -> JsonRecords:
        """See `BatchReader`."""
        part = self._prepared
        before = len(part)
        taken = part.take_json(records_max, bytes_max, json_bytes_max)
        self._moved(part, before)
        return taken

    def advance(self, count: int) -> None:
        """See `BatchReader`."""
        part = self._prepared
        before = len(part)
        part.advance(count)
        self._moved(part, before)

    @property
    def _prepared(self) -> BatchReader:
        assert self._part is not None, "prepare was awaited"
        return self._part

    def _moved(self, part: BatchReader, before: int) -> None:
        self._left -= before - len(part)
        self.next_offset = part.next_offset if self._left else self._end_offset


def parts_of(
    batch: RecordBatch, *, records_max: int = ROWS_RENDERED, bytes_max: int = ROWS_BYTES
) -> Iterator[RecordBatch]:
    """Yield the records of a batch in parts, by the average size of its records.

    Raises:
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """
    count = len(batch)
    if not count:
        return
    size_bytes = max(1, batch.columns().nbytes)
    step = max(1, min(records_max, bytes_max * count // size_bytes))
    for first in range(0, count, step):
        yield batch.part(first, min(step, count - first))


async def rendered(part: RecordBatch, rows: RowReader) -> pa.RecordBatch:
    """Return canonical columns of a part of a typed batch; `value` has JSON objects in UTF-8, null for tombstones.

    Raises:
        ProtocolError: CORRUPT_BATCH when the body does not decode.
    """
    if part.columns().nbytes >= _IN_THREAD_BYTES:
        return await asyncio.to_thread(_columns, part, rows)
    return _columns(part, rows)


def _columns(part: RecordBatch, rows: RowReader) -> pa.RecordBatch:
    stored = part.columns()
    arrays: dict[str, Any] = {name: stored.column(name) for name in _OF_RECORDS if name in stored.schema.names}
    arrays["value"] = pa.array(json_values(rows, part), pa.binary())
    names: list[str] = [name for name in ("timestamp", "key", "value", "headers", "tag") if name in arrays]
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], names=names)


def record_columns(part: RecordBatch, columns: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Return the columns of `rendered` as those of `RECORDS_SCHEMA`."""
    count = len(part)
    arrays: dict[str, Any] = {
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": part.offsets(),
        "timestamp": pa.repeat(pa.scalar(part.header.base_timestamp_us, TIMESTAMP_TYPE), count),
        "headers": no_headers(count),
    }
    arrays |= {name: columns.column(name) for name in columns.schema.names}
    return pa.RecordBatch.from_arrays(
        [arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in RECORDS_SCHEMA],
        schema=RECORDS_SCHEMA,
    )
