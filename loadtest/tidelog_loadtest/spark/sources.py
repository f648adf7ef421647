"""Spark data sources for comparison: one that generates batches, and one that returns tuples.

`empty` yields the same batch repeatedly in each of its tasks, so that only Spark is measured. `tuples` reads a topic as
Tidelog's own source does and creates a tuple for each row, as Python data sources usually do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tidelog.columns import arrow_schema, ddl_of
from pyspark_tidelog.source import DefaultSource, TidelogReader

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


class EmptySource(DataSource):
    """The data source `empty`, with the options `rows`, `size`, `partitions` and `batch`, all numbers."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "empty"

    def schema(self) -> str:
        """Return the schema of Tidelog's source."""
        return ddl_of(COLUMNS)

    def reader(self, schema: StructType) -> EmptyReader:
        """Return a reader for these columns."""
        return EmptyReader({name: int(value) for name, value in self.options.items()}, arrow_schema(schema))


class EmptyReader(DataSourceReader):
    """Yields the same batch repeatedly."""

    def __init__(self, sizes: dict[str, int], schema: pa.Schema) -> None:
        self._sizes = sizes
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return the requested number of partitions."""
        return [InputPartition(number) for number in range(self._sizes["partitions"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        del partition  # all partitions are equal
        rows = self._sizes["rows"] // self._sizes["partitions"]
        batch = rows_of(self._schema, min(rows, self._sizes["batch"]), self._sizes["size"])
        for start in range(0, rows, batch.num_rows):
            yield batch.slice(0, min(batch.num_rows, rows - start))


def rows_of(schema: pa.Schema, count: int, size_bytes: int) -> pa.RecordBatch:
    """Return rows with values of `size_bytes` bytes, no keys, and the other columns of a topic."""
    offsets = np.arange(count + 1, dtype=np.int32) * size_bytes
    data = np.random.default_rng(1).bytes(size_bytes * count)
    columns: dict[str, Any] = {
        "value": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]),
        "topic": pa.repeat(pa.scalar("empty"), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(np.arange(count)),
        "timestamp": pa.repeat(pa.scalar(0, pa.int64()), count).cast(pa.timestamp("us", "UTC")),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
    }
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class TupleSource(DataSource):
    """The data source `tuples`, which has the options of Tidelog's source."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "tuples"

    def schema(self) -> str:
        """Return the schema of Tidelog's source, for a topic without a schema."""
        schema = DefaultSource(dict(self.options)).schema()
        assert isinstance(schema, str), "the topic of the benchmark is not typed"
        return schema

    def reader(self, schema: StructType) -> TupleReader:
        """Return a reader for these columns."""
        return TupleReader(DefaultSource(dict(self.options)).reader(schema))


class TupleReader(DataSourceReader):
    """Converts the rows of Tidelog's reader to tuples."""

    def __init__(self, reader: TidelogReader) -> None:
        self._reader = reader

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of Tidelog's reader."""
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a partition."""
        for batch in self._reader.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
