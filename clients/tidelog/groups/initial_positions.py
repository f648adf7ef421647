"""The initial positions of a group that does not start at the log start, which are stored before anything is delivered.

This concerns partitions without a committed position, with every `start` other than "earliest". A partition that was
created after the member began is read from its first record, so that no records are skipped. For other partitions the
position is stored before any record is delivered, with every commit mode: if the member leaves before its first commit,
the next member starts at the same position and skips no records published meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidelog.base.backoff import Backoff
from tidelog.cluster.routing import Router
from tidelog.errors import ForbiddenError, TidelogError, UnknownTopicError, describe_error
from tidelog.groups.commits import GroupCommits
from tidelog.model import TopicPartition
from tidelog.subscriptions.consumer_options import ConsumerOptions, TopicOptions

_log: Final = logging.getLogger("tidelog.consumer")


class InitialPositions:
    """Chooses and stores the initial positions of one member."""

    def __init__(self, router: Router, options: ConsumerOptions, commits: GroupCommits) -> None:
        self._router = router
        self._options = options
        self._commits = commits
        self._partition_counts: dict[bytes, int] | None = None
        """Topic id -> number of partitions when the member began; None with `start="earliest"`."""

    async def note_existing_partitions(self) -> None:
        """Note the topics and partitions that exist when the member begins.

        Raises:
            TidelogError: the topics cannot be listed, and the error is not retriable.
        """
        options, backoff = self._options, Backoff()
        if self._partition_counts is not None or options.start == "earliest":
            return
        while True:
            try:
                names = options.topics if options.pattern is None else await options.pattern.topics(self._router)
                self._partition_counts = {}
                for name in names:
                    await self._note(name, self._partition_counts)
            except TidelogError as error:
                if not error.retriable:
                    raise
                _log.info("group %r: cannot look up the topics yet, retrying: %s", options.group, describe_error(error))
                await asyncio.sleep(backoff.next_wait_s(error.retry_after_ms))
            else:
                return

    async def _note(self, name: str, counts: dict[bytes, int]) -> None:
        try:
            route = await self._router.topic_now(name)
        except (UnknownTopicError, ForbiddenError):
            return  # Not an error: the topic may be created, or access to it allowed, later.
        counts[route.topic_id] = route.partition_count

    def start_options(self, topic: str, topic_id: bytes, numbers: Sequence[int]) -> list[TopicOptions]:
        """Return the options that apply to partitions without a committed position, grouped by equal options.

        Partitions that were created after the member began start at "earliest", the others as the application chose.
        """
        options = self._options.of_topic(topic)
        count = None if self._partition_counts is None else self._partition_counts.get(topic_id, 0)
        old = tuple(number for number in numbers if count is None or number < count)
        new = tuple(number for number in numbers if count is not None and number >= count)
        alike = [replace(options, partitions=old), replace(options, partitions=new, start="earliest")]
        return [each for each in alike if each.partitions]

    async def store(self, positions: Mapping[TopicPartition, int], is_wanted: Callable[[TopicPartition], bool]) -> None:
        """Store start positions; retry each until it is stored or refused, or its partition is no longer wanted."""
        left, backoff = dict(positions), Backoff()
        while left := {where: offset for where, offset in left.items() if is_wanted(where)}:
            try:
                failed = (await self._commits.store(left)).failed
            except TidelogError as error:
                failed = dict.fromkeys(left, error)
            for where, why in failed.items():
                if not why.retriable:
                    _log.info(
                        "group %r: the initial position of %s/%d was refused: %s",
                        self._options.group,
                        *where,
                        describe_error(why),
                    )
            left = {where: left[where] for where, why in failed.items() if why.retriable}
            if left:
                await asyncio.sleep(backoff.next_wait_s(max(failed[where].retry_after_ms for where in left)))
