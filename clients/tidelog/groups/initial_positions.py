"""Where a group begins that does not begin at the beginning: said once, and stored.

With `start="latest"` two questions of a partition without a committed position need an answer. Was it there when the
member began? If not, it is read from its beginning, as nobody can have wanted to skip what he could not have read. And
where does the next member begin, when this one leaves before it has committed anything? Where this one did: so that is
stored before anything is handed out, with every strategy, and what comes meanwhile is not skipped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tidelog.base.backoff import Backoff
from tidelog.cluster.routing import Router
from tidelog.errors import ForbiddenError, TidelogError, UnknownTopicError, told
from tidelog.groups.commits import GroupCommits
from tidelog.model import TopicPartition
from tidelog.subscriptions.consumer_options import ConsumerOptions, TopicOptions

_log: Final = logging.getLogger("tidelog.consumer")


class InitialPositions:
    """Of one member.

    Args:
        router: the client's.
        options: what was asked for.
        commits: the group's.
    """

    def __init__(self, router: Router, options: ConsumerOptions, commits: GroupCommits) -> None:
        self._router = router
        self._options = options
        self._commits = commits
        self._partition_counts: dict[bytes, int] | None = None
        """How many partitions each topic had when the member began; None where that makes no difference."""

    async def note_existing_partitions(self) -> None:
        """Note what there is as the member begins.

        Raises:
            TidelogError: nobody can tell, and trying again would not help.
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
                _log.info("%s: not begun yet: %s", options.group, told(error))
                await asyncio.sleep(backoff.next_wait_s(error.retry_after_ms))
            else:
                return

    async def _note(self, name: str, counts: dict[bytes, int]) -> None:
        try:
            route = await self._router.topic_now(name)
        except (UnknownTopicError, ForbiddenError):
            return  # it is made, or may be read, later, if at all
        counts[route.topic_id] = route.partition_count

    def start_options(self, topic: str, topic_id: bytes, numbers: Sequence[int]) -> list[TopicOptions]:
        """Return how partitions of a topic begin where the group has no position, those that begin alike together."""
        options = self._options.of_topic(topic)
        count = None if self._partition_counts is None else self._partition_counts.get(topic_id, 0)
        old = tuple(number for number in numbers if count is None or number < count)
        new = tuple(number for number in numbers if count is not None and number >= count)
        alike = [replace(options, partitions=old), replace(options, partitions=new, start="earliest")]
        return [each for each in alike if each.partitions]

    async def store(self, positions: Mapping[TopicPartition, int], is_wanted: Callable[[TopicPartition], bool]) -> None:
        """Store where partitions begin, trying until they are stored, refused, or to be read no longer."""
        left, backoff = dict(positions), Backoff()
        while left := {where: offset for where, offset in left.items() if is_wanted(where)}:
            try:
                failed = (await self._commits.store(left)).failed
            except TidelogError as error:
                failed = dict.fromkeys(left, error)
            for where, why in failed.items():
                if not why.retriable:
                    _log.info("%s: where it begins in %s/%d is not stored: %s", self._options.group, *where, told(why))
            left = {where: left[where] for where, why in failed.items() if why.retriable}
            if left:
                await asyncio.sleep(backoff.next_wait_s(max(failed[where].retry_after_ms for where in left)))
