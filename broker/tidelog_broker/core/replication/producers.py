"""What a partition remembers of its idempotent producers, so that a retry is never stored twice.

The table is a function of the log, as long as its node has room: applying every batch header of the partition in order
gives the same table on any copy of it. A snapshot of it names a position, and what lies behind is applied from headers.

A producer numbers its records from 0 and counts on; a batch names its first number. The next batch must
begin exactly where the last one ended. The newest `SEQUENCE_WINDOW_BATCHES` batches are remembered with
their offsets, so that a retry inside the window gets its first offset back (the idea is Kafka's, KIP-98;
record numbers do not wrap here, so no epoch is needed to tell an old 0 from a new one).

With each goes a fingerprint of what the producer has sent (`fingerprint_of`). Two producers that have one id and epoch,
as in a machine that was copied, send different batches under the same numbers: the second one is refused
(PRODUCER_ID_SHARED), and not taken for a retry of the first (ADR 0109). Of a batch whose body is not the producer's
any more none is known, and it is told by its numbers alone.

The table is bounded. Past `producers_max`, past the limit of its node (`producer_budget`), and when it has appended
nothing for `PRODUCER_IDLE_S` by the log's time, the producer that appended least recently loses its window: where its
batches went is forgotten, where its numbers ended is not (`silent_producers`). It may go on; what it sends again is
refused as DUPLICATE_OUT_OF_WINDOW, also its very first batch. Of the newest 98,304 of those that much is kept. One that
is forgotten for good, or whose records retention has deleted before any snapshot, is as good as new: it gets
UNKNOWN_PRODUCER where it goes on, and its first batch, sent again so late, is stored again.

Requests with an idempotency key have producer ids of their own, and a table of their own (`keyed_requests`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog_broker.core.replication.keyed_requests import KeyedRequest, KeyedRequests, is_keyed
from tidelog_broker.core.replication.producer_budget import ProducerBudget
from tidelog_broker.core.replication.silent_producers import SilentProducers
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import SEQUENCE_WINDOW_BATCHES

PRODUCERS_MAX: Final = 10_000
PRODUCERS_MIN: Final = 16
"""So many a partition knows with their newest batches, however little room its node has, and however idle they are: the
clock of an owner may jump by days."""
PRODUCER_IDLE_S: Final = 7 * 24 * 3600
"""Far more than any client tries to deliver a batch."""
_IDLE_US: Final = PRODUCER_IDLE_S * 1_000_000
_KEPT: Final = slice(1 - SEQUENCE_WINDOW_BATCHES, None)
"""Of a window that gets one more batch."""
_CONTROL: Final = int(Flags.CONTROL)
"""A plain number: to combine one with a flag takes a microsecond."""


class StoredBatch(NamedTuple):
    """Where a batch of a producer went; `duplicates` of its records were dropped, as the log had them already.

    `dropped` tells who published it which, a bit a record; empty where all were, or it is not known any more.
    `fingerprint` is that of what the producer has sent, see `fingerprint_of`; None where that is not known.
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
    """One producer on one partition; `window` is never empty."""

    producer_epoch: int
    window: tuple[StoredBatch, ...] = ()

    def note(self, stored: StoredBatch) -> None:
        """Remember one more batch, and forget the oldest if they are too many."""
        self.window = (*self.window[_KEPT], stored)

    @property
    def end_sequence(self) -> int:
        """The sequence that the next batch must begin with."""
        return self.window[-1].end_sequence


