"""In which epochs the records lie that a client has read: a position goes with that of the record in front of it.

An offset alone does not say which record was read last. Where a log had to be cut, other records get the offsets of
those that were lost; whoever goes on there would skip them and not know it. With the epoch the owner can tell: that
epoch ended in front of the position. Only what was read counts here, never what was merely acknowledged: what readers
are shown is committed, and is cut only where an operator goes on without a quorum, or more copies are lost than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from tidelog.cluster.known_ends import PARTITIONS_MAX, Ends
from tidelog.model import TopicPartition
from tidelog_proto.batch.record_batch import RecordBatch

EPOCHS_MAX: Final = 3
"""Of so many epochs of a partition it is remembered what was read, those that were read last."""

_Key = tuple[bytes, int]
_V = TypeVar("_V")


class Arrived(Protocol):
    """A batch of a subscription."""

    @property
    def where(self) -> TopicPartition:
        """Return the batch's partition."""
        ...

    @property
    def batch(self) -> RecordBatch:
        """Return the batch."""
        ...


class Stretch(NamedTuple):
    """What was read of an epoch lies from `first_offset` to `end_offset`, and all between is of that epoch."""

    epoch: int
    first_offset: int
    end_offset: int


class ReadEpochs:
    """What one client has read, and what it was told of groups' positions. Remembers the partitions heard of last."""

    def __init__(self) -> None:
        self._read: dict[_Key, list[Stretch]] = {}
        """The stretch that was read last comes first."""
        self._told: dict[_Key, tuple[int, int]] = {}

    def read(self, topic_id: bytes, partition: int, batches: Sequence[RecordBatch]) -> None:
        """Batches were read, one behind the other."""
        key = (topic_id, partition)
        stretch: Stretch | None = None
        for batch in batches:
            epoch = epoch_of(batch)
            if epoch is None:
                continue
            if stretch is not None and stretch.epoch != epoch:
                self._add(key, *stretch)
                stretch = None
            first_offset = batch.base_offset if stretch is None else stretch.first_offset
            stretch = Stretch(epoch, first_offset, batch.end_offset)
        if stretch is not None:
            self._add(key, *stretch)

    def read_in(self, topic_id: bytes, partition: int, epoch: int, first_offset: int, end_offset: int) -> None:
        """Note that the offsets between two offsets, all of one epoch, were read."""
        self._add((topic_id, partition), epoch, first_offset, end_offset)

    def _add(self, key: _Key, epoch: int, first_offset: int, end_offset: int) -> None:
        known = self._read.get(key)
        if known is None:
            known = _kept(self._read, key, list[Stretch]())
        for number, (its_epoch, its_first, its_end) in enumerate(known):
            if its_epoch == epoch:
                if number or first_offset < its_first or end_offset > its_end:
                    del known[number]
                    known.insert(0, Stretch(epoch, min(first_offset, its_first), max(end_offset, its_end)))
                return
        known.insert(0, Stretch(epoch, first_offset, end_offset))
        del known[EPOCHS_MAX:]

    def told(self, topic_id: bytes, partition: int, *, offset: int, epoch: int) -> None:
        """A group stands at an offset, and whoever committed that had read the record in front of it in an epoch."""
        _kept(self._told, (topic_id, partition), (offset, epoch))

    def told_of(self, topic_id: bytes, partition: int, offset: int) -> int | None:
        """Return the epoch that was told with a position; None where that is not the one that was told of last."""
        told_offset, epoch = self._told.get((topic_id, partition), (-1, 0))
        return epoch if told_offset == offset else None

    def at(self, topic_id: bytes, partition: int, offset: int) -> int | None:
        """Return the epoch of the record in front of an offset; None where that was not read here, and not told."""
        for stretch in self._read.get((topic_id, partition), ()):
            if stretch.first_offset < offset <= stretch.end_offset:
                return stretch.epoch
        return self.told_of(topic_id, partition, offset)


class ArrivedEpochs:
    """The epochs of the records in front of one consumer's positions, as far as they are known.

    Args:
        ends, epochs: the client's, which are told of what arrives.
    """

    def __init__(self, ends: Ends, epochs: ReadEpochs) -> None:
        self._ends = ends
        self._epochs = epochs
        self._here: dict[TopicPartition, int] = {}

    def begin(self, where: TopicPartition, topic_id: bytes, offset: int) -> None:
        """A partition is read from an offset on, which may be where the group stands."""
        self._note(where, self._epochs.told_of(topic_id, where.partition, offset))

    def arrived(self, topic_id: bytes, items: Sequence[Arrived]) -> None:
        """Batches of one partition arrived."""
        where, last = items[-1].where, items[-1].batch
        epoch = epoch_of(last)
        self._note(where, epoch)
        self._ends.note(topic_id, where.partition, epoch=epoch, end_offset=last.end_offset)
        self._epochs.read(topic_id, where.partition, [item.batch for item in items])

    def passed(self, where: TopicPartition, topic_id: bytes, batch: RecordBatch) -> None:
        """One batch of a partition arrived, as in `arrived`."""
        epoch, end_offset = epoch_of(batch), batch.end_offset
        if epoch is None:
            self._here.pop(where, None)
        else:
            self._here[where] = epoch
            self._epochs.read_in(topic_id, where.partition, epoch, batch.base_offset, end_offset)
        self._ends.note(topic_id, where.partition, epoch=epoch, end_offset=end_offset)

    def forget(self, where: TopicPartition) -> None:
        """A partition is read on from elsewhere, or no more."""
        self._here.pop(where, None)

    def at(self, where: TopicPartition) -> int | None:
        """Return the epoch of the record in front of where the arrivals of a partition have ended."""
        return self._here.get(where)

    def _note(self, where: TopicPartition, epoch: int | None) -> None:
        if epoch is None:
            self._here.pop(where, None)
        else:
            self._here[where] = epoch


def _kept(known: dict[_Key, _V], key: _Key, value: _V) -> _V:
    """Remember something of a partition, and let go of the one that was heard of first where there are too many."""
    known[key] = value
    if len(known) > PARTITIONS_MAX:
        del known[next(iter(known))]
    return value


def epoch_of(batch: RecordBatch) -> int | None:
    """Return the epoch of what a batch covers; None where that is what a filter has left out, of epochs not told."""
    header = batch.header
    return header.epoch if header.record_count or header.epoch else None
