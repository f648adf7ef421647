"""From the columns of the wire to the columns of Spark: cut, filled in, joined; never record by record.

The wire's columns are Spark's columns with two differences. What no record of a batch uses is not on the wire
(keys, headers, tags, per-record timestamps) and is filled in with one Arrow call; what is the same for every
record (topic, partition) or counts up (offset) is made when a joined batch leaves. Joining matters: Spark
takes a fixed time for each Arrow batch, and batches of 1,000 rows cost it about a third of its throughput.

Rejected: dictionary-encoded topics (Spark's reader wants the plain type that the schema names) and leaving
the joining to Spark (it does not join what a Python source yields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.option_values import did_you_mean
from pyspark_tidelog.options import COLUMN_NAMES
from tidelog_proto.batch import RecordBatch
from tidelog_proto.header import Flags

JOINED_BYTES: Final = 16 * 1024 * 1024
"""A joined batch leaves when it holds this many bytes, however few its rows: large values must not pile up."""

TIMESTAMP_TYPE_CREATE_TIME: Final = 0
"""Kafka's word for a timestamp that the producer set."""

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
"""Spark's type (as DDL) and Arrow's type of each column."""

_WIRE: Final = {
    "timestamp": Flags.TIMESTAMP,
    "key": Flags.KEY,
    "value": Flags.VALUE,
    "headers": Flags.HEADERS,
    "tag": Flags.TAG,
}
"""The columns that come from the log, and what says that a batch has them; the others are made here."""

_MAY_BE_NULL: Final = {"key", "value", "headers", "tag"}

assert tuple(_TYPES) == COLUMN_NAMES