class ProducerTable:
    """producer id -> state, least recently appended first."""

    def __init__(self, *, producers_max: int = PRODUCERS_MAX, known_from: int = 0) -> None:
        assert producers_max > 0
        self.known_from = known_from
        """What was sent below this offset may be missing here; 0 where nothing is."""
        self._producers_max = producers_max
        self._states: OrderedDict[int, ProducerState] = OrderedDict()
        self._silent = SilentProducers()
        self._keyed = KeyedRequests()
        self._budget: ProducerBudget | None = None
        self._oldest_us = 0
        """No producer in `_states` has appended last before this."""
        self.last_append_timestamp_us = 0
        """The append timestamp of the last batch, with a producer or without, in µs: the next one has no earlier."""

    def __len__(self) -> int:
        """How many producers there are whose newest batches are remembered."""
        return len(self._states)

    def share(self, budget: ProducerBudget) -> None:
        """Count among all producers of a node from now on, as the table of one who owns the partition."""
        self._budget = budget
        budget.join(self)
        self._keyed.share(budget.keyed)

    def epoch_of(self, producer_id: int) -> int | None:
        """Return the newest epoch of a producer; None where it is not known."""
        if is_keyed(producer_id):
            request = self._keyed.find(producer_id)
            return None if request is None else request.split
        known = self._states.get(producer_id) or self._silent.find(producer_id)
        return None if known is None else known.producer_epoch

    def check(self, header: BatchHeader) -> StoredBatch | None:
        """Judge a batch before an offset is given to it.

        Returns:
            None for a batch to append; for a retry, where the first attempt went.

        Raises:
            ProtocolError: SEQUENCE_GAP, PRODUCER_FENCED, UNKNOWN_PRODUCER, DUPLICATE_OUT_OF_WINDOW or
                PRODUCER_ID_SHARED.
        """
        if header.producer_id == 0:
            return None
        if is_keyed(header.producer_id):
            request = self._keyed.check(header)
            return None if request is None else _stored_batch(request)
        state = self._states.get(header.producer_id)
        known = state or self._silent.find(header.producer_id)
        if known is None:
            if header.base_sequence == 0:
                return None
            raise ProtocolError(
                pb.UNKNOWN_PRODUCER,
                f"producer {header.producer_id:#x} is not known here and its batch begins at sequence "
                f"{header.base_sequence}; begin again with a new producer id",
            )
        if header.producer_epoch < known.producer_epoch:
            raise ProtocolError(
                pb.PRODUCER_FENCED,
                f"producer {header.producer_id:#x} is at epoch {known.producer_epoch}, this batch at "
                f"{header.producer_epoch}: a newer instance has taken its place",
            )
        expected = known.end_sequence if header.producer_epoch == known.producer_epoch else 0
        if header.base_sequence == expected:
            return None
        if header.base_sequence > expected:
            raise ProtocolError(
                pb.SEQUENCE_GAP,
                f"the batch begins at sequence {header.base_sequence}, {expected} is next: send in order",
            )
        return _find(state.window if state is not None else (), header)

    def apply(self, header: BatchHeader) -> StoredBatch:
        """Note a batch that now has its offset and return where it is. Call it for every batch, in log order."""
        producer_id = header.producer_id
        sequence, base_offset = header.base_sequence, header.base_offset
        stored = StoredBatch(
            sequence,
            sequence + (header.sequence_span or header.record_count),
            base_offset,
            base_offset + header.last_offset_delta + 1,
            header.epoch,
            header.append_timestamp_us,
            duplicates_in(header) if header.sequence_span else 0,
            fingerprint=fingerprint_of(header),
        )
        self.last_append_timestamp_us = header.append_timestamp_us  # they never go back along a log
        if producer_id == 0:
            return stored
        if is_keyed(producer_id):
            self._keyed.note(producer_id, _request_of(header, stored))
            return stored
        state = self._states.get(producer_id)
        is_new = state is None
        if state is None or state.producer_epoch != header.producer_epoch:
            state = self._states[producer_id] = ProducerState(header.producer_epoch)
        state.note(stored)
        self._states.move_to_end(producer_id)
        if is_new:
            self._make_room()
        if header.append_timestamp_us - self._oldest_us > _IDLE_US and len(self._states) > PRODUCERS_MIN:
            self._silence_idle()
        return stored

    def was_sent_as(self, header: BatchHeader) -> None:
        """Note what its producer has sent of the batch that was applied last, of which records were dropped.

        Args:
            header: as it came. The log does not have it, so whoever reads the log knows no fingerprint of that batch.
        """
        state = self._states.get(header.producer_id)
        if state is not None and state.window[-1].base_sequence == header.base_sequence:
            *earlier, newest = state.window
            state.window = (*earlier, newest._replace(fingerprint=fingerprint_of(header)))

    def _make_room(self) -> None:
        """One producer is new: another one falls silent where they are too many."""
        if len(self._states) > self._producers_max:
            self._silence_oldest()
        elif self._budget is not None and not self._budget.take() and len(self._states) > PRODUCERS_MIN:
            self._silence_oldest()
            self._budget.give_back(1)

    def _silence_idle(self) -> None:
        """Have those fall silent that have appended nothing for long; somebody has just now."""
        before, since_us = len(self._states), self.last_append_timestamp_us - _IDLE_US
        oldest_us = self._oldest_append_us()
        while oldest_us < since_us and len(self._states) > PRODUCERS_MIN:
            self._silence_oldest()
            oldest_us = self._oldest_append_us()
        self._oldest_us = oldest_us
        if self._budget is not None:
            self._budget.give_back(before - len(self._states))

    def _oldest_append_us(self) -> int:
        return next(iter(self._states.values())).window[-1].append_timestamp_us

    def _silence_oldest(self) -> None:
        silent_id, silent = self._states.popitem(last=False)
        self._silent.add(silent_id, silent.producer_epoch, silent.end_sequence)

    def snapshot(self) -> bytes:
        """Return the table as bytes, oldest producer first."""
        message = pb.ProducerSnapshot(
            silent=self._silent.snapshot(),
            keyed=self._keyed.snapshot(),
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
        """Rebuild a table from `snapshot`'s bytes (whose integrity the storage has checked).

        Raises:
            DecodeError: they are none.
        """
        message = pb.ProducerSnapshot.FromString(payload)
        table = cls(producers_max=producers_max, known_from=message.known_from)
        table._silent = SilentProducers.restore(message.silent)
        table._keyed = KeyedRequests.restore(message.keyed)
        table.last_append_timestamp_us = message.last_append_timestamp_us
        for entry in message.producers:
            state = ProducerState(entry.producer_epoch)
            for stored in entry.window:
                state.note(
                    StoredBatch(
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
            # A snapshot of before there was the field still tells the time of its producers.
            table.last_append_timestamp_us = max(table.last_append_timestamp_us, newest_us)
        return table


def _request_of(header: BatchHeader, stored: StoredBatch) -> KeyedRequest:
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


def _stored_batch(request: KeyedRequest) -> StoredBatch:
    return StoredBatch(
        base_sequence=request.digest,
        end_sequence=request.digest + request.records,
        base_offset=request.base_offset,
        end_offset=request.base_offset + request.offsets,
        epoch=request.epoch,
        append_timestamp_us=request.append_timestamp_us,
        duplicates=request.duplicates,
    )


def duplicates_in(header: BatchHeader) -> int:
    """Return how many records an owner has dropped of a stored batch: all, of one that is a control batch now."""
    kept = 0 if header.flags & Flags.CONTROL else header.record_count
    return header.sequence_span - kept if header.sequence_span else 0


def known_from(snapshot: bytes) -> int:
    """Return below which offset a snapshot may miss what was sent; 0 where it misses nothing.

    Raises:
        DecodeError: the bytes are no snapshot.
    """
    return pb.ProducerSnapshot.FromString(snapshot).known_from


def fingerprint_of(header: BatchHeader) -> int | None:
    """Return what tells batches of the same numbers apart; None where the log does not have what was sent.

    The body's CRC32C and the low half of the base timestamp: bodies without a timestamp column are equal where their
    records are. Owners change neither, unless they drop duplicates. The control batch with which an instance of a named
    producer begins is made anew by whoever owns the partition when it is tried again.

    Returns:
        64 bits, which also may be 0.
    """
    if header.sequence_span or header.flags & _CONTROL:
        return None
    return header.body_crc << 32 | header.base_timestamp_us & 0xFFFFFFFF


def _find(window: Iterable[StoredBatch], header: BatchHeader) -> StoredBatch:
    """Find the first attempt of a retried batch; refuse what is none, although its numbers are in the window."""
    begin, end = header.base_sequence, header.base_sequence + header.sequences
    for stored in window:
        if stored.base_sequence <= begin < stored.end_sequence:
            same_numbers = (stored.base_sequence, stored.end_sequence) == (begin, end)
            if same_numbers and stored.fingerprint in {None, fingerprint_of(header)}:
                return stored
            raise ProtocolError(
                pb.PRODUCER_ID_SHARED,
                f"the id of this producer, {header.producer_id:#x}, is used by two: another batch was stored with the "
                f"sequences {stored.base_sequence} to {stored.end_sequence - 1}, and this one ({begin} to {end - 1}) "
                "is not stored; go on with another producer, and make one in each process and each copy of a machine",
            )
    raise ProtocolError(
        pb.DUPLICATE_OUT_OF_WINDOW,
        f"sequence {begin} lies behind the remembered batches: it was stored, its offset is forgotten",
    )
