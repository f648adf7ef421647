"""One member of a group that shares topics: it joins, reads in one of the ways there are, commits, and is gone again.

It runs with others in the run's process, or alone in a process of its own (`sharer_process.py`) that is stopped
and killed. Its observations go to a note taker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import lcm
from random import Random
from typing import Final, Literal, NamedTuple, Protocol

from tests.faults.history import Key
from tests.faults.reading import numbers_of
from tests.faults.values import number_in

from tidelog import Client, Consumer, Group, Record, TopicPartition
from tidelog.errors import TidelogError
from tidelog.groups.options import CommitWhen

Reads = Literal["batches", "records", "poll"]
Leaves = Literal["closes", "aborts", "idles"]

SESSION_S: Final = 3.0
POLL_TIMEOUT_S: Final = 4.0
IDLE_S: Final = POLL_TIMEOUT_S + SESSION_S
COMMIT_INTERVAL_S: Final = 0.4
STAY_S: Final = (4.0, 12.0)
"""How long a member stays before it leaves and comes back."""
AWAY_S: Final = (0.1, 1.5)
POLLED: Final = 200
DAWDLE_S: Final = 0.2
"""Pause of a slow member before it asks for more; it gets `DAWDLE_POLLED` records at most."""
DAWDLE_POLLED: Final = 5
READS: Final[tuple[Reads, ...]] = ("batches", "records", "poll")
COMMITS: Final[tuple[CommitWhen, ...]] = ("auto", "processed", "manual")
LEAVES: Final[tuple[Leaves, ...]] = ("closes", "idles", "aborts")


class Life(NamedTuple):
    """How a member lives from joining to leaving."""

    reads: Reads
    commits: CommitWhen
    leaves: Leaves


def life(number: int) -> Life:
    """Return one life after the other: all ways to read and to leave come, and each with every way to commit."""
    count = len(READS)
    shift = number // lcm(count, len(COMMITS))  # so that not always the same ones meet
    commits = COMMITS[(number + shift) % len(COMMITS)]
    return Life(READS[number % count], commits, LEAVES[number // (count * len(COMMITS)) % len(LEAVES)])


class Notes(Protocol):
    """Takes a member's observations. Times are the machine's monotonic clock, which all its processes share."""

    def begin(self, who: str, key: Key, *, position: int, generation: int, at: float) -> None:
        """It was assigned a partition."""
        ...

    def hand(self, who: str, key: Key, first: int, numbers: Sequence[int], *, at: float) -> None:
        """It was handed records."""
        ...

    def end(self, who: str, key: Key, *, lost: bool, at: float) -> None:
        """It has a partition no longer."""
        ...

    def committed(self, key: Key, offset: int, *, at: float) -> None:
        """Its commit was acknowledged."""
        ...


class Given(NamedTuple):
    """Records of one partition that were handed out together."""

    where: TopicPartition
    first: int
    numbers: Sequence[int]

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.first + len(self.numbers)


@dataclass(frozen=True, slots=True)
class Sharer:
    """A member that comes and goes.

    Attributes:
        who: name of the member.
        topics: the group's topics.
        group: the group's name.
        client: its own.
        notes: takes its observations.
        complain: takes errors that it meets.
        stays: whether it is to stay now, and leave no more.
        rng: decides.
        instance_id: of one that is a static member.
        dawdles: whether it is to take little at a time now.
    """

    who: str
    topics: Sequence[str]
    group: str
    client: Client
    notes: Notes
    complain: Callable[[TidelogError], None]
    stays: Callable[[], bool]
    rng: Random
    instance_id: str | None = None
    dawdles: Callable[[], bool] = lambda: False

    async def run(self, first_life: int) -> None:
        """Join, leave and join again, until cancelled."""
        number = first_life
        while True:
            await self.live(life(number))
            number += 1
            await asyncio.sleep(self.rng.uniform(*AWAY_S))

    async def live(self, how: Life) -> None:
        """Be a member for a while; one that is to stay then stays until it is cancelled, and closes."""
        consumer = self._consumer(how)
        until, idles = time.monotonic() + self.rng.uniform(*STAY_S), how.leaves == "idles"
        try:
            while True:
                await self._read_until(consumer, how, until)
                if not self.stays():
                    if not idles:
                        return
                    idles = False
                    await asyncio.sleep(IDLE_S)
                until = time.monotonic() + STAY_S[0]
        except TidelogError as error:
            self.complain(error)
        finally:
            await self._leave(consumer, how)

    async def _leave(self, consumer: Consumer, how: Life) -> None:
        try:
            await (consumer.abort() if how.leaves == "aborts" else consumer.close())
        except TidelogError as error:
            self.complain(error)

    async def _read_until(self, consumer: Consumer, how: Life, until: float) -> None:
        """Read until the clock shows so much.

        Raises:
            TidelogError: the error that ended reading.
        """
        async with aclosing(self._given(consumer, how)) as giving:
            while (left_s := until - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(left_s):
                        given = await anext(giving)
                except (StopAsyncIteration, TimeoutError):
                    return
                at = time.monotonic()
                for each in given:
                    self.notes.hand(self.who, Key(*each.where), each.first, each.numbers, at=at)
                if how.commits == "manual" and given:
                    await self._commit(consumer)  # the other two are seen only by readers of the group's positions
                if self.dawdles():
                    await asyncio.sleep(DAWDLE_S)

    async def _commit(self, consumer: Consumer) -> None:
        try:
            held = await consumer.commit()
        except TidelogError as error:
            self.complain(error)
            return
        at = time.monotonic()
        for where, each in held.items():
            self.notes.committed(Key(*where), each.next_offset, at=at)

    async def _given(self, consumer: Consumer, how: Life) -> AsyncGenerator[list[Given], None]:
        """Yield the records of polls in the way that this life reads; an empty list after a while without records."""
        if how.reads == "batches":
            async for batch in consumer.batches():
                where = TopicPartition(batch.topic, batch.partition)
                yield [Given(where, batch.batch.base_offset, numbers_of(batch.batch))]
        elif how.reads == "records":
            async for record in consumer:
                yield [of_record(record)]
        else:
            while not consumer.closed:
                records = await consumer.poll(DAWDLE_POLLED if self.dawdles() else POLLED, 0.5)
                yield [of_record(record) for record in records]

    def _consumer(self, how: Life) -> Consumer:
        consumer: Consumer

        def revoked() -> Awaitable[None] | None:
            return self._commit(consumer) if how.commits == "manual" else None

        group = group_of(self.group, self.who, how, self.notes, lambda: consumer, revoked, self.instance_id)
        consumer = self.client.consumer(*self.topics, group=group)
        return consumer


class Joined(Protocol):
    """Observations of a member's consumer, also of a blocking one."""

    @property
    def generation(self) -> int:
        """The member's generation."""
        ...

    def position(self) -> dict[TopicPartition, int]:
        """Where it reads on."""
        ...


