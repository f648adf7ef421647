"""The parts of a consumer that do not refer to it: they are ended when it is dropped without `close`."""

from __future__ import annotations

import asyncio
import contextlib
import warnings
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidelog.cluster.routing import Router
from tidelog.consume.background_commits import BackgroundCommits
from tidelog.consume.dead_letters import DeadLetters
from tidelog.consume.topic_discovery import TopicDiscovery
from tidelog.errors import TidelogError
from tidelog.groups.member import GroupMember
from tidelog.model import TopicPartition
from tidelog.requests import fetch_and_commit
from tidelog.requests.partial_results import Commits
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_options import ConsumerOptions
from tidelog.subscriptions.cursor import Cursor

_ending: Final[set[asyncio.Task[None]]] = set()
"""An event loop does not keep tasks alive by itself."""


class PendingCalls:
    """How many things the user of a consumer waits for: records, or a dead letter."""

    def __init__(self) -> None:
        self.count = 0

    def any(self) -> bool:
        """Whether there is one."""
        return self.count > 0


class PositionStore:
    """Stores a consumer's positions.

    Args:
        router: the client's.
        options: the consumer's.
        cursor: told of what was stored.
    """

    def __init__(self, router: Router, options: ConsumerOptions, cursor: Cursor) -> None:
        self.member: GroupMember | None = None
        self._router = router
        self._options = options
        self._cursor = cursor

    async def store(self, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes], note: str = "") -> Commits:
        """Store positions; of one that is no member those of one topic after the other, until one fails.

        Raises:
            TidelogError: nothing was stored.
        """
        if self.member is not None:
            stored = await self.member.commits.store(positions, note=note, topic_ids=ids)
        else:
            assert self._options.group is not None
            stored = await fetch_and_commit.commit_topics(
                self._router, self._options.group, positions, note=note, topic_ids=ids
            )
        self._cursor.committed({where: positions[where] for where in stored.held})
        return stored


@dataclass(frozen=True, slots=True)
class ConsumerParts:
    """The parts of a consumer."""

    background_commits: BackgroundCommits
    member: GroupMember | None
    discovery: TopicDiscovery
    assignment: Assignment
    dead_letters: DeadLetters

    async def end(self, *, commits_hand: bool) -> None:
        """End all of them; a member leaves its group."""
        try:
            await self.background_commits.settled()
            if self.member is not None:
                await self.member.close(commits_hand=commits_hand)
        finally:  # leaving a group takes a moment, in which this may be cancelled
            await self.discovery.close()
            await self.assignment.close()
            await self.dead_letters.close()


def end_when_dropped(consumer: object, parts: ConsumerParts, topics: str) -> weakref.finalize[Any, Any]:
    """End the parts of a consumer, and warn, when it is collected; `detach` the returned finalizer on close."""
    finalizer = weakref.finalize(consumer, _dropped, asyncio.get_running_loop(), parts, topics)
    finalizer.atexit = False
    return finalizer


def _dropped(loop: asyncio.AbstractEventLoop, parts: ConsumerParts, topics: str) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and with it everything that ran on it
        loop.call_soon_threadsafe(_end_soon, loop, parts)
    warnings.warn(
        f"a consumer of {topics} was dropped and not closed: use it with `async with`, or close it",
        ResourceWarning,
        stacklevel=2,
    )


def _end_soon(loop: asyncio.AbstractEventLoop, parts: ConsumerParts) -> None:
    task = loop.create_task(_end(parts), name="end a dropped consumer")
    _ending.add(task)
    task.add_done_callback(_ending.discard)


async def _end(parts: ConsumerParts) -> None:
    with contextlib.suppress(TidelogError):  # the caller is gone; the session of a member times out
        await parts.end(commits_hand=False)
