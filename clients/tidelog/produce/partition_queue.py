"""The queue of one partition of a producer: pending records, batches in flight, and the order of retries. No I/O.

Chunks of records (`batches.py`) are queued. With nothing in flight the next batch is formed at once from the queued
chunks. While a batch is in flight only full batches follow it (up to `in_flight_max`), so batch size follows the node's
latency and no linger time is needed. Records are numbered from 0 as batches are formed. The node stores a batch only if
its first number follows the last stored one, so batches in flight are stored in order or not at all. The list of
batches begins with the first unanswered one and has at most `in_flight_max` entries, including stored ones: the node
remembers only the batches that the producer stored last, and must still recognise a retry.

When a batch fails:

- *retriable* (busy, moved, connection lost, no answer; a partition that the node does not know yet): the queue waits
  until nothing is in flight, backs off, and resends everything unacknowledged, in order, with the same bytes. A change
  of the owner ends the back-off (`retry_now`).
- *SEQUENCE_GAP or UNKNOWN_PRODUCER after an unacknowledged batch*: the preceding batch was not stored; handled in the
  same way.
- *stored, offset forgotten* (DUPLICATE_OUT_OF_WINDOW), or *stored, perhaps not on all* (STORED_ON_QUORUM): the sequence
  numbers are used up; the error goes to the user.
- *refused*, or past its deadline: the error goes to the user and the batch leaves a **hole** in the sequence numbers.
  The hole stays in the list until everything before it is acknowledged and nothing is in flight; then the batches after
  it get new sequence numbers (`_close_hole`).
- *SEQUENCE_GAP or UNKNOWN_PRODUCER for the first batch of the list*: the node has forgotten this producer; all batches
  get new sequence numbers. A named producer fails instead: the node cannot tell whether a newer instance has begun.
- *SCHEMA_MISMATCH or UNKNOWN_SCHEMA*: the queue waits for the newest schema of the topic, and the records that were
  certainly not stored are encoded under it with the same sequence numbers.
- *another producer uses the numbers* (PRODUCER_ID_SHARED, a duplicate of a batch that was certainly not stored before,
  or an epoch that a queue without a name has not begun): two producers use the id. The batch leaves a hole, and the
  batches after it continue under a new id (`producer_id.py`).

New sequence numbers must never let a record be stored twice: copies of the old bytes may still be in a lost connection.
If the hole was certainly not stored, no batch after it was stored either; if no copy of a later batch can be in a
connection, the batches only take the numbers of the hole. Otherwise the queue begins a new producer epoch from 0, and
the node refuses every older copy (as in KIP-360). A batch that *may have been stored* under its old numbers never gets
new ones: the user gets `OutcomeUnknownError`. A new id begins at 0, too, with batches that were not sent or certainly
not stored. When another queue has replaced the id, no batch is formed before the list is empty.

The queue of a named producer sends nothing until older instances are fenced in its partition
(`producer_instances.py`). The record that fenced them has number 0, so the queue begins with 1. It may use as many
epochs as are reserved for one instance.

Rejected: a new producer id instead of an epoch (a late copy that begins at 0 would be stored), and clearing "may have
been stored" after a later definite answer (which is about that attempt only).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from tidelog.base.backoff import Backoff
from tidelog.errors import (
    DuplicateOutOfWindowError,
    OutcomeUnknownError,
    OverloadedError,
    ProducerFencedError,
    ProducerIdSharedError,
    SequenceGapError,
    StoredOnQuorumError,
    TidelogError,
    UnknownPartitionError,
    UnknownProducerError,
)
from tidelog.produce.batches import (
    BatchState,
    Chunk,
    ColumnChunk,
    ListChunk,
    OutgoingBatch,
    columns_of_chunks,
    is_same_kind,
    join_columns,
)
from tidelog.produce.deduplicated_records import DroppedRecords
from tidelog.produce.expiry import expiry_error, local_error
from tidelog.produce.producer_id import ProducerId
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.sequence_errors import (
    SCHEMA_ERRORS,
    foreign_duplicate_error,
    foreign_epoch_error,
    instance_over_error,
    overtaken_error,
    unknown_outcome_error,
)
from tidelog.rows.newer_schema import under_newer_schema
from tidelog_proto.batch.gathered_batch import PART_BYTES_MIN, encode_gathered
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import EncodedBatch, encode_batch
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.batch.single_record import encode_single
from tidelog_proto.limits import BATCH_RECORDS_MAX, EPOCHS_PER_INSTANCE, PRODUCER_IN_FLIGHT_BATCHES_MAX

BATCH_BYTES_TARGET: Final = 2 * 1024 * 1024
BATCH_RECORDS_TARGET: Final = 65_536
RETRY_S_MAX: Final = 0.5
"""Longest back-off between two attempts; a node may ask for a longer one."""

SEPARATE_BATCH_BYTES: Final = 1024 * 1024
"""A chunk of at least this size is sent as a batch without waiting for more."""

_SETTLED: Final = frozenset({BatchState.STORED, BatchState.DROPPED})

assert BATCH_RECORDS_TARGET <= BATCH_RECORDS_MAX


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """The options that all partition queues of a producer share.

    Attributes:
        producer_id: the initial producer id; not 0, so that nodes recognise retries.
    """

    producer_id: int
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES_TARGET
    batch_records: int = BATCH_RECORDS_TARGET
    in_flight_max: int = PRODUCER_IN_FLIGHT_BATCHES_MAX
    is_named: bool = False


class PartitionQueue:
    """Forms the batches of one partition from chunks, and decides which batches are sent again.

    Times are seconds of one clock, which the callers of the methods choose.
    """

    def __init__(
        self,
        partition: int,
        options: QueueOptions,
        *,
        backoff: Backoff | None = None,
        on_settled: Callable[[Chunk], None] = lambda _: None,
        meter: ProducerMeter | None = None,
        shared_id: ProducerId | None = None,
    ) -> None:
        """Create an empty queue.

        Args:
            on_settled: called with each chunk that has an outcome.
            shared_id: the id of all queues of the producer; None: the queue has an id of its own.
        """
        self.partition = partition
        self.unsettled_bytes = 0
        self.last_send_error: TidelogError | None = None
        """The error of the last failed attempt to send."""
        self.throttled_until = 0.0
        """Time until which a quota or an overloaded node delays sending, according to the last answer."""
        self.producer_id = options.producer_id
        """The producer id of the batches in `_batches`."""
        self.producer_epoch = 0
        self.awaits_fencing = options.is_named
        """Whether nothing may be sent before `start_epoch`."""
        self._options = options
        self._shared_id = shared_id or ProducerId(options.producer_id, is_named=options.is_named)
        self._backoff = backoff or Backoff(longest_s=RETRY_S_MAX)
        self._on_settled = on_settled
        self._meter = meter
        self._queue: deque[Chunk] = deque()
        self._queued_bytes = 0
        self._queued_records = 0
        self._batches: deque[OutgoingBatch] = deque()
        self._next_sequence = 0
        self._recovering = False
        self._retry_at = 0.0
        self._producer_forgotten = False
        self._fenced: TidelogError | None = None
        self.awaits_schema = False
        """Whether nothing may be sent before `use_schema`: a node has refused a batch for its schema."""
        self._newest: RowLayout | None = None
        """The layout of the schema under which records are encoded if they have an older one."""

    # -------------------------------------------------------------------------------------------- queue

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or unacknowledged. Holes may remain; they are closed before the next batch."""
        return not self._queue and (not self._batches or all(batch.state in _SETTLED for batch in self._batches))

    @property
    def in_flight(self) -> int:
        """Number of batches without an answer."""
        return sum([batch.state is BatchState.IN_FLIGHT for batch in self._batches]) if self._batches else 0

    @property
    def has_more(self) -> bool:
        """Whether anything is queued or waits to be resent."""
        if self._queue:
            return True
        for batch in self._batches:  # noqa: SIM110 - `any` would run a generator for each batch
            if batch.state is BatchState.WAITING:
                return True
        return False

    @property
    def first_deadline(self) -> float:
        """Earliest deadline of the queued chunks; infinity without any."""
        return self._queue[0].deadline if self._queue else math.inf

    @property
    def next_expiry(self) -> float:
        """Earliest deadline of everything that is not in flight; infinity without any."""
        waiting = (batch.deadline for batch in self._batches if batch.state is BatchState.WAITING)
        return min(next(waiting, math.inf), self.first_deadline)

    def unsettled(self) -> list[Chunk]:
        """Return every chunk without an outcome."""
        in_line = [chunk for batch in self._batches if batch.state not in _SETTLED for chunk in batch.chunks]
        return [*in_line, *self._queue]

    def add(self, chunk: Chunk) -> None:
        """Queue a chunk."""
        self._queue.append(chunk)
        self._queued_bytes += chunk.size_bytes
        self._queued_records += chunk.count
        self.unsettled_bytes += chunk.size_bytes

    def has_space(self, size_bytes: int) -> bool:
        """Return whether chunks are queued and `size_bytes` more fit into their batch."""
        return bool(self._queue) and self._queued_bytes + size_bytes <= self._options.batch_bytes

    # --------------------------------------------------------------------------------------------- sending

    def start_epoch(self, producer_epoch: int) -> None:
        """Start sending as a named instance: older instances are fenced in the partition."""
        assert self.awaits_fencing
        self.awaits_fencing = False
        self.producer_epoch, self._next_sequence = producer_epoch, 1

    def next_to_send(self, now: float, now_us: int) -> OutgoingBatch | None:
        """Return the next batch to write, which counts as in flight from now on; None if no batch can be written now.

        Args:
            now: current time of the clock of deadlines, in seconds.
            now_us: timestamp of records without one, in µs since 1970.
        """
        if self._batches or (self._queue and self._queue[0].deadline <= now):
            self.expire(now)
        if self._shared_id.over is not None and self._fenced is None:
            self._fenced = self._shared_id.over
        if self._fenced is not None:
            self.fail_all(self._fenced)  # Holes remain, because no further batch is sent.
            return None
        if self._recovering:
            if self.in_flight or now < self._retry_at or self.awaits_schema:
                return None
            self._recovering = False
            self._encode_again()
        if self._batches or self._producer_forgotten:
            self._settle_head()
            for batch in self._batches:
                if batch.state is BatchState.DROPPED:
                    return None
                if batch.state is BatchState.WAITING:
                    batch.state = BatchState.IN_FLIGHT
                    return batch
        if len(self._batches) >= self._options.in_flight_max or (self._batches and not self._full()):
            return None
        if self.producer_id != self._shared_id.number:
            if self._batches:
                return None  # Batches of the old id are finished first, so that no later batch overtakes them.
            self._take_new_id()
        return self._form(now_us)

    def wake_at(self) -> float | None:
        """Return when the back-off after a failed attempt ends; None without back-off, or if an answer is due first."""
        is_due = self._recovering and not self.in_flight and not self.awaits_schema
        return self._retry_at if is_due else None

    def retry_now(self) -> None:
        """End the back-off: the owner has changed, so the next attempt goes to another node."""
        if self._recovering:
            self._retry_at = 0.0
            self._backoff.reset()

    def _full(self) -> bool:
        """Return whether the next batch need not wait for more: it is full or large, or another chunk would not fit."""
        if not self._queue:
            return False
        options, first, last = self._options, self._queue[0], self._queue[-1]
        if isinstance(first, ListChunk) and first.full:
            return True
        next_bytes, next_records = (last.size_bytes, last.count) if isinstance(last, ColumnChunk) else (1, 1)
        return (
            self._queued_bytes + next_bytes > options.batch_bytes
            or self._queued_records + next_records > options.batch_records
            or first.size_bytes >= SEPARATE_BATCH_BYTES
        )

    def _form(self, now_us: int) -> OutgoingBatch | None:
        while self._queue:
            chunks = self._take_chunks()
            try:
                encoded = self._encoded(chunks, now_us)
            except Exception as error:  # noqa: BLE001 - otherwise the chunks, which are not queued any more, would never settle
                self._fail(chunks, local_error(error))  # No sequence number was used, so the next chunks are tried.
                continue
            deadline = chunks[0].deadline if len(chunks) == 1 else min([chunk.deadline for chunk in chunks])
            batch = OutgoingBatch(chunks, encoded, self._next_sequence, deadline, BatchState.IN_FLIGHT)
            batch.layout = self._layout_of(chunks)
            self._next_sequence += batch.count
            self._batches.append(batch)
            return batch
        return None

    def _encoded(self, chunks: Sequence[Chunk], now_us: int) -> EncodedBatch:
        options, first = self._options, chunks[0]
        alone = isinstance(first, ListChunk) and len(chunks) == 1 and options.codec is Codec.NONE
        if isinstance(first, ListChunk) and alone and (single := first.single()) is not None:
            return encode_single(
                *single,
                now_us=now_us,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self._next_sequence,
            )
        size_bytes = first.size_bytes if len(chunks) == 1 else sum([chunk.size_bytes for chunk in chunks])
        columns, layout = self._columns(chunks)
        if layout is None and options.codec is Codec.NONE and size_bytes >= len(columns) * PART_BYTES_MIN:
            gathered = encode_gathered(
                columns,
                now_us=now_us,
                producer_id=self.producer_id,
                producer_epoch=self.producer_epoch,
                base_sequence=self._next_sequence,
            )
            if gathered is not None:
                return gathered
        return encode_batch(
            join_columns(columns),
            now_us=now_us,
            codec=options.codec,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self._next_sequence,
            layout=layout,
        )

    def _columns(self, chunks: Sequence[Chunk]) -> tuple[list[pa.RecordBatch], RowLayout | None]:
        """Return the columns of the chunks of one batch, and the layout of their schema; None in untyped topics."""
        columns = columns_of_chunks(chunks)
        layout, target = chunks[0].layout, self._layout_of(chunks)
        if layout is None or target is None or layout is target:
            return columns, layout
        return [under_newer_schema(each, layout, target) for each in columns], target

    def _layout_of(self, chunks: Sequence[Chunk]) -> RowLayout | None:
        """Return the layout under which chunks are encoded; None in untyped topics."""
        layout, newest = chunks[0].layout, self._newest
        return newest if layout is not None and newest is not None and layout.number < newest.number else layout

    def use_schema(self, newest: RowLayout | None) -> None:
        """Encode records of older schemas under this one; None: it is not known, so refused records fail."""
        self.awaits_schema = False
        if newest is not None and (self._newest is None or self._newest.number < newest.number):
            self._newest = newest

    def _encode_again(self) -> None:
        """Encode batches that were refused for their schema under the newest, or fail them. Nothing is in flight."""
        for batch in self._batches:
            refusal = batch.last_error
            if batch.state is not BatchState.WAITING or not isinstance(refusal, SCHEMA_ERRORS):
                continue
            layout, newest = batch.layout, self._newest
            if layout is None or newest is None or layout.number >= newest.number:
                self._drop(batch, refusal)
                continue
            try:
                columns, encoded_layout = self._columns(batch.chunks)
                batch.encode_again(join_columns(columns), self._options.codec, encoded_layout)
            except Exception as error:  # noqa: BLE001 - otherwise the chunks would never settle
                self._drop(batch, local_error(error))

    def _take_chunks(self) -> list[Chunk]:
        """Take the chunks of one batch: the first one, and further ones that fit and have the same columns."""
        options, queue = self._options, self._queue
        first = queue.popleft()
        chunks = [first]
        size_bytes, records = first.size_bytes, first.count
        schema = first.columns.schema if queue and isinstance(first, ColumnChunk) else None
        while queue:
            chunk = queue[0]
            if (
                size_bytes + chunk.size_bytes > options.batch_bytes
                or records + chunk.count > options.batch_records
                or not is_same_kind(first, schema, chunk)
            ):
                break
            chunks.append(queue.popleft())
            size_bytes += chunk.size_bytes
            records += chunk.count
        self._queued_bytes -= size_bytes
        self._queued_records -= records
        return chunks

    def _count_taken(self, chunk: Chunk) -> None:
        self._queued_bytes -= chunk.size_bytes
        self._queued_records -= chunk.count

    # -------------------------------------------------------------------------------------------- results

    def acknowledged(
        self, batch: OutgoingBatch, base_offset: int, timestamp_us: int, drops: DroppedRecords | None = None
    ) -> None:
        """Settle a stored batch; `drops`: the records that the node dropped as duplicates, if any."""
        assert batch.state is BatchState.IN_FLIGHT
        batch.state = BatchState.STORED
        self.last_send_error, self.throttled_until = None, 0.0
        self._remove_stored()
        if self._backoff.failures:
            self._backoff.reset()
        batch.succeed(base_offset, timestamp_us, drops)
        self._notify_settled(batch.chunks)

    def failed(self, batch: OutgoingBatch, error: TidelogError, now: float) -> None:
        """Handle the failure of an attempt to send a batch, as the module's documentation describes."""
        assert batch.state is BatchState.IN_FLIGHT
        batch.state = BatchState.WAITING
        if isinstance(error, DuplicateOutOfWindowError) and not batch.maybe_stored:
            error = foreign_duplicate_error(error)
        elif isinstance(error, ProducerFencedError) and not self._options.is_named:
            error = foreign_epoch_error(error)
        batch.last_error = error
        batch.maybe_stored |= not error.definite
        if isinstance(error, OverloadedError) and error.retry_after_ms:
            self.hold_until(now + error.retry_after_ms / 1000, error)
        at_head = self._batches[0] is batch
        if isinstance(error, ProducerFencedError):
            self._fence(error)
        elif isinstance(error, ProducerIdSharedError):
            self._replace_shared_id(batch, error, now)
        elif isinstance(error, (SequenceGapError, UnknownProducerError)) and at_head and self._options.is_named:
            self._fence(
                instance_over_error(
                    f"the owner of partition {self.partition} no longer has the producer's sequence numbers: {error}",
                    error,
                )
            )
        elif isinstance(error, (SequenceGapError, UnknownProducerError)):
            self._producer_forgotten |= at_head
            self._recover(now + self._backoff.next_wait_s() if at_head else max(now, self._retry_at))
        elif isinstance(error, SCHEMA_ERRORS) and batch.layout is not None and not batch.maybe_stored:
            self.awaits_schema = True
            self._recover(max(now, self._retry_at))
        elif error.retriable or isinstance(error, UnknownPartitionError):
            # An unknown partition is retriable: the client's metadata has it, so the node's is older. Several failed
            # batches count as one back-off step.
            if not self._recovering or at_head:
                self._recover(now + self._backoff.next_wait_s(error.retry_after_ms))
        elif isinstance(error, (DuplicateOutOfWindowError, StoredOnQuorumError)):
            batch.state = BatchState.STORED
            self._remove_stored()
            self._fail(batch.chunks, error)
        else:
            self._drop(batch, error)
            self._recover(max(now, self._retry_at))

    def is_foreign_duplicate(self, batch: OutgoingBatch) -> bool:
        """Return whether a batch that a node reports as a duplicate was certainly not stored by an earlier attempt."""
        assert batch.state is BatchState.IN_FLIGHT
        return not batch.maybe_stored

    def _replace_shared_id(self, batch: OutgoingBatch, error: ProducerIdSharedError, now: float) -> None:
        self._shared_id.give_up(self.producer_id, error)
        if self._shared_id.over is not None:
            self._fence(self._shared_id.over)
        else:
            self._drop(batch, error)
            self._recover(max(now, self._retry_at))

    def _take_new_id(self) -> None:
        self.producer_id = self._shared_id.number
        self.producer_epoch = self._next_sequence = 0

    def _fence(self, error: TidelogError) -> None:
        self._fenced = error
        self.fail_all(error)

    def hold_until(self, until: float, why: OverloadedError) -> None:
        """Set the time before which nothing may be sent, and the error by which a node has requested the delay."""
        self.throttled_until, self.last_send_error = until, why

    def expire(self, now: float, *, by: float | None = None) -> None:
        """Fail records that are not in flight and whose deadline has passed, or will have passed at the time `by`."""
        by, left_s = now if by is None else max(by, now), self.throttled_until - now
        for batch in self._batches:
            if batch.state is BatchState.WAITING and batch.deadline <= by:
                definite = not batch.maybe_stored
                self._drop(batch, expiry_error(batch.last_error, self.partition, definite=definite, held_s=left_s))
        while self._queue and self._queue[0].deadline <= by:
            chunk = self._queue.popleft()
            self._count_taken(chunk)
            error = expiry_error(self.last_send_error, self.partition, definite=True, queued=True, held_s=left_s)
            self._fail([chunk], error)

    def fail_all(self, error: TidelogError) -> None:
        """Fail everything that is not in flight."""
        for batch in self._batches:
            if batch.state is BatchState.WAITING:
                self._drop(batch, error)
        queued = list(self._queue)
        self._queue.clear()
        for chunk in queued:
            self._count_taken(chunk)
        self._fail(queued, error)

    def _remove_stored(self) -> None:
        """Remove stored batches from the head of the list."""
        while self._batches and self._batches[0].state is BatchState.STORED:
            self._batches.popleft()

    def _recover(self, retry_at: float) -> None:
        self._recovering = True
        self._retry_at = retry_at

    def _drop(self, batch: OutgoingBatch, error: TidelogError) -> None:
        """Fail a batch and leave a hole in its place."""
        batch.state = BatchState.DROPPED
        if batch.maybe_stored and error.definite:
            unknown = OutcomeUnknownError(
                f"{error}; an earlier attempt had an unknown outcome, so the records may be stored",
                code=error.code,
            )
            unknown.__cause__ = error
            error = unknown
        self._fail(batch.chunks, error)

    def _settle_head(self) -> None:
        """Close the holes at the head of the list."""
        while self._fenced is None and (
            (self._batches and self._batches[0].state is BatchState.DROPPED) or self._producer_forgotten
        ):
            # A hole starts the recovery, which waits for all answers. Batches are resent in order, so none that follows
            # a hole at the head has been resent yet.
            assert not self.in_flight
            self._close_hole()
            self._remove_stored()

    def _close_hole(self) -> None:
        """Renumber the batches after a hole, or all batches if the node has forgotten the producer."""
        hole = None if self._producer_forgotten else self._batches.popleft()
        self._producer_forgotten = False
        is_shared = self.producer_id != self._shared_id.number
        # Later batches may be stored nevertheless, after the batch that another producer stored with these numbers.
        uncertain = hole is None or hole.maybe_stored or is_shared
        later = list(self._batches)
        self._batches.clear()
        if is_shared:
            self._take_new_id()
        elif hole is None or uncertain or any(batch.maybe_stored for batch in later):
            if self._options.is_named and (self.producer_epoch + 1) % EPOCHS_PER_INSTANCE == 0:
                self._batches.extend(later)
                self._fence(
                    instance_over_error(
                        f"the producer has used all of its {EPOCHS_PER_INSTANCE} epochs in partition {self.partition}",
                        None,
                    )
                )
                return
            self.producer_epoch += 1
            self._next_sequence = 0
        else:
            self._next_sequence = hole.base_sequence
        stored_at = [at for at, batch in enumerate(later) if is_shared and batch.state is BatchState.STORED]
        for at, batch in enumerate(later):
            if batch.state in _SETTLED:
                continue
            if uncertain and batch.maybe_stored:
                self._fail(batch.chunks, unknown_outcome_error(batch))
                continue
            if stored_at and at < stored_at[-1]:
                self._fail(batch.chunks, overtaken_error())
                continue
            batch.renumber(
                producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=self._next_sequence
            )
            self._next_sequence += batch.count
            self._batches.append(batch)

    def _fail(self, chunks: Sequence[Chunk], error: TidelogError) -> None:
        for chunk in chunks:
            chunk.fail(error)
        if self._meter is not None:
            self._meter.failed(chunks, error)
        self._notify_settled(chunks)

    def _notify_settled(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.unsettled_bytes -= chunk.size_bytes
            self._on_settled(chunk)
        if self._meter is not None:
            self._meter.report_buffered()
