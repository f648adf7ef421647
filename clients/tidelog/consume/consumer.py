"""The consumer: reads partitions in order, across lost connections and moved partitions.

`Consumer` combines `TopicDiscovery` (finds partitions), `Assignment` (reads them) and `Cursor` (delivers records).
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
from tidelog.base.metric_calls import MetricCalls
from tidelog.base.refuse_pickling import refuse_to_pickle
from tidelog.cluster.routing import Router
from tidelog.consume.background_commits import BackgroundCommits, OnCommit
from tidelog.consume.consumer_parts import ConsumerParts, PendingCalls, PositionStore, end_when_dropped
from tidelog.consume.dead_letters import DeadLetters
from tidelog.consume.rejections import Rejections
from tidelog.consume.topic_discovery import TopicDiscovery
from tidelog.errors import BufferFullError, InvalidRequestError, MemberFencedError, TidelogError
from tidelog.groups.member import GroupMember
from tidelog.groups.options import Group
from tidelog.groups.partition_handover import PartitionHandover
from tidelog.groups.session_clock import session_time
from tidelog.model import Committed, ConsumedBatch, Record, TopicPartition
from tidelog.produce.producer import Producer
from tidelog.requests import list_offsets
from tidelog.requests.conversions import NewestOf
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_meter import ConsumerMeter
from tidelog.subscriptions.consumer_options import ConsumerOptions, confirm_topics, positions_to_begin_at
from tidelog.subscriptions.cursor import SKIP_SLICE_S, Cursor
from tidelog_proto.batch.record_batch import RecordBatch

T = TypeVar("T")

SeekTo = int | Literal["earliest", "latest"] | datetime | bytes
"""An offset, an end of the log, a time (with a zone), or a key, for its newest record."""


class Consumer:
    """Reads topics. Created by `Client.consumer`; iterate over it for records, or over `batches()` for columns.

    Use it as an async context manager, or call `close`. One task at a time may iterate. Records of a partition are in
    order. The consumer reads the topics that have the given names when it begins: when one is deleted, iteration ends
    with UnknownTopicError, even if the topic is recreated. With a pattern, and as a group member, reading continues.

    Args:
        router: the client's router.
        options: the arguments of `Client.consumer`.
        check: raises if the client cannot be used.
        make_producer: creates the producer for the dead-letter topic.
        group_options: options of the group membership; None if the consumer is not a member.
        client_id: the client's name.
        metric_calls: reports to the client's metrics; None without metrics.
    """

    def __init__(
        self,
        router: Router,
        options: ConsumerOptions,
        check: Callable[[], None],
        make_producer: Callable[[str], Producer],
        *,
        group_options: Group | None = None,
        client_id: str = "",
        metric_calls: MetricCalls | None = None,
    ) -> None:
        self._router = router
        self._options = options
        self._check_usable = check
        meter = None if metric_calls is None else ConsumerMeter(metric_calls)
        assignment = self._assignment = Assignment(router, options, meter)
        self._cursor = self._assignment.cursor
        self.topic_ids: Mapping[str, bytes] = self._assignment.topic_ids  # used by the gateway; set by `begin`
        self._discovery = TopicDiscovery(router, options, self._assignment)
        self._dead_letters = DeadLetters(lambda: make_producer(options.dead_letter or ""))
        self._rejections = Rejections(router, options, self._cursor, self._dead_letters, self.topic_ids)
        # These parts must not refer to this object: they end when it is garbage collected without `close`.
        is_manual = group_options is not None and group_options.commit == "manual"
        self._positions = PositionStore(router, options, self._cursor, is_manual=is_manual)
        self._waiting = PendingCalls()
        name = f"group {options.group!r}"
        self._commits = BackgroundCommits(self._positions.store, name, lambda: assignment.topic_ids)
        self._member: GroupMember | None = None
        if group_options is not None:
            handover = partial(PartitionHandover, router, options, group_options=group_options, assignment=assignment)
            make_handover = partial(handover, settle_commits=self._commits.settled)
            asks = self._waiting.any
            self._member = GroupMember(
                router, options, group_options, assignment, make_handover, client_id=client_id, is_waiting=asks
            )
        self.commits_processed = group_options is not None and group_options.commit == "processed"
        """Whether asking for more records commits the processed ones."""
        self._positions.member = self._member
        self._parts = ConsumerParts(self._commits, self._member, self._discovery, self._assignment, self._dead_letters)
        self._unclosed: weakref.finalize[Any, Any] | None = None
        self._yield_at = 0.0
        self._has_begun = False
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
        """Whether the consumer was closed."""
        return self._closed

    @property
    def skipped(self) -> int:
        """How many records were skipped because they do not decode (`on_undecodable="skip"`)."""
        return self._cursor.skipped

    @property
    @internal
    def cursor(self) -> Cursor:
        """The consumer's cursor, for the blocking consumer, which delivers records in the application's thread."""
        return self._cursor

    @property
    @internal
    def has_arrivals(self) -> bool:
        """Whether a batch or an error is available without waiting."""
        return self._assignment.has_arrivals

    @internal
    def at_once(self, take: Callable[[int, RecordBatch], bool]) -> None:
        """Call `take` with partition and batch when a batch arrives while a task waits in `next_batch`.

        `take` processes the batch, or returns False to leave it to the task. It must not raise. Only for a consumer
        that is not a group member.
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
            except Exception as error:  # noqa: BLE001 - the application's deserializer may raise anything
                cursor.failed(error)
                await self._yield_to_loop()
                continue
            if not cursor.open() and not await self.fill():
                raise StopAsyncIteration

    async def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Iterate over batches: columns instead of records. Deserializers are not applied."""
        while True:
            if self._member is not None and session_time() >= self._member.turn_at:
                await self.turn()
            batch = self._cursor.rest()
            if batch is not None:
                yield batch
                del batch  # Release the batch while waiting for the next one.
            elif not await self.fill():
                return

    async def poll(self, max_records: int = 500, timeout_s: float = 1.0) -> list[Record]:
        """Return up to `max_records` available records; wait at most `timeout_s` for the first one.

        The list is empty after the time-out, when the consumer was closed, or when the member's session expired before
        the records could be returned. The list ends before a record that does not decode; the next call continues
        there. If a dead letter is in flight at the time-out, the next call waits for it. The first call also begins
        the consumer, which may take longer than `timeout_s`. With many thousands of records per call, each record costs
        more, because Python's garbage collector traverses them.

        Raises:
            InvalidRequestError: `max_records` is below 1, or `timeout_s` negative.
            TidelogError: as iterating; records before the error are returned first.
        """
        if max_records < 1 or timeout_s < 0:
            raise InvalidRequestError(f"max_records must be >= 1 and timeout_s >= 0, got {max_records} and {timeout_s}")
        self._check_usable()
        await self.begin()
        await self.ask(polls=True)
        if self._member is not None and session_time() >= self._member.turn_at:
            await self.turn()
        deadline = asyncio.get_running_loop().time() + timeout_s
        records = self._cursor.take(max_records)
        while not records:
            try:
                async with asyncio.timeout_at(deadline):
                    if not await self.more():
                        return records
                    records = self._cursor.take(max_records)
                    if not records:
                        await self._yield_to_loop()
            except TimeoutError:
                return records
        # No awaits from here on: if the call were cancelled, the taken records would be lost, but committed later.
        with contextlib.suppress(TidelogError):  # the next call raises it
            while len(records) < max_records and self._load_next():
                more = self._cursor.take(max_records - len(records))
                if not more:
                    break  # No record of the batch decodes: return the records taken so far.
                records += more
        if self._member is not None and session_time() >= self._member.reads_until:
            await self.turn()  # The session expired while the process was suspended.
            return self._cursor.still_assigned(records)
        return records

    def _load_next(self) -> bool:
        if self._cursor.has_left:  # An undecodable record follows: the next call continues there.
            return False
        is_due = self._member is not None and session_time() >= self._member.turn_at
        batch = None if is_due else self._assignment.batch_now()
        if batch is not None:
            self._load(batch)
        return batch is not None

    def _load(self, batch: ConsumedBatch) -> None:
        if self._cursor.has_left:  # another task has loaded a batch
            self._assignment.put_back(batch)
        else:
            self._cursor.load(batch)

    async def next_batch(self) -> ConsumedBatch | None:
        """Wait for the next batch and return it; None when the consumer was closed.

        The batch does not count as delivered. For applications that store positions themselves: the next position is
        `batch.batch.end_offset`. A batch without records only advances the position.

        Raises:
            OffsetOutOfRangeError: retention has deleted the position, or its record is lost (with
                `on_out_of_range="error"`).
            TidelogError: reading cannot continue.
        """
        self._check_usable()
        await self.begin()
        if self._member is not None and session_time() >= self._member.turn_at:
            await self.turn()
        return await self._counted(self._assignment.next_batch())

    @property
    @internal
    def reads_until(self) -> float:
        """The `session_time` until which no other member may read this one's partitions; infinite if not a member.

        The value grows with each answered heartbeat. After that time, `turn` must be awaited before more records are
        delivered. Thread-safe.
        """
        return math.inf if self._member is None else self._member.reads_until

    @internal
    async def turn(self) -> None:
        """Let the event loop send the group member's heartbeats; if its session has expired, drop its records."""
        if self._member is None or not self._has_begun:
            return
        await self._counted(self._member.turn())

    @internal
    async def fill(self) -> bool:
        """Note that everything delivered was processed, and wait for `more`; called by iteration.

        Raises:
            TidelogError: as `more`; with `commit="processed"`, the processed positions could not be committed.
        """
        await self.ask()
        return await self.more()

    @internal
    async def ask(self, *, polls: bool = False) -> None:
        """Note that the application asks for more records, which marks those delivered before as processed.

        Raises:
            TidelogError: with `commit="processed"`, the processed positions could not be committed.
        """
        self._cursor.asked(polls=polls)
        await self._assignment.wait_while_suspended()
        if self.commits_processed and self._member is not None:
            await self._counted(self._member.commit_processed())

    @internal
    async def more(self) -> bool:
        """Wait until the cursor may have more records, or has skipped an undecodable one; False when closed.

        Raises:
            TidelogError: as `next_batch`; or a dead letter was not acknowledged.
        """
        self._check_usable()
        await self.begin()
        if self._member is not None and session_time() >= self._member.turn_at:
            await self.turn()
        self._commit_skipped()
        undecodable = self._cursor.undecodable
        if undecodable is not None:
            if not await self._counted(self._dead_letters.put(undecodable)):
                return False
            self._cursor.pass_over(undecodable)
            self._commit_skipped()
            return True
        if self._cursor.has_left:  # `take` stopped after `SKIP_SLICE_S` of undecodable records
            return True
        batch = self._assignment.batch_now()
        if batch is None:
            batch = await self._counted(self._assignment.next_batch())
        if batch is None:
            return False
        self._load(batch)
        return True

    # ------------------------------------------------------------------------------------------- assignment

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read, including paused ones."""
        return self._assignment.partitions

    async def assign(self, positions: Mapping[TopicPartition, int | None]) -> None:
        """Read additional partitions, each from an offset; None: from where the consumer would start by default.

        The default is the group's committed position, or `start`; the call waits until that position is known. A
        partition that is read already continues at the offset; with None it is left unchanged.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist; nothing is changed.
            InvalidRequestError: an offset is negative, or the group assigns the partitions.
            TidelogError: no node can be reached, or the error is not retriable.
        """
        self._check_usable()
        self._check_manual_assignment()
        await self.begin()
        assigned = self._assignment.partitions
        known = await positions_to_begin_at(self._router, self._options, positions, assigned)
        await self._assignment.assign(known)

    async def unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading partitions. Received records of them are dropped and never delivered.

        Raises:
            UnknownPartitionError: a partition is not read; nothing is changed.
            InvalidRequestError: the group assigns the partitions.
        """
        self._check_manual_assignment()
        self._assignment.check(partitions)
        self._assignment.unassign(partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Deliver nothing from partitions until `resume`; other partitions continue.

        Received records of the partitions are kept, up to half of `prefetch_bytes`; others are received again later.

        Raises:
            UnknownPartitionError: a partition is not read; nothing is changed.
        """
        self._assignment.pause(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Deliver paused partitions again, from where they stopped.

        Raises:
            UnknownPartitionError: a partition is not read; nothing is changed.
        """
        self._assignment.resume(partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        return self._assignment.paused

    # -------------------------------------------------------------------------------------------- positions

    def position(self) -> dict[TopicPartition, int]:
        """Return partition -> offset of the next record to be delivered."""
        return self._cursor.positions

    async def commit(
        self, positions: Mapping[TopicPartition, int] | None = None, *, note: str = ""
    ) -> dict[TopicPartition, Committed]:
        """Store positions for the group; return the positions that are stored now.

        Args:
            positions: partition -> next offset to read; None for everything delivered, including the newest record.
            note: stored with the positions, at most 4,096 bytes.

        Raises:
            InvalidRequestError: the consumer has no group, or a position is invalid.
            ClosedError: the group member was closed.
            MemberFencedError: a partition is not assigned to this member; other positions may be stored. Also raised
                once after the session has expired if records delivered before are not committed: members of the group
                read them again. The consumer rejoins by itself.
            OffsetOutOfRangeError: a position is past the end of the log; other positions may be stored.
            UnknownTopicError: a topic that was read was deleted; a topic recreated under its name has another id.
        """
        self._check_usable()
        moved, ids = self._positions.to_commit(positions), dict(self._assignment.topic_ids)
        await self._commits.settled()
        return await self._positions.commit(moved, ids, note)

    def commit_soon(
        self, positions: Mapping[TopicPartition, int] | None = None, *, on_commit: OnCommit | None = None
    ) -> None:
        """Store positions in the background, in order; `close` waits for them. Otherwise as `commit`.

        While a commit is in flight, later calls are merged into one with the newest position of each partition.
        Positions that could not be stored are included in the next commit of everything delivered.

        Args:
            positions: as in `commit`, evaluated now.
            on_commit: called once on the event loop with partition -> stored position, and the error if some were not
                stored; also called once if the same function is passed again before that. Without `on_commit`, errors
                are logged. It must be a plain function; a coroutine function raises TypeError.

        Raises:
            InvalidRequestError: the consumer has no group, or a position is invalid.
            ClosedError: the group member was closed.
            BufferFullError: more than 1,000 distinct callbacks, or positions of more than 100,000 partitions, would be
                pending.
        """
        self._check_usable()
        try:
            moved = self._positions.to_commit(positions)
        except MemberFencedError as error:
            self._commits.refuse(error, on_commit)
        else:
            self._commits.add(moved, on_commit)

    async def reject(self, record: Record, reason: str | Exception) -> None:
        """Publish a record, as it was sent, to the dead-letter topic; return when the publish is acknowledged.

        The consumer's position does not change: commit it, or ask for more records, after this call returns. See
        `Rejections.reject` for the headers.

        Raises:
            InvalidRequestError: the consumer was created without `dead_letter`, or `record` is not a record.
            RecordError: the dead-letter topic refuses the record, or the log no longer has the bytes that were sent.
            TidelogError: the publish was not acknowledged; reject the record again.
        """
        self._check_usable()
        await self._counted(self._rejections.reject(record, reason))

    @property
    def generation(self) -> int:
        """The group's generation, which grows with every rebalance; 0 if the consumer is not a member."""
        return 0 if self._member is None else self._member.generation

    @property
    def member_id(self) -> str:
        """The consumer's current member id; "" if it is not a member."""
        return "" if self._member is None else self._member.member_id

    async def seek(self, partition: TopicPartition | int, to: SeekTo) -> None:
        """Continue at another position of a partition; received records before the seek are dropped.

        Args:
            partition: the partition; a number is enough if the consumer reads one topic.
            to: an offset; "earliest" or "latest"; a datetime with a time zone, for the first record with that timestamp
                or a later one (otherwise the end); or a key, for its newest record.

        Raises:
            UnknownPartitionError: the consumer does not read the partition.
            InvalidRequestError: the offset is negative, or no record has the key.
            TidelogError: no replica can resolve the position.
        """
        await self.begin()
        where = self._partition_of(partition)
        self._assignment.check([where])
        if isinstance(to, bytes):
            if not await self.seek_to_key(where, to):
                raise InvalidRequestError(
                    f"{where.topic}/{where.partition} has no record with key {to!r}; seek_to_key() returns False "
                    "instead of raising"
                )
            return
        if not isinstance(to, int):
            offsets = await list_offsets.list_offsets(self._router, where.topic, to, [where.partition])
            to = offsets[where.partition].offset
        if to < 0:
            raise InvalidRequestError(f"offset must be >= 0, got {to}")
        self._assignment.seek(where, to)

    async def seek_to_key(self, partition: TopicPartition | int, key: bytes) -> bool:
        """Continue at the newest record of a key in a partition; False, without a change, if no record has the key.

        In topics with an index of keys the answer is immediate; otherwise the owner scans the partition.

        Raises:
            UnknownPartitionError: the consumer does not read the partition.
            TidelogError: no replica can resolve the position.
        """
        await self.begin()
        where = self._partition_of(partition)
        self._assignment.check([where])
        offsets = await list_offsets.list_offsets(self._router, where.topic, NewestOf(key), [where.partition])
        if not offsets[where.partition].found:
            return False
        self._assignment.seek(where, offsets[where.partition].offset)
        return True

    # -------------------------------------------------------------------------------------------- lifecycle

    async def begin(self) -> None:
        """Find the start positions and subscribe; iteration calls this method.

        A partition without a reachable replica is added when one can be reached; with a group, the consumer waits until
        a quorum confirms the committed positions. The logger `tidelog.consumer` reports what the consumer waits for.

        Raises:
            UnknownTopicError, UnknownPartitionError: a topic or partition does not exist.
        """
        if not self._may_begin():
            return
        self._check_usable()
        if self._member is not None:
            await confirm_topics(self._router, self._options.topics)
            if self._may_begin():
                self._begin_parts()
                self._member.begin()
            return
        starts = await self._discovery.find()
        if not self._may_begin():  # Another task has begun or closed the consumer in the meantime.
            return
        self._begin_parts()
        self._discovery.begin(starts)

    async def close(self) -> None:
        """Stop reading; running iterations end. Idempotent.

        A group member commits everything delivered, unless its commits are manual, waits for commits in flight, and
        leaves its group. Other consumers commit nothing. It does not wait for a record that another task is processing.
        """
        await self._end(commits_in_hand=True)

    async def abort(self) -> None:
        """Close as `close` does, but count the records that the application still holds as not processed."""
        await self._end(commits_in_hand=False)

    # --------------------------------------------------------------------------------------------- internals

    async def _end(self, *, commits_in_hand: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if self._unclosed is not None:
            self._unclosed.detach()
        await self._parts.end(commits_in_hand=commits_in_hand)

    def _begin_parts(self) -> None:
        self._has_begun = True
        pattern = self._options.pattern
        topics = ", ".join(self._options.topics) if pattern is None else pattern.text
        self._unclosed = end_when_dropped(self, self._parts, topics)

    async def _yield_to_loop(self) -> None:
        """Yield to the event loop from time to time while records are skipped."""
        if time.monotonic() >= self._yield_at:
            await asyncio.sleep(0)
            self._yield_at = time.monotonic() + SKIP_SLICE_S

    async def _counted(self, work: Awaitable[T]) -> T:
        """Await `work` for the application. Meanwhile the application waits, so `poll_timeout_s` does not apply."""
        self._waiting.count += 1
        try:
            return await work
        finally:
            self._waiting.count -= 1

    def _commit_skipped(self) -> None:
        """Commit skipped records in the background if the application has committed everything delivered before."""
        if positions := self._positions.after_skipped():
            with contextlib.suppress(BufferFullError):  # the next call tries again
                self._commits.add(positions, None)

    def _check_manual_assignment(self) -> None:
        if self._member is not None:
            raise InvalidRequestError(
                f"group {self._options.group!r} assigns partitions to its members; to assign them yourself, create the "
                "consumer with partitions=..."
            )

    def _may_begin(self) -> bool:
        return not self._has_begun and not self._closed

    def _partition_of(self, partition: TopicPartition | int) -> TopicPartition:
        if isinstance(partition, TopicPartition):
            return partition
        if len(self._options.topics) != 1:
            raise InvalidRequestError(
                f"partition {partition} needs a topic, because the consumer was not created with exactly one topic "
                f"name: pass TopicPartition(topic, {partition})"
            )
        return TopicPartition(self._options.topics[0], partition)


refuse_to_pickle(Consumer)
