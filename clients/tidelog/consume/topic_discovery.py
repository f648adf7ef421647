"""Discovery of partitions for a consumer of whole topics: existing and added ones, and topics that match a pattern.

`TopicDiscovery` resolves the start offset of each partition and passes the partition to the `Assignment`. A partition
that the application has unassigned is not added again. Partitions whose start offset cannot be resolved yet do not
delay the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from tidelog.cluster.routing import Router
from tidelog.errors import TidelogError, UnknownTopicError, describe_error
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
"""Interval at which a consumer looks for new partitions and, with a pattern, for new topics."""

TOPICS_AT_ONCE: Final = 32
"""Maximum number of topics that are resolved concurrently."""

_log: Final = logging.getLogger("tidelog.consumer")


class TopicDiscovery:
    """Finds the partitions of the topics of one consumer, and adds them to its `Assignment`."""

    def __init__(self, router: Router, options: ConsumerOptions, assignment: Assignment) -> None:
        self._router = router
        self._options = options
        self._assignment = assignment
        self._known_partitions: dict[str, set[int]] = {}
        """Partitions of each topic that were added, or whose start offset is being resolved."""
        self._ids: dict[str, bytes] = {}
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        if options.pattern is not None:
            assignment.survives_deletion = self._topic_deleted

    async def find(self) -> dict[str, StartPositions]:
        """Return where to start in each topic.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
            TidelogError: no node can be reached, or the error is not retriable.
        """
        if self._options.pattern is None:
            return await self._start_positions(self._options.topics)
        return await self._start_positions(await self._options.pattern.topics(self._router))

    def begin(self, starts: dict[str, StartPositions]) -> None:
        """Add the topics that `find` returned, and look for new partitions from now on."""
        for topic, start in starts.items():
            self._add_topic(topic, start)
        if self._options.pattern is not None or any(self._is_whole(topic) for topic in self._options.topics):
            self._run(self._poll_for_new(), "look for new partitions")

    async def close(self) -> None:
        """Stop looking for partitions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for topic in list(self._known_partitions):
            self._forget(topic)

    # ------------------------------------------------------------------------------------------- start

    async def _start_positions(self, topics: Iterable[str], *, late: bool = False) -> dict[str, StartPositions]:
        """Resolve where to start in topics.

        Args:
            late: whether the topics were created after the consumer began; without a committed position they are read
                from their first record.
        """
        starts: dict[str, StartPositions] = {}
        room = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def find(topic: str) -> None:
            options = self._options.of_topic(topic)
            async with room:
                try:
                    starts[topic] = await resolve_start(
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
        return starts

    def _add_topic(self, topic: str, start: StartPositions) -> None:
        missing = start.search.missing if start.search is not None else []
        self._known_partitions[topic] = {*start.positions, *missing}
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
            assigned = self._assignment.partitions  # the application may have assigned some itself
            new = {where: offset for where, offset in by_name.items() if where not in assigned}
            self._assignment.add(new, {topic: topic_id})

    # ------------------------------------------------------------------------------------------- additions

    async def _poll_for_new(self) -> None:
        while True:
            await asyncio.sleep(NEW_PARTITIONS_S)
            for topic in list(self._known_partitions):
                if self._is_whole(topic):
                    self._router.refresh_later(topic)
                    self._add_new_partitions(topic)
            if self._options.pattern is None:
                continue
            try:
                matching = await self._options.pattern.topics(self._router)
                new = await self._start_positions(
                    (each for each in matching if each not in self._known_partitions), late=True
                )
            except TidelogError as error:
                if not error.retriable:
                    raise
                _log.warning(
                    "cannot find new topics that match %r, or their start offsets; retrying within %d s: %s",
                    self._options.pattern.text,
                    NEW_PARTITIONS_S,
                    describe_error(error),
                )
            else:
                for topic, start in new.items():
                    self._add_topic(topic, start)

    def _add_new_partitions(self, topic: str) -> None:
        """Add partitions that were created since the topic was added."""
        route = self._router.metadata.topic(topic)
        if route is None or route.topic_id != self._ids.get(topic) or not self._is_whole(topic):
            return
        new = [number for number in route.partitions if number not in self._known_partitions[topic]]
        if new:
            self._known_partitions[topic].update(new)
            self._run(self._start_partitions(topic, route.topic_id, new), f"begin in {topic} {new}")

    async def _start_partitions(self, topic: str, topic_id: bytes, partitions: list[int]) -> None:
        try:
            positions = await resolve_added(self._router, topic, self._options.of_topic(topic), partitions)
        except TidelogError as error:
            if not error.retriable:
                raise
            _log.warning(
                "%s: start offsets of the new partitions %s are not known yet, retrying within %d s: %s",
                topic,
                partitions,
                NEW_PARTITIONS_S,
                describe_error(error),
            )
            if self._ids.get(topic) == topic_id:  # Retried by the next discovery of partitions.
                self._known_partitions[topic].difference_update(partitions)
        else:
            self._add(topic, topic_id, positions)

    # --------------------------------------------------------------------------------------------- removals

    def _topic_deleted(self, topic: str) -> bool:
        """Forget a deleted topic, so that a recreated one of its name is added; return whether the topic was known."""
        if topic not in self._known_partitions:
            return False
        _log.warning("topic %s was deleted; reading continues without it", topic)
        self._forget(topic)
        return True

    def _forget(self, topic: str) -> None:
        del self._known_partitions[topic], self._ids[topic]
        self._unwatch.pop(topic)()

    # --------------------------------------------------------------------------------------------- internals

    def _is_whole(self, topic: str) -> bool:
        return self._options.of_topic(topic).partitions is None

    def _run(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, UnknownTopicError) and self._options.pattern is not None:
                return  # Not reported here: the subscription reports the deletion.
            self._assignment.broken(error)


def _from_earliest(options: TopicOptions) -> TopicOptions:
    """Return the options for a topic that was created after the consumer began: it is read from its first record."""
    return options if isinstance(options.start, dict) else replace(options, start="earliest")
