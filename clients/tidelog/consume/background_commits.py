"""Commits in the background: one is in flight at a time, and later ones are merged into the next.

So commits stay in order, and at most one position per partition is pending, however slow the cluster is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from tidelog.base.plain_callbacks import check_callback
from tidelog.cluster.metadata import deleted_topic_error
from tidelog.errors import BufferFullError, ClosedError, TidelogError, describe_error
from tidelog.model import Committed, TopicPartition
from tidelog.requests.partial_results import Commits

CALLBACKS_MAX: Final = 1000
"""Maximum number of distinct pending callbacks."""
WAITING_POSITIONS_MAX: Final = 100_000
"""Maximum number of partitions with a pending position."""

OnCommit = Callable[[dict[TopicPartition, Committed], TidelogError | None], object]
"""Called with the positions that a commit stored, and the error if some were not stored."""

_log: Final = logging.getLogger("tidelog.consumer")


class _Position(NamedTuple):
    """A position, and the id of its topic when the commit was scheduled; None if the topic was not read then."""

    offset: int
    topic_id: bytes | None


class BackgroundCommits:
    """Commits positions of one consumer in the background, with one commit in flight at a time.

    Args:
        store: stores positions, given the topic ids by name.
        group: the group, as log messages name it.
        topic_ids: returns the ids of the topics that are read, by name.
    """

    def __init__(
        self,
        store: Callable[[Mapping[TopicPartition, int], Mapping[str, bytes]], Awaitable[Commits]],
        group: str,
        topic_ids: Callable[[], Mapping[str, bytes]],
    ) -> None:
        self._store = store
        self._group = group
        self._topic_ids = topic_ids
        self._waiting: dict[TopicPartition, _Position] = {}
        self._callbacks: list[OnCommit] = []
        self._next: asyncio.Future[None] | None = None
        """Resolved when the pending positions have an outcome; None if no position is pending."""
        self._storing: asyncio.Future[None] | None = None
        """Resolved when the commit in flight has an outcome; None if no commit is in flight."""
        self._task: asyncio.Task[None] | None = None

    def add(self, positions: Mapping[TopicPartition, int], on_commit: OnCommit | None) -> None:
        """Schedule a commit, which replaces pending positions of the same partitions.

        Args:
            positions: partition -> next offset to read.
            on_commit: called once, on the event loop, with the outcome of the commit that includes these positions or
                newer ones. Without it, errors are logged.

        Raises:
            BufferFullError: too much is pending; nothing was scheduled.
            TypeError: `on_commit` is a coroutine function or not callable.
        """
        check_callback("on_commit", on_commit)
        callbacks = self._callbacks
        if on_commit is not None and on_commit not in callbacks:
            callbacks = [*callbacks, on_commit]
        if len(callbacks) > CALLBACKS_MAX or len(self._waiting) + len(positions) > WAITING_POSITIONS_MAX:
            raise BufferFullError(
                f"{self._group}: {len(self._callbacks)} callbacks and positions of {len(self._waiting)} partitions are "
                f"waiting for the commit in flight (limits: {CALLBACKS_MAX} and {WAITING_POSITIONS_MAX}): call "
                "commit(), which waits for them, before the next commit_soon()"
            )
        self._callbacks = callbacks
        ids = self._topic_ids()
        self._waiting |= {where: _Position(offset, ids.get(where.topic)) for where, offset in positions.items()}
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name=f"background commits of {self._group}")
            self._task.add_done_callback(self._ended)

    def refuse(self, error: TidelogError, on_commit: OnCommit | None) -> None:
        """Report asynchronously that positions are not committed.

        Raises:
            TypeError: `on_commit` is a coroutine function or not callable.
        """
        check_callback("on_commit", on_commit)
        callbacks = [] if on_commit is None else [on_commit]
        asyncio.get_running_loop().call_soon(self._report, callbacks, dict[TopicPartition, Committed](), error)

    async def settled(self) -> None:
        """Wait until all commits that were scheduled before have an outcome, and their callbacks were called."""
        for future in (self._storing, self._next):
            if future is not None:
                await asyncio.wait([future])

    # --------------------------------------------------------------------------------------------- internals

    async def _run(self) -> None:
        while (storing := self._next) is not None:
            self._storing, self._next = storing, None
            waited, self._waiting = self._waiting, {}
            callbacks, self._callbacks = self._callbacks, []
            held: dict[TopicPartition, Committed] = {}
            error: TidelogError | None = None
            try:
                held, failed = await self._store_still_read(waited)
            except TidelogError as raised:
                error = raised
            except BaseException:
                self._report(callbacks, held, _cancelled_error())
                raise
            else:
                error = next(iter(failed.values()), None)
            finally:
                self._storing = None
                storing.set_result(None)  # Waiting tasks continue later, so the callbacks run first.
            self._report(callbacks, held, error)

    async def _store_still_read(self, waited: Mapping[TopicPartition, _Position]) -> Commits:
        """Store the positions of topics that were not deleted or recreated meanwhile."""
        ids = dict(self._topic_ids())
        gone = {where for where, (_, topic_id) in waited.items() if topic_id not in {None, ids.get(where.topic)}}
        stored = await self._store({where: waited[where].offset for where in waited if where not in gone}, ids)
        return Commits(stored.held, stored.failed | {where: deleted_topic_error(where.topic) for where in gone})

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail pending positions if the task was cancelled, as `asyncio.run` does at its end."""
        if task is not self._task or (waiting := self._next) is None:
            return
        callbacks, self._callbacks, self._waiting, self._next = self._callbacks, [], {}, None
        waiting.set_result(None)
        self._report(callbacks, {}, _cancelled_error())

    def _report(
        self, callbacks: list[OnCommit], held: dict[TopicPartition, Committed], error: TidelogError | None
    ) -> None:
        if not callbacks and error is not None:
            _log.warning(
                "%s: a background commit failed; the next commit of everything delivered includes its positions: %s",
                self._group,
                describe_error(error),
            )
        for callback in callbacks:
            try:
                callback(held, error)
            except Exception as raised:  # noqa: BLE001 - the application's code may raise anything
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"the on_commit callback {callback!r} raised an exception", "exception": raised},
                )


def _cancelled_error() -> TidelogError:
    return ClosedError(
        "the background commit was cancelled before a node answered; its positions may or may not be stored"
    )
