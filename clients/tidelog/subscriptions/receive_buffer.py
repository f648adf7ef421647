"""What has arrived for a consumer and was not handed out yet, and who waits for it.

A queue in the order of arrival. What belongs to a paused partition lies beside it. A partition that cannot be read on
puts its error in line, behind what arrived of it; the others go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Final, NamedTuple

from tidelog.errors import OverloadedError, UsageError
from tidelog.model import TopicPartition
from tidelog.subscriptions.prefetch import NONE, Credit
from tidelog.subscriptions.subscription import Prefetched

SUSPENDED_CHECK_S: Final = 0.01


class _StoredError(NamedTuple):
    """Why nothing more arrives. It is raised to whoever asks, each time with the traceback that it came with.

    Else each time would add to it, keep the frames of all those calls, and tell of them in the log of the last one.
    """

    error: BaseException
    traceback: TracebackType | None

    @classmethod
    def of(cls, error: BaseException) -> _StoredError:
        return cls(error, error.__traceback__)

    def again(self) -> BaseException:
        return self.error.with_traceback(self.traceback)


class _Failure(NamedTuple):
    """Stands in line for the error of a partition."""

    where: TopicPartition
    reason: _StoredError


class ReceiveBuffer:
    """A queue that credits bound. It ends when it is closed, or with an error behind what arrived before.

    Args:
        admit: asked with the bytes of what arrives whether that may be kept; None: always.
        dropped: told of the bytes of what was kept and is let go, as its partition is read no more or for now.

    Attributes:
        is_suspended: asked before anything is taken; while it is True nothing is, because what has arrived may be
            another's by now.
    """

    def __init__(
        self, admit: Callable[[int], bool] | None = None, dropped: Callable[[int], None] | None = None
    ) -> None:
        self.is_suspended: Callable[[], bool] = lambda: False
        self._admit = admit
        self._dropped = dropped
        self._refused = False
        self._queue: deque[Prefetched | _Failure] = deque()
        self._paused: dict[TopicPartition, deque[Prefetched]] = {}
        self._failures: dict[TopicPartition, _StoredError] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._error: _StoredError | None = None
        self._closed = False

    @property
    def has_items(self) -> bool:
        """Whether there is something to take right now, if only an error."""
        if self._closed or self._error is not None:
            return True
        return bool(self._queue or self._failures) and not self.is_suspended()

    async def wait_while_suspended(self) -> None:
        """Wait until it is known whether what has arrived is still to be handed out.

        Raises:
            TidelogError: why nothing more arrives.
        """
        while self.is_suspended() and not self._closed:
            if self._error is not None:
                raise self._error.again()
            await asyncio.sleep(SUSPENDED_CHECK_S)  # a clock decides, and nobody tells

    @property
    def has_waiter(self) -> bool:
        """Whether a task waits, as nothing has arrived, and what arrives next may be taken."""
        waiter = self._waiter
        return waiter is not None and not waiter.done() and not self._queue and not self.is_suspended()

    def take_now(self) -> Prefetched | None:
        """As `take`, where a batch comes first in line; else None."""
        item = self._queue[0] if self._queue else None
        if not isinstance(item, Prefetched) or self.is_suspended():
            return None
        self._queue.popleft()
        _free(item)
        return item

    async def take(self) -> Prefetched | None:
        """Wait for the next batch and return it, with its credit given back; None when this was closed.

        Raises:
            UsageError: another task waits already.
            TidelogError: why nothing more arrives, or not of one partition; that one is told of again when there is
                nothing else to take, until `drop`.
        """
        while True:
            while not self._queue:
                await self._wait()
                if self._closed and not self._queue:
                    return None
            if self.is_suspended() and not self._closed:
                await self.wait_while_suspended()
                continue
            item = self._queue.popleft()
            if isinstance(item, _Failure):
                if self._failures.get(item.where) is item.reason:
                    raise item.reason.again()
                continue
            _free(item)
            return item

    def put_back(self, item: Prefetched) -> None:
        """Have something that was taken come next again."""
        if not self._closed:
            self._queue.appendleft(item)
            self._wake()

    async def _wait(self) -> None:
        if self._closed:
            return
        if self._error is not None:
            raise self._error.again()
        for failure in self._failures.values():
            raise failure.again()
        if self._waiter is not None and not self._waiter.done():
            raise UsageError("one task at a time iterates over a consumer; make a consumer for each")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Let go of what has arrived of some partitions, and of their errors."""
        kept: deque[Prefetched | _Failure] = deque()
        for item in self._queue:
            if item.where not in partitions:
                kept.append(item)
            elif isinstance(item, Prefetched):
                self._discard(item)
        self._queue = kept
        for where in partitions:
            self._failures.pop(where, None)
            for item in self._paused.pop(where, ()):
                self._discard(item)

    def close(self) -> None:
        """Let go of everything; whoever waits comes to the end."""
        self._closed = True
        self._queue.clear()
        self._paused.clear()
        self._failures.clear()
        self._wake()

    # --- pausing ---------------------------------------------------------------------------------------

    @property
    def paused_size(self) -> Credit:
        """How much lies beside the line."""
        total = NONE
        for items in self._paused.values():
            for item in items:
                total = total.plus(_size(item))
        return total

    def pause(self, where: TopicPartition, first: Prefetched | None, room: Credit) -> int | None:
        """Put beside the line what has arrived of a partition, whose subscription has ended.

        Args:
            where: the partition.
            first: what comes before all that is in line, if there is something.
            room: how much of it may be kept; what comes behind that is let go.

        Returns:
            Where the first batch that was let go begins; None when all is kept.
        """
        mine: deque[Prefetched] = deque() if first is None else deque([first])
        others: deque[Prefetched | _Failure] = deque()
        for item in self._queue:
            if isinstance(item, Prefetched) and item.where == where:
                mine.append(item)
            else:
                others.append(item)
        self._queue = others
        self._paused[where] = kept = deque[Prefetched]()
        for index, item in enumerate(mine):
            room = room.minus(_size(item))
            if room.records < 0 or room.bytes < 0:
                for gone in list(mine)[index:]:
                    self._discard(gone)
                return item.batch.base_offset
            kept.append(_with_own_credit(item))
        return None

    def resume(self, where: TopicPartition) -> None:
        """Put what was put beside the line back into it; what arrives from now on comes behind it."""
        self._queue.extend(self._paused.pop(where, ()))
        self._wake()

    # --- what serving reports --------------------------------------------------------------------------

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived. Without room for them reading ends: a gap is never handed out."""
        if self._admit is not None and not self._refused:
            self._refused = not self._admit(sum(item.batch.header.length for item in items))
            if self._refused:
                self.broken(OverloadedError("there is no room for what arrived; read on from your position later"))
        if self._refused:
            return
        self._queue.extend(items)
        self._wake()

    def failed(self, where: TopicPartition, error: BaseException) -> None:
        """One partition cannot be read on; the user is told behind what has arrived of it."""
        self._failures[where] = reason = _StoredError.of(error)
        self._queue.append(_Failure(where, reason))
        self._wake()

    def broken(self, error: BaseException) -> None:
        """Reading cannot go on; the user is told after what has arrived."""
        self._error = self._error or _StoredError.of(error)
        self._wake()

    def _discard(self, item: Prefetched) -> None:
        _free(item)
        if self._dropped is not None:
            self._dropped(item.batch.header.length)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _size(item: Prefetched) -> Credit:
    return Credit(len(item.batch), item.batch.header.length)


def _with_own_credit(item: Prefetched) -> Prefetched:
    """Return an item that holds credit for itself alone, and give back what it holds beyond that.

    The credit of an event lies on its last batch. Those before it may have been taken long ago.
    """
    size = _size(item)
    item.lender.give_back((item.credit or NONE).minus(size))
    return item._replace(credit=size)


def _free(item: Prefetched) -> None:
    if item.credit is not None:
        item.lender.give_back(item.credit)
