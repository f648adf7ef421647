"""Consumer groups for blocking programs: administration, and callbacks that may block."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace

from tidelog.base.loop_thread import LoopThread
from tidelog.groups import admin as asynchronous
from tidelog.groups.admin import ResetTo
from tidelog.groups.options import Group, OnPartitions
from tidelog.model import GroupInfo, Lag, TopicPartition


class Groups:
    """See `tidelog.groups.admin.Groups`."""

    def __init__(self, thread: LoopThread, groups: asynchronous.Groups) -> None:
        self._thread = thread
        self._groups = groups

    def list(self) -> list[GroupInfo]:
        """See `tidelog.groups.admin.Groups.list`."""
        return self._thread.run(self._groups.list)

    def describe(self, name: str) -> GroupInfo:
        """See `tidelog.groups.admin.Groups.describe`."""
        return self._thread.run(lambda: self._groups.describe(name))

    def delete(self, name: str) -> None:
        """See `tidelog.groups.admin.Groups.delete`."""
        self._thread.run(lambda: self._groups.delete(name))

    def lag(self, name: str, topic: str | None = None) -> Sequence[Lag]:
        """See `tidelog.groups.admin.Groups.lag`."""
        return self._thread.run(lambda: self._groups.lag(name, topic))

    def reset(
        self,
        name: str,
        to: ResetTo,
        *,
        topic: str | None = None,
        partitions: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> Sequence[Lag]:
        """See `tidelog.groups.admin.Groups.reset`."""
        return self._thread.run(
            lambda: self._groups.reset(name, to, topic=topic, partitions=partitions, dry_run=dry_run)
        )


def with_callbacks_in_threads(group: Group) -> Group:
    """Return the group options with callbacks that run in a separate thread, so that they may block."""
    return replace(
        group,
        on_assigned=_in_thread(group.on_assigned),
        on_revoked=_in_thread(group.on_revoked),
        on_lost=_in_thread(group.on_lost),
    )


def _in_thread(callback: OnPartitions | None) -> Callable[[frozenset[TopicPartition]], Awaitable[None]] | None:
    if callback is None:
        return None

    async def called(partitions: frozenset[TopicPartition]) -> None:
        waits = await asyncio.to_thread(callback, partitions)
        if inspect.isawaitable(waits):  # other results are ignored
            await waits

    return called
