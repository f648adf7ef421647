"""Idempotent producers of a partition: detection of retries, gaps and fenced producers.

The table is a deterministic function of the log, unless the node's limit is reached: applying every batch header of the
partition in order gives the same table for any copy. A snapshot is the table at a position of the log; after it is
restored, the headers after that position are applied.

A producer numbers its records from 0; a batch contains the number of its first record. The next batch must start where
the previous one ended. The newest `SEQUENCE_WINDOW_BATCHES` batches are remembered with their offsets, so that a retry
within the window returns its first offset (as in Kafka, KIP-98; Tidelog's sequence numbers do not wrap, so no epoch is
needed to distinguish an old 0 from a new one).

A fingerprint of the sent content is stored with each batch (`fingerprint_of`). Two producers with the same id and
epoch, for example on a cloned machine, send different batches with the same numbers. The second one is refused with
PRODUCER_ID_SHARED instead of being treated as a retry (ADR 0109). A batch whose body was changed by the owner has no
known fingerprint and is identified by its numbers only.

The table is bounded. Beyond `producers_max`, beyond the limit of the node (`producer_budget`), or after
`PRODUCER_IDLE_S` of log time without an append, the least recently appending producer is *evicted*: the offsets of
its batches are dropped, but its next sequence is kept (`evicted_producers`). It may continue, and retries of stored
batches are refused with DUPLICATE_OUT_OF_WINDOW, even of its first batch. The newest 98,304 evicted producers are kept.
A producer that was dropped entirely, or whose records retention deleted before any snapshot, is unknown: it gets
UNKNOWN_PRODUCER when it continues, and a late retry of its first batch is stored again.

Requests with an idempotency key have reserved producer ids and a table of their own (`idempotency_keys`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog_broker.core.replication.evicted_producers import EvictedProducers
from tidelog_broker.core.replication.idempotency_keys import KeyedRequest, KeyedRequests, is_keyed
from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KEYED_ID_MIN, SEQUENCE_WINDOW_BATCHES

PRODUCERS_MAX: Final = 10_000
"""Maximum number of producers whose newest batches a partition remembers."""
PRODUCERS_MIN: Final = 16
"""Number of producers per partition that are evicted neither for the node's limit nor as idle, because the clock of an
owner may jump by days."""
PRODUCER_IDLE_S: Final = 7 * 24 * 3600
"""Time without an append, by the partition's append timestamps, after which a producer is evicted; much longer than any
client retries a batch."""
_IDLE_US: Final = PRODUCER_IDLE_S * 1_000_000
_KEPT: Final = slice(1 - SEQUENCE_WINDOW_BATCHES, None)
"""Slice of a full window that is kept when a batch is added."""
_CONTROL: Final = int(Flags.CONTROL)
"""A plain int, because operations on enum flags take a microsecond."""


class PlacedBatch(NamedTuple):
    """A batch with offsets: its sequence numbers, its offsets, and the records dropped from it.

    It may not be written or committed yet. A producer's window keeps its newest ones, with which retries are detected.

    Attributes:
        duplicates: number of records of the sent batch that were dropped as duplicates.
        dropped: bitmap of the dropped records; empty if no record was dropped or the bitmap is no longer known.
        fingerprint: fingerprint of the content as sent, see `fingerprint_of`; None if unknown.
    """

    base_sequence: int
    end_sequence: int
    base_offset: int
    end_offset: int
    epoch: int
    append_timestamp_us: int
    duplicates: int = 0
    dropped: bytes = b""
    fingerprint: int | None = None


@dataclass(slots=True)
class ProducerState:
    """One producer of one partition; `window` is never empty."""

    producer_epoch: int
    window: tuple[PlacedBatch, ...] = ()

    def note(self, stored: PlacedBatch) -> None:
        """Add a batch, dropping the oldest one of a full window."""
        self.window = (*self.window[_KEPT], stored)

    @property
    def end_sequence(self) -> int:
        """The expected sequence of the next batch."""
        return self.window[-1].end_sequence


class ProducerTable:
    """The idempotent producers of one partition, the least recently appending first."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX, known_from: int = 0) -> None:
        assert producers_max > 0
        self.known_from = known_from
        """Offset below which sent batches may be missing from the table; 0 if it is complete."""
        self._producers_max = producers_max
        self._states: OrderedDict[int, ProducerState] = OrderedDict()
        self._evicted = EvictedProducers()
        self._keyed_requests = KeyedRequests()
        self._budget: ProducerBudget | None = None
        self._oldest_us = 0
        """Lower bound, in µs, of the last append times of the producers in `_states`."""
        self.last_append_timestamp_us = 0
        """Append timestamp of the last batch in µs, with or without a producer; later ones are not lower."""

    def __len__(self) -> int:
        """Return the number of producers whose newest batches are remembered."""
        return len(self._states)

    def share(self, budget: ProducerBudget) -> None:
        """Count the producers in the limit of a node from now on; called on the owner of the partition."""
        self._budget = budget
        budget.join(self)
        self._keyed_requests.share(budget.keyed)

    def epoch_of(self, producer_id: int) -> int | None:
        """Return the newest epoch of a producer, or the split of a keyed request; None if the id is unknown."""
        if is_keyed(producer_id):
            request = self._keyed_requests.find(producer_id)
            return None if request is None else request.split
        known = self._states.get(producer_id) or self._evicted.find(producer_id)
        return None if known is None else known.producer_epoch

    def check(self, header: BatchHeader) -> PlacedBatch | None:
        """Check a batch before an offset is assigned to it.

        Returns:
            None if the batch should be appended; for a retry, the batch stored by the first attempt.

        Raises:
            ProtocolError: SEQUENCE_GAP, PRODUCER_FENCED, UNKNOWN_PRODUCER, DUPLICATE_OUT_OF_WINDOW or
                PRODUCER_ID_SHARED.
        """
        if header.producer_id == 0:
            return None
        if header.producer_id >= KEYED_ID_MIN:
            request = self._keyed_requests.check(header)
            return None if request is None else _placed_batch(request)
        state = self._states.get(header.producer_id)
        known = state or self._evicted.find(header.producer_id)
        if known is None:
            if header.base_sequence == 0:
                return None
            raise ProtocolError(
                pb.UNKNOWN_PRODUCER,
                f"producer {header.producer_id:#x} is unknown in this partition, so its batch must start at sequence "
                f"0, got {header.base_sequence}; continue with a new producer id",
            )
        if header.producer_epoch < known.producer_epoch:
            raise ProtocolError(
                pb.PRODUCER_FENCED,
                f"producer {header.producer_id:#x} is fenced: its epoch is {known.producer_epoch}, this batch has "
                f"{header.producer_epoch}; a newer producer with this id has replaced it; close the replaced producer",
            )
        expected = 0
        if header.producer_epoch == known.producer_epoch:
            expected = known.end_sequence if state is None else state.window[-1].end_sequence
        if header.base_sequence == expected:
            return None
        if header.base_sequence > expected:
            raise ProtocolError(
                pb.SEQUENCE_GAP,
                f"expected a batch at sequence {expected} of producer {header.producer_id:#x}, got "
                f"{header.base_sequence}: send batches in order",
            )
        return _find(state.window if state is not None else (), header)

    def apply(self, header: BatchHeader) -> PlacedBatch:
        """Add a batch that has its offset, and return it. Must be called for every batch, in log order."""
        producer_id = header.producer_id
        sequence, base_offset = header.base_sequence, header.base_offset
        stored = PlacedBatch(
            sequence,
            sequence + (header.sequence_span or header.record_count),
            base_offset,
            base_offset + header.last_offset_delta + 1,
            header.epoch,
            header.append_timestamp_us,
            duplicates_in(header) if header.sequence_span else 0,
            fingerprint=fingerprint_of(header),
        )
        self.last_append_timestamp_us = header.append_timestamp_us  # non-decreasing within a log
        if producer_id == 0:
            return stored
        if producer_id >= KEYED_ID_MIN:
            self._keyed_requests.note(producer_id, _request_of(header, stored))
            return stored
        state = self._states.get(producer_id)
        is_new = state is None
        if state is None or state.producer_epoch != header.producer_epoch:
            state = self._states[producer_id] = ProducerState(header.producer_epoch)
        state.window = (*state.window[_KEPT], stored)
        self._states.move_to_end(producer_id)
        if is_new:
            self._make_room()
        if header.append_timestamp_us - self._oldest_us > _IDLE_US and len(self._states) > PRODUCERS_MIN:
            self._evict_idle()
        return stored

    def set_fingerprint(self, header: BatchHeader) -> None:
        """Set the fingerprint of the batch that was applied last, from which duplicate records were dropped.

        Args:
            header: header as received. It is not in the log, so a table rebuilt from the log lacks the fingerprint.
        """
        state = self._states.get(header.producer_id)
        if state is not None and state.window[-1].base_sequence == header.base_sequence:
            *earlier, newest = state.window
            state.window = (*earlier, newest._replace(fingerprint=fingerprint_of(header)))

    def _make_room(self) -> None:
        """Evict the batch window of the least recently appending producer if a new one exceeds a limit."""
        if len(self._states) > self._producers_max:
            self._evict_oldest()
        elif self._budget is not None and not self._budget.take() and len(self._states) > PRODUCERS_MIN:
            self._evict_oldest()
            self._budget.give_back(1)

    def _evict_idle(self) -> None:
        """Evict the batch windows of idle producers; called after an append."""
        before, since_us = len(self._states), self.last_append_timestamp_us - _IDLE_US
        oldest_us = self._oldest_append_us()
        while oldest_us < since_us and len(self._states) > PRODUCERS_MIN:
            self._evict_oldest()
            oldest_us = self._oldest_append_us()
        self._oldest_us = oldest_us
        if self._budget is not None:
            self._budget.give_back(before - len(self._states))

    def _oldest_append_us(self) -> int:
        return next(iter(self._states.values())).window[-1].append_timestamp_us

    def _evict_oldest(self) -> None:
        evicted_id, evicted = self._states.popitem(last=False)
        self._evicted.add(evicted_id, evicted.producer_epoch, evicted.end_sequence)

    def snapshot(self) -> bytes:
        """Return the serialized table, least recently appending producer first."""
        message = pb.ProducerSnapshot(
            silent=self._evicted.snapshot(),
            keyed=self._keyed_requests.snapshot(),
            last_append_timestamp_us=self.last_append_timestamp_us,
            known_from=self.known_from,
        )
        for producer_id, state in self._states.items():
            entry = message.producers.add(producer_id=producer_id, producer_epoch=state.producer_epoch)
            for stored in state.window:
                entry.window.add(
                    base_sequence=stored.base_sequence,
                    record_count=stored.end_sequence - stored.base_sequence,
                    base_offset=stored.base_offset,
                    offset_count=stored.end_offset - stored.base_offset,
                    epoch=stored.epoch,
                    append_timestamp_us=stored.append_timestamp_us,
                    duplicates=stored.duplicates,
                    fingerprint=stored.fingerprint,
                )
        return message.SerializeToString()

    @classmethod
    def restore(cls, payload: bytes, *, producers_max: int = PRODUCERS_MAX) -> ProducerTable:
        """Restore a table from `snapshot`'s bytes, whose integrity the storage has verified.

        Raises:
            DecodeError: the bytes are not a snapshot.
        """
        message = pb.ProducerSnapshot.FromString(payload)
        table = cls(producers_max=producers_max, known_from=message.known_from)
        table._evicted = EvictedProducers.restore(message.silent)
        table._keyed_requests = KeyedRequests.restore(message.keyed)
        table.last_append_timestamp_us = message.last_append_timestamp_us
        for entry in message.producers:
            state = ProducerState(entry.producer_epoch)
            for stored in entry.window:
                state.note(
                    PlacedBatch(
                        base_sequence=stored.base_sequence,
                        end_sequence=stored.base_sequence + stored.record_count,
                        base_offset=stored.base_offset,
                        end_offset=stored.base_offset + stored.offset_count,
                        epoch=stored.epoch,
                        append_timestamp_us=stored.append_timestamp_us,
                        duplicates=stored.duplicates,
                        fingerprint=stored.fingerprint if stored.HasField("fingerprint") else None,
                    )
                )
            table._states[entry.producer_id] = state
            newest_us = state.window[-1].append_timestamp_us if state.window else 0
            # Older snapshots lack this field, but the producers' batches have the times.
            table.last_append_timestamp_us = max(table.last_append_timestamp_us, newest_us)
        return table


