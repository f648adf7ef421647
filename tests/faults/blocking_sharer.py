"""A member of the group that is a blocking program: it uses `tidelog.sync`, in a process of its own.

It leads the same lives as `sharer.py`, without slow reading. Its records are handed out in the reading thread, and its
callbacks are called in another, so that its notes about a lost partition may have either order. It
waits a moment before it takes a loss down: whether a record came too late shows when another member has begun.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

from tests.faults.history import Key
from tests.faults.reading import numbers_of
from tests.faults.sharer import AWAY_S, IDLE_S, POLLED, STAY_S, Given, Life, Notes, group_of, life, of_record
from tests.faults.tenures import BUSY_S

from tidelog import TopicPartition
from tidelog.errors import TidelogError
from tidelog.sync import Client, Consumer

LOOK_S: Final = 0.5


class BlockingSharer:
    """A member that joins and leaves repeatedly until it is stopped.

    Args:
        who: name of the member.
        topics: the group's topics.
        group: the group's name.
        client: its own.
        notes: takes its observations.
        complain: takes errors that it meets.
        rng: decides.
    """

    def __init__(  # noqa: PLR0917 - the parameters of a member
        self,
        who: str,
        topics: Sequence[str],
        group: str,
        client: Client,
        notes: Notes,
        complain: Callable[[TidelogError], None],
        rng: Random,
    ) -> None:
        self._who = who
        self._topics = topics
        self._group = group
        self._client = client
        self._notes = notes
        self._complain = complain
        self._rng = rng
        self._stays = threading.Event()
        self._leaves = threading.Event()
        self._changes = threading.Lock()
        """Held to make a consumer, and to close the one there is: a member that leaves makes no other."""
        self._consumer: Consumer | None = None

    def run(self, first_life: int) -> None:
        """Join, leave and join again, until it is to `leave`."""
        number = first_life
        while not self._leaves.is_set():
            self._live(life(number))
            number += 1
            self._leaves.wait(self._rng.uniform(*AWAY_S))

    def stay(self) -> None:
        """Leave no more from now on. Called from any thread."""
        self._stays.set()

    def leave(self) -> None:
        """Leave for good, in good order. Called from another thread, when nothing comes any more."""
        with self._changes:
            self._leaves.set()
            consumer = self._consumer
        if consumer is not None:
            consumer.close()  # it may be waiting for a record

    def _live(self, how: Life) -> None:
        with self._changes:
            if self._leaves.is_set():
                return
            self._consumer = consumer = self._made(how)
        until, idles = time.monotonic() + self._rng.uniform(*STAY_S), how.leaves == "idles"
        try:
            while not self._leaves.is_set():
                self._read_until(consumer, how, until)
                if not self._stays.is_set():
                    if not idles:
                        return
                    idles = False
                    self._leaves.wait(IDLE_S)
                until = time.monotonic() + STAY_S[0]
        except TidelogError as error:
            self._complain(error)
        finally:
            self._end(consumer, how)

    def _end(self, consumer: Consumer, how: Life) -> None:
        try:
            if how.leaves == "aborts":
                consumer.abort()
            else:
                consumer.close()
        except TidelogError as error:
            self._complain(error)

    def _read_until(self, consumer: Consumer, how: Life, until: float) -> None:
        """Read at least until the clock shows this time; waiting for a record may take longer.

        Raises:
            TidelogError: the error that ended reading.
        """
        for given in self._given(consumer, how):
            at = time.monotonic()
            for each in given:
                self._notes.hand(self._who, Key(*each.where), each.first, each.numbers, at=at)
            if how.commits == "manual" and given:
                self._commit(consumer)
            if time.monotonic() >= until or self._leaves.is_set():
                return

    def _commit(self, consumer: Consumer) -> None:
        try:
            held = consumer.commit()
        except TidelogError as error:
            self._complain(error)
            return
        at = time.monotonic()
        for where, each in held.items():
            self._notes.committed(Key(*where), each.next_offset, at=at)

    def _given(self, consumer: Consumer, how: Life) -> Iterator[list[Given]]:
        if how.reads == "batches":
            for batch in consumer.batches():
                where = TopicPartition(batch.topic, batch.partition)
                yield [Given(where, batch.batch.base_offset, numbers_of(batch.batch))]
        elif how.reads == "records":
            for record in consumer:
                yield [of_record(record)]
        else:
            while not consumer.closed:
                yield [of_record(record) for record in consumer.poll(POLLED, LOOK_S)]

    def _made(self, how: Life) -> Consumer:
        made: list[Consumer] = []

        def revoked() -> None:
            if how.commits == "manual":
                self._commit(made[0])

        group = group_of(self._group, self._who, how, self._notes, lambda: made[0], revoked, lost_after_s=BUSY_S)
        made.append(self._client.consumer(*self._topics, group=group))
        return made[0]
