"""Reading of offset ranges of a partition with large fetches and one prefetch.

While the caller consumes one answer, the next fetch is in flight on a thread, so memory is bounded by two answers.
`fetch` is an argument, so that tests can simulate retention and truncation during a read without a node.

Rejected: a subscription, since push delivery suits the end of the log, and several fetches in flight, since partitions
can be read in parallel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from tidelog.errors import OffsetOutOfRangeError
from tidelog.fetch_options import WIRE_COLUMNS, FetchOptions
from tidelog.model import Fetched
from tidelog_proto.batch.record_batch import RecordBatch

FETCH_BYTES: Final = 7 * 1024 * 1024
"""Bytes of one fetch; memory holds two of them. From 8 MiB on the allocator of received batches
(`tidelog_proto.process.buffers`) returns memory to the kernel at once, which then clears the pages for each answer."""
WAIT_MS: Final = 5_000
"""Maximum time for which a fetch waits for records that a node does not have yet; after that they count as lost."""

Fetch = Callable[[int], Fetched]
"""A function that fetches from an offset on, and waits up to `WAIT_MS` for records."""
Lost = Callable[["OffsetRange", int, int], None]
"""Called with a range and the start and end of lost offsets; raises an error if the loss is not acceptable."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The records of one partition with start <= offset < end.

    Attributes:
        topic_id: id of the topic; if empty, the topic with this name at the time of reading is used.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = field(default=b"", compare=False)

    def __len__(self) -> int:
        return self.end - self.start


def fetch_options(span: OffsetRange, schema: pa.Schema | None = None) -> FetchOptions:
    """Return the fetch options for a range and the columns of a schema; None: all columns."""
    options = FetchOptions(max_bytes=FETCH_BYTES, min_bytes=1, wait_ms=WAIT_MS, end_offset=span.end)
    if schema is not None:
        options["columns"] = [name for name in WIRE_COLUMNS if name in schema.names]
    if span.topic_id:
        # Passed in each fetch, because the topic may be deleted and created again between two fetches.
        options["topic_id"] = span.topic_id
    return options


def fetch_range(span: OffsetRange, fetch: Fetch, lost: Lost) -> Iterator[RecordBatch]:
    """Yield the record batches of the range; the last one may extend beyond it.

    Raises:
        TidelogError: as `fetch` and `lost`.
    """
    offset = span.start
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidelog-prefetch") as pool:
        pending = pool.submit(fetch, offset)
        while offset < span.end:
            batches, next_offset = _answer(pending, span, offset, lost)
            if next_offset < span.end:
                pending = pool.submit(fetch, next_offset)
            # A batch caches its decoded columns, which may be much larger, so each is released after it was consumed.
            batches.reverse()
            while batches:
                batch = batches.pop()
                if batch.base_offset < span.end:
                    yield batch
            offset = next_offset


def _answer(pending: Future[Fetched], span: OffsetRange, offset: int, lost: Lost) -> tuple[list[RecordBatch], int]:
    """Wait for a fetch at `offset`; return its batches and the next offset.

    Calls `lost` with the offsets of missing records.
    """
    try:
        fetched = pending.result()
    except OffsetOutOfRangeError as error:
        # Deleted records are skipped up to the new start of the log; beyond the end of the log the range is over.
        next_offset = min(error.log_start_offset, span.end) if error.log_start_offset > offset else span.end
    else:
        if fetched.next_offset > offset:
            return fetched.batches, fetched.next_offset
        next_offset = span.end
    lost(span, offset, next_offset)
    return [], next_offset
