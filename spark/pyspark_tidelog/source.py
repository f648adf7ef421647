"""The Spark data source: topics as tables with the columns of Spark's Kafka source, typed topics with their fields.

Spark finds `DefaultSource` in every importable module whose name begins with `pyspark_`, on the driver and on the
executors, without registration. Spark calls the source in several processes: `schema` and `partitions` in planning
workers of the driver, `read` in the tasks. Planning opens and closes its own connection; a Python worker keeps the
connection of its last task (`kept_client.py`).

Spark passes filters if `spark.sql.python.filterPushdown.enabled` is on; they are used only if Spark keeps the planned
read for the scan with these filters (`pushdown.py`). Spark does not tell Python sources which columns a query uses: set
them with `.schema("offset bigint, value binary")` or the option `columns`.

Whether a topic is typed, and which fields it has, is looked up when Spark asks for the schema. The answer is pickled
with the source: it belongs to the DataFrame, and the topic may get another schema before the DataFrame is used.

All scans of one `load()` share its `DefaultSource` and, since Spark 4.1, one planned read. So neither may contain state
of a single scan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tidelog.columns import arrow_schema, ddl_of, record_columns
from pyspark_tidelog.filters import PLAIN, narrowed
from pyspark_tidelog.options import ReadOptions, parse_either, parse_options
from pyspark_tidelog.outgoing import check_columns
from pyspark_tidelog.plan import make_plan
from pyspark_tidelog.pushdown import PLAN_BELONGS_TO_SCAN, warn_of_shared_plan
from pyspark_tidelog.sink import TidelogStreamWriter, TidelogWriter, refuse_overwriting
from pyspark_tidelog.stream import TidelogStreamReader
from pyspark_tidelog.task import RangePartition, RangeReader, connect
from pyspark_tidelog.typed_columns import (
    TypedColumns,
    comparable_columns,
    default_columns,
    typed_columns,
    with_stored_key,
)
from pyspark_tidelog.typed_outgoing import check_row_columns
from pyspark_tidelog.typed_topic import TypedTopic, topic_to_read, typed_topic
from pyspark_tidelog.write_options import WriteOptions, parse_write_options
from pyspark_tidelog.zipped import reduced
from tidelog.sync import Client

_LOG: Final = logging.getLogger(__name__)


class DefaultSource(DataSource):
    """The data source `tidelog`. Options: see `options.py`; columns: see `columns.py` and `typed_columns.py`.

    Args:
        options: the options, in any case.
        found: the answer to `schema()`, if Spark has asked for it.
    """

    def __init__(self, options: dict[str, str], found: FoundTopic | None = None) -> None:
        super().__init__(options)
        self._found = found

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()` and `USING`."""
        return "tidelog"

    def schema(self) -> str | StructType:
        """Return the columns for the options, as DDL for a topic without a schema.

        Raises:
            OptionError: an option is invalid.
            TidelogError: the topic could not be looked up.
        """
        options = parse_either(self.options)
        typed = self._typed_topic(options)
        return ddl_of(record_columns(options)) if typed is None else default_columns(options, typed)

    def reader(self, schema: StructType) -> TidelogReader:
        """Return a reader of `schema`, a subset of the columns.

        Raises:
            OptionError: an option or the schema is invalid.
            TidelogError: the topic could not be looked up.
        """
        return TidelogReader(*self._columns(parse_options(self.options), schema))

    def streamReader(self, schema: StructType) -> TidelogStreamReader:  # noqa: N802 - Spark's name
        """Return a stream reader of `schema`, as `reader`.

        Raises:
            OptionError, TidelogError: as `reader`.
        """
        return TidelogStreamReader(*self._columns(parse_options(self.options, streaming=True), schema))

    def writer(self, schema: StructType, overwrite: bool) -> TidelogWriter:
        """Return a writer of a frame with these columns.

        Raises:
            OptionError: an option or a column is invalid, or `overwrite` is set.
            UnknownTopicError: the topic does not exist.
            TidelogError: the topic could not be looked up.
        """
        return TidelogWriter(self._write_options(schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> TidelogStreamWriter:  # noqa: N802 - Spark's name
        """Return a stream writer with these columns, as `writer`.

        Raises:
            OptionError, TidelogError: as `writer`; `overwrite` means the output mode "complete".
        """
        return TidelogStreamWriter(self._write_options(schema, overwrite=overwrite))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Pickle so that processes without the connector's zip on their path, such as those of streams, can load it."""
        return reduced(type(self), self.options, self._found)

    def _typed_topic(self, options: ReadOptions) -> TypedTopic | None:
        """Return the typed topic that the options name; None for others. It is looked up once."""
        if self._found is None:
            typed = None
            if options.single_topic is not None:
                with connect(options) as client:
                    typed = topic_to_read(client, options)
            self._found = FoundTopic(typed)
        return self._found.typed

    def _columns(self, options: ReadOptions, schema: StructType) -> tuple[ReadOptions, pa.Schema | TypedColumns]:
        typed = self._typed_topic(options)
        if typed is None:
            return options, arrow_schema(schema)
        return with_stored_key(options, typed), typed_columns(options, typed, schema)

    def _write_options(self, schema: StructType, *, overwrite: bool) -> WriteOptions:
        refuse_overwriting(overwrite=overwrite)
        options = parse_write_options(self.options)
        typed = None
        if options.topic is not None:
            with Client(options.access.bootstrap, **options.access.client_options) as client:
                typed = typed_topic(client, options.topic)
        if typed is None:
            check_columns(schema, topic=options.topic)
            return options
        check_row_columns(schema, typed)
        return replace(options, is_typed=True)


def _no_filters() -> None:
    """Placeholder for a method that Spark 4.0 lacks."""


class FoundTopic(NamedTuple):
    """The answer to the question whether the topic of a load is typed; `typed` is None if it is not."""

    typed: TypedTopic | None


class FilterTaker:
    """Callable used as a reader's `pushFilters`.

    Spark refuses readers that override `pushFilters` while push-down is off, because filters could wrongly be
    considered applied. This source does not depend on the call, so this object pretends to be the inherited method.
    """

    __func__ = staticmethod(getattr(DataSourceReader, "pushFilters", _no_filters))

    def __init__(self, tasks: RangeReader, typed: TypedTopic | None) -> None:
        self._tasks = tasks
        self._typed = typed

    def __call__(self, filters: list[Any]) -> list[Any]:
        """Narrow the read if it is planned for this scan only, else log a warning; return all filters for Spark."""
        if PLAN_BELONGS_TO_SCAN:
            columns = PLAIN if self._typed is None else comparable_columns(self._typed)
            self._tasks.narrowed = narrowed(filters, columns)
        else:
            warn_of_shared_plan()
        return filters


class TidelogReader(DataSourceReader):
    """Plans ranges once, and reads each of them in a task. Pickled for the tasks, without a connection."""

    def __init__(self, options: ReadOptions, columns: pa.Schema | TypedColumns) -> None:
        self._options = options
        self._tasks = RangeReader(options, columns)
        self._typed = columns.topic if isinstance(columns, TypedColumns) else None
        # An attribute, because Spark would refuse a method that overrides `pushFilters`.
        vars(self)["pushFilters"] = FilterTaker(self._tasks, self._typed)

    def partitions(self) -> Sequence[RangePartition]:
        """Plan the read, and return the offset range of each task; later records are not read.

        Raises:
            OptionError, DataLossError, TidelogError: as `make_plan`.
            TidelogSourceError: the typed topic was recreated after the DataFrame was created.
        """
        with self._tasks.client() as client:
            plan = make_plan(self._options, client, self._tasks.narrowed)
        if self._typed is not None:
            self._typed.check_id(plan.topic_ids[self._typed.name])
        for warning in plan.warnings:
            _LOG.warning("%s", warning)
        return [RangePartition(each, plan.topic_ids[each.topic]) for each in plan.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range.

        Raises:
            DataLossError, TidelogError: as `RangeReader.read`.
        """
        return self._tasks.read(partition)
