"""A task of Spark: one range of one partition, read with a connection of its own. Batch reads and streams share it.

`RangePartition` and `RangeReader` travel to the tasks pickled.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_tidelog.errors import DataLossError
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import EVERYTHING, LogClient
from pyspark_tidelog.reader import read_batches
from tidelog.client_options import ClientOptions
from tidelog.errors import UnknownTopicError
from tidelog.model import Fetched
from tidelog.ranges import OffsetRange, fetch_options
from tidelog.sync import Client

ZONE_VARIABLE: Final = "TIDELOG_ZONE"
"""Where an executor says in which zone it runs, if the option `zone` does not."""
_LOG: Final = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task's range, and the id of the topic that it was planned for; empty: it is not known."""

    def __init__(self, wanted: OffsetRange, topic_id: bytes) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.topic_id = topic_id


class RangeReader:
    """Reads ranges.

    Args:
        options: of the read.
        schema: the wanted columns.

    Attributes:
        narrowed: what a query asks for.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self.narrowed = EVERYTHING

    def client(self) -> Client:
        """Return a new client as the options say; it is for the caller to close."""
        access, options = self._options.access, self._options
        zone = (options.zone or os.environ.get(ZONE_VARIABLE, "")) if options.nearest else ""
        client_options: ClientOptions = {**access.client_options, "zone": zone}
        return Client(access.bootstrap, **client_options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range.

        Raises:
            DataLossError, TidelogError: as `read_batches`.
        """
        if not isinstance(partition, RangePartition):  # what Spark makes of an empty list of partitions
            return
        with self.client() as client:
            if self._is_planned_topic(client, partition):
                yield from self._read(client, partition.wanted)

    def _read(self, client: LogClient, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        options = self.narrowed.options(fetch_options(wanted, self._schema))
        options["nearest"] = self._options.nearest

        def fetch(offset: int) -> Fetched:
            return client.fetch(wanted.topic, wanted.partition, offset, **options)

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
            if client.topic(topic).topic_id == partition.topic_id or not partition.topic_id:
                return True
            message = f"topic {topic!r} was deleted and made again since this read was planned."
        except UnknownTopicError:
            message = f"topic {topic!r} was deleted since this read was planned."
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message} Load it again.")
        _LOG.warning("%s Its records are skipped.", message)
        return False
