"""Ranges of a partition's records, fetched in large reads, the next one on its way meanwhile.

While a caller takes what was fetched, one further fetch is in flight on a thread: memory is bounded by two answers.
`fetch` is passed in, so that everything that can go wrong between planning and reading (retention, a log that turned
out shorter) is tested without a node.

Rejected: subscribing (push is for the live end; a range is pulled best in large reads) and several fetches in flight
(partitions may be read in parallel).
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
"""What one fetch of a range asks for; two of them are held at most. From 8 MiB on the allocator of received batches
(`tidelog_proto.process.buffers`) gives memory back to the kernel at once, which then clears it anew for each answer."""
WAIT_MS: Final = 5_000
"""How long a fetch waits for planned records that a node does not have yet, before they count as lost."""

Fetch = Callable[[int], Fetched]
"""Fetches from an offset on; waits a moment when nothing is there yet."""
Lost = Callable[["OffsetRange", int, int], None]
"""Is told of a range and of the offsets, from and up to, that are gone; raises if that may not be."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The records start <= offset < end of one partition.

    `topic_id` is that of the topic that they are in; empty: of whichever has the name as they are read.
    """

    topic: str
    partition: int
    start: int
    end: int
    topic_id: bytes = field(default=b"", compare=False)

    def __len__(self) -> int:
        return self.end - self.start


def fetch_options(wanted: OffsetRange, schema: pa.Schema) -> FetchOptions:
    """Return how a range is fetched of which these columns are wanted."""
    columns = [name for name in WIRE_COLUMNS if name in schema.names]
    options = FetchOptions(max_bytes=FETCH_BYTES, min_bytes=1, wait_ms=WAIT_MS, columns=columns, end_offset=wanted.end)
    if wanted.topic_id:
        options["topic_id"] = wanted.topic_id  # with each fetch: a topic may be made anew between two of them
    return options


def fetch_range(wanted: OffsetRange, fetch: Fetch, lost: Lost) -> Iterator[RecordBatch]:
    """Yield the record batches that hold `wanted`, the last perhaps reaching beyond it.

    Raises:
        TidelogError: as `fetch` and `lost`.
    """
    offset = wanted.start
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="tidelog-prefetch") as pool:
        pending = pool.submit(fetch, offset)
        while offset < wanted.end:
            batches, next_offset = _answer(pending, wanted, offset, lost)
            if next_offset < wanted.end:
                pending = pool.submit(fetch, next_offset)
            # A batch keeps what it has decoded, which compressed may be very much more: each is let go behind its turn.
            batches.reverse()
            while batches:
                batch = batches.pop()
                if batch.base_offset < wanted.end:
                    yield batch
            offset = next_offset


def _answer(pending: Future[Fetched], wanted: OffsetRange, offset: int, lost: Lost) -> tuple[list[RecordBatch], int]:
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
    lost(wanted, offset, next_offset)
    return [], next_offset
