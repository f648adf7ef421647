"""The work of one Spark task: the Arrow batches of one offset range."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_tidelog.columns import constants
from pyspark_tidelog.errors import DataLossError, TidelogSourceError
from tidelog.errors import InvalidRequestError, error_of_read
from tidelog.requests.offset_ranges import Fetch, OffsetRange, fetch_range
from tidelog.requests.record_filters import RecordFilter
from tidelog.tables.joined_batches import BatchJoiner, WireBatch, wire_batch
from tidelog_proto.errors import ProtocolError

_LOG: Final = logging.getLogger(__name__)
_EVERY: Final = RecordFilter()


def fetched_schema(schema: pa.Schema, only: RecordFilter) -> pa.Schema:
    """Return the columns to fetch: those of `schema`, and those that the filter `only` compares."""
    for name, value, of in (("key", only.key, pa.binary()), ("tag", only.tag, pa.string())):
        if value is not None and name not in schema.names:
            schema = schema.append(pa.field(name, of))
    return schema


def read_batches(
    offset_range: OffsetRange,
    fetch: Fetch,
    schema: pa.Schema,
    *,
    max_records: int,
    fail_on_data_loss: bool,
    only: RecordFilter = _EVERY,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `offset_range`, in order, as Arrow batches of `schema` with at most `max_records` rows.

    Only records that match `only` are yielded: nodes may send others, too.

    Raises:
        DataLossError: records of the range are missing, and `fail_on_data_loss` is on; otherwise a warning is logged.
        TidelogSourceError: the topic is typed, and `schema` has the column `value`.
        TidelogError: a request of the client failed; CorruptBatchError for a batch that cannot be read.
    """
    joiner = BatchJoiner(schema, constants(offset_range.topic, offset_range.partition), max_records=max_records)

    def lost(offset_range: OffsetRange, start: int, end: int) -> None:
        report_loss(offset_range, start, end, fail_on_data_loss=fail_on_data_loss)

    fetched = fetched_schema(schema, only)
    for batch in fetch_range(offset_range, fetch, lost):
        try:
            records = wire_batch(batch, fetched)
        except ProtocolError as error:
            raise error_of_read(error, offset_range.topic, offset_range.partition, batch.base_offset) from error
        except InvalidRequestError as error:
            raise TidelogSourceError(
                f"topic {offset_range.topic!r} is typed, so its values are rows and no bytes: read it alone, named by "
                "'subscribe' or 'assign', to have its fields as columns (create a DataFrame again that was created "
                "before the topic), or set the option 'columns' without 'value'."
            ) from error
        yield from joiner.add(_matching(records.cut(offset_range.start, offset_range.end), only))
    yield from joiner.finish()


def _matching(records: WireBatch, only: RecordFilter) -> WireBatch:
    for name, value in only._asdict().items():
        if value is not None and records.rows:
            column = records.arrays.get(name)
            if column is None:  # the batch does not have the column
                return records.slice(0, 0)
            records = records.where(pc.equal(column, pa.scalar(value, column.type)))
    return records


def report_loss(offset_range: OffsetRange, start: int, end: int, *, fail_on_data_loss: bool) -> None:
    """Log missing records of a range.

    Raises:
        DataLossError: `fail_on_data_loss` is on.
    """
    message = (
        f"{offset_range.topic}-{offset_range.partition}: offsets {start} to {end - 1} existed when the read was "
        "planned, but are missing now."
    )
    if fail_on_data_loss:
        raise DataLossError(
            f"{message} Retention may have deleted them, or nodes that had them in memory may have restarted: increase "
            f"retention, read sooner, begin at offset {end}, or set 'failOnDataLoss' to 'false'."
        )
    _LOG.warning("%s They are skipped.", message)
