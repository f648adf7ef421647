"""The consumer: reads partitions in order and without end, through lost connections and moved partitions.

It puts together the parts: `Intake` finds partitions, `Assignment` reads them, the cursor hands out records.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from tidelog.base.internal import internal
from tidelog.base.metric_calls import Teller
from tidelog.cluster.routing import Router
from tidelog.consume.background_commits import CommitsSoon, OnCommit
from tidelog.consume.consumer_parts import ConsumerParts, PositionStore, Waits, end_when_dropped
from tidelog.consume.dead_letters import DeadLetters
from tidelog.consume.rejections import Rejections
from tidelog.consume.topic_discovery import Intake
from tidelog.errors import InvalidRequestError, MemberFencedError, TidelogError
from tidelog.groups.member import GroupMember
from tidelog.groups.options import Group
from tidelog.groups.partition_handover import Handover
from tidelog.groups.session_clock import session_time
from tidelog.model import Committed, ConsumedBatch, Record, TopicPartition
from tidelog.produce.producer import Producer
from tidelog.requests import list_offsets
from tidelog.requests.conversions import NewestOf, checked_positions
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_meter import ConsumerMeter
from tidelog.subscriptions.consumer_options import ConsumerOptions, positions_to_begin_at
from tidelog.subscriptions.cursor import PASSING_S, Cursor
from tidelog_proto.batch.record_batch import RecordBatch

T = TypeVar("T")

SeekTo = int | Literal["earliest", "latest"] | datetime | bytes
"""An offset, an end of the log, a time (with a zone), or a key, for the newest record of it."""


class Consumer:
    """Reads topics. Made by `Client.consumer`; iterate over it for records, or over `batches()` for columns.

    Use it as an async context manager, or `close` it. One task at a time may iterate. Records of one partition come in
    their order. It reads the topics that have their names when it begins: when one is deleted, iterating ends with
    UnknownTopicError, whatever is made under its name. With a pattern, and as a member of a group, reading goes on.

    Args:
        router: the client's.
        options: what was asked for.
        check: refuses use where the client is of no use.
        make_producer: makes a producer for a topic, for what does not decode.
        admit, dropped: see `Arrivals`.
        wish: what was asked for as a member of the group; None for one that is none.
        client_id: what the client calls itself.
        teller: tells the client's metrics; None: nobody counts.
    """

    def __init__(
        self,
        router: Router,
        options: ConsumerOptions,
        check: Callable[[], None],
        make_producer: Callable[[str], Producer],
        admit: Callable[[int], bool] | None = None,
        *,
        dropped: Callable[[int], None] | None = None,
        wish: Group | None = None,
        client_id: str = "",
        teller: Teller | None = None,
    ) -> None:
        self._router = router
        self._options = options
        self._check_usable = check
        assignment = self._assignment = Assignment(
            router, options, admit, None if teller is None else ConsumerMeter(teller), dropped=dropped
        )
        self._cursor = self._assignment.cursor
        self.topic_ids: Mapping[str, bytes] = self._assignment.topic_ids  # for the gateway; known once this has begun
        self._intake = Intake(router, options, self._assignment)
        self._dead_letters = DeadLetters(lambda: make_producer(options.dead_letter or ""))
        self._rejections = Rejections(router, options, self._cursor, self._dead_letters, self.topic_ids)
        # These parts must not refer to this object: they are ended when it is dropped without `close`.
        self._positions, self._waiting = PositionStore(router, options, self._cursor), Waits()
        self._soon = CommitsSoon(self._positions.store, f"group {options.group!r}", lambda: assignment.topic_ids)
        self._member: GroupMember | None = None
        if wish is not None:
            make_handover = partial(
                Handover, router, options, wish=wish, assignment=assignment, settle_commits=self._soon.settled
            )
            asks = self._waiting.any
            self._member = GroupMember(
                router, options, wish, assignment, make_handover, client_id=client_id, is_waiting=asks
            )
        self.commits_processed = wish is not None and wish.commit == "processed"
        """Whether asking for more commits what the user is done with."""
        self._positions.member = self._member
        self._parts = ConsumerParts(self._soon, self._member, self._intake, self._assignment, self._dead_letters)
        self._unclosed: weakref.finalize[Any, Any] | None = None
        self._turn_due = 0.0
        self._begun = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await (self.close() if kind is None else self.abort())

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def skipped(self) -> int:
        """How many records were passed over because they do not decode (`on_undecodable="skip"`)."""
        return self._cursor.skipped

    @property
    @internal
    def cursor(self) -> Cursor:
        """Where the user is: for the blocking consumer, which hands out records in a thread of its own."""
        return self._cursor

    @property
    @internal
    def has_arrivals(self) -> bool:
        """Whether the next batch, or an error, is there already."""
        return self._assignment.has_arrivals

    @internal
    def at_once(self, take: Callable[[int, RecordBatch], bool]) -> None:
        """Have `take` called with partition and batch when a batch arrives while a task waits in `next_batch`.

        It processes the batch, or returns False to have the task process it. It must not raise. For a consumer that is
        not a member of a group.
        """
        self._assignment.at_once(take)

    # ---------------------------------------------------------------------------------------------- reading

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        cursor, member = self._cursor, self._member
        while True:
            if member is not None and session_time() >= member.turn_at:
                await self.turn()
            try:
                for record in cursor.records:
                    return record
            except Exception as error:  # noqa: BLE001 - a deserialiser of the user's may raise anything
                cursor.failed(error)
                await self._give_turn()
                continue
            if not cursor.open() and not await self.fill():
                raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Iterate over batches: columns instead of records, as they were sent. Deserialisers are not asked."""
        while True:
            if self._member is not None and session_time() >= self._member.turn_at:
                await self.turn()
            batch = self._cursor.rest()
            if batch is not None:
                yield batch
                del batch  # nobody but the user keeps it while the next one is waited for
            elif not await self.fill():
                return

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        """Return what is there, at most `max_records` records; wait for the first of them, `timeout_s` at most.

        The list is empty when nothing came in time, the consumer was closed, or the session of a member was over before
        it could be returned. It ends in front of a record that does not decode, where the next call goes on; a dead
        letter that is under way when the time is over goes on, too. The first call begins, which may take longer. Many
        thousands of records at once cost more each: Python's garbage collector looks at all of them.

        Raises:
            InvalidRequestError: `max_records` is below 1, or `timeout_s` negative.
            TidelogError: as iterating; records that come before the error are returned first.
        """
        if max_records < 1 or timeout_s < 0:
            raise InvalidRequestError("max_records is at least 1, timeout_s not negative")
        self._check_usable()
        await self.begin()
        await self.ask(polls=True)
        if self._member is not None and session_time() >= self._member.turn_at:
            await self.turn()
        deadline = asyncio.get_running_loop().time() + timeout_s
        taken = self._cursor.take(max_records)
        while not taken:
            try:
                async with asyncio.timeout_at(deadline):
                    if not await self.more():
                        return taken
                    taken = self._cursor.take(max_records)
                    if not taken:
                        await self._give_turn()
            except TimeoutError:
                return taken
        # From here on nothing is waited for: who is cancelled now would lose what is taken, and it would be committed.
        with contextlib.suppress(TidelogError):  # the next call raises it
            while len(taken) < max_records and self._load_next():
                more = self._cursor.take(max_records - len(taken))
                if not more:
                    break  # nothing of it decodes: whoever waits for what is taken waits no longer
                taken += more
        if self._member is not None and session_time() >= self._member.reads_until:
            await self.turn()  # the process was stopped meanwhile
            return self._cursor.kept(taken)
        return taken

    def _load_next(self) -> bool:
        if self._cursor.has_left:  # in front of a record that does not decode: the next call goes on there
            return False
        is_due = self._member is not None and session_time() >= self._member.turn_at
        batch = None if is_due else self._assignment.batch_now()
        if batch is not None:
            self._load(batch)
        return batch is not None

    def _load(self, batch: ConsumedBatch) -> None:
        if self._cursor.has_left:  # another task was faster
            self._assignment.put_back(batch)
        else:
            self._cursor.load(batch)

    async def next_batch(self) -> ConsumedBatch | None:
        """Wait for the next batch and return it; None when the consumer was closed.

        The batch does not count as handed out; iteration does that. For who keeps positions himself: they are where a
        batch ends, `batch.batch.end_offset`. A batch without records says that nothing is left up to there.

        Raises:
            OffsetOutOfRangeError: retention has overtaken the position (with `on_out_of_range="error"`).
            TidelogError: reading cannot go on.
        """
        self._check_usable()
        await self.begin()
        if self._member is not None and session_time() >= self._member.turn_at:
            await self.turn()
        return await self._waits(self._assignment.next_batch())

    @property
    @internal
    def reads_until(self) -> float:
        """By `session_time`, until when nobody else may have what it reads; of one that is no member infinite.

        It may grow. Then `turn` is to be awaited before anything more is handed out; any thread may look at it.
        """
        return math.inf if self._member is None else self._member.reads_until

    @internal
    async def turn(self) -> None:
        """Let a member hear and be heard; where its session is over, what it has is dropped before this returns."""
        if self._member is None or not self._begun:
            return
        await self._waits(self._member.turn())

    @internal
    async def fill(self) -> bool:
        """Take note that the user is done with all that was handed out, and get `more`; iterating does it by itself.

        Raises:
            TidelogError: as `more`; with `commit="processed"`, what he is done with could not be committed.
        """
        await self.ask()
        return await self.more()

    @internal
    async def ask(self, *, polls: bool = False) -> None:
        """Take note that the user asks for more; see `Cursor.asked`.

        Raises:
            TidelogError: with `commit="processed"`, what he is done with could not be committed.
        """
        self._cursor.asked(polls=polls)
        await self._assignment.certain()
        if self.commits_processed and self._member is not None:
            await self._waits(self._member.commit_processed())

    @internal
    async def more(self) -> bool:
        """Wait until the cursor may have more, or is past what does not decode; False when this was closed.

        Raises:
            TidelogError: as `next_batch`; a dead letter was not acknowledged.
        """
        self._check_usable()
        await self.begin()
        if self._member is not None and session_time() >= self._member.turn_at:
            await self.turn()
        undecodable = self._cursor.undecodable
        if undecodable is not None:
            if not await self._waits(self._dead_letters.put(undecodable)):
                return False
            self._cursor.pass_over(undecodable)
            return True
        if self._cursor.has_left:  # `take` has passed over what does not decode for long enough
            return True
        batch = self._assignment.batch_now()
        if batch is None:
            batch = await self._waits(self._assignment.next_batch())
        if batch is None:
            return False
        self._load(batch)
        return True

    # ------------------------------------------------------------------------------------------- assignment

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read, the paused ones too."""
        return self._assignment.partitions

    async def assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Read more partitions from now on, each from an offset; None: from where the consumer would begin in it.

        That is where the group committed, or what `start` says; it is waited for until somebody can tell. A partition
        that is read already goes on at the offset, and with None is left where it is.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing; nothing is changed.
            InvalidRequestError: an offset is negative, or the group decides what is read.
            TidelogError: no node can be reached, or trying again would not help.
        """
        self._check_usable()
        self._check_by_hand()
        await self.begin()
        standing = self._assignment.partitions
        known = await positions_to_begin_at(self._router, self._options, positions, standing)
        await self._assignment.assign(known)

    async def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read some partitions no more. What was received of them ahead is dropped and never handed out.

        Raises:
            UnknownPartitionError: one is not read; nothing is changed.
            InvalidRequestError: the group decides what is read.
        """
        self._check_by_hand()
        self._assignment.check(partitions)
        self._assignment.unassign(partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of some partitions until `resume`; the others are read on.

        What was received ahead waits, as far as half of `prefetch_bytes` goes; the rest comes again later.

        Raises:
            UnknownPartitionError: one is not read; nothing is changed.
        """
        self._assignment.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out what comes of some partitions again, from where it stopped.

        Raises:
            UnknownPartitionError: one is not read; nothing is changed.
        """
        self._assignment.resume(partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused."""
        return self._assignment.paused

    # -------------------------------------------------------------------------------------------- positions

    def position(self) -> dict[TopicPartition, int]:
        """Return partition -> offset of the next record that will be handed out."""
        return self._cursor.positions

    async def commit(
        self, positions: Mapping[TopicPartition, int] | None = None, *, note: str = ""
    ) -> dict[TopicPartition, Committed]:
        """Store positions for the group; return what holds now.

        Args:
            positions: partition -> next offset to read; None for all that was handed out, the newest record included.
            note: kept and given back, at most 4,096 bytes.

        Raises:
            InvalidRequestError: the consumer has no group; a position is none.
            MemberFencedError: as a member, of a partition that another one or nobody reads; others may be stored. Or,
                once, this was no member for a while, and what was handed out before is read again.
            UnknownTopicError: a topic that was read is gone; one of its name that was made since is another.
        """
        moved, ids = self._to_commit(positions), dict(self._assignment.topic_ids)
        await self._soon.settled()
        stored = await self._positions.store(moved, ids, note)
        for failure in stored.failed.values():
            raise failure
        return stored.held

    def commit_soon(
        self, positions: Mapping[TopicPartition, int] | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """As `commit`, and return at once: positions are stored in their order, and `close` waits for them.

        While a commit is under way the next calls are joined into one, in which the newest position of each partition
        counts. What could not be stored is in the next commit of all that was handed out.

        Args:
            positions: see there; those of now.
            on_commit: is called on the event loop with partition -> what holds now, and the error if something was not
                stored; once, also when it is given again before that. Without one the log tells errors. A plain
                function, no coroutine function: that is a TypeError.

        Raises:
            InvalidRequestError: the consumer has no group; a position is none.
            BufferFullError: 1,000 different callbacks, or positions of 100,000 partitions, wait already.
        """
        try:
            moved = self._to_commit(positions)
        except MemberFencedError as error:
            self._soon.refuse(error, on_commit)
        else:
            self._soon.add(moved, on_commit)

    async def reject(self, record: Record, reason: str | Exception) -> None:
        """Publish a record, as it was sent, to the dead-letter topic; return once that is acknowledged.

        The position stays: commit it, or ask for more, after this returns. See `Rejections.reject` for the headers.

        Raises:
            InvalidRequestError: the consumer was made without `dead_letter`, or `record` is not a record.
            RecordError: the dead-letter topic cannot have the record, or the log no longer has what was sent.
            TidelogError: it was not acknowledged; reject the record again.
        """
        self._check_usable()
        await self._waits(self._rejections.reject(record, reason))

    @property
    def generation(self) -> int:
        """The group's generation, which grows whenever it is shared out anew; 0 for one that is no member."""
        return 0 if self._member is None else self._member.generation

    @property
    def member_id(self) -> str:
        """What this consumer is called in its group by now; empty for one that is no member."""
        return "" if self._member is None else self._member.member_id

    async def seek(self, partition: TopicPartition | int, to: SeekTo) -> None:
        """Go on somewhere else in one partition; what was received ahead of it is dropped.

        Args:
            partition: which one; a number where one topic is read.
            to: an offset; "earliest" or "latest"; a datetime with a zone, for the first record of then or later (or the
                end); or a key, for the newest record that has it.

        Raises:
            UnknownPartitionError: this consumer does not read the partition.
            InvalidRequestError: there is no such place: a negative offset, a key without a record.
            TidelogError: nobody can tell where it is.
        """
        await self.begin()
        where = self._named(partition)
        self._assignment.check([where])
        if isinstance(to, bytes):
            if not await self.seek_to_key(where, to):
                raise InvalidRequestError(f"{where.topic}/{where.partition} has no record of the key {to!r}")
            return
        if not isinstance(to, int):
            found = await list_offsets.list_offsets(self._router, where.topic, to, [where.partition])
            to = found[where.partition].offset
        if to < 0:
            raise InvalidRequestError("offsets are not negative")
        self._assignment.seek(where, to)

    async def seek_to_key(self, partition: TopicPartition | int, key: bytes) -> bool:
        """Go on at the newest record of a key in one partition; False, and nothing changes, where there is none.

        Topics with an index of keys answer at once; of others the owner looks through the partition.

        Raises:
            UnknownPartitionError: this consumer does not read the partition.
            TidelogError: nobody can tell where it is.
        """
        await self.begin()
        where = self._named(partition)
        self._assignment.check([where])
        found = await list_offsets.list_offsets(self._router, where.topic, NewestOf(key), [where.partition])
        if not found[where.partition].found:
            return False
        self._assignment.seek(where, found[where.partition].offset)
        return True

    # -------------------------------------------------------------------------------------------- lifecycle

    async def begin(self) -> None:
        """Find the positions to begin at and subscribe; iteration does it by itself.

        A partition of which no replica can be asked is added when one can; a group waits until a quorum knows where it
        stands. The log (`tidelog.consumer`) says what is waited for.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing.
        """
        if not self._may_begin():
            return
        self._check_usable()
        if self._member is not None:
            for topic in self._options.topics:
                await self._router.about_topic(topic, partial(self._router.topic_now, topic), repeatable=True)
            if self._may_begin():
                self._begin_parts()
                self._member.begin()
            return
        beginnings = await self._intake.find()
        if not self._may_begin():  # somebody was faster, or closed it meanwhile
            return
        self._begin_parts()
        self._intake.begin(beginnings)

    async def close(self) -> None:
        """Stop. Whoever iterates comes to the end. Doing it twice does nothing.

        A member commits what was handed out, unless it commits by hand, and leaves its group. Others commit nothing.
        """
        await self._end(commits_hand=True)

    async def abort(self) -> None:
        """As `close`, but what you have in hand does not count as done: leaving `async with` by an error does it."""
        await self._end(commits_hand=False)

    # --------------------------------------------------------------------------------------------- internals

    async def _end(self, *, commits_hand: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._unclosed is not None:
            self._unclosed.detach()
        await self._parts.end(commits_hand=commits_hand)

    def _begin_parts(self) -> None:
        self._begun = True
        pattern = self._options.pattern
        topics = ", ".join(self._options.topics) if pattern is None else pattern.text
        self._unclosed = end_when_dropped(self, self._parts, topics)

    async def _give_turn(self) -> None:
        """Let others have the loop now and then, while records are passed over."""
        if time.monotonic() >= self._turn_due:
            await asyncio.sleep(0)
            self._turn_due = time.monotonic() + PASSING_S

    async def _waits(self, work: Awaitable[T]) -> T:
        """Wait for something that the user has asked for: however long it takes, he is not idle."""
        self._waiting.count += 1
        try:
            return await work
        finally:
            self._waiting.count -= 1

    def _to_commit(self, positions: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
        """Return what is to be committed.

        Raises:
            InvalidRequestError, MemberFencedError: see `commit`.
        """
        if self._options.group is None:
            raise InvalidRequestError("this consumer has no group to commit for; use client.consumer(..., group=...)")
        self._check_usable()
        if positions is not None:
            return checked_positions(positions)
        moved = self._cursor.uncommitted()
        if self._member is None:
            return moved
        self._member.handover.check_nothing_lost()
        return self._member.handover.leaving | moved

    def _check_by_hand(self) -> None:
        if self._member is not None:
            raise InvalidRequestError(
                f"the group {self._options.group!r} decides what its members read; to choose by hand, give partitions="
            )

    def _may_begin(self) -> bool:
        return not self._begun and not self._closed

    def _named(self, partition: TopicPartition | int) -> TopicPartition:
        if isinstance(partition, TopicPartition):
            return partition
        if len(self._options.topics) != 1:
            raise InvalidRequestError(f"of which topic is partition {partition}? give TopicPartition(topic, number)")
        return TopicPartition(self._options.topics[0], partition)
