"""`spark.read.format("tidelog")`: Tidelog's topics as a table with the columns of Spark's Kafka source.

Spark finds `DefaultSource` by itself in every importable module whose name begins with `pyspark_`, on the driver
and on the executors; nothing is registered. Spark calls it in several processes: `schema` and `partitions` in
planning workers of the driver, `read` in the tasks. Each opens a connection of its own and closes it.

No filters are pushed down: overriding `pushFilters` makes every read fail while
`spark.sql.python.filterPushdown.enabled` has its default. Spark does not tell Python sources which columns a query
uses; `.schema("offset bigint, value binary")` or the option `columns` says it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tidelog.columns import arrow_schema, ddl_of
from pyspark_tidelog.errors import DataLossError
from pyspark_tidelog.offsets import OffsetRange
from pyspark_tidelog.options import ReadOptions, parse_options
from pyspark_tidelog.plan import LogClient, make_plan
from pyspark_tidelog.reader import read_batches
from tidelog.errors import UnknownTopicError
from tidelog.model import Fetched
from tidelog.sync import Client

FETCH_BYTES: Final = 8 * 1024 * 1024
"""One fetch's answer; a task holds two of them at most."""

_WAIT_MS: Final = 5_000
"""How long a fetch waits for planned records that a node does not have yet, before they count as lost."""

_CLIENT_ID: Final = "spark"
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
        return ddl_of(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> TidelogReader:
        """Return a reader of `schema`, which is ours or a choice of its columns.

        Raises:
            OptionError: an option or the schema is wrong.
        """
        return TidelogReader(parse_options(self.options), arrow_schema(schema))


class RangePartition(InputPartition):
    """One task's range, and the id of the topic that it was planned for."""

    def __init__(self, wanted: OffsetRange, topic_id: bytes) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.topic_id = topic_id


class TidelogReader(DataSourceReader):
    """Plans ranges once, then reads each of them in a task. Travels to the tasks pickled, without a connection."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[RangePartition]:
        """Return the ranges of this load, as they are now.

        Raises:
            OptionError, DataLossError, TidelogError: as `make_plan`.
        """
        with self._client() as client:
            plan = make_plan(self._options, client)
        for warning in plan.warnings:
            _LOG.warning("%s", warning)
        return [RangePartition(wanted, plan.topic_ids[wanted.topic]) for wanted in plan.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range.

        Raises:
            DataLossError, TidelogError: as `read_batches`.
        """
        if not isinstance(partition, RangePartition):  # what Spark makes of an empty list of partitions
            return
        with self._client() as client:
            if self._is_planned_topic(client, partition):
                yield from self._read(client, partition.wanted)

    def _client(self) -> Client:
        return Client(self._options.bootstrap, client_id=_CLIENT_ID, api_key=self._options.api_key)

    def _read(self, client: LogClient, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        def fetch(offset: int) -> Fetched:
            return client.fetch(
                wanted.topic, wanted.partition, offset, max_bytes=FETCH_BYTES, min_bytes=1, wait_ms=_WAIT_MS
            )

        return read_batches(
            wanted,
            fetch,
            self._schema,
            max_records=self._options.max_records_per_batch,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )

    def _is_planned_topic(self, client: LogClient, partition: RangePartition) -> bool:
        """Whether the topic is still the one that the range was planned for; if not, its records are lost."""
        topic = partition.wanted.topic
        try:
            if client.topic(topic).topic_id == partition.topic_id:
                return True
            message = f"topic {topic!r} was deleted and made again since this read was planned."
        except UnknownTopicError:
            message = f"topic {topic!r} was deleted since this read was planned."
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message} Load it again.")
        _LOG.warning("%s Its records are skipped.", message)
        return False
