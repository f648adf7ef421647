"""A topic as a `pyarrow.dataset.Dataset`, which DuckDB scans as often as a statement asks, the columns that it needs.

A `RecordBatchReader` is used up by one pass, and a statement may name a table twice. An engine that knows datasets asks
for a scanner each time, with the columns and the filter of that scan. Columns that nobody needs are not decoded; rows
that the filter refuses are dropped here, before their values are parsed.

Arrow reads ahead on threads of its own, and lets a scan lie that nobody needs any more (`LIMIT`). So scans are ended
here: at the end of this process, Python could not run there any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidelog.tables.read_arrow import TABLE_SCHEMA, schema_of

Read = Callable[[Sequence[str]], Generator[pa.RecordBatch, None, None]]
"""Reads the topic anew: some columns of all records."""


class TopicDataset(ds.Dataset):
    """One topic, the same records in every scan.

    Args:
        read: as above.
        on_read: is told of the rows that were read.
    """

    def __init__(self, read: Read, on_read: Callable[[int], None]) -> None:
        self._read = read
        self._on_read = on_read
        self._scans: list[Scan] = []

    @property
    def schema(self) -> pa.Schema:
        """The columns that there are."""
        return TABLE_SCHEMA

    @property
    def failure(self) -> Exception | None:
        """Why a scan could not go on; engines tell it as text alone."""
        return next((scan.failure for scan in self._scans if scan.failure is not None), None)

    def scanner(  # type: ignore[override] # what else there may be is about files
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - Arrow's name
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner of some columns of the rows that pass a filter."""
        wanted = list(TABLE_SCHEMA.names if columns is None else columns)
        # An expression does not tell which columns it reads; its text has their names.
        said = "" if filter is None else str(filter)
        needed = [*wanted, *(name for name in TABLE_SCHEMA.names if name not in wanted and name in said)]
        needed = needed or ["offset"]  # rows are counted by something
        scan = Scan(self._read(needed), self._on_read)
        self._scans.append(scan)
        reader = pa.RecordBatchReader.from_batches(schema_of(needed), scan)
        return ds.Scanner.from_batches(reader, columns=wanted or None, filter=filter)

    def close(self) -> None:
        """End all scans."""
        for scan in self._scans:
            scan.close()


class Scan:
    """One pass over a topic, taken by whatever thread, until it is closed.

    Attributes:
        failure: why it could not go on.
    """

    def __init__(self, batches: Generator[pa.RecordBatch, None, None], on_read: Callable[[int], None]) -> None:
        self.failure: Exception | None = None
        self._batches = batches
        self._on_read = on_read
        self._taking = threading.Lock()
        self._closed = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        with self._taking:
            if self._closed:
                raise StopIteration
            try:
                batch = next(self._batches)
            except StopIteration:
                raise
            except Exception as error:
                self.failure = error
                raise
        self._on_read(batch.num_rows)
        return batch

    def close(self) -> None:
        """Let nobody take more, and end the connection."""
        self._closed = True
        with self._taking:
            self._batches.close()
