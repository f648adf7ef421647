"""One partition of a producer, without I/O: what is queued, what is in flight, and in which order what is tried again.

Theory of operation. Loads queue up. With nothing in flight the next batch is formed at once from whatever is there;
while something is in flight only full batches follow it (up to `in_flight_max`), so batches grow exactly as much as the
node makes them wait, and no linger time has to be guessed. Records are numbered from 0 as batches are formed; the
node stores a batch only if it begins where the last one ended, so what is in flight is stored in order or not at all.
The line is never longer than `in_flight_max` counted from its oldest unanswered batch, stored ones behind it included:
the node remembers only its newest batches, and a retry must still be recognised.

When a batch fails:

- *retriable* (busy, moved, connection lost, no answer; a partition that the node has not heard of, as the client has):
  the lane waits until nothing is in flight, backs off, and sends everything unacknowledged again, in order, the same
  bytes. News of another owner ends the back-off (`hurry`).
- *SEQUENCE_GAP or UNKNOWN_PRODUCER behind an unacknowledged batch*: its predecessor did not make it; the same.
- *stored, offset forgotten* (DUPLICATE_OUT_OF_WINDOW), or *stored, perhaps not on all* (STORED_ON_QUORUM): its number
  is used up; the error goes to the user.
- *refused*, or past its deadline: the error goes to the user and the batch leaves a **hole** in the numbers. The hole
  stays in line until everything before it is acknowledged and nothing is in flight; then the batches behind it get new
  numbers (`_close_hole`).
- *SEQUENCE_GAP or UNKNOWN_PRODUCER at the head of the line*: the node has forgotten this producer; new numbers for all.
  One that has a name is over then: whether a newer instance has begun, nobody knows there.
- *another producer has the numbers* (PRODUCER_ID_SHARED, a batch is known that was surely not stored before, or the
  node knows an epoch that a lane without a name has not begun): the id is used by two. The batch leaves a hole, and all
  that is behind it goes on under a new id (`producer_id.py`).

New numbers must never let a record be stored twice. Copies of old bytes may still be on their way through a dead
connection. If the hole was certainly not stored, nothing behind it can have been; if no copy of what is behind can be
on its way either, the numbers just move up. Otherwise the lane begins a new producer epoch from 0: the node then
refuses every older copy (the idea is Kafka's, KIP-360). A batch that *may have been stored* under its old number never
gets a new one: its users get `OutcomeUnknownError`. A new id begins at 0, too, with what was not sent, or surely not
stored; where another lane has found that it is time for one, nothing is formed before the line is empty.

A named producer's lane is barred until older instances are fenced in its partition (`producer_instances.py`). The
record that fenced them has number 0, so the lane begins with 1. It has as many epochs as are kept for one instance.

Rejected: a fresh producer id instead of an epoch (a late copy that begins at 0 would be stored), and clearing
"may have been stored" on a later definite answer (it speaks of that attempt only).
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
    error_of_local,
)
from tidelog.produce.batches import BatchState, Chunk, ColumnChunk, ListChunk, OutgoingBatch, join_columns, join_lists
from tidelog.produce.deduplicated_records import DroppedRecords
from tidelog.produce.expiry import encoding_error, expiry_error
from tidelog.produce.producer_id import ProducerId
from tidelog.produce.producer_meter import ProducerMeter
from tidelog_proto.batch.gathered_batch import encode_gathered
from tidelog_proto.batch.header import Codec
from tidelog_proto.batch.record_batch import EncodedBatch, encode_batch
from tidelog_proto.batch.single_record import encode_single
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import BATCH_RECORDS_MAX, EPOCHS_PER_INSTANCE, PRODUCER_IN_FLIGHT_BATCHES_MAX

BATCH_BYTES_TARGET: Final = 2 * 1024 * 1024
BATCH_RECORDS_TARGET: Final = 65_536
RETRY_S_MAX: Final = 0.5
"""The longest step between two tries; nodes that want to be left alone for longer say so."""

TOGETHER_BYTES_MAX: Final = 1024 * 1024
"""Columns of this size are a batch by themselves: more of them are not waited for."""

_SETTLED: Final = frozenset({BatchState.STORED, BatchState.DROPPED})

assert BATCH_RECORDS_TARGET <= BATCH_RECORDS_MAX


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What all lanes of a producer share. `producer_id` (the first one) is never 0: retries must be recognised."""

    producer_id: int
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES_TARGET
    batch_records: int = BATCH_RECORDS_TARGET
    in_flight_max: int = PRODUCER_IN_FLIGHT_BATCHES_MAX
    is_named: bool = False


