"""The parts of a consumer that hold no reference to the consumer, and their shutdown when it is garbage-collected."""

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
from tidelog.errors import InvalidRequestError, MemberFencedError, TidelogError
from tidelog.groups.member import GroupMember
from tidelog.model import Committed, TopicPartition
from tidelog.requests import fetch_and_commit
from tidelog.requests.conversions import checked_positions
from tidelog.requests.partial_results import Commits
from tidelog.subscriptions.assignment import Assignment
from tidelog.subscriptions.consumer_options import ConsumerOptions
from tidelog.subscriptions.cursor import Cursor

_ending: Final[set[asyncio.Task[None]]] = set()
"""Strong references: an event loop keeps only weak ones to its tasks."""


class PendingCalls:
    """Counts the calls of the application that are waiting for records or for a dead letter."""

    def __init__(self) -> None:
        self.count = 0

    def any(self) -> bool:
        """Return whether a call is waiting."""
        return self.count > 0


class PositionStore:
    """Determines which positions a consumer commits, and stores them.

    Args:
        cursor: the consumer's cursor, which is informed of stored positions.
        is_manual: whether delivered records are committed only by calls of the application (`commit="manual"`).
    """

    def __init__(self, router: Router, options: ConsumerOptions, cursor: Cursor, *, is_manual: bool) -> None:
        self._is_manual = is_manual
        self.member: GroupMember | None = None
        self._router = router
        self._options = options
        self._cursor = cursor

    def to_commit(self, positions: Mapping[TopicPartition, int] | None) -> dict[TopicPartition, int]:
        """Return the positions to commit; None: those after the delivered records that are not committed yet.

        Raises:
            InvalidRequestError, ClosedError, MemberFencedError: see `Consumer.commit`.
        """
        if self._options.group is None:
            raise InvalidRequestError("this consumer has no group to commit for; create it with group=...")
        if self.member is not None:
            self.member.commits.check_open()
        if positions is not None:
            return checked_positions(positions)
        moved = self._cursor.uncommitted()
        if self.member is None:
            return moved
        self.member.commits.losses.check()
        return self.member.handover.revoking | moved

    def after_skipped(self) -> dict[TopicPartition, int]:
        """Return positions that a member may store although the application has not committed them.

        They follow records that were skipped, in partitions where the application has committed every record delivered
        before the skipped ones.
        """
        if self.member is None or not self._is_manual or not (skipped := self._cursor.skipped_ranges()):
            return {}
        return self.member.commits.after_skipped(skipped)

    async def commit(
        self, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes], note: str
    ) -> dict[TopicPartition, Committed]:
        """Store positions for a call of the application; see `Consumer.commit`.

        Raises:
            TidelogError: a position was not stored.
        """
        try:
            stored = await self.store(positions, ids, note)
        except MemberFencedError:
            self._reported(positions)
            raise
        for where, failure in stored.failed.items():
            if isinstance(failure, MemberFencedError):
                self._reported({where: positions[where]})
            raise failure
        return stored.held

    def _reported(self, positions: Mapping[TopicPartition, int]) -> None:
        if self.member is not None:
            self.member.commits.losses.reported(positions)

    async def store(self, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes], note: str = "") -> Commits:
        """Store positions; if the consumer is not a group member, topic by topic, until one fails.

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
    """The parts of a consumer that must be ended when it is closed or garbage-collected."""

    commits: BackgroundCommits
    member: GroupMember | None
    discovery: TopicDiscovery
    assignment: Assignment
    dead_letters: DeadLetters

    async def end(self, *, commits_in_hand: bool) -> None:
        """End all parts; a member leaves its group.

        Args:
            commits_in_hand: whether the records that the application still holds count as processed and are committed.
        """
        try:
            await self.commits.settled()
            if self.member is not None:
                await self.member.close(commits_in_hand=commits_in_hand)
        finally:  # leaving a group may be cancelled
            await self.discovery.close()
            await self.assignment.close()
            await self.dead_letters.close()


def end_when_dropped(consumer: object, parts: ConsumerParts, topics: str) -> weakref.finalize[Any, Any]:
    """End the parts, with a ResourceWarning, when the consumer is garbage-collected without `close`.

    `close` must `detach` the returned finalizer.
    """
    finalizer = weakref.finalize(consumer, _on_collected, asyncio.get_running_loop(), parts, topics)
    finalizer.atexit = False
    return finalizer


def _on_collected(loop: asyncio.AbstractEventLoop, parts: ConsumerParts, topics: str) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed, so the parts have stopped running.
        loop.call_soon_threadsafe(_end_soon, loop, parts)
    warnings.warn(
        f"a consumer of {topics} was garbage collected without being closed; use `async with`, or call close()",
        ResourceWarning,
        stacklevel=2,
    )


def _end_soon(loop: asyncio.AbstractEventLoop, parts: ConsumerParts) -> None:
    task = loop.create_task(_end(parts), name="end a dropped consumer")
    _ending.add(task)
    task.add_done_callback(_ending.discard)


async def _end(parts: ConsumerParts) -> None:
    with contextlib.suppress(TidelogError):  # Nothing can report the error; a member's session times out.
        await parts.end(commits_in_hand=False)
