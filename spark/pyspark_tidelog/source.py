"""The Spark data source: topics as tables with the columns of Spark's Kafka source.

Spark finds `DefaultSource` in every importable module whose name begins with `pyspark_`, on the driver and on the
executors, without registration. Spark calls the source in several processes: `schema` and `partitions` in planning
workers of the driver, `read` in the tasks. Planning opens and closes its own connection; a Python worker keeps the
connection of its last task (`kept_client.py`).

Spark passes filters if `spark.sql.python.filterPushdown.enabled` is on; they are used only if Spark keeps the planned
read for the scan with these filters (`pushdown.py`). Spark does not tell Python sources which columns a query uses: set
them with `.schema("offset bigint, value binary")` or the option `columns`.

All scans of one `load()` share its `DefaultSource` and, since Spark 4.1, one planned read. So neither may contain state
of a single scan.
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
        """Return the name for `format()` and `USING`."""
        return "tidelog"

    def schema(self) -> str:
        """Return the columns for the options, as DDL.

        Raises:
            OptionError: an option is invalid.
        """
        return ddl_of(parse_columns(self.options))

    def reader(self, schema: StructType) -> TidelogReader:
        """Return a reader of `schema`, a subset of the columns.

        Raises:
            OptionError: an option or the schema is invalid.
        """
        return TidelogReader(parse_options(self.options), arrow_schema(schema))

    def streamReader(self, schema: StructType) -> TidelogStreamReader:  # noqa: N802 - Spark's name
        """Return a stream reader of `schema`, as `reader`.

        Raises:
            OptionError: an option or the schema is invalid.
        """
        return TidelogStreamReader(parse_options(self.options, streaming=True), arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        """Return a writer of a frame with these columns.

        Raises:
            OptionError: an option or a column is invalid, or `overwrite` is set.
        """
        return TidelogWriter(self._write_options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802 - Spark's name
        """Return a stream writer with these columns, as `writer`.

        Raises:
            OptionError: as `writer`; `overwrite` means the output mode "complete".
        """
        return TidelogStreamWriter(self._write_options(schema, overwrite=overwrite))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle so that processes without the connector's zip on their path, such as those of streams, can load it."""
        return reduced(type(self), self.options)

    def _write_options(self, schema: StructType, *, overwrite: bool) -> WriteOptions:
        refuse_overwriting(overwrite=overwrite)
        options = parse_write_options(self.options)
        check_columns(schema, topic=options.topic)
        return options


def _no_filters() -> None:
    """Placeholder for a method that Spark 4.0 lacks."""


class FilterTaker:
    """Callable used as a reader's `pushFilters`.

    Spark refuses readers that override `pushFilters` while push-down is off, because filters could wrongly be
    considered applied. This source does not depend on the call, so this object pretends to be the inherited method.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", _no_filters))

    def __init__(self, tasks: RangeReader) -> None:
        self._tasks = tasks

    def __call__(self, filters: list[Any]) -> list[Any]:
        """Narrow the read if it is planned for this scan only, else log a warning; return all filters for Spark."""
        if PLAN_BELONGS_TO_SCAN:
            self._tasks.narrowed = narrowed(filters)
        else:
            warn_of_shared_plan()
        return filters


class TidelogReader(DataSourceReader):
    """Plans ranges once, and reads each of them in a task. Pickled for the tasks, without a connection."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._tasks = RangeReader(options, schema)
        # An attribute, because Spark would refuse a method that overrides `pushFilters`.
        vars(self)["pushFilters"] = FilterTaker(self._tasks)

    def partitions(self) -> Sequence[RangePartition]:
        """Plan the read, and return the offset range of each task; later records are not read.

        Raises:
            OptionError, DataLossError, TidelogError: as `make_plan`.
        """
        with self._tasks.client() as client:
            plan = make_plan(self._options, client, self._tasks.narrowed)
        for warning in plan.warnings:
            _LOG.warning("%s", warning)
        return [RangePartition(each, plan.topic_ids[each.topic]) for each in plan.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range.

        Raises:
            DataLossError, TidelogError: as `RangeReader.read`.
        """
        return self._tasks.read(partition)