class PartitionQueue:
    """One partition's queue and flight. Times are the caller's clock, in seconds."""

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
        """`shared_id` is that of all lanes of the producer; without one the lane has one to itself."""
        self.partition = partition
        self.unsettled_bytes = 0
        self.last_send_error: TidelogError | None = None
        """Why nothing could be sent when that was tried last."""
        self.throttled_until = 0.0
        """When a quota, or a node that has too much to do, lets this be sent, as far as that was told."""
        self.producer_id = options.producer_id
        """Of the batches in line."""
        self.producer_epoch = 0
        self.awaits_fencing = options.is_named
        """Whether nothing may be sent before `enter`."""
        self._options = options
        self._shared_id = shared_id or ProducerId(options.producer_id, is_named=options.is_named)
        self._backoff = backoff or Backoff(longest_s=RETRY_S_MAX)
        self._on_settled = on_settled
        self._meter = meter
        self._queue: deque[Chunk] = deque()
        self._queued_bytes = 0
        self._queued_records = 0
        self._line: deque[OutgoingBatch] = deque()
        self._next_sequence = 0
        self._recovering = False
        self._retry_at = 0.0
        self._forgotten = False
        self._fenced: TidelogError | None = None

    # -------------------------------------------------------------------------------------------- queueing

    @property
    def idle(self) -> bool:
        """Whether nothing is queued or unacknowledged. Holes may be left; they are closed before the next batch."""
        return not self._queue and all(batch.state in _SETTLED for batch in self._line)

    @property
    def in_flight(self) -> int:
        """How many batches wait for their answer."""
        return sum(batch.state is BatchState.IN_FLIGHT for batch in self._line)

    @property
    def has_more(self) -> bool:
        """Whether anything is queued, or waits to be sent again."""
        return bool(self._queue) or any(batch.state is BatchState.WAITING for batch in self._line)

    @property
    def first_deadline(self) -> float:
        """When the first of what is queued is given up; infinity with nothing queued."""
        return self._queue[0].deadline if self._queue else math.inf

    @property
    def next_expiry(self) -> float:
        """When the first of what is not in flight is given up; infinity with nothing."""
        waiting = (batch.deadline for batch in self._line if batch.state is BatchState.WAITING)
        return min(next(waiting, math.inf), self.first_deadline)

    def unsettled(self) -> list[Chunk]:
        """Return every load without an outcome."""
        in_line = [chunk for batch in self._line if batch.state not in _SETTLED for chunk in batch.chunks]
        return [*in_line, *self._queue]

    def add(self, chunk: Chunk) -> None:
        """Queue a load."""
        self._queue.append(chunk)
        self._count(chunk, +1)
        self.unsettled_bytes += chunk.size_bytes

    def has_space(self, size_bytes: int) -> bool:
        """Whether a batch is gathering here and `size_bytes` more still fit it."""
        return bool(self._queue) and self._queued_bytes + size_bytes <= self._options.batch_bytes

    # --------------------------------------------------------------------------------------------- sending

    def start_epoch(self, producer_epoch: int) -> None:
        """Begin, as an instance of a named producer: older ones are fenced in the partition."""
        assert self.awaits_fencing
        self.awaits_fencing = False
        self.producer_epoch, self._next_sequence = producer_epoch, 1

    def next_to_send(self, now: float, now_us: int) -> OutgoingBatch | None:
        """Return the next batch to write, counted as in flight from here on; None if there is none now.

        Args:
            now: the clock of deadlines, in seconds.
            now_us: the time for records without a timestamp, µs since 1970.
        """
        self.expire(now)
        if self._shared_id.over is not None and self._fenced is None:
            self._fenced = self._shared_id.over
        if self._fenced is not None:
            self.fail_all(self._fenced)  # nothing is sent any more, so holes are left, whatever still is in flight
            return None
        if self._recovering:
            if self.in_flight or now < self._retry_at:
                return None
            self._recovering = False
        if self._line or self._forgotten:
            self._settle_head()
            for batch in self._line:
                if batch.state is BatchState.DROPPED:
                    return None
                if batch.state is BatchState.WAITING:
                    batch.state = BatchState.IN_FLIGHT
                    return batch
        if len(self._line) >= self._options.in_flight_max or (self._line and not self._full()):
            return None
        if self.producer_id != self._shared_id.number:
            if self._line:
                return None  # it ends under the old id, so that nothing overtakes it
            self._take_new_id()
        return self._form(now_us)

    def wake_at(self) -> float | None:
        """Return when `next_to_send` is worth asking again without any answer in between; None for never."""
        return self._retry_at if self._recovering and not self.in_flight else None

    def retry_now(self) -> None:
        """Do not wait any longer before the next try: who is asked now is not the one who failed."""
        if self._recovering:
            self._retry_at = 0.0
            self._backoff.reset()

    def _full(self) -> bool:
        """Whether a batch is not worth waiting for any longer: one more like the last columns would not fit it."""
        if not self._queue:
            return False
        options, first, last = self._options, self._queue[0], self._queue[-1]
        if isinstance(first, ListChunk) and first.full:
            return True
        next_bytes, next_records = (last.size_bytes, last.count) if isinstance(last, ColumnChunk) else (1, 1)
        return (
            self._queued_bytes + next_bytes > options.batch_bytes
            or self._queued_records + next_records > options.batch_records
            or first.size_bytes >= TOGETHER_BYTES_MAX
        )

    def _form(self, now_us: int) -> OutgoingBatch | None:
        while self._queue:
            chunks = self._take_chunks()
            try:
                encoded = self._encoded(chunks, now_us)
            except Exception as error:  # noqa: BLE001 - nobody else has these loads any more: they would never end
                # No number was used up, so the lane just goes on with what is behind.
                self._fail(chunks, error_of_local(error) if isinstance(error, ProtocolError) else encoding_error(error))
                continue
            deadline = min([chunk.deadline for chunk in chunks])
            batch = OutgoingBatch(chunks, encoded, self._next_sequence, deadline, BatchState.IN_FLIGHT)
            self._next_sequence += batch.count
            self._line.append(batch)
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
        loose = [chunk for chunk in chunks if isinstance(chunk, ListChunk)]
        columns = [join_lists(loose)] if loose else [chunk.columns() for chunk in chunks]
        if options.codec is Codec.NONE:
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
        )

    def _take_chunks(self) -> list[Chunk]:
        """Take loads for one batch: at least one, past the first only what fits and has the same columns."""
        options, queue = self._options, self._queue
        first = queue.popleft()
        self._count(first, -1)
        chunks = [first]
        size_bytes, records = first.size_bytes, first.count
        schema = first.columns().schema if isinstance(first, ColumnChunk) else None
        while queue:
            chunk = queue[0]
            size_bytes += chunk.size_bytes
            records += chunk.count
            if (
                size_bytes > options.batch_bytes
                or records > options.batch_records
                or not _is_same_kind(first, schema, chunk)
            ):
                break
            chunks.append(queue.popleft())
            self._count(chunk, -1)
        return chunks

    def _count(self, chunk: Chunk, sign: int) -> None:
        self._queued_bytes += sign * chunk.size_bytes
        self._queued_records += sign * chunk.count

    # -------------------------------------------------------------------------------------------- settling

    def acknowledged(
        self, batch: OutgoingBatch, base_offset: int, timestamp_us: int, drops: DroppedRecords | None = None
    ) -> None:
        """A batch is stored; `drops` where some of its records were dropped."""
        assert batch.state is BatchState.IN_FLIGHT
        batch.state = BatchState.STORED
        self.last_send_error, self.throttled_until = None, 0.0
        self._advance()
        self._backoff.reset()
        batch.succeed(base_offset, timestamp_us, drops)
        self._settled(batch.chunks)

    def failed(self, batch: OutgoingBatch, error: TidelogError, now: float) -> None:
        """An attempt failed; decide what that means (see the module's theory of operation)."""
        assert batch.state is BatchState.IN_FLIGHT
        batch.state = BatchState.WAITING
        if isinstance(error, DuplicateOutOfWindowError) and not batch.maybe_stored:
            error = foreign_duplicate_error(error)
        elif isinstance(error, ProducerFencedError) and not self._options.is_named:
            error = _foreign_epoch_error(error)
        batch.last_error = error
        batch.maybe_stored |= not error.definite
        if isinstance(error, OverloadedError) and error.retry_after_ms:
            self.hold_until(now + error.retry_after_ms / 1000, error)
        at_head = self._line[0] is batch
        if isinstance(error, ProducerFencedError):
            self._fence(error)
        elif isinstance(error, ProducerIdSharedError):
            self._replace_shared_id(batch, error, now)
        elif isinstance(error, (SequenceGapError, UnknownProducerError)) and at_head and self._options.is_named:
            self._fence(_instance_over_error(f"partition {self.partition} does not know it any more: {error}", error))
        elif isinstance(error, (SequenceGapError, UnknownProducerError)):
            self._forgotten |= at_head
            self._recover(now + self._backoff.next_wait_s() if at_head else max(now, self._retry_at))
        elif error.retriable or isinstance(error, UnknownPartitionError):
            # A partition that the client knows of exists: the node has not heard yet that the topic has grown.
            # One step for one disturbance, however many batches it hit.
            if not self._recovering or at_head:
                self._recover(now + self._backoff.next_wait_s(error.retry_after_ms))
        elif isinstance(error, (DuplicateOutOfWindowError, StoredOnQuorumError)):
            batch.state = BatchState.STORED
            self._advance()
            self._fail(batch.chunks, error)
        else:
            self._drop(batch, error)
            self._recover(max(now, self._retry_at))

    def is_foreign_duplicate(self, batch: OutgoingBatch) -> bool:
        """Whether a batch that a node says it has known before was surely not stored by any earlier attempt."""
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
        """Nothing may be sent before that."""
        self.throttled_until, self.last_send_error = until, why

    def expire(self, now: float, *, by: float | None = None) -> None:
        """Give up what is past its deadline and not in flight; `by`: also what will be by then."""
        by, left_s = now if by is None else max(by, now), self.throttled_until - now
        for batch in self._line:
            if batch.state is BatchState.WAITING and batch.deadline <= by:
                self._drop(batch, expiry_error(batch.last_error, definite=not batch.maybe_stored, held_s=left_s))
        while self._queue and self._queue[0].deadline <= by:
            chunk = self._queue.popleft()
            self._count(chunk, -1)
            self._fail([chunk], expiry_error(self.last_send_error, definite=True, queued=True, held_s=left_s))

    def fail_all(self, error: TidelogError) -> None:
        """Give up everything that is not in flight: there is nowhere to send it."""
        for batch in self._line:
            if batch.state is BatchState.WAITING:
                self._drop(batch, error)
        queued = list(self._queue)
        self._queue.clear()
        for chunk in queued:
            self._count(chunk, -1)
        self._fail(queued, error)

    def _advance(self) -> None:
        """Take what is stored from the head of the line."""
        while self._line and self._line[0].state is BatchState.STORED:
            self._line.popleft()

    def _recover(self, retry_at: float) -> None:
        self._recovering = True
        self._retry_at = retry_at

    def _drop(self, batch: OutgoingBatch, error: TidelogError) -> None:
        """Leave a hole in the place of a batch."""
        batch.state = BatchState.DROPPED
        if batch.maybe_stored and error.definite:
            unknown = OutcomeUnknownError(
                f"{error}; an earlier attempt ended with an unknown outcome, so the records may be stored",
                code=error.code,
            )
            unknown.__cause__ = error
            error = unknown
        self._fail(batch.chunks, error)

    def _settle_head(self) -> None:
        """Close holes that have reached the head of the line."""
        while self._fenced is None and ((self._line and self._line[0].state is BatchState.DROPPED) or self._forgotten):
            # Whatever makes a hole makes the lane recover, and that waits for all answers; batches are sent again in
            # order, so behind a hole at the head nothing has left yet.
            assert not self.in_flight
            self._close_hole()
            self._advance()

    def _close_hole(self) -> None:
        """Give the line behind a hole (or all of it, when the producer was forgotten) new numbers."""
        hole = None if self._forgotten else self._line.popleft()
        self._forgotten = False
        is_shared = self.producer_id != self._shared_id.number
        # Of what is behind something may be stored all the same, behind what another producer has stored in its place.
        uncertain = hole is None or hole.maybe_stored or is_shared
        behind = list(self._line)
        self._line.clear()
        if is_shared:
            self._take_new_id()
        elif hole is None or uncertain or any(batch.maybe_stored for batch in behind):
            if self._options.is_named and (self.producer_epoch + 1) % EPOCHS_PER_INSTANCE == 0:
                self._line.extend(behind)
                self._fence(
                    _instance_over_error(f"it had to begin anew {EPOCHS_PER_INSTANCE - 1} times in one partition", None)
                )
                return
            self.producer_epoch += 1
            self._next_sequence = 0
        else:
            self._next_sequence = hole.base_sequence
        stored_at = [at for at, batch in enumerate(behind) if is_shared and batch.state is BatchState.STORED]
        for at, batch in enumerate(behind):
            if batch.state in _SETTLED:
                continue
            if uncertain and batch.maybe_stored:
                self._fail(batch.chunks, _unknown_outcome_error(batch))
                continue
            if stored_at and at < stored_at[-1]:
                self._fail(batch.chunks, _overtaken_error())
                continue
            batch.renumber(
                producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=self._next_sequence
            )
            self._next_sequence += batch.count
            self._line.append(batch)

    def _fail(self, chunks: Sequence[Chunk], error: TidelogError) -> None:
        for chunk in chunks:
            chunk.delivery.fail(error)
        if self._meter is not None:
            self._meter.failed(chunks, error)
        self._settled(chunks)

    def _settled(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.unsettled_bytes -= chunk.size_bytes
            self._on_settled(chunk)
        if self._meter is not None:
            self._meter.report_buffered()


def _is_same_kind(first: Chunk, schema: pa.Schema | None, chunk: Chunk) -> bool:
    """Tell whether a load has the same kind of columns as the first one, of this schema if it has columns already."""
    if isinstance(chunk, ListChunk):
        return isinstance(first, ListChunk) and chunk.timestamped == first.timestamped
    return schema is not None and chunk.columns().schema.equals(schema)


def _instance_over_error(why: str, cause: TidelogError | None) -> ProducerFencedError:
    """Return the error of a named producer that can no longer tell whether it is the newest instance."""
    error = ProducerFencedError(f"this instance of a named producer is over, {why}; begin another one", definite=True)
    error.__cause__ = cause
    return error


def foreign_duplicate_error(cause: TidelogError | None = None) -> ProducerIdSharedError:
    """Return the error of a batch that a node has known before it was sent for the first time."""
    error = ProducerIdSharedError(
        "the node has known the numbers of these records before they were sent for the first time: the id of this "
        "producer is used by two, and the records are not stored",
        definite=True,
    )
    error.__cause__ = cause
    return error


def _foreign_epoch_error(cause: ProducerFencedError) -> ProducerIdSharedError:
    """Return the error of a batch behind whose epoch there is a newer one, which the lane has not begun."""
    error = ProducerIdSharedError(
        "the id of this producer is used by two, and the other one has begun anew; the records are not stored",
        definite=True,
    )
    error.__cause__ = cause
    return error


def _overtaken_error() -> ProducerIdSharedError:
    """Return the error of a batch behind which another one is stored, in the place that it should have had."""
    return ProducerIdSharedError(
        "the id of this producer is used by two; records that came later are stored already, and these are not, as "
        "they would lie behind them",
        definite=True,
    )


def _unknown_outcome_error(batch: OutgoingBatch) -> OutcomeUnknownError:
    """Return the error of a batch that must not get a new number."""
    error = OutcomeUnknownError(
        f"the numbers of this producer had to begin anew after an attempt with an unknown outcome "
        f"({batch.last_error}): the records may be stored; sending them again could store them twice"
    )
    error.__cause__ = batch.last_error
    return error
