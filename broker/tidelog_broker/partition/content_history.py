"""Reading back the content hashes of a log's newest records, to build the deduplication window.

After a change of the owner or of the topic's settings, the log is read back from its end, in ranges, until the window
has enough records, a record is too old, or the log begins. Each range is read forwards, about a megabyte per step, so
that each step is short and memory is bounded.
"""

from __future__ import annotations

from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from tidelog_broker.core.deduplication_window import DeduplicationWindow
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.canonical_columns import Int64s
from tidelog_proto.batch.content_hash import ContentHasher, Contents
from tidelog_proto.batch.record_batch import RecordBatch, iter_batches
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import MIB

READ_BYTES: Final = MIB
RANGE_RECORDS: Final = 16_384


class _Part(NamedTuple):
    """The records of one batch."""

    contents: Contents
    offsets: Int64s
    append_us: int


class ContentHistory:
    """Reads back one log. `step` and `fill` run on another thread than the event loop's, one at a time.

    Args:
        log_start: the first offset to read.
        end: the offset from which to read back: the end of the log, or a batch boundary.
        records_max: the number of records after which to stop.
        oldest_us: stop at records appended at this time or earlier; None if age does not matter.
    """

    def __init__(
        self,
        log: PartitionLog,
        hasher: ContentHasher,
        *,
        log_start: int,
        end: int,
        records_max: int,
        oldest_us: int | None,
    ) -> None:
        self._log = log
        self._hasher = hasher
        self._log_start = log_start
        self._records_max = records_max
        self._oldest_us = oldest_us
        self._end = end
        """The end of the current range."""
        self._begin = self.next_offset = max(log_start, end - RANGE_RECORDS)
        self._parts: list[_Part] = []
        self._ranges: list[list[_Part]] = []
        self.count = 0
        self.is_whole = end <= log_start
        """Whether no more has to be read: enough records are read, or a record is too old, or the log begins."""
        self.looked_at = self.next_offset
        """Where the last step has stopped; after a failed step, the offset of the batch that could not be read."""

    def step(self) -> None:
        """Read about a megabyte of the current range.

        Raises:
            ProtocolError: the log no longer has these records, or is damaged.
            StorageError: the disk failed.
        """
        self.looked_at = self.next_offset
        found = self._log.reader.read(self.next_offset, READ_BYTES, limit_offset=self._end)
        batches: list[RecordBatch] = []
        for view in chain.from_iterable(map(iter_batches, found.batches)):
            batches.append(RecordBatch.parse(view, self._log.layouts))
            self.looked_at = batches[-1].end_offset
        if not batches:
            name = self._log.name
            raise ProtocolError(
                pb.EPOCH_CHANGING,
                f"{name.topic}/{name.partition}: offsets {self.next_offset} to {self._end} cannot be read for "
                "deduplication, because this node's log no longer has them; send the batch again",
            )
        if self.next_offset == self._begin:
            self._begin = min(self._begin, batches[0].base_offset)  # The range begins inside a batch.
        for batch in batches:
            if not batch.control and len(batch):
                stamp_us = batch.header.append_timestamp_us
                part = _Part(self._hasher.hashes(batch), batch.offsets().to_numpy(), stamp_us)
                self._parts.append(part)
                self.count += len(part.offsets)
        self.next_offset = batches[-1].end_offset
        if self.next_offset >= self._end:
            self._go_back()

    def _go_back(self) -> None:
        parts, self._parts = self._parts, []
        self._ranges.append(parts)
        is_old = self._oldest_us is not None and any(part.append_us <= self._oldest_us for part in parts)
        self._end = self._begin
        self.is_whole = self._end <= self._log_start or self.count >= self._records_max or is_old
        self._begin = self.next_offset = max(self._log_start, self._end - RANGE_RECORDS)

    def fill(self, window: DeduplicationWindow) -> None:
        """Add the newest records that fit to a new window, whose memory is already reserved."""
        parts = list(chain.from_iterable(reversed(self._ranges)))
        over = self.count - self._records_max
        for contents, offsets, append_us in parts:
            skipped = min(max(over, 0), len(offsets))
            over -= skipped
            if skipped < len(offsets):
                window.add(contents[skipped:], offsets[skipped:], np.full(len(offsets) - skipped, append_us))
