"""A topic as a `pyarrow.dataset.Dataset`, which DuckDB can scan repeatedly with projection and filter.

A `RecordBatchReader` can be read only once, but a statement may use a table twice. For a dataset, DuckDB requests a
scanner for each scan, with the columns and the filter of that scan. Unused columns are not decoded, and filtered rows
are dropped before their values are parsed.

Arrow reads ahead on its own threads and abandons scans that are no longer needed (`LIMIT`). So scans are closed
explicitly: at the exit of the process these threads could no longer run Python code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tidelog.tables.read_arrow import TABLE_SCHEMA, schema_of

Read = Callable[[Sequence[str]], Generator[pa.RecordBatch, None, None]]
"""Reads some columns of all records of the topic."""


class TopicDataset(ds.Dataset):
    """One topic, with the same records in every scan.

    Args:
        on_read: called with the number of rows read.
    """

    def __init__(self, read: Read, on_read: Callable[[int], None]) -> None:
        self._read = read
        self._on_read = on_read
        self._scans: list[Scan] = []

    @property
    def schema(self) -> pa.Schema:
        """The columns of a topic."""
        return TABLE_SCHEMA

    @property
    def failure(self) -> Exception | None:
        """The error that ended a scan, or None. Engines only report its text."""
        return next((scan.failure for scan in self._scans if scan.failure is not None), None)

    def scanner(  # type: ignore[override] # other arguments concern files
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002 - Arrow's name
        **_: Any,
    ) -> ds.Scanner:
        """Return a scanner of some columns of the rows that match a filter."""
        names = list(TABLE_SCHEMA.names if columns is None else columns)
        # The columns of an expression are not accessible; its text contains their names.
        filter_text = "" if filter is None else str(filter)
        needed = [*names, *(name for name in TABLE_SCHEMA.names if name not in names and name in filter_text)]
        needed = needed or ["offset"]  # Rows can be counted only with at least one column.
        scan = Scan(self._read(needed), self._on_read)
        self._scans.append(scan)
        reader = pa.RecordBatchReader.from_batches(schema_of(needed), scan)
        return ds.Scanner.from_batches(reader, columns=names or None, filter=filter)

    def close(self) -> None:
        """Close all scans."""
        for scan in self._scans:
            scan.close()


class Scan:
    """One scan of a topic's records, as an iterator that any thread may read until it is closed.

    Attributes:
        failure: the error that ended the scan; None if it did not fail.
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
        """End the scan, and close its connection."""
        self._closed = True
        with self._taking:
            self._batches.close()
