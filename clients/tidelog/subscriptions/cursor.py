"""Where the user of a consumer is: which records were handed out, and what is left of the batch at hand. No I/O.

The asynchronous and the blocking consumer both use it, so "what was handed out" means the same in both. The records of
the batch at hand come out of an iterator that is made of whole columns; nothing is noted for a single record. Where the
user is follows from how far that iterator has come, when somebody asks. Behind a record that does not decode another
iterator begins over the same columns, so that passing one costs the same wherever it lies.

In the blocking client one thread takes records while another takes partitions away: a lock holds them apart where the
batch at hand changes, and the list of values that the iterator runs over is emptied, so that it ends at once.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from operator import length_hint
from typing import Final, NamedTuple

from tidelog.errors import RecordError, UsageError, error_of_local
from tidelog.model import ConsumedBatch, Record, TopicPartition
from tidelog.subscriptions.batch_records import Rows
from tidelog.subscriptions.deserializers import Decoding
from tidelog_proto.errors import ProtocolError

PASSING_S: Final = 0.01
"""For so long records that do not decode are passed over one after the other, before others get their turn."""


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
        self._positions: dict[TopicPartition, int] = {}
        self._moved: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()
        self._rows: Rows | None = None
        """Of the batch at hand; also when all of them were handed out, until the user asks for more."""
        self._unopened: ConsumedBatch | None = None
        self._where = TopicPartition("", 0)
        self._iterator: Iterator[int] = iter(())
        """Over their offsets. How much is left of it says how many records were handed out."""
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
            self._settle()
            if not length_hint(self._iterator) and self._unopened is None:
                self._drop()
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

    @property
    def has_left(self) -> bool:
        """Whether something of the batch at hand was not handed out yet."""
        return self._unopened is not None or length_hint(self._iterator) > 0

    def load(self, batch: ConsumedBatch) -> None:
        """Take a batch to hand out, whole (`rest`) or by records (`open`); one without any is handed out by that.

        Raises:
            UsageError: the batch at hand `has_left`, which would be lost; nothing is changed.
        """
        with self._lock:
            if self.has_left:
                raise UsageError("the batch at hand was not handed out yet")
            self._settle()
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
                    rows = Rows(self._unopened, self._decoding)
                except ProtocolError as error:
                    raise error_of_local(error) from error
                self._rows, self._unopened = rows, None
                self._go_to(rows, 0)
                self._left_when_asked = len(rows)
        return True

    def failed(self, error: Exception) -> None:
        """Do with the record on which `records` raised `error` what the user wants done; then `records` goes on.

        With `undecodable` set it does not, before `pass_over`.

        Raises:
            RecordError: the position stays at the record.
        """
        with self._lock:
            rows = self._rows
            if rows is None or (index := self._step_back(rows)) is None:
                return  # dropped meanwhile
            if self._decoding.skips:
                self.skipped += 1
                self._pass(rows, index)
                return
            if self._decoding.parks:
                self.undecodable = Undecodable(rows.as_sent(index), error)
                self.records = iter(())
                return
            where, offset = self._where, rows.offsets[index]
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
            if self._rows is not None:
                self._step_back(self._rows)

    def as_sent(self, record: Record) -> Record | None:
        """Return a record as it was sent; None if its batch is not at hand."""
        with self._lock:
            rows = self._rows
            if rows is None or self._where != TopicPartition(record.topic, record.partition):
                return None
            index = bisect_left(rows.offsets, record.offset)
            return rows.as_sent(index) if index < len(rows) and rows.offsets[index] == record.offset else None

    def pass_over(self, undecodable: Undecodable) -> None:
        """Go on behind a record that was taken away; nothing happens when its partition was dropped meanwhile."""
        with self._lock:
            if self.undecodable is undecodable and self._rows is not None:
                self.undecodable = None
                self._pass(self._rows, len(self._rows) - length_hint(self._iterator))

    def take(self, count: int, onto: list[Record] | None = None) -> list[Record]:
        """Hand out at most `count` records of the batch at hand.

        None where there are none, one has to be taken away first (`undecodable`), or for `PASSING_S` none decoded:
        `has_left` tells.

        Args:
            count: how many.
            onto: a list to which they are added, so that whoever is interrupted has them; a new one unless given.

        Returns:
            That list.

        Raises:
            RecordError: see `failed`; where records come before that one, they are returned, and the next call raises.
        """
        taken: list[Record] = [] if onto is None else onto
        before, passes_until = len(taken), 0.0
        while True:
            try:
                taken.extend(islice(self.records, count))
            except Exception as error:  # noqa: BLE001 - a deserialiser of the user's may raise anything
                if len(taken) > before:
                    self.again()
                    return taken
                self.failed(error)
                passes_until = passes_until or time.monotonic() + PASSING_S
                if time.monotonic() < passes_until:
                    continue
                return taken
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

    def _go_to(self, rows: Rows, index: int) -> None:
        self._iterator, self.records = rows.start(index)

    def _settle(self) -> None:
        """Bring the position of the batch at hand up to date."""
        rows = self._rows
        if rows is None:
            return
        left = length_hint(self._iterator)
        if left == len(rows):
            return
        # Behind the last one nothing is left up to the end, which may lie further on. It stays at hand: another thread
        # may be about to find that it does not decode.
        offset = rows.offsets[-left - 1] + 1 if left else rows.batch.batch.end_offset
        if self._positions.get(self._where) != offset:  # else it may be committed already
            self._move(self._where, offset)

    def _at_hand(self) -> dict[TopicPartition, int]:
        """Return what the user may be at of the batch at hand."""
        if self._rows is None:
            return {}
        left = length_hint(self._iterator)
        if left >= self._left_when_asked:
            return {}
        first = self._left_when_asked if self._polls else left + 1
        return {self._where: self._in_hand.get(self._where, self._rows.offsets[-first])}

    def _step_back(self, rows: Rows) -> int | None:
        """Have the record on which `records` raised come next again; return its index, None if it is of others."""
        index = len(rows) - length_hint(self._iterator) - 1
        if index < 0:
            return None
        self._go_to(rows, index)
        if self._positions.get(self._where, 0) > rows.offsets[index]:  # somebody asked while it was decoded
            self._move(self._where, rows.offsets[index])
        # What was handed out before it is what came before he asked again: who iterates is done with that.
        if self._polls:
            self._in_hand |= self._at_hand()
        self._left_when_asked = length_hint(self._iterator)
        return index

    def _pass(self, rows: Rows, index: int) -> None:
        """Go on behind a record that was not handed out: nobody has it in hand."""
        self._go_to(rows, index + 1)
        self._left_when_asked = length_hint(self._iterator)

    def _rest(self) -> ConsumedBatch | None:
        if self._unopened is not None:
            return self._unopened
        self._settle()
        if self._rows is None or not length_hint(self._iterator):
            return None
        left = self._rows.batch.batch.slice_from(self._positions.get(self._where, 0))
        return ConsumedBatch(*self._where, left) if len(left) else None

    def _leave(self, partitions: Collection[TopicPartition]) -> None:
        self._settle()
        for where in partitions:
            self._departures[where] = self._departures.get(where, 0) + 1
        if self._where in partitions:
            self._drop()

    def _drop(self) -> None:
        """Let go of the batch at hand; what the user is at of it he still has in hand."""
        self._in_hand |= self._at_hand()
        if self._rows is not None:
            self._rows.values.clear()  # whoever runs over them comes to the end
        self._rows = None
        self._unopened = None
        self.undecodable = None
        self.records = iter(())
        self._iterator = iter(())

    def _move(self, where: TopicPartition, offset: int) -> None:
        self._positions[where] = offset
        self._moved[where] = offset