def group_of(  # noqa: PLR0917 - the parameters of a member
    name: str,
    who: str,
    how: Life,
    notes: Notes,
    consumer: Callable[[], Joined],
    revoked: Callable[[], Awaitable[None] | None],
    instance_id: str | None = None,
    *,
    lost_after_s: float = 0.0,
) -> Group:
    """Return the group options of a member for a life, with callbacks that record changes of its partitions.

    Args:
        name, who, how, notes, instance_id: the group's name; the member, its life, what takes it down, its instance.
        consumer: the member's, once it has joined.
        revoked: is called last when partitions are revoked.
        lost_after_s: how long it waits, in the callback's thread, before it takes a loss down.
    """

    def assigned(partitions: frozenset[TopicPartition]) -> None:
        at, positions, generation = time.monotonic(), consumer().position(), consumer().generation
        for where in partitions & positions.keys():  # a partition may be lost before the callback's thread runs
            notes.begin(who, Key(*where), position=positions[where], generation=generation, at=at)

    def ended(partitions: frozenset[TopicPartition], *, lost: bool) -> None:
        at = time.monotonic()
        if lost:
            time.sleep(lost_after_s)
        for where in partitions:
            notes.end(who, Key(*where), lost=lost, at=at)

    def given_up(partitions: frozenset[TopicPartition]) -> Awaitable[None] | None:
        ended(partitions, lost=False)
        return revoked()

    return Group(
        name,
        commit=how.commits,
        commit_interval_s=COMMIT_INTERVAL_S,
        instance_id=instance_id,
        session_timeout_s=SESSION_S,
        poll_timeout_s=POLL_TIMEOUT_S,
        on_assigned=assigned,
        on_revoked=given_up,
        on_lost=lambda partitions: ended(partitions, lost=True),
    )


def of_record(record: Record) -> Given:
    """Return a record that was handed out alone."""
    return Given(TopicPartition(record.topic, record.partition), record.offset, [number_in(record.value)])
