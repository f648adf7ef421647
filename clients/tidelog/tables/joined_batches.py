"""Joining of small batches of a partition into larger ones with the columns of a reader, without code for each record.

Columns that a batch does not have on the wire (keys, headers, tags, explicit timestamps) are filled in with one Arrow
call. Constant columns (topic, partition) and offsets are added when a joined batch is emitted. Query engines have a
fixed cost for each batch, so joining small batches saves time.

Rejected: dictionary-encoded topic names, since readers expect the plain type of the schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.errors import InvalidRequestError
from tidelog_proto.batch.columns import no_headers, without_empty_lists
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.record_batch import RecordBatch

JOINED_BYTES: Final = 768 * 1024
"""Size at which a joined batch is emitted, even with few rows. The fixed cost of an engine for a batch is small
compared with its cost for this many bytes, and a record batch of this size is not copied."""

_WIRE: Final = {
    "timestamp": Flags.TIMESTAMP,
    "key": Flags.KEY,
    "value": Flags.VALUE,
    "headers": Flags.HEADERS,
    "tag": Flags.TAG,
}
"""The columns of the wire and their header flags; the other columns are created here."""


@dataclass(frozen=True, slots=True)
class WireBatch:
    """The requested columns of one record batch.

    Attributes:
        offsets: the offset of each record, ascending; with gaps if the log was compacted.
        base_timestamp_us: the timestamp of all records, in µs since 1970, if there is no timestamp column.
        arrays: the requested columns that the batch has, by name.
    """

    offsets: npt.NDArray[np.int64]
    base_timestamp_us: int
    arrays: Mapping[str, pa.Array[Any]]

    @property
    def rows(self) -> int:
        """Number of records."""
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """Bytes that the columns reference."""
        return sum(array.nbytes for array in self.arrays.values())

    def cut(self, start: int, end: int) -> WireBatch:
        """Return the records with start <= offset < end, without a copy; may be empty."""
        first, stop = np.searchsorted(self.offsets, (start, end)).tolist()
        return self.slice(first, max(first, stop) - first)

    def where(self, chosen: pa.BooleanArray) -> WireBatch:
        """Return the records for which `chosen` is true; null counts as false."""
        if chosen.true_count == self.rows:
            return self
        arrays = {name: array.filter(chosen) for name, array in self.arrays.items()}
        mask = chosen.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        return WireBatch(self.offsets[mask], self.base_timestamp_us, arrays)

    def slice(self, first: int, rows: int) -> WireBatch:
        """Return at most `rows` records from index `first` on, without a copy."""
        offsets = self.offsets[first : first + rows]
        if len(offsets) == self.rows:
            return self
        arrays = {name: array.slice(first, len(offsets)) for name, array in self.arrays.items()}
        return WireBatch(offsets, self.base_timestamp_us, arrays)


def wire_batch(batch: RecordBatch, schema: pa.Schema) -> WireBatch:
    """Return the columns of `schema` that a fetched batch has.

    The batch's body is decoded only if it has such columns or its offsets have gaps.

    Raises:
        InvalidRequestError: the batch is typed, and its values are asked for as bytes.
    """
    if batch.layout is not None and "value" in schema.names:
        raise InvalidRequestError(
            "the topic is typed, so its values are rows and no bytes; read it with tidelog.read_arrow, or with a "
            "consumer, and name fields instead of the column value"
        )
    present = [name for name, flag in _WIRE.items() if batch.header.flags & flag and name in schema.names]
    columns = batch.columns() if present else None
    arrays = {} if columns is None else {name: columns.column(name) for name in present}
    return WireBatch(batch.offsets().to_numpy(), batch.header.base_timestamp_us, arrays)


class BatchJoiner:
    """Joins the batches of one partition into batches of one schema. Not thread-safe.

    `add` takes a batch and yields the joined batches that are full; `finish` yields the rest.

    Args:
        schema: schema of the joined batches: columns of the wire, `offset`, and columns of `constants`. Records without
            headers have null in a nullable headers column, and an empty list otherwise.
        constants: name -> value, as an Arrow scalar, of each column with the same value in all rows.
        max_records: maximum number of records of a joined batch, which is emitted earlier at `JOINED_BYTES`.
    """

    def __init__(self, schema: pa.Schema, constants: Mapping[str, Any], *, max_records: int) -> None:
        assert max_records > 0
        self._schema = schema
        self._constants = constants
        self._max_records = max_records
        self._repeated: dict[str, pa.Array[Any]] = {}
        """The longest array of each constant so far; shorter ones are slices of it, without a copy."""
        self._parts: list[WireBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: WireBatch) -> Iterator[pa.RecordBatch]:
        """Add a batch and yield the joined batches that are full."""
        start = 0
        while start < batch.rows:
            part = batch.slice(start, self._max_records - self._rows)
            self._parts.append(part)
            self._rows += part.rows
            self._bytes += part.nbytes
            start += part.rows
            if self._rows >= self._max_records or self._bytes >= JOINED_BYTES:
                yield self._joined()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining records, if any."""
        if self._parts:
            yield self._joined()

    def _joined(self) -> pa.RecordBatch:
        joined = pa.RecordBatch.from_arrays([self._column(field) for field in self._schema], schema=self._schema)
        assert joined.num_rows == self._rows
        self._parts, self._rows, self._bytes = [], 0, 0
        return joined

    def _column(self, field: pa.Field[pa.DataType]) -> pa.Array[Any]:
        if field.name in self._constants:
            return self._constant(field.name)
        if field.name == "offset":
            return _concatenated([pa.array(part.offsets) for part in self._parts])
        return _concatenated([_column(part, field) for part in self._parts])

    def _constant(self, name: str) -> pa.Array[Any]:
        longest = self._repeated.get(name)
        if longest is None or len(longest) < self._rows:
            longest = self._repeated[name] = pa.repeat(self._constants[name], self._rows)
        return longest.slice(0, self._rows)


def _column(part: WireBatch, field: pa.Field[pa.DataType]) -> pa.Array[Any]:
    """Return a wire column of a batch, or its default values if the batch does not have it."""
    column = part.arrays.get(field.name)
    if column is not None:
        column = without_empty_lists(column) if field.name == "headers" and field.nullable else column
        return column if column.type.equals(field.type, check_metadata=True) else column.cast(field.type)
    if field.name == "timestamp":
        at: Any = pa.scalar(part.base_timestamp_us, pa.int64()).cast(field.type)
        times: pa.Array[Any] = pa.repeat(at, part.rows)
        return times
    if field.name == "headers" and not field.nullable:
        return no_headers(part.rows)
    return _nulls(part.rows, field.type)


def _nulls(rows: int, of: Any) -> pa.Array[Any]:
    """Return an array of nulls; `of` may be any type (the type stubs accept only concrete types)."""
    nulls: pa.Array[Any] = pa.nulls(rows, of)
    return nulls


def _concatenated(arrays: list[pa.Array[Any]]) -> pa.Array[Any]:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
