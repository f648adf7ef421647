"""What a consumer of whole topics takes in: the partitions that there are, those that are added, topics that match.

It finds where each begins and hands that to the `Assignment`. A partition that was taken away by hand is not taken in
again. What cannot be found yet holds up nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidelog.cluster.routing import Router
from tidelog.errors import TidelogError, UnknownTopicError, told
from tidelog.model import TopicPartition
from tidelog.requests.list_offsets import OffsetSearch
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_options import (
    ConsumerOptions,
    StartPositions,
    TopicOptions,
    find_missing_starts,
    resolve_added,
    resolve_start,
)

NEW_PARTITIONS_S: Final = 30.0
"""How often a consumer of whole topics looks for new partitions, and one with a pattern for new topics."""

TOPICS_AT_ONCE: Final = 32
"""Of so many topics at a time it is found out where to begin."""

_log: Final = logging.getLogger("tidelog.consumer")


class TopicDiscovery:
    """The topics of one consumer.

    Args:
        router: the client's.
        options: what the consumer was asked for.
        assignment: gets what is taken in.
    """

    def __init__(self, router: Router, options: ConsumerOptions, assignment: Assignment) -> None:
        self._router = router
        self._options = options
        self._assignment = assignment
        self._seen: dict[str, set[int]] = {}
        """The partitions of each topic that were taken in, or are about to be."""
        self._ids: dict[str, bytes] = {}
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        if options.pattern is not None:
            assignment.survives_deletion = self._topic_deleted

    async def find(self) -> dict[str, StartPositions]:
        """Return where to begin in each topic.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing.
            TidelogError: no node can be reached, or trying again would not help.
        """
        if self._options.pattern is None:
            return await self._start_positions(self._options.topics)
        return await self._start_positions(await self._options.pattern.topics(self._router))

    def begin(self, starts: dict[str, StartPositions]) -> None:
        """Take in what `find` found, and look for more from now on."""
        for topic, start in starts.items():
            self._add_topic(topic, start)
        if self._options.pattern is not None or any(self._is_whole(topic) for topic in self._options.topics):
            self._run(self._poll_for_new(), "look for new partitions")

    async def close(self) -> None:
        """Look for nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for topic in list(self._seen):
            self._forget(topic)

    # ------------------------------------------------------------------------------------------- start

    async def _start_positions(self, topics: Iterable[str], *, late: bool = False) -> dict[str, StartPositions]:
        """Find out where to begin in some topics; in those that were made since at their start."""
        found: dict[str, StartPositions] = {}
        room = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def find(topic: str) -> None:
            options = self._options.of_topic(topic)
            async with room:
                try:
                    found[topic] = await resolve_start(
                        self._router, topic, _from_earliest(options) if late else options
                    )
                except UnknownTopicError:
                    if self._options.pattern is None:
                        raise

        tasks = [asyncio.get_running_loop().create_task(find(topic), name=f"begin {topic}") for topic in topics]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return found

    def _add_topic(self, topic: str, start: StartPositions) -> None:
        missing = start.search.missing if start.search is not None else []
        self._seen[topic] = {*start.positions, *missing}
        self._ids[topic] = start.topic_id
        self._add(topic, start.topic_id, start.positions)
        self._unwatch[topic] = self._router.watch(topic, partial(self._add_new_partitions, topic))
        if start.search is not None:
            self._run(self._find_missing_starts(topic, start.topic_id, start.search), f"begin {topic}")
        self._add_new_partitions(topic)

    async def _find_missing_starts(self, topic: str, topic_id: bytes, search: OffsetSearch) -> None:
        await find_missing_starts(self._router, topic, search, partial(self._add, topic, topic_id))

    def _add(self, topic: str, topic_id: bytes, positions: dict[int, int]) -> None:
        if self._ids.get(topic) == topic_id:
            by_name = {TopicPartition(topic, number): offset for number, offset in positions.items()}
            standing = self._assignment.partitions  # by hand, meanwhile
            new = {where: offset for where, offset in by_name.items() if where not in standing}
            self._assignment.add(new, {topic: topic_id})

    # ------------------------------------------------------------------------------------------- what comes

    async def _poll_for_new(self) -> None:
        while True:
            await asyncio.sleep(NEW_PARTITIONS_S)
            for topic in list(self._seen):
                if self._is_whole(topic):
                    self._router.refresh_later(topic)
                    self._add_new_partitions(topic)
            if self._options.pattern is None:
                continue
            try:
                matching = await self._options.pattern.topics(self._router)
                new = await self._start_positions((each for each in matching if each not in self._seen), late=True)
            except TidelogError as error:
                if not error.retriable:
                    raise
                _log.warning(
                    "topics that match %r cannot be looked for yet, that is tried again within %d s: %s",
                    self._options.pattern.text,
                    NEW_PARTITIONS_S,
                    told(error),
                )
            else:
                for topic, start in new.items():
                    self._add_topic(topic, start)

    def _add_new_partitions(self, topic: str) -> None:
        """Take up partitions that were added."""
        route = self._router.metadata.topic(topic)
        if route is None or route.topic_id != self._ids.get(topic) or not self._is_whole(topic):
            return
        new = [number for number in route.partitions if number not in self._seen[topic]]
        if new:
            self._seen[topic].update(new)
            self._run(self._start_partitions(topic, route.topic_id, new), f"begin in {topic} {new}")

    async def _start_partitions(self, topic: str, topic_id: bytes, partitions: list[int]) -> None:
        try:
            positions = await resolve_added(self._router, topic, self._options.of_topic(topic), partitions)
        except TidelogError as error:
            if not error.retriable:
                raise
            _log.warning(
                "%s: where to begin in the new partitions %s is not known yet, it is looked for again within %d s: %s",
                topic,
                partitions,
                NEW_PARTITIONS_S,
                told(error),
            )
            if self._ids.get(topic) == topic_id:  # tried again with the next look for new ones
                self._seen[topic].difference_update(partitions)
        else:
            self._add(topic, topic_id, positions)

    # --------------------------------------------------------------------------------------------- what goes

    def _topic_deleted(self, topic: str) -> bool:
        """A topic that matched is gone; one that is made again under its name is taken in as a new one."""
        if topic not in self._seen:
            return False
        _log.warning("%s is gone; reading goes on without it", topic)
        self._forget(topic)
        return True

    def _forget(self, topic: str) -> None:
        del self._seen[topic], self._ids[topic]
        self._unwatch.pop(topic)()

    # --------------------------------------------------------------------------------------------- internals

    def _is_whole(self, topic: str) -> bool:
        return self._options.of_topic(topic).partitions is None

    def _run(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, UnknownTopicError) and self._options.pattern is not None:
                return  # whoever reads the topic is told, and lets it go
            self._assignment.broken(error)


def _from_earliest(options: TopicOptions) -> TopicOptions:
    """Return what is asked of a topic that came later: nothing of it is missed."""
    return options if isinstance(options.start, dict) else replace(options, start="earliest")
