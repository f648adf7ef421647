"""Commits that nobody waits for: one is under way at a time, and what comes meanwhile is joined into the next.

So they stay in their order, and what waits is no more than a position a partition, however far the cluster is behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from tidelog.base.plain_callbacks import check_callback
from tidelog.cluster.metadata import gone_error
from tidelog.errors import BufferFullError, ClosedError, TidelogError, told
from tidelog.model import Committed, TopicPartition
from tidelog.requests.partial_results import Commits

CALLBACKS_MAX: Final = 1000
"""So many different callbacks wait at most."""
PARTITIONS_MAX: Final = 100_000
"""Positions of so many partitions wait at most."""

OnCommit = Callable[[dict[TopicPartition, Committed], TidelogError | None], object]
"""Is told what a commit stored, by partition, and why something of it was not stored; None: all of it was."""

_log: Final = logging.getLogger("tidelog.consumer")


class _Position(NamedTuple):
    """A position, and the topic that it is one in; None for one that was not read then."""

    offset: int
    topic_id: bytes | None


class BackgroundCommits:
    """The commits of one consumer that nobody waits for.

    Args:
        store: stores positions, given the ids of their topics by name.
        group: whose, for the log.
        topic_ids: returns the ids of the topics that are read by now, by name.
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
        """Is done when what waits has been dealt with; None while nothing waits."""
        self._storing: asyncio.Future[None] | None = None
        """The same for what is under way."""
        self._task: asyncio.Task[None] | None = None

    def add(self, positions: Mapping[TopicPartition, int], on_commit: OnCommit | None) -> None:
        """Have positions stored, in place of older ones of the same partitions that still wait.

        Args:
            positions: partition -> next offset to read.
            on_commit: is called once, on the event loop, when a commit with these positions, or with those in their
                place, has an outcome. Without one the log tells errors.

        Raises:
            BufferFullError: too much waits; nothing was taken.
            TypeError: `on_commit` is no plain function.
        """
        check_callback("on_commit", on_commit)
        callbacks = self._callbacks
        if on_commit is not None and on_commit not in callbacks:
            callbacks = [*callbacks, on_commit]
        if len(callbacks) > CALLBACKS_MAX or len(self._waiting) + len(positions) > PARTITIONS_MAX:
            raise BufferFullError(
                f"{len(self._callbacks)} callbacks, and positions of {len(self._waiting)} partitions, wait for the "
                "commit that is under way, and there is no room for more: await commit()"
            )
        self._callbacks = callbacks
        ids = self._topic_ids()
        self._waiting |= {where: _Position(offset, ids.get(where.topic)) for where, offset in positions.items()}
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run(), name=f"commits soon of {self._group}")
            self._task.add_done_callback(self._ended)

    def refuse(self, error: TidelogError, on_commit: OnCommit | None) -> None:
        """Tell that something is not committed at all; soon, not at once.

        Raises:
            TypeError: `on_commit` is no plain function.
        """
        check_callback("on_commit", on_commit)
        callbacks = [] if on_commit is None else [on_commit]
        asyncio.get_running_loop().call_soon(self._report, callbacks, dict[TopicPartition, Committed](), error)

    async def settled(self) -> None:
        """Wait until all that was added before has an outcome, and has been told."""
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
                storing.set_result(None)  # who waits for it runs after the callbacks, which are told at once
            self._report(callbacks, held, error)

    async def _store_still_read(self, waited: Mapping[TopicPartition, _Position]) -> Commits:
        """Store what is a position in the topic that is read by now, and not in an earlier one of the name."""
        ids = dict(self._topic_ids())
        gone = {where for where, (_, topic_id) in waited.items() if topic_id not in {None, ids.get(where.topic)}}
        stored = await self._store({where: waited[where].offset for where in waited if where not in gone}, ids)
        return Commits(stored.held, stored.failed | {where: gone_error(where.topic) for where in gone})

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Give up what waits where the task was cancelled, as `asyncio.run` does at its end: nobody else would."""
        if task is not self._task or (waiting := self._next) is None:
            return
        callbacks, self._callbacks, self._waiting, self._next = self._callbacks, [], {}, None
        waiting.set_result(None)
        self._report(callbacks, {}, _cancelled_error())

    def _report(
        self, callbacks: list[OnCommit], held: dict[TopicPartition, Committed], error: TidelogError | None
    ) -> None:
        if not callbacks and error is not None:
            _log.warning("%s: positions are not committed: %s", self._group, told(error))
        for callback in callbacks:
            try:
                callback(held, error)
            except Exception as raised:  # noqa: BLE001 - the user's code may raise whatever it likes
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"on_commit {callback!r} raised", "exception": raised},
                )


def _cancelled_error() -> TidelogError:
    return ClosedError("the commit was cancelled before it was answered: whether its positions are stored is not known")
