"""A Spark task that reads one range of one partition; used by batch reads and streams.

`RangePartition` and `RangeReader` are pickled for the tasks.
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
from pyspark_tidelog.plan import EVERYTHING
from pyspark_tidelog.reader import fetched_schema, read_batches
from pyspark_tidelog.typed_columns import TypedColumns
from pyspark_tidelog.typed_reader import TypedRows, read_rows
from tidelog.client_options import ClientOptions
from tidelog.errors import TidelogError, UnknownTopicError
from tidelog.fetch_options import FetchOptions
from tidelog.model import Fetched
from tidelog.requests.offset_ranges import OffsetRange, fetch_options
from tidelog.requests.record_filters import RecordFilter
from tidelog.sync import Client
from tidelog_proto.schema.topic_schema import Schema

ZONE_VARIABLE: Final = "TIDELOG_ZONE"
"""Environment variable of an executor with its zone, for tasks without the option `zone`."""
KEPT: Final = KeptClient[Client]()
"""The client that this process keeps between tasks."""
_LOG: Final = logging.getLogger(__name__)


@cache
def freeze_loaded_objects() -> None:
    """Exclude all existing objects from garbage collections.

    Spark's worker runs a collection after each task, which examines everything that was ever imported: 90 ms per task
    on a slow core.
    """
    gc.freeze()


def connect(options: ReadOptions) -> Client:
    """Return a new client for the options; the caller closes it."""
    client_options: ClientOptions = {**options.access.client_options, "zone": _zone_of(options)}
    return Client(options.access.bootstrap, **client_options)


def _zone_of(options: ReadOptions) -> str:
    return (options.zone or os.environ.get(ZONE_VARIABLE, "")) if options.nearest else ""


class RangePartition(InputPartition):
    """The range of one task.

    Attributes:
        wanted: the range.
        topic_id: the id that the topic had at planning time; empty if it is unknown.
        pinned: of a typed topic, the schema with which the range was planned first, if it is older than that of the
            DataFrame (`TypedRows`); None otherwise.
    """

    def __init__(self, wanted: OffsetRange, topic_id: bytes, pinned: Schema | None = None) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.topic_id = topic_id
        self.pinned = pinned


class RangeReader:
    """Reads the ranges of a batch read or a stream, each in a task.

    Args:
        options: the parsed options.
        columns: the columns of the rows: those of records, or of a typed topic.

    Attributes:
        narrowed: bounds from the filters of a scan, in addition to those of the options.
    """

    def __init__(self, options: ReadOptions, columns: pa.Schema | TypedColumns) -> None:
        self._options = options
        self._columns = columns
        self.narrowed = EVERYTHING

    def client(self) -> Client:
        """Return a new client for the options; the caller closes it."""
        return connect(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range.

        Raises:
            DataLossError: as `read_batches`; or the topic was deleted or recreated, and `failOnDataLoss` is on.
            TidelogError: as `read_batches`.
        """
        if not isinstance(partition, RangePartition):  # Spark passes None if the list of partitions is empty.
            return
        if TaskContext.get() is not None:
            freeze_loaded_objects()
        # Credentials are pickled for each task, so equal bytes mean equal credentials.
        asked_as = pickle.dumps((self._options.access, _zone_of(self._options)))
        with KEPT.lent(asked_as, self.client) as client:
            try:
                yield from self._read(client, partition)
            except UnknownTopicError as error:
                self._lost_topic(partition.wanted.topic, error)

    def _read(self, client: Client, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        offset_range = partition.wanted
        only = RecordFilter(self._options.key, self._options.tag)
        narrowed = self.narrowed.including(only.key, only.tag)
        columns = self._columns
        rows = TypedRows(columns, partition.pinned) if isinstance(columns, TypedColumns) else columns
        if isinstance(rows, TypedRows):
            options = narrowed.options(fetch_options(offset_range))
            rows.narrow(options, only)
        else:
            options = narrowed.options(fetch_options(offset_range, fetched_schema(rows, only)))
        options["nearest"] = self._options.nearest
        # Each fetch checks the id, because a topic may be recreated in between.
        options["topic_id"] = partition.topic_id
        patient = options | FetchOptions(min_bytes=1)

        def fetched(offset: int, options: FetchOptions) -> Fetched:
            try:
                return client.fetch(offset_range.topic, offset_range.partition, offset, **options)
            # Most errors do not contain the position; Spark shows the note below the error.
            except TidelogError as error:
                error.add_note(
                    f"while a task read topic {offset_range.topic!r}, partition {offset_range.partition}, offset "
                    f"{offset}"
                )
                raise

        def fetch(offset: int) -> Fetched:
            answer = fetched(offset, options)
            if answer.next_offset <= offset and narrowed.leaves_out_records:
                # The node may not have the planned records yet: this request waits for them before they count as lost.
                return fetched(offset, patient)
            return answer

        max_records, fail_on_data_loss = self._options.max_records_per_batch, self._options.fail_on_data_loss
        if isinstance(rows, TypedRows):
            return read_rows(
                offset_range, fetch, rows, max_records=max_records, fail_on_data_loss=fail_on_data_loss, only=only
            )
        return read_batches(
            offset_range, fetch, rows, max_records=max_records, fail_on_data_loss=fail_on_data_loss, only=only
        )

    def _lost_topic(self, topic: str, error: UnknownTopicError) -> None:
        """Raise or log the loss of a topic's records: the topic was deleted or recreated after planning."""
        message = f"topic {topic!r} was deleted or recreated after this read was planned"
        if self._options.fail_on_data_loss:
            raise DataLossError(
                f"{message} ({error}). Create the DataFrame or query again to read the topic that exists now, or set "
                "'failOnDataLoss' to 'false' to skip the deleted records."
            ) from error
        _LOG.warning("%s (%s). Its records are skipped.", message, error)
