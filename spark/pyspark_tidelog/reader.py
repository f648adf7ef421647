"""One Spark task's work: the record batches of one offset range, the next ones on their way meanwhile.

While Spark takes what was fetched, one further fetch is in flight on a thread: memory is bounded by two answers.
`fetch` is passed in, so that everything that can go wrong between planning and reading (retention, a log that
turned out shorter) is tested without a broker.

Rejected: subscribing (push is for the live end; a range is pulled best in large reads) and several fetches in
flight (Spark already reads the partitions in parallel).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from pyspark_tidelog.columns import Joiner, wire_batch
from pyspark_tidelog.errors import DataLossError
from pyspark_tidelog.offsets import OffsetRange
from tidelog.errors import OffsetOutOfRangeError
from tidelog.model import Fetched
from tidelog_proto.batch import RecordBatch

_LOG: Final = logging.getLogger(__name__)

Fetch = Callable[[int], Fetched]
"""Fetches from an offset on; waits a moment when nothing is there yet."""


def read_batches(
    wanted: OffsetRange, fetch: Fetch, schema: pa.Schema, *, max_records: int, fail_on_data_loss: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `wanted`, in order, as Arrow batches of `schema` with at most `max_records` rows.

    Raises:
        DataLossError: records of the range are gone and `fail_on_data_loss` is on; otherwise a warning is logged.
        TidelogError: the client's, when the broker cannot be asked.
    """
    joiner = Joiner(schema, topic=wanted.topic, partition=wanted.partition, max_records=max_records)
    for batch in fetch_range(wanted, fetch, fail_on_data_loss=fail_on_data_loss):
        yield from joiner.add(wire_batch(batch, schema).cut(wanted.start, wanted.end))
    yield from joiner.finish()


def fetch_range(wanted: OffsetRange, fetch: Fetch, *, fail_on_data_loss: bool) -> Iterator[RecordBatch]:
    """Yield the record batches that hold `wanted`, the last perhaps reaching beyond it.

    Raises:
        DataLossError: as `read_batches`.
    """
    offset = wanted.start
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidelog-prefetch") as pool:
        pending = pool.submit(fetch, offset)
        while offset < wanted.end:
            batches, next_offset = _answer(pending, wanted, offset, fail_on_data_loss=fail_on_data_loss)
            if next_offset < wanted.end:
                pending = pool.submit(fetch, next_offset)
            yield from (batch for batch in batches if batch.base_offset < wanted.end)
            offset = next_offset


def _answer(
    pending: Future[Fetched], wanted: OffsetRange, offset: int, *, fail_on_data_loss: bool
) -> tuple[list[RecordBatch], int]:
    """Wait for a fetch at `offset`; return its batches and where to go on, behind what is lost."""
    try:
        fetched = pending.result()
    except OffsetOutOfRangeError as error:
        # Deleted records are skipped up to the new start; behind the log's end there is nothing to go on with.
        next_offset = min(error.log_start_offset, wanted.end) if error.log_start_offset > offset else wanted.end
    else:
        if fetched.next_offset > offset:
            return fetched.batches, fetched.next_offset
        next_offset = wanted.end
    _lost(wanted, offset, next_offset, fail_on_data_loss=fail_on_data_loss)
    return [], next_offset


def _lost(wanted: OffsetRange, start: int, end: int, *, fail_on_data_loss: bool) -> None:
    message = (
        f"{wanted.topic}-{wanted.partition}: offsets {start} to {end - 1} were there when the read was planned "
        "and are gone."
    )
    if fail_on_data_loss:
        raise DataLossError(
            f"{message} Retention may have deleted them: keep more, read sooner, or set 'failOnDataLoss' to 'false'."
        )
    _LOG.warning("%s They are skipped.", message)
