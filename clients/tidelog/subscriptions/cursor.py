"""A consumer's position: which records were delivered, and the rest of the current batch. No I/O.

The asynchronous and the blocking consumer share `Cursor`, so a record counts as delivered under the same conditions in
both. The records of the current batch come from an iterator over whole columns, without bookkeeping per record; the
position is derived from the iterator's progress when it is needed. After a record that does not decode, a new iterator
starts over the same columns, so skipping costs the same at any index.

In the blocking client one thread takes records while another one removes partitions: a lock guards changes of the
current batch, and emptying the list of values under the iterator ends it immediately.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from operator import length_hint
from typing import Final, NamedTuple

from tidelog.errors import RecordError, UsageError, error_of_local
from tidelog.model import ConsumedBatch, Record, TopicPartition
from tidelog.subscriptions.batch_records import BatchRecords
from tidelog.subscriptions.deserializers import Decoding
from tidelog.subscriptions.row_view import RowView
from tidelog_proto.errors import ProtocolError

SKIP_SLICE_S: Final = 0.01
"""How long undecodable records are skipped in a row before the event loop runs other tasks."""


class Undecodable(NamedTuple):
    """A record that does not decode, in encoded form, and the exception."""

    record: Record
    error: Exception


class SkippedRange(NamedTuple):
    """Offsets between the last delivered record and the position, which the cursor skipped without a delivery.

    Attributes:
        start: offset after the last delivered record.
        end: offset after the last skipped record.
        has_records: whether undecodable records were skipped, not only batches without records.
    """

    start: int
    end: int
    has_records: bool


class Cursor:
    """Delivers the records of the current batch, and tracks each partition's position, the offset of its next record.

    Attributes:
        records: undelivered records of the current batch. Taking one delivers it.
        skipped: how many records were skipped because they do not decode.
        undecodable: the undecodable record at the position, which must be published as a dead letter before
            `pass_over`.
        losses: how often the group member has lost all partitions without a graceful revocation.
    """

    def __init__(self, decoding: Decoding | None = None, view: RowView | None = None) -> None:
        self.records: Iterator[Record] = iter(())
        self.skipped = 0
        self.undecodable: Undecodable | None = None
        self.losses = 0
        self._resets: dict[TopicPartition, int] = {}
        self._decoding = decoding or Decoding()
        self._view = view or RowView()
        self._positions: dict[TopicPartition, int] = {}
        self._moved: dict[TopicPartition, int] = {}
        self._skipped_ranges: dict[TopicPartition, SkippedRange] = {}
        """The last range of each partition; records delivered after it do not remove it."""
        self._lock = threading.Lock()
        self._rows: BatchRecords | None = None
        """Records of the current batch; kept after the last one was delivered, until the application asks for more."""
        self._unopened: ConsumedBatch | None = None
        self._where = TopicPartition("", 0)
        self._iterator: Iterator[int] = iter(())
        """Iterator over the offsets of `records`; its remaining length gives the number of delivered records."""
        self._in_hand: dict[TopicPartition, int] = {}
        """Partition -> first offset that the application may still process, of batches before the current one."""
        self._left_when_asked = 0
        """Records of the current batch that were left when the application last asked for more."""
        self._polls = False
        """Whether the application holds all records since it last asked for more (`poll`), or only the last one."""
        self.asks = 0
        """How often the application asked for more; each time it has finished everything delivered before."""

    # -------------------------------------------------------------------------------------------- positions

    def asked(self, *, polls: bool = False) -> None:
        """Note that the application asks for more, so it has processed everything delivered so far.

        Args:
            polls: whether the application takes many records at once (`poll`), so that it may process all of them until
                it asks again; otherwise it processes only the record that was delivered last.
        """
        with self._lock:
            self.asks += 1
            self._polls = polls
            self._settle()
            if not length_hint(self._iterator) and self._unopened is None:
                self._drop()
            self._in_hand = {}
            self._left_when_asked = length_hint(self._iterator)

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes whenever the application takes a record or asks for more."""
        return self.asks, length_hint(self._iterator)

    def in_hand(self) -> dict[TopicPartition, int]:
        """Return partition -> first offset that the application may still be processing."""
        with self._lock:
            return self._in_hand | self._in_current_batch()

    def processed(self) -> dict[TopicPartition, int]:
        """Return the positions that moved since `committed`, limited to records that were processed."""
        with self._lock:
            hand = self._in_hand | self._in_current_batch()
            self._settle()
            return {where: min(offset, hand.get(where, offset)) for where, offset in self._moved.items()}

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Return partition -> next offset, for the partitions that are read."""
        with self._lock:
            self._settle()
            return dict(self._positions)

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set the start offsets of new partitions."""
        with self._lock:
            for where, offset in positions.items():
                self._positions.setdefault(where, offset)

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Continue at `offset`; the rest of a loaded batch of this partition is dropped."""
        with self._lock:
            self._leave([where])
            self._skipped_ranges.pop(where, None)
            self._move(where, offset)

    def resets_of(self, where: TopicPartition) -> int:
        """Return how often `forget` and `seek` have reset a partition.

        Records that were received before a reset must not be delivered after it.
        """
        return self._resets.get(where, 0)

    def forget(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Stop delivery of partitions; return the position in each."""
        with self._lock:
            self._leave(partitions)
            for where in partitions:
                self._moved.pop(where, None)
                self._skipped_ranges.pop(where, None)
            return {where: self._positions.pop(where) for where in partitions if where in self._positions}

    def uncommitted(self) -> dict[TopicPartition, int]:
        """Return the positions that moved since `committed`."""
        with self._lock:
            self._settle()
            return dict(self._moved)

    def skipped_ranges(self) -> dict[TopicPartition, SkippedRange]:
        """Return the last skipped range of each partition that has one."""
        with self._lock:
            return dict(self._skipped_ranges)

    def committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that positions are stored."""
        with self._lock:
            for where, offset in positions.items():
                if self._moved.get(where) == offset:
                    del self._moved[where]

    # ------------------------------------------------------------------------------------- the current batch

    @property
    def has_left(self) -> bool:
        """Whether the current batch has undelivered records."""
        return self._unopened is not None or length_hint(self._iterator) > 0

    def load(self, batch: ConsumedBatch) -> None:
        """Load a batch, to be delivered whole (`rest`) or by records (`open`); an empty batch only moves the position.

        Raises:
            UsageError: the current batch `has_left`, which would be lost; nothing is changed.
        """
        with self._lock:
            if self.has_left:
                raise UsageError("the current batch has undelivered records; read them before the next batch is loaded")
            self._settle()
            self._drop()
            self._where = TopicPartition(batch.topic, batch.partition)
            if len(batch):
                self._unopened = batch
            else:
                start = self._positions.get(self._where, batch.batch.end_offset)
                self._move(self._where, batch.batch.end_offset)
                self._note_skipped(start, has_records=False)

    def open(self) -> bool:
        """Decode the columns of the loaded batch; return False if no batch is loaded, or it was opened before.

        Raises:
            CorruptBatchError: the body does not decode; the position stays.
        """
        if self._unopened is None:
            return False
        with self._lock:
            if self._unopened is not None:
                try:
                    rows = BatchRecords(self._unopened, self._decoding, self._view)
                except ProtocolError as error:
                    raise error_of_local(error) from error
                self._rows, self._unopened = rows, None
                self._go_to(rows, 0)
                self._left_when_asked = len(rows)
        return True

    def failed(self, error: Exception) -> None:
        """Apply the configured policy to the record on which `records` raised `error`; then `records` continues.

        If `undecodable` is set, `records` continues only after `pass_over`.

        Raises:
            RecordError: the position stays at the record.
        """
        with self._lock:
            rows = self._rows
            if rows is None or (index := self._rewind_failed(rows)) is None:
                return  # the partition was removed meanwhile
            if self._decoding.skips:
                self.skipped += 1
                self._pass(rows, index)
                return
            if self._decoding.to_dead_letter:
                self.undecodable = Undecodable(rows.as_sent(index), error)
                self.records = iter(())
                return
            where, offset = self._where, rows.offsets[index]
        raise RecordError(
            f"{where.topic}/{where.partition}: the record at offset {offset} does not decode: {error!r}; "
            f"seek to {offset + 1} to continue after it",
            topic=where.topic,
            partition=where.partition,
            offset=offset,
        ) from error

    def again(self) -> None:
        """Rewind to the record on which `records` raised, so that it is delivered next."""
        with self._lock:
            if self._rows is not None:
                self._rewind_failed(self._rows)

    def as_sent(self, record: Record) -> Record | None:
        """Return a record as it was sent; None if the current batch does not have it."""
        with self._lock:
            rows = self._rows
            if rows is None or self._where != TopicPartition(record.topic, record.partition):
                return None
            index = bisect_left(rows.offsets, record.offset)
            return rows.as_sent(index) if index < len(rows) and rows.offsets[index] == record.offset else None

    def pass_over(self, undecodable: Undecodable) -> None:
        """Continue after an undecodable record; no effect if its partition was removed in the meantime."""
        with self._lock:
            if self.undecodable is undecodable and self._rows is not None:
                self.undecodable = None
                self._pass(self._rows, len(self._rows) - length_hint(self._iterator))

    def take(self, count: int, onto: list[Record] | None = None) -> list[Record]:
        """Deliver at most `count` records of the current batch.

        The result is empty if no record is left, if an undecodable record must be skipped first (`pass_over`), or if no
        record decoded for `SKIP_SLICE_S`; `has_left` tells whether records are left.

        Args:
            count: maximum number of records.
            onto: list to append to, so that an interrupted caller keeps the records; a new list by default.

        Returns:
            The list.

        Raises:
            RecordError: see `failed`. Records before it are returned first, and the next call raises.
        """
        records: list[Record] = [] if onto is None else onto
        before, passes_until = len(records), 0.0
        while True:
            try:
                records.extend(islice(self.records, count))
            except Exception as error:  # noqa: BLE001 - the application's deserializer may raise anything
                if len(records) > before:
                    self.again()
                    return records
                self.failed(error)
                passes_until = passes_until or time.monotonic() + SKIP_SLICE_S
                if time.monotonic() < passes_until:
                    continue
                return records
            except KeyboardInterrupt:  # Raised in a deserializer: the record was not delivered.
                self.again()
                raise
            if len(records) > before or not self.open():
                return records

    def still_assigned(self, records: list[Record]) -> list[Record]:
        """Return those records of an earlier `take` whose partition is still read, at a position after the record."""
        positions = self.positions
        return [each for each in records if positions.get(TopicPartition(each.topic, each.partition), -1) > each.offset]

    def rest(self) -> ConsumedBatch | None:
        """Deliver the rest of the current batch as a batch; None if nothing is left."""
        with self._lock:
            left = self._rest()
            if left is not None:
                self._in_hand[self._where] = left.batch.offset_list()[0]
                self._move(self._where, left.batch.end_offset)
            self._drop()
            return left

    def take_back(self, where: TopicPartition) -> ConsumedBatch | None:
        """Drop the rest of the current batch if it is of this partition, and return it; None if nothing is left."""
        with self._lock:
            if self._where != where:
                return None
            left = self._rest()
            self._drop()
            return left

    # --------------------------------------------------------------------------------------------- internals

    def _go_to(self, rows: BatchRecords, index: int) -> None:
        self._iterator, self.records = rows.start(index)

    def _settle(self) -> None:
        """Update the position from the progress in the current batch."""
        rows = self._rows
        if rows is None:
            return
        left = length_hint(self._iterator)
        if left == len(rows):
            return
        # After the last record the position is the batch's end, which may be past a gap. The batch stays loaded,
        # because another thread may still fail to decode its last record.
        offset = rows.offsets[-left - 1] + 1 if left else rows.batch.batch.end_offset
        if self._positions.get(self._where) != offset:  # a later position may be committed already
            self._move(self._where, offset)

    def _in_current_batch(self) -> dict[TopicPartition, int]:
        """Return partition -> first offset of the current batch's records that the application may be processing.

        Empty if the application processes none of them.
        """
        if self._rows is None:
            return {}
        left = length_hint(self._iterator)
        if left >= self._left_when_asked:
            return {}
        first = self._left_when_asked if self._polls else left + 1
        return {self._where: self._in_hand.get(self._where, self._rows.offsets[-first])}

    def _rewind_failed(self, rows: BatchRecords) -> int | None:
        """Rewind to the record on which `records` raised; return its index, None if the batch was replaced."""
        index = len(rows) - length_hint(self._iterator) - 1
        if index < 0:
            return None
        self._go_to(rows, index)
        if self._positions.get(self._where, 0) > rows.offsets[index]:  # `_settle` has run while the record was decoded.
            self._move(self._where, rows.offsets[index])
        # With `poll` the application still holds the records before this one; when iterating, it has processed them.
        if self._polls:
            self._in_hand |= self._in_current_batch()
        self._left_when_asked = length_hint(self._iterator)
        return index

    def _pass(self, rows: BatchRecords, index: int) -> None:
        """Continue after a record that was not delivered."""
        self._settle()
        start = self._positions.get(self._where, rows.offsets[index])
        self._go_to(rows, index + 1)
        self._left_when_asked = length_hint(self._iterator)
        self._settle()
        self._note_skipped(start, has_records=True)

    def _note_skipped(self, start: int, *, has_records: bool) -> None:
        """Note that the position of the current partition has moved from `start` without a delivery."""
        earlier = self._skipped_ranges.get(self._where)
        if earlier is not None and earlier.end == start:
            start, has_records = earlier.start, has_records or earlier.has_records
        self._skipped_ranges[self._where] = SkippedRange(start, self._positions[self._where], has_records)

    def _rest(self) -> ConsumedBatch | None:
        if self._unopened is not None:
            return self._unopened
        self._settle()
        if self._rows is None or not length_hint(self._iterator):
            return None
        left = self._rows.batch.batch.slice_from(self._positions.get(self._where, 0))
        return replace(self._rows.batch, batch=left) if len(left) else None

    def _leave(self, partitions: Collection[TopicPartition]) -> None:
        self._settle()
        for where in partitions:
            self._resets[where] = self._resets.get(where, 0) + 1
        if self._where in partitions:
            self._drop()

    def _drop(self) -> None:
        """Drop the current batch; records that the application is processing still count in `in_hand`."""
        self._in_hand |= self._in_current_batch()
        if self._rows is not None:
            self._rows.values.clear()  # ends the iterators over the values
        self._rows = None
        self._unopened = None
        self.undecodable = None
        self.records = iter(())
        self._iterator = iter(())

    def _move(self, where: TopicPartition, offset: int) -> None:
        self._positions[where] = offset
        self._moved[where] = offset
