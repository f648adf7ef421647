"""Where the user of a consumer is: which records were handed out, and what is left of the batch at hand. No I/O.

The asynchronous and the blocking consumer both use it, so "what was handed out" means the same in both. The records of
the batch at hand come out of an iterator that is made of whole columns; nothing is noted for a single record. Where the
user is follows from how far that iterator has come, when somebody asks.

In the blocking client one thread takes records while another takes partitions away: a lock holds them apart where the
batch at hand changes, and the list of values that the iterator runs over is emptied, so that it ends at once.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

from tidelog.deserializers import Decoding, decoded
from tidelog.errors import RecordError, error_of_local
from tidelog.model import ConsumedBatch, Record, RecordColumns, TopicPartition, record_columns, records_from
from tidelog_proto.batch import RecordBatch
from tidelog_proto.errors import ProtocolError


class Undecodable(NamedTuple):
    """A record that does not decode, as it was sent, and why."""

    record: Record
    error: Exception


class Cursor:
    """Positions of what was handed out, by partition: each the offset of the next record.

    Attributes:
        records: the records of the batch at hand that were not handed out yet. Whoever takes one has been handed it.
        skipped: how many records were passed over because they do not decode.
        undecodable: the record at the position when that does not decode and somebody has to take it away: `pass_over`.
        losses: how often everything was lost to others, and not given up to them in good order.
    """

    def __init__(self, decoding: Decoding | None = None) -> None:
        self.records: Iterator[Record] = iter(())
        self.skipped = 0
        self.undecodable: Undecodable | None = None
        self.losses = 0
        self._departures: dict[TopicPartition, int] = {}
        self._decoding = decoding or Decoding()
        self._decodes = self._decoding.value is not None or self._decoding.key is not None
        self._positions: dict[TopicPartition, int] = {}
        self._moved: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()
        self._batch: ConsumedBatch | None = None
        self._unopened: ConsumedBatch | None = None
        self._where = TopicPartition("", 0)
        self._offsets: Sequence[int] = ()
        self._iterator: Iterator[int] = iter(())
        """Over these. How much is left of it says how many records were handed out."""
        self._values: list[Any] = []
        self._in_hand: dict[TopicPartition, int] = {}
        """Of batches that are used up, taken away or were handed out whole: see `in_hand`."""
        self._left_when_asked = 0
        """Records of the batch at hand that were left when the user last asked for more."""
        self._polls = False
        """The user takes many at once, and has all of them in hand until he asks again; else the last one only."""
        self.asks = 0
        """How often he has asked: he is done with everything that was handed out before."""

    # -------------------------------------------------------------------------------------------- positions

    def asked(self, *, polls: bool = False) -> None:
        """The user asks for more, so he has dealt with all that was handed out so far.

        Args:
            polls: he takes many records at once.
        """
        with self._lock:
            self.asks += 1
            self._polls = polls
            self._in_hand = {}
            self._left_when_asked = length_hint(self._iterator)

    @property
    def progress(self) -> tuple[int, int]:
        """Something that changes whenever the user takes a record or asks for more."""
        return self.asks, length_hint(self._iterator)

    def in_hand(self) -> dict[TopicPartition, int]:
        """Return what the user may still be at: partition -> the first offset that he may not be done with."""
        with self._lock:
            return self._in_hand | self._at_hand()

    def processed(self) -> dict[TopicPartition, int]:
        """Return the positions that moved since `committed`, each no further than what the user is done with."""
        with self._lock:
            hand = self._in_hand | self._at_hand()
            self._settle()
            return {where: min(offset, hand.get(where, offset)) for where, offset in self._moved.items()}

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Return partition -> next offset, for partitions that are read."""
        with self._lock:
            self._settle()
            return dict(self._positions)

    def begin(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note where partitions begin that nothing was handed out of yet."""
        with self._lock:
            for where, offset in positions.items():
                self._positions.setdefault(where, offset)

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on at `offset`; what is left of a loaded batch of this partition is dropped."""
        with self._lock:
            self._leave([where])
            self._move(where, offset)

    def departures_from(self, where: TopicPartition) -> int:
        """Return how often `forget` and `seek` took the user away from a partition.

        What was received of it before is not to be handed out after.
        """
        return self._departures.get(where, 0)

    def forget(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Read some partitions no more: nothing of them is handed out any more; return where each of them ends."""
        with self._lock:
            self._leave(partitions)
            for where in partitions:
                self._moved.pop(where, None)
            return {where: self._positions.pop(where) for where in partitions if where in self._positions}

    def uncommitted(self) -> dict[TopicPartition, int]:
        """Return the positions that moved since `committed`."""
        with self._lock:
            self._settle()
            return dict(self._moved)

    def committed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note that these positions are stored."""
        with self._lock:
            for where, offset in positions.items():
                if self._moved.get(where) == offset:
                    del self._moved[where]

    # ------------------------------------------------------------------------------------- the batch at hand

    def load(self, batch: ConsumedBatch) -> None:
        """Take a batch to hand out, whole (`rest`) or by records (`open`); one without any is handed out by that."""
        with self._lock:
            self._settle()
            if self._batch is not None or self._unopened is not None:
                self._drop()
            self._where = TopicPartition(batch.topic, batch.partition)
            if len(batch):
                self._unopened = batch
            else:
                self._move(self._where, batch.batch.end_offset)

    def open(self) -> bool:
        """Make the records of a batch that was loaded and not opened yet; False where there is none.

        Raises:
            CorruptBatchError: the body does not decode; the position stays.
        """
        if self._unopened is None:
            return False
        with self._lock:
            if self._unopened is not None:
                try:
                    self._take_up(self._unopened)
                except ProtocolError as error:
                    raise error_of_local(error) from error
        return True

    def failed(self, error: Exception) -> None:
        """Do with the record on which `records` raised `error` what the user wants done; then `records` goes on.

        With `undecodable` set it does not, before `pass_over`.

        Raises:
            RecordError: the position stays at the record.
        """
        with self._lock:
            batch = self._stopped()
            if batch is None:
                return  # dropped meanwhile
            where, offset = self._where, batch.offset_list()[0]
            if self._decoding.skips:
                self.skipped += 1
                self._pass(batch, offset)
                return
            again = ConsumedBatch(*where, batch)
            self._take_up(again)
            if self._decoding.parks:
                self.undecodable = Undecodable(next(iter(again)), error)
                self.records = iter(())
                return
        raise RecordError(
            f"{where.topic}/{where.partition}: the record at offset {offset} does not decode: {error!r}; "
            f"seek to {offset + 1} to read on behind it",
            topic=where.topic,
            partition=where.partition,
            offset=offset,
        ) from error

    def again(self) -> None:
        """Have the record on which `records` raised come first again."""
        with self._lock:
            if (rest := self._stopped()) is not None:
                self._take_up(ConsumedBatch(*self._where, rest))

    def pass_over(self, undecodable: Undecodable) -> None:
        """Go on behind a record that was taken away; nothing happens when its partition was dropped meanwhile."""
        with self._lock:
            if self.undecodable is undecodable and self._batch is not None:
                self.undecodable = None
                self._pass(self._batch.batch, undecodable.record.offset)

    def take(self, count: int, onto: list[Record] | None = None) -> list[Record]:
        """Hand out at most `count` records of the batch at hand.

        Args:
            count: how many.
            onto: a list to which they are added, so that whoever is interrupted has them; a new one unless given.

        Returns:
            That list.

        Raises:
            RecordError: see `failed`; where records come before that one, they are returned, and the next call raises.
        """
        taken: list[Record] = [] if onto is None else onto
        before = len(taken)
        while True:
            try:
                taken.extend(islice(self.records, count))
            except Exception as error:  # noqa: BLE001 - a deserialiser of the user's may raise anything
                if len(taken) == before:
                    self.failed(error)
                    continue
                self.again()
            except KeyboardInterrupt:  # in the middle of a deserialiser: the record was not handed out
                self.again()
                raise
            if len(taken) > before or not self.open():
                return taken

    def kept(self, records: list[Record]) -> list[Record]:
        """Return those of some records, which `take` has returned, whose partitions were not taken away since."""
        positions = self.positions
        return [each for each in records if positions.get(TopicPartition(each.topic, each.partition), -1) > each.offset]

    def rest(self) -> ConsumedBatch | None:
        """Hand out what is left of the batch at hand as a batch; None when there is nothing left."""
        with self._lock:
            left = self._rest()
            if left is not None:
                self._in_hand[self._where] = left.batch.offset_list()[0]
                self._move(self._where, left.batch.end_offset)
            self._drop()
            return left

    def take_back(self, where: TopicPartition) -> ConsumedBatch | None:
        """Give up what is left of the batch at hand if it is of this partition, and return it."""
        with self._lock:
            if self._where != where:
                return None
            left = self._rest()
            self._drop()
            return left

    # --------------------------------------------------------------------------------------------- internals

    def _take_up(self, batch: ConsumedBatch) -> None:
        columns = record_columns(batch.batch)
        self._in_hand |= self._at_hand()  # of the same batch, where a record in the middle does not decode
        if self._batch is not None:
            self._drop()
        self._unopened = None
        self._left_when_asked = len(batch)
        if not len(batch):
            return
        self._values = columns.values
        if self._decodes:
            columns = self._decoded(columns)
        self._offsets = batch.batch.offset_list()
        self._iterator = iter(self._offsets)
        self._batch = batch
        self.records = records_from(batch.topic, batch.partition, self._iterator, columns)

    def _decoded(self, columns: RecordColumns) -> RecordColumns:
        keys, values, decoding = columns.keys, columns.values, self._decoding
        if decoding.key is not None and isinstance(keys, list):
            keys = decoded(keys, decoding.key)
        if decoding.value is not None:
            values = decoded(values, decoding.value)
        return columns._replace(keys=keys, values=values)

    def _settle(self) -> None:
        """Bring the position of the batch at hand up to date."""
        batch = self._batch
        if batch is None:
            return
        left = length_hint(self._iterator)
        if not left:
            self._in_hand |= self._at_hand()
            # Behind the last one nothing is left up to the end, which may lie further on.
            self._move(self._where, batch.batch.end_offset)
            self._drop()
        elif left < len(batch):
            offset = self._offsets[-left - 1] + 1
            if self._positions.get(self._where) != offset:  # else it may be committed already
                self._move(self._where, offset)

    def _at_hand(self) -> dict[TopicPartition, int]:
        """Return what the user may be at of the batch at hand."""
        if self._batch is None:
            return {}
        left = length_hint(self._iterator)
        if left >= self._left_when_asked:
            return {}
        first = self._left_when_asked if self._polls else left + 1
        return {self._where: self._in_hand.get(self._where, self._offsets[-first])}

    def _stopped(self) -> RecordBatch | None:
        """Return what is left of the batch where `records` raised, from that record on; None when it was dropped."""
        batch = self._batch
        if batch is None:
            return None
        handed_out = max(0, len(batch) - length_hint(self._iterator) - 1)
        if handed_out:
            self._move(self._where, self._offsets[handed_out - 1] + 1)
        return batch.batch.slice_from(self._offsets[handed_out])

    def _rest(self) -> ConsumedBatch | None:
        if self._unopened is not None:
            return self._unopened
        self._settle()
        if self._batch is None:
            return None
        left = self._batch.batch.slice_from(self._positions.get(self._where, 0))
        return ConsumedBatch(*self._where, left) if len(left) else None

    def _pass(self, batch: RecordBatch, offset: int) -> None:
        rest = batch.slice_from(offset + 1)
        self._move(self._where, offset + 1 if len(rest) else rest.end_offset)
        self._take_up(ConsumedBatch(*self._where, rest))

    def _leave(self, partitions: Collection[TopicPartition]) -> None:
        self._settle()
        for where in partitions:
            self._departures[where] = self._departures.get(where, 0) + 1
        if self._where in partitions:
            self._in_hand |= self._at_hand()
            self._drop()

    def _drop(self) -> None:
        self._batch = None
        self._unopened = None
        self.undecodable = None
        self.records = iter(())
        self._iterator = iter(())
        self._offsets = ()
        self._values.clear()  # whoever runs over them comes to the end

    def _move(self, where: TopicPartition, offset: int) -> None:
        self._positions[where] = offset
        self._moved[where] = offset