def _request_of(header: BatchHeader, stored: PlacedBatch) -> KeyedRequest:
    is_claim = bool(header.flags & _CONTROL) and not header.sequence_span
    return KeyedRequest(
        split=header.producer_epoch,
        digest=header.base_sequence,
        records=0 if is_claim else header.sequences,
        base_offset=stored.base_offset,
        offsets=stored.end_offset - stored.base_offset,
        epoch=stored.epoch,
        append_timestamp_us=stored.append_timestamp_us,
        duplicates=stored.duplicates,
    )


def _placed_batch(request: KeyedRequest) -> PlacedBatch:
    return PlacedBatch(
        base_sequence=request.digest,
        end_sequence=request.digest + request.records,
        base_offset=request.base_offset,
        end_offset=request.base_offset + request.offsets,
        epoch=request.epoch,
        append_timestamp_us=request.append_timestamp_us,
        duplicates=request.duplicates,
    )


def duplicates_in(header: BatchHeader) -> int:
    """Return the number of records dropped as duplicates from a stored batch: all of them for a control batch."""
    kept = 0 if header.flags & Flags.CONTROL else header.record_count
    return header.sequence_span - kept if header.sequence_span else 0


def known_from(snapshot: bytes) -> int:
    """Return the offset below which a snapshot may be incomplete; 0 if it is complete.

    Raises:
        DecodeError: the bytes are not a snapshot.
    """
    return pb.ProducerSnapshot.FromString(snapshot).known_from


