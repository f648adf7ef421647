"""A task of Spark: one range of one partition, read with its Python worker's client. Batch reads and streams share it.

`RangePartition` and `RangeReader` travel to the tasks pickled.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
from collections.abc import Iterator
from functools import cache
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from pyspark_tidelog.errors import DataLossError
from pyspark_tidelog.kept_client import KeptClient
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import EVERYTHING, LogClient
from pyspark_tidelog.reader import fetched_schema, read_batches
from tidelog.client_options import ClientOptions
from tidelog.errors import TidelogError, UnknownTopicError
from tidelog.fetch_options import FetchOptions
from tidelog.model import Fetched
from tidelog.requests.offset_ranges import OffsetRange, fetch_options
from tidelog.requests.record_filters import RecordFilter
from tidelog.sync import Client

ZONE_VARIABLE: Final = "TIDELOG_ZONE"
"""Where an executor says in which zone it runs, if the option `zone` does not."""
KEPT: Final = KeptClient[Client]()
"""Of the tasks of this process."""
_LOG: Final = logging.getLogger(__name__)


@cache
def look_no_more_at_what_is_loaded() -> None:
    """Leave what this process has loaded out of collections of garbage from now on.

    Spark's worker collects after each of its tasks. That looks at everything that was ever imported, which stays
    anyway: 90 ms a task on a slow core, and a query has many.
    """
    gc.freeze()


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
        narrowed: what a scan asks for by its filters; the options narrow it further.
    """

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self.narrowed = EVERYTHING

    def client(self) -> Client:
        """Return a new client as the options say; it is for the caller to close."""
        access = self._options.access
        client_options: ClientOptions = {**access.client_options, "zone": self._zone}
        return Client(access.bootstrap, **client_options)

    @property
    def _zone(self) -> str:
        return (self._options.zone or os.environ.get(ZONE_VARIABLE, "")) if self._options.nearest else ""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range.

        Raises:
            DataLossError, TidelogError: as `read_batches`.
        """
        if not isinstance(partition, RangePartition):  # what Spark makes of an empty list of partitions
            return
        if TaskContext.get() is not None:
            look_no_more_at_what_is_loaded()
        # Credentials travel with each task anew, so they are the same when their bytes are.
        asked_as = pickle.dumps((self._options.access, self._zone))
        with KEPT.lent(asked_as, self.client) as client:
            try:
                yield from self._read(client, partition)
            except UnknownTopicError as error:
                self._lost_topic(partition.wanted.topic, error)

    def _read(self, client: LogClient, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        wanted = partition.wanted
        only = RecordFilter(self._options.key, self._options.tag)
        narrowed = self.narrowed.including(only.key, only.tag)
        options = narrowed.options(fetch_options(wanted, fetched_schema(self._schema, only)))
        options["nearest"] = self._options.nearest
        options["topic_id"] = partition.topic_id  # each fetch: a topic may be made anew between two of them
        patient = options | FetchOptions(min_bytes=1)

        def fetched(offset: int, options: FetchOptions) -> Fetched:
            try:
                return client.fetch(wanted.topic, wanted.partition, offset, **options)
            except TidelogError as error:  # most do not say where; Spark shows the note below the error
                error.add_note(
                    f"while a task read topic {wanted.topic!r}, partition {wanted.partition}, offset {offset}"
                )
                raise

        def fetch(offset: int) -> Fetched:
            answer = fetched(offset, options)
            if answer.next_offset <= offset and narrowed.leaves_out_records:
                # The node does not have the planned records yet: they are lost only if they do not arrive.
                return fetched(offset, patient)
            return answer

        return read_batches(
            wanted,
            fetch,
            self._schema,
            max_records=self._options.max_records_per_batch,
            fail_on_data_loss=self._options.fail_on_data_loss,
            only=only,
        )

    def _lost_topic(self, topic: str, error: UnknownTopicError) -> None:
        """The topic is not, or no more, the one that the range was planned for: its records are lost."""
        message = f"topic {topic!r} was deleted since this read was planned"
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{message} ({error}). Load it again.") from error
        _LOG.warning("%s (%s). Its records are skipped.", message, error)
