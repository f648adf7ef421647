"""Assignment and revocation of a member's partitions, with the positions that pass from one member to the next.

An assigned partition starts at the group's committed position. A revoked partition is no longer delivered; the
application finishes the records that it holds, the position is committed, and only then does the member report the
partition as released. A graceful handover therefore neither skips nor repeats records, unless the application commits
manually and has not committed them, or processes its records for longer than `poll_timeout_s`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

from tidelog.base.backoff import Backoff
from tidelog.base.tasks import cancel_all
from tidelog.cluster.routing import Router
from tidelog.errors import (
    ForbiddenError,
    TidelogError,
    UnknownPartitionError,
    UnknownTopicError,
    describe_error,
)
from tidelog.groups.commits import GroupCommits, store_or_log
from tidelog.groups.initial_positions import InitialPositions
from tidelog.groups.membership import Membership, PartitionId
from tidelog.groups.options import Group, OnPartitions
from tidelog.groups.session_clock import session_time
from tidelog.model import TopicPartition
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_options import ConsumerOptions, find_missing_starts, resolve_start
from tidelog.subscriptions.cursor import SkippedRange

_POLL_S: Final = 0.01
FORBIDDEN_TRIES: Final = 15
"""Maximum number of attempts to begin reading a forbidden topic that matches the pattern; together they take at most
about 10 s."""

_log: Final = logging.getLogger("tidelog.consumer")


class PartitionHandover:
    """Begins and releases the partitions of one member, and passes their positions on.

    Args:
        settle_commits: waits until the background commits of the consumer have an outcome.
        changed: called when partitions were released, so that the member reports that to the coordinator.
    """

    def __init__(
        self,
        router: Router,
        options: ConsumerOptions,
        *,
        group_options: Group,
        assignment: Assignment,
        commits: GroupCommits,
        settle_commits: Callable[[], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        assert options.group is not None
        self._router = router
        self._options = options
        self._group = options.group
        self._group_options = group_options
        self._assignment = assignment
        self._commits = commits
        self._settle_commits = settle_commits
        self._changed = changed
        self.initial_positions = InitialPositions(router, options, commits)
        self._ending: set[PartitionId] = set()
        self._beginning: set[PartitionId] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started_partitions: dict[PartitionId, TopicPartition] = {}
        """Partitions that the member has begun and not released, with their topic name at that time."""
        self._callback_lock = asyncio.Lock()
        """Lets callbacks run one at a time, in the order of their events."""
        self._callback_task: asyncio.Task[Any] | None = None
        self._ended = False
        self.revoking: dict[TopicPartition, int] = {}
        """Positions of partitions that are being revoked; the application may still commit them."""
        self._revoked: set[TopicPartition] = set()
        """The revoked partitions for which `on_revoked` was called."""
        self._skipped: dict[TopicPartition, SkippedRange] = {}
        """The last skipped records of partitions that are being revoked."""

    def assign(self, membership: Membership, places: Collection[PartitionId]) -> None:
        """Begin to read partitions as soon as their positions are known."""
        new = set(places) - self._beginning - membership.held
        self._beginning |= new
        for topic_id in sorted({place[0] for place in new}):
            of_topic = sorted(place for place in new if place[0] == topic_id)
            self._run(
                self._assign(membership, topic_id, of_topic), f"{self._group}: begin {membership.names.get(topic_id)}"
            )

    def revoke(self, membership: Membership, places: Collection[PartitionId]) -> None:
        """Release partitions gracefully."""
        new = set(places) - self._ending
        self._ending |= new
        if new:
            self._run(self._revoke(membership, new), f"{self._group}: release {len(new)} partitions")

    async def lose(self, membership: Membership) -> None:
        """Stop reading all partitions, because other members may own them."""
        positions = self.revoking | self._unassign(self._assignment.partitions)
        self._assignment.cursor.losses += 1
        await self._stop()
        self._ending.clear()
        self._beginning.clear()
        self._started_partitions.clear()
        membership.held.clear()
        await self._finish_loss(positions)

    async def end(self, membership: Membership, *, commits_in_hand: bool) -> None:
        """Release all partitions on close.

        Args:
            commits_in_hand: whether records that the application still holds count as processed.
        """
        await self._stop()
        hand = {} if commits_in_hand else self._assignment.cursor.in_hand()
        self.revoking |= self._unassign(self._assignment.partitions)
        await self._finish_revocation(membership, dict(self.revoking), hand)
        self._ended = True
        self._started_partitions.clear()
        membership.held.clear()

    # -------------------------------------------------------------------------------------------- assignment

    async def _assign(self, membership: Membership, topic_id: bytes, places: list[PartitionId]) -> None:
        """Begin partitions of one topic, retrying until they have begun or are no longer assigned."""
        left = set(places)
        backoff = Backoff()
        try:
            while left := left & membership.assigned:
                topic = membership.names.get(topic_id, "")
                try:
                    done = await self._try_to_assign(membership, topic, topic_id, left)
                except TidelogError as error:
                    # The coordinator also detects deleted and forbidden topics, and revokes their partitions.
                    if not error.retriable and not self._coordinator_will_notice(error, backoff.failures):
                        self._assignment.broken(error)
                        return
                    _log.info(
                        "group %r: cannot start to read topic %s yet, retrying: %s",
                        self._group,
                        topic,
                        describe_error(error),
                    )
                    done = set[PartitionId]()
                left -= done
                if not done:
                    await asyncio.sleep(backoff.next_wait_s())
        finally:
            self._beginning.difference_update(places)

    def _coordinator_will_notice(self, error: TidelogError, tries: int) -> bool:
        """Return whether the coordinator will detect the reason for an error itself and revoke the partitions."""
        if isinstance(error, ForbiddenError):
            return self._options.pattern is not None and tries < FORBIDDEN_TRIES
        return isinstance(error, (UnknownTopicError, UnknownPartitionError))

    async def _try_to_assign(
        self, membership: Membership, topic: str, topic_id: bytes, places: set[PartitionId]
    ) -> set[PartitionId]:
        """Resolve positions and begin to read partitions there; return the partitions that need no further attempt."""
        if topic == self._options.dead_letter:
            # The pattern matches the consumer's own dead-letter topic, which must not be read: hold it without reading.
            return set(membership.begin(places, now=session_time()))
        numbers = sorted(partition for _, partition in places)
        done = set[PartitionId]()
        for options in self.initial_positions.start_options(topic, topic_id, numbers):
            start = await resolve_start(self._router, topic, options)
            # The client and the coordinator disagree on the topic's id, so one of them has outdated metadata.
            if start.topic_id != topic_id:
                await self._router.refresh(topic, fresh=True)
                return done
            positions = dict(start.positions)
            if not positions and start.search is not None:
                await find_missing_starts(self._router, topic, start.search, positions.update)
            if self._is_revoking_earlier(topic, topic_id):
                return done
            committed = {
                TopicPartition(topic, number): positions[number] for number in positions.keys() & start.committed
            }
            self._commits.losses.committed(committed)
            chosen = () if options.start == "earliest" else positions.keys() - start.committed
            await self._begin(membership, topic, topic_id, positions, chosen)
            done |= {(topic_id, number) for number in positions}
        return done

    async def _begin(
        self, membership: Membership, topic: str, topic_id: bytes, positions: Mapping[int, int], chosen: Collection[int]
    ) -> None:
        """Begin to read at positions; those of the partitions `chosen` are not committed yet, and are stored first."""
        now = session_time()
        may = membership.begin(((topic_id, number) for number in positions), now=now)
        starts = {TopicPartition(topic, number): positions[number] for _, number in sorted(may)}
        if not starts:
            return
        self._drop_earlier(topic, topic_id)
        self._started_partitions |= {place: TopicPartition(topic, place[1]) for place in may}
        self._commits.began(starts)
        self._assignment.add(starts, {topic: topic_id})
        own = {where: offset for where, offset in starts.items() if where.partition in chosen}
        if not own and self._group_options.on_assigned is None:
            return
        self._assignment.hold(starts)
        if own:
            await self.initial_positions.store(
                own, lambda where: self._started_partitions.get((topic_id, where.partition)) == where
            )
        on_assigned = self._group_options.on_assigned
        if await self._call(on_assigned, frozenset(starts), lambda: not membership.is_over(session_time())):
            self._assignment.release(starts)

    def _is_revoking_earlier(self, topic: str, topic_id: bytes) -> bool:
        """Return whether partitions of a deleted topic of this name are still being revoked."""
        is_another = self._assignment.topic_ids.get(topic, topic_id) != topic_id
        return is_another and any(where.topic == topic for where in self.revoking)

    def _drop_earlier(self, topic: str, topic_id: bytes) -> None:
        """Stop reading a deleted topic of this name."""
        earlier = self._assignment.topic_ids.get(topic, topic_id)
        if earlier != topic_id:
            self._assignment.unassign([where for where in self._assignment.partitions if where.topic == topic])

    # -------------------------------------------------------------------------------------------- revocation

    async def _revoke(self, membership: Membership, places: set[PartitionId]) -> None:
        began = {place: self._started_partitions.pop(place) for place in places if place in self._started_partitions}
        ids = self._assignment.topic_ids
        try:
            asks = self._assignment.cursor.asks
            positions = self._unassign([w for (topic_id, _), w in began.items() if ids.get(w.topic) == topic_id])
            self.revoking |= positions
            await self._wait_until_processed(positions, asks)
            still = {where: offset for where, offset in positions.items() if where in self.revoking}
            await self._finish_revocation(membership, still, self._assignment.cursor.in_hand())
            await self._call(self._group_options.on_lost, frozenset(began.values()) - still.keys())
            membership.released(places)
        finally:
            self._ending -= places
        # Assigned again in the meantime: begin here, because no later answer reports the assignment.
        self.assign(membership, places & membership.assigned)
        self._changed()

    async def _wait_until_processed(self, partitions: Collection[TopicPartition], asks: int) -> None:
        """Wait until the application asks for more records if it holds revoked ones; at most `poll_timeout_s`."""
        cursor, loop = self._assignment.cursor, asyncio.get_running_loop()
        until = loop.time() + self._group_options.poll_timeout_s
        while cursor.asks == asks and not cursor.in_hand().keys().isdisjoint(partitions):
            if loop.time() >= until:
                return
            # Polled, because a thread of the blocking client can ask for more without an event.
            await asyncio.sleep(_POLL_S)

    async def _finish_revocation(
        self, membership: Membership, positions: dict[TopicPartition, int], hand: Mapping[TopicPartition, int]
    ) -> None:
        """Revoke gracefully, or immediately if the session has expired locally."""
        if membership.is_over(session_time()):
            await self._finish_loss(positions)
            return
        unreported = frozenset(positions) - self._revoked

        def begin() -> bool:
            # Checked again, because the session may have expired during the callbacks before this one.
            if membership.is_over(session_time()):
                return False
            self._revoked |= unreported
            return True

        await self._call(self._group_options.on_revoked, unreported, begin)
        if not unreported <= self._revoked:
            await self._finish_loss(positions)
            return
        await self._settle_commits()
        if not self._ended:
            if self._group_options.commit == "manual":
                skipped = {where: each for where, each in self._skipped.items() if where in positions}
                done = self._commits.after_skipped(skipped)
            else:
                done = {where: min(offset, hand.get(where, offset)) for where, offset in positions.items()}
            await store_or_log(self._commits, done, self._group)
        self._forget(positions)

    async def _finish_loss(self, positions: Mapping[TopicPartition, int]) -> None:
        """Drop partitions that other members may own; `on_lost` is called for those without `on_revoked`."""
        unreported = frozenset(positions) - self._revoked
        if self._group_options.commit == "manual":
            self._commits.losses.add(self._commits.moved(self._after_delivered(positions)))
        self._forget(positions)
        await self._call(self._group_options.on_lost, unreported)

    def _unassign(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Stop reading partitions; return the position in each."""
        skipped = self._assignment.cursor.skipped_ranges()
        self._skipped |= {where: each for where, each in skipped.items() if where in partitions}
        return self._assignment.unassign(partitions)

    def _after_delivered(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the positions before records that were skipped last, i.e. after the last delivered ones."""
        after = dict(positions)
        for where, each in self._skipped.items():
            if after.get(where) == each.end:
                after[where] = each.start
        return after

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for where in list(partitions):
            self._revoked.discard(where)
            self._skipped.pop(where, None)
            self.revoking.pop(where, None)
            self._commits.forget(where)

    # --------------------------------------------------------------------------------------------- internals

    async def _call(
        self,
        callback: OnPartitions | None,
        partitions: frozenset[TopicPartition],
        begin: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Call a callback of the application; return whether it succeeded.

        Args:
            begin: called when the callbacks before this one have ended; False: the callback is not called.
        """
        if callback is None or not partitions or self._callback_task is asyncio.current_task():
            return begin()  # No callback to call, or the current callback has caused this by closing the consumer.
        try:
            async with self._callback_lock:
                if not begin():
                    return False
                self._callback_task = asyncio.current_task()
                waits = callback(partitions)
                if inspect.isawaitable(waits):
                    await waits
        except Exception as error:  # noqa: BLE001 - an exception of the application's callback ends this consumer only
            self._assignment.broken(error)
            return False
        finally:
            if self._callback_task is asyncio.current_task():
                self._callback_task = None
        return True

    async def _stop(self) -> None:
        """Cancel pending handovers, except a callback that calls this."""
        await cancel_all(self._tasks)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._assignment.broken(error)