def fingerprint_of(header: BatchHeader) -> int | None:
    """Return a fingerprint that distinguishes batches with equal numbers; None if the log lacks the sent content.

    The fingerprint consists of the body's CRC32C and the low half of the base timestamp, because bodies without a
    timestamp column are equal if their records are. Owners change neither unless they drop duplicates. The control
    batch that starts an instance of a named producer has none, because each owner creates it again when it is retried.

    Returns:
        64 bits, which may be 0.
    """
    if header.sequence_span or header.flags & _CONTROL:
        return None
    return header.body_crc << 32 | header.base_timestamp_us & 0xFFFFFFFF


def _find(window: Iterable[PlacedBatch], header: BatchHeader) -> PlacedBatch:
    """Return the first attempt of a retried batch; refuse other content under the same numbers."""
    begin, end = header.base_sequence, header.base_sequence + header.sequences
    for stored in window:
        if stored.base_sequence <= begin < stored.end_sequence:
            same_numbers = (stored.base_sequence, stored.end_sequence) == (begin, end)
            if same_numbers and stored.fingerprint in {None, fingerprint_of(header)}:
                return stored
            raise ProtocolError(
                pb.PRODUCER_ID_SHARED,
                f"producer id {header.producer_id:#x} is used by two producers: another batch is stored with the "
                f"sequences {stored.base_sequence} to {stored.end_sequence - 1}, so this one ({begin} to {end - 1}) is "
                "refused; create a producer in each process and each copy of a machine",
            )
    raise ProtocolError(
        pb.DUPLICATE_OUT_OF_WINDOW,
        f"sequence {begin} of producer {header.producer_id:#x} is older than the remembered batches: the batch is "
        "stored, but its offset is no longer known; do not send it again",
    )