def ddl_of(columns: Sequence[str]) -> str:
    """Return the schema with these columns, as Spark's DDL."""
    return ", ".join(f"{name} {_TYPES[name][0]}" for name in columns)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for `schema`: any choice of our columns, in any order.

    Raises:
        OptionError: a column is unknown, twice, or has another type (or nullability) than ours can have.
    """
    known = {name.lower(): name for name in COLUMN_NAMES}
    fields: list[pa.Field[pa.DataType]] = []
    for field in schema.fields:
        if field.name not in _TYPES:
            hint = did_you_mean(field.name, known)
            raise OptionError(f"no column {field.name!r}.{hint} There are: {', '.join(COLUMN_NAMES)}.")
        wanted, arrow = _TYPES[field.name]
        if field.dataType.simpleString() != wanted:
            raise OptionError(
                f"column {field.name!r} is {wanted}, not {field.dataType.simpleString()}: read it as {wanted} "
                "and cast it in the query."
            )
        if field.name in _MAY_BE_NULL and not field.nullable:
            raise OptionError(f"column {field.name!r} cannot be NOT NULL: a record may come without one.")
        fields.append(pa.field(field.name, arrow, nullable=field.nullable))
    if len({field.name for field in fields}) != len(fields):
        raise OptionError("a column is named twice in the schema.")
    return pa.schema(fields)


@dataclass(frozen=True, slots=True)
class WireBatch:
    """What a task wants of one record batch.

    Attributes:
        offsets: each record's, ascending; where the log was compacted with gaps.
        base_timestamp_us: every record's timestamp if there is no such column (µs since 1970).
        arrays: the wanted columns that are present, by name, `rows` long.
    """

    offsets: npt.NDArray[np.int64]
    base_timestamp_us: int
    arrays: Mapping[str, pa.Array[Any]]

    @property
    def rows(self) -> int:
        """How many records."""
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        """The bytes that the columns reference."""
        return sum(array.nbytes for array in self.arrays.values())

    def cut(self, start: int, end: int) -> WireBatch:
        """Return the records with start <= offset < end, without a copy; possibly none."""
        first, stop = np.searchsorted(self.offsets, (start, end)).tolist()
        return self.slice(first, max(first, stop) - first)

    def slice(self, first: int, rows: int) -> WireBatch:
        """Return at most `rows` records from the one at `first` on, without a copy."""
        offsets = self.offsets[first : first + rows]
        if len(offsets) == self.rows:
            return self
        arrays = {name: array.slice(first, len(offsets)) for name, array in self.arrays.items()}
        return WireBatch(offsets, self.base_timestamp_us, arrays)


def wire_batch(batch: RecordBatch, schema: pa.Schema) -> WireBatch:
    """Take the columns of `schema` out of a fetched batch; nothing is decoded for none of them, but for gaps."""
    present = [name for name, flag in _WIRE.items() if batch.header.flags & flag and name in schema.names]
    columns = batch.columns() if present else None
    arrays = {} if columns is None else {name: columns.column(name) for name in present}
    return WireBatch(batch.offsets().to_numpy(), batch.header.base_timestamp_us, arrays)


class Joiner:
    """Joins the batches of one partition into batches of Spark's schema. Not thread-safe.

    `add` takes a batch and gives back the joined batches that are full, `finish` gives the rest.
    A joined batch has at most `max_records` rows, and is let go early at `JOINED_BYTES`.
    """

    def __init__(self, schema: pa.Schema, *, topic: str, partition: int, max_records: int) -> None:
        assert max_records > 0
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._max_records = max_records
        self._pieces: list[WireBatch] = []
        self._rows = 0
        self._bytes = 0

    def add(self, batch: WireBatch) -> Iterator[pa.RecordBatch]:
        """Take a batch in and yield what is full."""
        start = 0
        while start < batch.rows:
            piece = batch.slice(start, self._max_records - self._rows)
            self._pieces.append(piece)
            self._rows += piece.rows
            self._bytes += piece.nbytes
            start += piece.rows
            if self._rows >= self._max_records or self._bytes >= JOINED_BYTES:
                yield self._joined()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left, if anything is."""
        if self._pieces:
            yield self._joined()

    def _joined(self) -> pa.RecordBatch:
        make: dict[str, Callable[[], pa.Array[Any]]] = {
            "topic": lambda: pa.repeat(pa.scalar(self._topic, pa.string()), self._rows),
            "partition": lambda: pa.repeat(pa.scalar(self._partition, pa.int32()), self._rows),
            "timestampType": lambda: pa.repeat(pa.scalar(TIMESTAMP_TYPE_CREATE_TIME, pa.int32()), self._rows),
            "offset": lambda: _one([pa.array(piece.offsets) for piece in self._pieces]),
        }
        arrays = [
            make[field.name]() if field.name in make else _one([_column(piece, field) for piece in self._pieces])
            for field in self._schema
        ]
        joined = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        assert joined.num_rows == self._rows
        self._pieces, self._rows, self._bytes = [], 0, 0
        return joined


def _column(piece: WireBatch, field: pa.Field[pa.DataType]) -> pa.Array[Any]:
    """Return a wire column of a piece, made up if the batch does not have it."""
    column = piece.arrays.get(field.name)
    if column is not None:
        column = _without_empty_lists(column) if field.name == "headers" else column
        return column if column.type.equals(field.type, check_metadata=True) else column.cast(field.type)
    if field.name == "timestamp":
        return pa.repeat(pa.scalar(piece.base_timestamp_us, pa.int64()), piece.rows).cast(field.type)
    return _nulls(piece.rows, field.type)


def _without_empty_lists(lists: Any) -> pa.Array[Any]:
    """Return the lists with null for each empty one: no headers are null, whatever else is in the batch."""
    # A slice's offsets keep their place in the whole array, and a mask is only taken with offsets of their own.
    offsets = pa.array(lists.offsets.to_numpy())
    starts = offsets.to_numpy()
    without: pa.Array[Any] = pa.ListArray.from_arrays(offsets, lists.values, mask=pa.array(starts[1:] == starts[:-1]))
    return without


def _nulls(rows: int, of: Any) -> pa.Array[Any]:
    """Return nulls; `of` is any type (the stubs list each concrete one, and the base class is none of them)."""
    nulls: pa.Array[Any] = pa.nulls(rows, of)
    return nulls


def _one(arrays: list[pa.Array[Any]]) -> pa.Array[Any]:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
