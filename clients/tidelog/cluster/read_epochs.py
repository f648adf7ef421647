"""The epochs of the records that a client has read, so that positions carry the epoch of the record before them.

An offset alone does not identify the last record read. After a log was truncated, other records reuse the offsets of
the lost ones, and a reader that continues there would skip them unnoticed. With the epoch, the owner can detect that
the epoch ended before the position. Only records that were read count, not those that were only acknowledged: readers
receive committed records, which are truncated only by an unsafe recovery or when more replicas are lost than the quorum
tolerates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from tidelog.cluster.known_ends import PARTITIONS_MAX, KnownEnds
from tidelog.model import TopicPartition
from tidelog_proto.batch.record_batch import RecordBatch

EPOCHS_MAX: Final = 3
"""Maximum number of epochs of a partition that are remembered: those read last."""

_Key = tuple[bytes, int]
_V = TypeVar("_V")


class ReceivedBatch(Protocol):
    """The interface that `ReceivedEpochs` requires of a batch that a subscription received."""

    @property
    def where(self) -> TopicPartition:
        """Return the batch's partition."""
        ...

    @property
    def batch(self) -> RecordBatch:
        """Return the batch."""
        ...


@dataclass(slots=True)
class EpochRange:
    """The range of offsets that were read in an epoch; all records in the range belong to that epoch."""

    epoch: int
    first_offset: int
    end_offset: int


class ReadEpochs:
    """Remembers the epochs of the records that one client has read, and of the committed positions that it received.

    At most `PARTITIONS_MAX` partitions are remembered; those noted first are evicted first.
    """

    def __init__(self) -> None:
        self._read: dict[_Key, list[EpochRange]] = {}
        """Topic id and partition -> ranges, the most recently read first."""
        self._committed: dict[_Key, tuple[int, int]] = {}
        """Topic id and partition -> committed position, and the epoch of the record before it."""

    def read(self, topic_id: bytes, partition: int, batches: Sequence[RecordBatch]) -> None:
        """Note that consecutive batches were read."""
        key = (topic_id, partition)
        current: EpochRange | None = None
        for batch in batches:
            epoch = epoch_of(batch)
            if epoch is None:
                continue
            if current is not None and current.epoch != epoch:
                self._add(key, current.epoch, current.first_offset, current.end_offset)
                current = None
            first_offset = batch.base_offset if current is None else current.first_offset
            current = EpochRange(epoch, first_offset, batch.end_offset)
        if current is not None:
            self._add(key, current.epoch, current.first_offset, current.end_offset)

    def read_batch(self, topic_id: bytes, partition: int, epoch: int, batch: RecordBatch) -> None:
        """Note that one batch, or a slice of it, was read; faster than `read` if the batch extends the last range."""
        header, known = batch.header, self._read.get((topic_id, partition))
        if known:
            newest = known[0]
            if newest.epoch == epoch and newest.first_offset <= header.base_offset:
                end_offset = header.base_offset + header.last_offset_delta + 1
                newest.end_offset = max(newest.end_offset, end_offset)
                return
        self._add((topic_id, partition), epoch, batch.base_offset, batch.end_offset)

    def _add(self, key: _Key, epoch: int, first_offset: int, end_offset: int) -> None:
        known = self._read.get(key)
        if known is None:
            known = _put_bounded(self._read, key, list[EpochRange]())
        for number, one in enumerate(known):
            if one.epoch == epoch:
                one.first_offset = min(first_offset, one.first_offset)
                one.end_offset = max(end_offset, one.end_offset)
                known.insert(0, known.pop(number))
                return
        known.insert(0, EpochRange(epoch, first_offset, end_offset))
        del known[EPOCHS_MAX:]

    def note_committed(self, topic_id: bytes, partition: int, *, offset: int, epoch: int) -> None:
        """Note a group's committed position and the epoch of the record before it, as stored with the commit."""
        _put_bounded(self._committed, (topic_id, partition), (offset, epoch))

    def committed_epoch(self, topic_id: bytes, partition: int, offset: int) -> int | None:
        """Return the epoch stored with a committed position; None if `offset` is not the position noted last."""
        committed_offset, epoch = self._committed.get((topic_id, partition), (-1, 0))
        return epoch if committed_offset == offset else None

    def at(self, topic_id: bytes, partition: int, offset: int) -> int | None:
        """Return the epoch of the record before an offset; None if it was neither read nor committed with an epoch."""
        for current in self._read.get((topic_id, partition), ()):
            if current.first_offset < offset <= current.end_offset:
                return current.epoch
        return self.committed_epoch(topic_id, partition, offset)


class ReceivedEpochs:
    """Tracks the epoch of the last record that one consumer has received from each partition.

    Args:
        ends: the log ends that the client knows; updated from received batches.
        epochs: the epochs of the records that the client has read; updated from received batches.
    """

    def __init__(self, ends: KnownEnds, epochs: ReadEpochs) -> None:
        self._ends = ends
        self._epochs = epochs
        self._here: dict[TopicPartition, int] = {}

    def begin(self, where: TopicPartition, topic_id: bytes, offset: int) -> None:
        """Start reading a partition at an offset, which may be the group's committed position."""
        self._note(where, self._epochs.committed_epoch(topic_id, where.partition, offset))

    def arrived(self, topic_id: bytes, items: Sequence[ReceivedBatch]) -> None:
        """Note that batches of one partition arrived."""
        where, last = items[-1].where, items[-1].batch
        epoch = epoch_of(last)
        self._note(where, epoch)
        self._ends.note(topic_id, where.partition, epoch=epoch, end_offset=last.end_offset)
        self._epochs.read(topic_id, where.partition, [item.batch for item in items])

    def passed(self, where: TopicPartition, topic_id: bytes, batch: RecordBatch) -> None:
        """Record the epochs of one batch that arrived; `arrived` does so for several batches."""
        header = batch.header
        epoch = header.epoch if header.record_count else epoch_of(batch)
        if epoch is None:
            self._here.pop(where, None)
        else:
            self._here[where] = epoch
            self._epochs.read_batch(topic_id, where.partition, epoch, batch)
        end_offset = header.base_offset + header.last_offset_delta + 1
        self._ends.note(topic_id, where.partition, epoch=epoch, end_offset=end_offset)

    def forget(self, where: TopicPartition) -> None:
        """Forget a partition that is no longer read, or read from another position."""
        self._here.pop(where, None)

    def at(self, where: TopicPartition) -> int | None:
        """Return the epoch of the last record received from a partition; None if unknown."""
        return self._here.get(where)

    def _note(self, where: TopicPartition, epoch: int | None) -> None:
        if epoch is None:
            self._here.pop(where, None)
        else:
            self._here[where] = epoch


def _put_bounded(known: dict[_Key, _V], key: _Key, value: _V) -> _V:
    """Store a value for a partition; if there are too many partitions, evict the one that was stored first."""
    known[key] = value
    if len(known) > PARTITIONS_MAX:
        del known[next(iter(known))]
    return value


def epoch_of(batch: RecordBatch) -> int | None:
    """Return the epoch of a batch; None for a gap that a record filter left, whose epochs are unknown."""
    header = batch.header
    return header.epoch if header.record_count or header.epoch else None
