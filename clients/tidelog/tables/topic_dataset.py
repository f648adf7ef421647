"""A topic as a `pyarrow.dataset.Dataset`, which an engine can scan repeatedly with projection and filter.

A `RecordBatchReader` can be read only once, but a statement may use a table twice. For a dataset, DuckDB requests a
scanner for each scan, with the columns and the filter of that scan. Unused columns are not read, and filtered rows are
dropped before the engine gets them.

Rejected: `pyarrow.dataset.Scanner.from_batches`, which reads ahead on threads of Arrow. A scan that is abandoned, as by
`LIMIT`, goes on there, and a thread that runs Python code while the process exits ends the process with an error.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from tidelog.base.refuse_pickling import refuse_to_pickle
from tidelog.errors import InvalidRequestError

Read = Callable[[Sequence[str]], tuple[pa.Schema, Generator[pa.RecordBatch, None, None]]]
"""Returns the schema of some columns, and all rows of the topic."""
Columns = Sequence[str] | Mapping[str, pc.Expression]

_FILES: Final = ds.IpcFileFormat()
_NO_FILE: Final = "a topic has no files; read it with to_batches() to_table() or scanner()"
"""Path of a file that does not exist."""
_DUCKDB_MIN: Final = 2
"""First version of DuckDB that gives a Dataset no filters of floats. In DuckDB NaN is the greatest number."""
_BY_POSITION: Final = "FieldPath("
"""Part of the text of an expression that names a column by its position."""


class TopicDataset(ds.UnionDataset):
    """One topic, with the same records in every scan. `tidelog.dataset` returns one.

    It may be scanned by any number of threads. A filter is applied to each row, with pyarrow's semantics: comparisons
    with NaN are false, those with null are null, and only rows for which the filter is true are kept.

    Args:
        columns: all columns.
        read: reads some of them.
        count_by: a column that is read if only the number of rows is needed.
        on_read: called with the number of rows of each batch that was read.
        only: filters the rows of all scans; None: no filter.
    """

    def __init__(
        self,
        columns: pa.Schema,
        read: Read,
        count_by: str,
        *,
        on_read: Callable[[int], None] = lambda _: None,
        only: pc.Expression | None = None,
    ) -> None:
        # Code of Arrow that does not ask for a scanner reads the C++ object. This one fails then, instead of being
        # empty: its only file does not exist.
        files = fs.LocalFileSystem()
        unreadable = ds.FileSystemDataset([_FILES.make_fragment(_NO_FILE, files)], columns, _FILES, files)
        super().__init__(columns, [unreadable])  # type: ignore[call-arg] # missing in the stubs
        self._columns = columns
        self._read = read
        self._count_by = count_by
        self._on_read = on_read
        self._only = only
        self.scans: weakref.WeakSet[Scan] = weakref.WeakSet()
        """The scans that have not ended; each ends when nothing refers to it."""
        self._failure: Exception | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of the topic."""
        return self._columns

    @property
    def failure(self) -> Exception | None:
        """The first error that ended a scan, or None. Engines only report its text."""
        return self._failure

    def scanner(  # type: ignore[override] # other arguments concern files
        self,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        **_: Any,
    ) -> TopicScanner:
        """Return a scanner, which can be read once.

        Args:
            columns: names of columns, or name -> expression; None: all columns.
            filter: which rows are returned; None: all.

        Raises:
            InvalidRequestError: a column does not exist, or DuckDB before 2.0 is loaded and a filter has floats.
        """
        if filter is not None:
            self._refuse_lossy(str(filter))
        only = _both(self._only, filter)
        needed = self._needed(columns, only)
        schema, batches = self._read(needed)
        scan = Scan(batches, self._on_read, self._note_failure)
        self.scans.add(scan)
        selected = self._columns.names if columns is None else columns or needed[:1]
        return TopicScanner(self._columns, schema, scan, selected, only)

    def to_table(self, columns: Columns | None = None, filter: pc.Expression | None = None, **_: Any) -> pa.Table:  # type: ignore[override]  # noqa: A002 - Arrow's name
        """Return the rows; see `scanner`."""
        return self.scanner(columns, filter).to_table()

    def to_batches(  # type: ignore[override]
        self,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        **_: Any,
    ) -> Iterator[pa.RecordBatch]:
        """Return an iterator of the rows; see `scanner`."""
        return self.scanner(columns, filter).to_batches()

    def head(  # type: ignore[override]
        self,
        num_rows: int,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        **_: Any,
    ) -> pa.Table:
        """Return the first rows; see `scanner`."""
        return self.scanner(columns, filter).head(num_rows)

    def take(  # type: ignore[override]
        self,
        indices: Any,
        columns: Columns | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - Arrow's name
        **_: Any,
    ) -> pa.Table:
        """Return rows by their positions among all rows, which are read; see `scanner`."""
        return self.scanner(columns, filter).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **_: Any) -> int:  # type: ignore[override]  # noqa: A002
        """Return the number of rows for which a filter is true; None: of all rows."""
        return self.scanner([], filter).count_rows()

    def filter(self, expression: pc.Expression) -> TopicDataset:
        """Return a dataset with the rows for which an expression is true."""
        only = _both(self._only, expression)
        return TopicDataset(self._columns, self._read, self._count_by, on_read=self._on_read, only=only)

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:  # noqa: A002, ARG002 - Arrow's name
        """Raise an error, because a topic has no files.

        Raises:
            InvalidRequestError: always.
        """
        raise InvalidRequestError("a topic has no fragments; read it with to_batches(), to_table() or scanner()")

    def close(self) -> None:
        """End all scans, and close their connections."""
        for scan in list(self.scans):
            scan.close()

    def _needed(self, columns: Columns | None, only: pc.Expression | None) -> list[str]:
        """Return the columns to read, with those of expressions."""
        every = self._columns.names
        named = [] if isinstance(columns, Mapping) else list(every if columns is None else columns)
        if unknown := [name for name in named if name not in every]:
            raise InvalidRequestError(f"the columns {unknown} do not exist; the topic has {', '.join(every)}")
        # The columns of an expression are not accessible, but its text contains their names.
        expressions = [*columns.values()] if isinstance(columns, Mapping) else []
        text = "\n".join(map(str, [*expressions, *([] if only is None else [only])]))
        if _BY_POSITION in text:
            return every
        needed = [name for name in every if name in named or name in text]
        return needed or [self._count_by]

    def _refuse_lossy(self, filter_text: str) -> None:
        """Refuse filters of floats while a version of DuckDB is loaded that expects rows with NaN from them."""
        version = str(getattr(sys.modules.get("duckdb"), "__version__", ""))
        if not version or int(version.partition(".")[0]) >= _DUCKDB_MIN:
            return
        floats = [field.name for field in self._columns if _has_floats(field.type) and field.name in filter_text]
        if floats:
            raise InvalidRequestError(
                f"DuckDB {version} would lose rows with NaN in filters of {', '.join(floats)}; update it: pip install "
                f"--upgrade 'duckdb>={_DUCKDB_MIN}'"
            )

    def _note_failure(self, error: Exception) -> None:
        self._failure = self._failure or error


