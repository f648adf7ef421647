"""Tidelog's topics as a table with the columns of Spark's Kafka source, for `spark.read` and `spark.readStream`.

Spark finds `DefaultSource` by itself in every importable module whose name begins with `pyspark_`, on the driver
and on the executors; nothing is registered. Spark calls it in several processes: `schema` and `partitions` in
planning workers of the driver, `read` in the tasks. Each opens a connection of its own and closes it.

Spark passes filters on where `spark.sql.python.filterPushdown.enabled` is on; they are used only if Spark keeps the
planned read for the scan that has them (`pushdown.py`). It does not tell Python sources which columns a query uses:
`.schema("offset bigint, value binary")` or the option `columns` says it.

All scans of one `load()` share the `DefaultSource` that was made for it and, since Spark 4.1, one planned read. So
nothing that belongs to a single scan may be stored in either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tidelog.columns import arrow_schema, ddl_of
from pyspark_tidelog.filters import narrowed
from pyspark_tidelog.options import ReadOptions, parse_columns, parse_options
from pyspark_tidelog.outgoing import check_columns
from pyspark_tidelog.plan import make_plan
from pyspark_tidelog.pushdown import PLAN_BELONGS_TO_SCAN, warn_of_shared_plan
from pyspark_tidelog.sink import TidelogStreamWriter, TidelogWriter, refuse_overwriting
from pyspark_tidelog.stream import TidelogStreamReader
from pyspark_tidelog.task import RangePartition, RangeReader
from pyspark_tidelog.write_options import WriteOptions, parse_write_options
from pyspark_tidelog.zipped import reduced

_LOG: Final = logging.getLogger(__name__)


class DefaultSource(DataSource):
    """The data source `tidelog`. Options: see `options.py`; columns: see `columns.py`."""

    @classmethod
    def name(cls) -> str:
        """Return what `format()` and `USING` call it."""
        return "tidelog"

    def schema(self) -> str:
        """Return the columns that the options ask for, as DDL.

        Raises:
            OptionError: an option is wrong.
        """
        return ddl_of(parse_columns(self.options))

    def reader(self, schema: StructType) -> TidelogReader:
        """Return a reader of `schema`, which is ours or a choice of its columns.

        Raises:
            OptionError: an option or the schema is wrong.
        """
        return TidelogReader(parse_options(self.options), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> TidelogStreamReader:  # noqa: N802 - Spark's name
        """Return a reader for a stream of `schema`, as `reader`.

        Raises:
            OptionError: an option or the schema is wrong.
        """
        return TidelogStreamReader(parse_options(self.options, streaming=True), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        """Return a writer of a frame with these columns.

        Raises:
            OptionError: an option or a column is wrong, or what there is would have to go.
        """
        return TidelogWriter(self._write_options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802 - Spark's name
        """Return a writer of a stream with these columns, as `writer`.

        Raises:
            OptionError: as `writer`; `overwrite` is the output mode "complete".
        """
        return TidelogStreamWriter(self._write_options(schema, overwrite=overwrite))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Travel to Spark's processes, also to those of a stream, which do not find the connector's zip."""
        return reduced(type(self), self.options)

    def _write_options(self, schema: StructType, *, overwrite: bool) -> WriteOptions:
        refuse_overwriting(overwrite=overwrite)
        options = parse_write_options(self.options)
        check_columns(schema, topic=options.topic)
        return options


def _no_filters() -> None:
    """Stands for what Spark 4.0 does not know yet."""


class FilterTaker:
    """What Spark calls as a reader's `pushFilters`.

    Spark refuses readers with a `pushFilters` of their own while it would not call it, lest somebody take filters for
    pushed that are not. Here nothing depends on the call, so this one passes for the one that all readers inherit.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", _no_filters))

    def __init__(self, tasks: RangeReader) -> None:
        self._tasks = tasks

    def __call__(self, filters: list[Any]) -> list[Any]:
        """Narrow the read if it is planned for this scan alone; return all filters, which Spark applies itself."""
        if PLAN_BELONGS_TO_SCAN:
            self._tasks.narrowed = narrowed(filters)
        else:
            warn_of_shared_plan()
        return filters


class TidelogReader(DataSourceReader):
    """Plans ranges once, then reads each of them in a task. Travels to the tasks pickled, without a connection."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._tasks = RangeReader(options, schema)
        vars(self)["pushFilters"] = FilterTaker(self._tasks)  # no method: Spark would refuse one of ours

    def partitions(self) -> Sequence[RangePartition]:
        """Return the ranges of this load, as they are now.

        Raises:
            OptionError, DataLossError, TidelogError: as `make_plan`.
        """
        with self._tasks.client() as client:
            plan = make_plan(self._options, client, self._tasks.narrowed)
        for warning in plan.warnings:
            _LOG.warning("%s", warning)
        return [RangePartition(wanted, plan.topic_ids[wanted.topic]) for wanted in plan.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range.

        Raises:
            DataLossError, TidelogError: as `RangeReader.read`.
        """
        return self._tasks.read(partition)
