"""`spark.readStream.format("tidelog")`: micro-batches of offset ranges, planned on the driver and read in tasks.

One reader exists as long as the query, in its own process next to the driver, with one connection; copies of it are
pickled for the tasks, which have their own connections. Spark stores the positions (`stream_offsets.py`) in its
checkpoint.

Before Spark 4.2, a Python source is asked for the latest offset without the stream's position: then each micro-batch
reads all available records, options that limit it are refused, and lost records and new partitions are only detected
when the micro-batch is planned.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_tidelog.errors import OptionError, TidelogSourceError
from pyspark_tidelog.offsets import split
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.plan import bounds_of, starts_of
from pyspark_tidelog.stream_offsets import (
    Losses,
    PartitionBounds,
    StreamPosition,
    advance,
    backlog_of,
    parse_position,
    ranges_between,
    with_new_partitions,
)
from pyspark_tidelog.task import RangePartition, RangeReader
from pyspark_tidelog.typed_columns import TypedColumns
from tidelog.sync import Client
from tidelog_proto.schema.topic_schema import Schema

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    except ImportError:  # before Spark 4.2

        class SupportsTriggerAvailableNow:
            """Not available in this version of Spark."""


TELLS_START: Final = SupportsTriggerAvailableNow.__module__ != __name__
"""Whether this Spark passes the stream's position when it asks for the end of the next micro-batch."""

WARNINGS_MAX: Final = 1_000
"""Maximum number of losses that are logged per query."""

_LOG: Final = logging.getLogger(__name__)


class TidelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Determines the micro-batches of a stream on the driver, and reads their ranges in tasks.

    Args:
        options: the parsed options.
        columns: the columns of the rows: those of records, or of a typed topic.
        clock: a monotonic clock, for `maxTriggerDelay`.
    """

    def __init__(
        self,
        options: ReadOptions,
        columns: pa.Schema | TypedColumns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._typed = columns.topic if isinstance(columns, TypedColumns) else None
        self._tasks = RangeReader(options, columns)
        self._clock = clock
        self._client: Client | None = None
        self._last_batch_at: float | None = None
        self._target: PartitionBounds | None = None
        """Bounds at the start of a query that stops when it has read them (trigger availableNow)."""
        self._has_begun = False
        self._last_bounds: PartitionBounds | None = None
        """Bounds at the last call of `latestOffset`, for the report that Spark requests right after it."""
        self._warned: set[str] = set()

    def initialOffset(self) -> dict[str, dict[str, int | str]]:  # noqa: N802 - Spark's name
        """Return the starting position of a new query.

        Raises:
            OptionError, DataLossError, TidelogError: as `starts_of`.
        """
        return self._with_schema(starts_of(self._options, self._connected(), self._losses())).to_json()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, object] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, dict[str, int | str]]:
        """Return the end of the next micro-batch; `start` if nothing, or too little, is to be read.

        Args:
            start: start of the next micro-batch; None if Spark does not pass it.
            limit: Spark's limit: the default, or all records at once (`trigger(once=True)`).

        Raises:
            OptionError: the topics do not match the options, or an option needs a newer Spark.
            DataLossError: unread records are missing, and `failOnDataLoss` is on.
            TidelogSourceError: `start` is not a position of this source, or has a later schema than the DataFrame, or
                the typed topic was recreated after the DataFrame was created.
            TidelogError: a request failed.
        """
        if start is None:
            if self._options.max_offsets or self._options.min_offsets:
                raise OptionError(
                    "'maxOffsetsPerTrigger' and 'minOffsetsPerTrigger' need Spark 4.2 or newer: leave them out, or "
                    "upgrade pyspark."
                )
            # With failOnDataLoss, a named topic that does not exist fails the query here: Spark asks for the start only
            # after the end, and an end that lacks the topic would already be in the checkpoint.
            all_named = self._options.fail_on_data_loss
            return self._with_schema(
                _all_of(bounds_of(self._options, self._connected(), all_named=all_named))
            ).to_json()
        begin = parse_position(start)
        self._number_of(begin)
        if self._target is not None and not self._has_begun and _is_ahead(begin, self._target):
            self._target = self._current_bounds()  # The target was determined before the start was known.
        self._has_begun = True
        current = self._target or self._current_bounds()
        end = advance(begin, current, self._losses(), most=getattr(limit, "max_rows", None))
        if not _is_everything(limit) and self._is_too_little(begin, current):
            return begin.to_json()
        if end == replace(begin, schema_numbers={}):
            return begin.to_json()
        self._last_batch_at = self._clock()
        return self._with_schema(end).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a micro-batch from the options; Spark accepts either a maximum or a minimum."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows  # noqa: PLC0415 - 4.2

        most, least = self._options.max_offsets, self._options.min_offsets
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def reportLatestOffset(self) -> dict[str, dict[str, int | str]]:  # noqa: N802 - Spark's name
        """Return the end of all records; its distance from the query's position is the lag."""
        return _all_of(self._last_bounds or self._current_bounds()).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record the current end: this run of the query stops there."""
        self._target = self._current_bounds()

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[RangePartition]:
        """Return the ranges of a micro-batch, which depend only on the positions (except for `with_new_partitions`).

        Raises:
            TidelogSourceError: `start` or `end` is not a position of this source, or `end` has a later schema than the
                DataFrame.
            OptionError: as `split`.
            DataLossError, TidelogError: before Spark 4.2 only, as `with_new_partitions` and `bounds_of`.
        """
        begin, stop = parse_position(start), parse_position(end)
        if not TELLS_START:
            begin = with_new_partitions(begin, stop, self._current_bounds, self._losses())
        self._number_of(begin)
        pinned = self._pinned(stop)
        return [
            RangePartition(each, bytes.fromhex(stop.topic_ids.get(each.topic, "")), pinned)
            for each in split(ranges_between(begin, stop), self._options.min_partitions, self._options.max_records)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range, in a task.

        Raises:
            DataLossError, TidelogError: as `RangeReader.read`.
        """
        return self._tasks.read(partition)

    def stop(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def __getstate__(self) -> dict[str, object]:
        """Pickle without the connection."""
        return {**self.__dict__, "_client": None, "_target": None, "_last_bounds": None, "_warned": set()}

    def _connected(self) -> Client:
        if self._client is None:
            self._client = self._tasks.client()
        return self._client

    def _with_schema(self, position: StreamPosition) -> StreamPosition:
        """Return a position with the number of the schema of the rows up to there, for a typed topic.

        Raises:
            TidelogSourceError: the topic was recreated after the DataFrame was created.
        """
        typed = self._typed
        if typed is None:
            return position
        if typed.name in position.topic_ids:
            typed.check_id(bytes.fromhex(position.topic_ids[typed.name]))
        return replace(position, schema_numbers={typed.name: typed.schema.number})

    def _pinned(self, end: StreamPosition) -> Schema | None:
        """Return the schema with which a micro-batch was planned, if it is older than that of the DataFrame.

        Then the micro-batch is repeated after a restart, and must have the values of its first attempt.
        """
        typed = self._typed
        number = self._number_of(end)
        if typed is None or number in {0, typed.schema.number}:
            return None  # Records of another topic of the same name, number 0, are reported as lost.
        return self._connected().schema(typed.name, number)

    def _number_of(self, position: StreamPosition) -> int:
        """Return the number of the schema of a position, 0 without one.

        Raises:
            TidelogSourceError: it is later than that of the DataFrame, which lacks fields of the rows that were read.
        """
        typed = self._typed
        if typed is None or position.topic_ids.get(typed.name) != typed.topic_id.hex():
            return 0
        newest, number = typed.schema.number, position.schema_numbers.get(typed.name, typed.schema.number)
        if number > newest:
            raise TidelogSourceError(
                f"the checkpoint was written with schema {number} of topic {typed.name!r}, and the DataFrame has "
                f"schema {newest}: leave out the option 'schemaNumber', or set it to {number} or more."
            )
        return number

    def _current_bounds(self) -> PartitionBounds:
        self._last_bounds = bounds_of(self._options, self._connected())
        return self._last_bounds

    def _losses(self) -> Losses:
        return Losses(fail=self._options.fail_on_data_loss, warn=self._warn)

    def _warn(self, what: str) -> None:
        """Log a loss once, because Spark asks several times a second."""
        if what not in self._warned and len(self._warned) < WARNINGS_MAX:
            self._warned.add(what)
            _LOG.warning("%s", what)

    def _is_too_little(self, begin: StreamPosition, current: PartitionBounds) -> bool:
        """Return whether to wait for more records, for at most `maxTriggerDelay` since the last micro-batch.

        False if the query only reads the current records. All available records count: a batch whose maximum equals the
        minimum may be smaller because of rounding.
        """
        least = self._options.min_offsets
        if least is None or self._target is not None:
            return False
        waiting = backlog_of(begin, _all_of(current))
        if not 0 < waiting < least:
            return False
        now = self._clock()
        if self._last_batch_at is None:
            self._last_batch_at = now
        return now - self._last_batch_at < self._options.max_delay_s


def _is_everything(limit: ReadLimit | None) -> bool:
    """Return whether Spark asks for all records regardless of the options; False without a limit (before Spark 4.2)."""
    if limit is None:
        return False
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415 - Spark 4.2

    return isinstance(limit, ReadAllAvailable)


def _all_of(current: PartitionBounds) -> StreamPosition:
    offsets = {at: bounds.high_watermark for at, bounds in current.bounds.items()}
    return StreamPosition(offsets, current.topic_ids)


def _is_ahead(position: StreamPosition, current: PartitionBounds) -> bool:
    bounds = current.bounds
    return any(at not in bounds or offset > bounds[at].high_watermark for at, offset in position.offsets.items())