def _has_floats(kind: Any) -> bool:
    return pa.types.is_floating(kind) or any(_has_floats(kind.field(at).type) for at in range(kind.num_fields))


class TopicScanner:
    """One read of some columns of a topic's rows, as pyarrow's Scanner has it; batches are read as they are used.

    Args:
        dataset_schema: all columns of the topic.
        schema: the columns of `scan`.
        scan: the rows of the topic.
        columns: names of columns of `schema`, or name -> expression.
        only: which rows are returned; None: all.
    """

    def __init__(
        self, dataset_schema: pa.Schema, schema: pa.Schema, scan: Scan, columns: Columns, only: pc.Expression | None
    ) -> None:
        self.dataset_schema = dataset_schema
        self._schema = schema
        self._scan = scan
        self._columns = columns
        self._only = only
        self._is_plain = only is None and not isinstance(columns, Mapping)

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns of the rows that are returned."""
        return self._picked(pa.Table.from_batches([], self._schema)).schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; a batch without rows is left out."""
        for batch in self._scan:
            for picked in self._picked(pa.Table.from_batches([batch])).to_batches():
                if picked.num_rows:
                    yield picked

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Return all rows."""
        return pa.Table.from_batches(list(self.to_batches()), self.projected_schema)

    def head(self, num_rows: int) -> pa.Table:
        """Return the first rows, and end the read."""
        found: list[pa.RecordBatch] = []
        left = num_rows
        while left > 0 and (batch := next(self.to_batches(), None)) is not None:
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
        self._scan.close()
        return pa.Table.from_batches(found, self.projected_schema)

    def take(self, indices: Any) -> pa.Table:
        """Return rows by their positions."""
        return self.to_table().take(indices)

    def count_rows(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self.to_batches())

    def _picked(self, rows: pa.Table) -> pa.Table:
        if self._is_plain:
            names: Any = self._columns
            return rows.select(list(names))
        # Without threads, so that the rows keep their order.
        columns: Any = self._columns if isinstance(self._columns, Mapping) else list(self._columns)
        return ds.dataset(rows).to_table(columns=columns, filter=self._only, use_threads=False)


class Scan:
    """One read of a topic's records, as an iterator that any thread may read until it is closed."""

    def __init__(
        self,
        batches: Generator[pa.RecordBatch, None, None],
        on_read: Callable[[int], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._batches = batches
        self._on_read = on_read
        self._on_failure = on_failure
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
                self._on_failure(error)
                raise
        self._on_read(batch.num_rows)
        return batch

    def close(self) -> None:
        """End the read, and close its connection."""
        self._closed = True
        with self._taking:
            self._batches.close()


def _both(first: pc.Expression | None, second: pc.Expression | None) -> pc.Expression | None:
    return second if first is None else first if second is None else first & second


refuse_to_pickle(TopicDataset)
