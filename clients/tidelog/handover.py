"""Partitions that a member takes up and gives up, with the positions that go from one member to the next.

What is taken up begins where the group has committed. What is given up is handed out no more from that moment; then the
user is let finish what he has in hand, his position is committed, and only then does the coordinator hear that the
partition is free. So a partition that changes hands in good order is read without a gap and without a repeat.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final

from tidelog.assignment import Assignment
from tidelog.backoff import Backoff
from tidelog.consumer_options import ConsumerOptions, TopicOptions, find_rest, resolve_start
from tidelog.errors import TidelogError, UnknownPartitionError, UnknownTopicError, told
from tidelog.group_commits import GroupCommits, store_quietly
from tidelog.group_membership import Membership, Place
from tidelog.group_options import Group, OnPartitions
from tidelog.model import TopicPartition
from tidelog.routing import Router

_LOOK_S: Final = 0.01

_log: Final = logging.getLogger("tidelog.consumer")


class Handover:
    """See the module.

    Args:
        router: the client's.
        options, wish: what was asked for.
        assignment: what is read.
        commits: the group's.
        changed: is called when something was given up, for the coordinator to hear.
    """

    def __init__(
        self,
        router: Router,
        options: ConsumerOptions,
        *,
        wish: Group,
        assignment: Assignment,
        commits: GroupCommits,
        changed: Callable[[], None],
    ) -> None:
        assert options.group is not None
        self._router = router
        self._options = options
        self._group = options.group
        self._wish = wish
        self._assignment = assignment
        self._commits = commits
        self._changed = changed
        self._ending: set[Place] = set()
        self._beginning: set[Place] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.leaving: dict[TopicPartition, int] = {}
        """Where the user stands in what is being given up: he may commit it still."""
        self._told: set[TopicPartition] = set()
        """Of that, what `on_revoked` was called for."""

    def take_up(self, life: Membership, places: Collection[Place]) -> None:
        """Begin with partitions, as soon as it is known where."""
        new = set(places) - self._beginning - life.held
        self._beginning |= new
        for topic_id in sorted({place[0] for place in new}):
            of_topic = sorted(place for place in new if place[0] == topic_id)
            self._run(self._take_up(life, topic_id, of_topic), f"{self._group}: begin {life.names.get(topic_id)}")

    def give_up(self, life: Membership, places: Collection[Place]) -> None:
        """Give partitions up, in good order."""
        new = set(places) - self._ending
        self._ending |= new
        if new:
            self._run(self._give_up(life, new), f"{self._group}: give up {len(new)} partitions")

    async def lose(self, life: Membership) -> None:
        """Read nothing any more: others may have it all by now."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._ending.clear()
        self._beginning.clear()
        stands = self.leaving | self._assignment.unassign(self._assignment.partitions)
        life.held.clear()
        await self._part_without(frozenset(stands))

    async def end(self, life: Membership, *, commits_hand: bool) -> None:
        """Give everything up because the consumer is closed, with what the user has in hand, or without."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        hand = {} if commits_hand else self._assignment.cursor.in_hand()
        partitions = self._assignment.partitions
        stands = self.leaving | self._assignment.unassign(partitions)
        await self._part(life, stands, hand)
        life.held.clear()

    # -------------------------------------------------------------------------------------------- taking up

    async def _take_up(self, life: Membership, topic_id: bytes, places: list[Place]) -> None:
        """Begin with partitions of one topic, trying until they are begun with or are to be read no longer."""
        left = set(places)
        backoff = Backoff()
        try:
            while left := left & life.assigned:
                topic = life.names.get(topic_id, "")
                try:
                    begun = await self._try_to_take_up(life, topic, topic_id, left)
                except TidelogError as error:
                    # One that is gone the coordinator hears of, too, and then it is not to be read any more.
                    if not error.retriable and not isinstance(error, (UnknownTopicError, UnknownPartitionError)):
                        self._assignment.broken(error)
                        return
                    _log.info("%s: %s is not read yet: %s", self._group, topic, told(error))
                    begun = set[Place]()
                left -= begun
                if not begun:
                    await asyncio.sleep(backoff.next_wait_s())
        finally:
            self._beginning.difference_update(places)

    async def _try_to_take_up(self, life: Membership, topic: str, topic_id: bytes, places: set[Place]) -> set[Place]:
        """Find out where to begin, and begin; return the partitions that this is done with."""
        numbers = tuple(sorted(partition for _, partition in places))
        options = TopicOptions(self._group, self._options.of_topic(topic).start, numbers)
        beginning = await resolve_start(self._router, topic, options)
        if beginning.topic_id != topic_id:  # what is known here is older than what the coordinator knows, or newer
            await self._router.refresh(topic, fresh=True)
            return set()
        positions = dict(beginning.positions)
        if not positions and beginning.search is not None:
            await find_rest(self._router, topic, beginning.search, positions.update)
        self._leave_namesake(life, topic, topic_id)
        await self._begin(life, topic, topic_id, positions)
        return {(topic_id, number) for number in positions}

    def _leave_namesake(self, life: Membership, topic: str, topic_id: bytes) -> None:
        """Read an earlier topic of a name no longer: it is gone."""
        earlier = self._assignment.topic_ids.get(topic, topic_id)
        if earlier != topic_id:
            stands = self._assignment.unassign([each for each in self._assignment.partitions if each.topic == topic])
            self._commits.forget(frozenset(stands))
            life.gave_up({(earlier, where.partition) for where in stands})

    async def _begin(self, life: Membership, topic: str, topic_id: bytes, positions: Mapping[int, int]) -> None:
        now = asyncio.get_running_loop().time()
        may = life.begin(((topic_id, number) for number in positions), now=now)
        starts = {TopicPartition(topic, number): positions[number] for _, number in sorted(may)}
        if not starts:
            return
        self._commits.began(starts)
        self._assignment.add(starts, {topic: topic_id})
        if self._wish.on_assigned is not None:
            self._assignment.pause(starts)
            await self._tell(self._wish.on_assigned, frozenset(starts))
            still = [where for where in starts if where in self._assignment.paused]
            self._assignment.resume(still)

    # -------------------------------------------------------------------------------------------- giving up

    async def _give_up(self, life: Membership, places: set[Place]) -> None:
        partitions = named(life, places, self._assignment.topic_ids)
        try:
            asks = self._assignment.cursor.asks
            stands = self._assignment.unassign(partitions)
            self.leaving |= stands
            await self._let_finish(stands, asks)
            await self._part(life, stands, self._assignment.cursor.in_hand())
            life.gave_up(places)
        finally:
            self._ending -= places
        self._changed()

    async def _let_finish(self, partitions: Collection[TopicPartition], asks: int) -> None:
        """Wait until the user has asked for more, if he has something in hand of what is given up."""
        cursor, loop = self._assignment.cursor, asyncio.get_running_loop()
        until = loop.time() + self._wish.poll_timeout_s
        while cursor.asks == asks and not cursor.in_hand().keys().isdisjoint(partitions):
            if loop.time() >= until:
                return
            await asyncio.sleep(_LOOK_S)  # a thread of the blocking client may be the one that asks

    async def _part(
        self, life: Membership, stands: dict[TopicPartition, int], hand: Mapping[TopicPartition, int]
    ) -> None:
        """Let go in good order, or where others may read already by this member's clock, without it."""
        if life.is_over(asyncio.get_running_loop().time()):
            await self._part_without(frozenset(stands))
            return
        untold = frozenset(stands) - self._told
        self._told |= untold
        await self._tell(self._wish.on_revoked, untold)
        if self._wish.commit != "manual":
            done = {where: min(offset, hand.get(where, offset)) for where, offset in stands.items()}
            await store_quietly(self._commits, done, self._group)
        self._let_go(frozenset(stands))

    async def _part_without(self, partitions: frozenset[TopicPartition]) -> None:
        """Let go of what others may have already; who was told that it is given up is not told that it is lost."""
        untold = partitions - self._told
        self._let_go(partitions)
        await self._tell(self._wish.on_lost, untold)

    def _let_go(self, partitions: frozenset[TopicPartition]) -> None:
        self._commits.forget(partitions)
        self._told -= partitions
        for where in partitions:
            self.leaving.pop(where, None)

    # --------------------------------------------------------------------------------------------- internals

    async def _tell(self, callback: OnPartitions | None, partitions: frozenset[TopicPartition]) -> None:
        if callback is None or not partitions:
            return
        try:
            waits = callback(partitions)
            if inspect.isawaitable(waits):
                await waits
        except Exception as error:  # noqa: BLE001 - whatever the user's own code raises ends his reading, and nothing else
            self._assignment.broken(error)

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._assignment.broken(error)


def named(life: Membership, places: Iterable[Place], topic_ids: Mapping[str, bytes]) -> list[TopicPartition]:
    """Return partitions by the names of their topics; those that were never read are left out."""
    names = {topic_id: topic for topic, topic_id in topic_ids.items()} | {
        topic_id: name for topic_id, name in life.names.items() if name
    }
    return [TopicPartition(names[topic_id], number) for topic_id, number in places if topic_id in names]
