"""The queue of received batches of a consumer that were not taken yet.

Batches are in order of arrival; those of paused partitions are stored separately. An error of one partition is queued
after its batches, and the others continue.
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
    """An error that may be raised several times, each time with its original traceback.

    Raising the same exception again would extend its traceback, and keep the frames of all earlier calls alive.
    """

    error: BaseException
    traceback: TracebackType | None

    @classmethod
    def of(cls, error: BaseException) -> _StoredError:
        return cls(error, error.__traceback__)

    def again(self) -> BaseException:
        return self.error.with_traceback(self.traceback)


class _Failure(NamedTuple):
    """Queue entry for the error of a partition."""

    where: TopicPartition
    reason: _StoredError


def _never() -> bool:
    return False


class ReceiveBuffer:
    """A queue of received batches, bounded by the credit of the nodes.

    The queue ends when it is closed, or with an error after the batches that were received before the error.

    Args:
        admit: called with the size of arriving batches; returns whether they may be stored. None: always.
        dropped: called with the size of a batch that was stored and is discarded unread, except by `close`.

    Attributes:
        is_suspended: called before a batch is taken; while it returns True, no batch is taken, because another group
            member may own the partitions.
    """

    def __init__(
        self, admit: Callable[[int], bool] | None = None, dropped: Callable[[int], None] | None = None
    ) -> None:
        self.is_suspended: Callable[[], bool] = _never
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
        """Whether `take` would return or raise immediately."""
        if self._closed or self._error is not None:
            return True
        return bool(self._queue or self._failures) and not self.is_suspended()

    async def wait_while_suspended(self) -> None:
        """Wait until it is known whether received batches may still be delivered.

        Raises:
            TidelogError: the reason why reading has ended.
        """
        while self.is_suspended() and not self._closed:
            if self._error is not None:
                raise self._error.again()
            await asyncio.sleep(SUSPENDED_CHECK_S)  # Polled, because a suspension ends by a clock and sets no event.

    @property
    def has_waiter(self) -> bool:
        """Whether a task is waiting in `take` on an empty queue and may take the next batch."""
        waiter = self._waiter
        if waiter is None or self._queue or waiter.done():
            return False
        return self.is_suspended is _never or not self.is_suspended()

    def take_now(self) -> Prefetched | None:
        """Return the next batch; None if the queue is empty, begins with an error, or is suspended."""
        item = self._queue[0] if self._queue else None
        if not isinstance(item, Prefetched) or self.is_suspended():
            return None
        self._queue.popleft()
        _free(item)
        return item

    async def take(self) -> Prefetched | None:
        """Wait for the next batch and return it, with its credit returned; None when closed.

        Raises:
            UsageError: another task is waiting.
            TidelogError: the reason why reading has ended, in general or for one partition; the latter is raised again
                whenever the queue is empty, until `drop`.
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
        """Put a taken batch back to the front of the queue."""
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
            raise UsageError("another task is reading from this consumer; create one consumer per task")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Discard the batches and errors of partitions."""
        remaining: deque[Prefetched | _Failure] = deque()
        for item in self._queue:
            if item.where not in partitions:
                remaining.append(item)
            elif isinstance(item, Prefetched):
                self._discard(item)
        self._queue = remaining
        for where in partitions:
            self._failures.pop(where, None)
            for item in self._paused.pop(where, ()):
                self._discard(item)

    def close(self) -> None:
        """Discard everything; a waiting `take` returns None."""
        self._closed = True
        self._queue.clear()
        self._paused.clear()
        self._failures.clear()
        self._wake()

    # --- pausing ---------------------------------------------------------------------------------------

    @property
    def paused_size(self) -> Credit:
        """Size of the batches of paused partitions."""
        total = NONE
        for items in self._paused.values():
            for item in items:
                total = total.plus(_size(item))
        return total

    def pause(self, where: TopicPartition, first: Prefetched | None, room: Credit) -> int | None:
        """Move the batches of a partition, whose subscription has ended, to the separate store.

        Args:
            first: a batch that precedes those in the queue, if any.
            room: the size of the batches that may be kept; later batches are discarded.

        Returns:
            Offset of the first discarded batch; None if all were kept.
        """
        mine: deque[Prefetched] = deque() if first is None else deque([first])
        others: deque[Prefetched | _Failure] = deque()
        for item in self._queue:
            if isinstance(item, Prefetched) and item.where == where:
                mine.append(item)
            else:
                others.append(item)
        self._queue = others
        self._paused[where] = stored = deque[Prefetched]()
        for index, item in enumerate(mine):
            room = room.minus(_size(item))
            if room.records < 0 or room.bytes < 0:
                for gone in list(mine)[index:]:
                    self._discard(gone)
                return item.batch.base_offset
            stored.append(_with_own_credit(item))
        return None

    def resume(self, where: TopicPartition) -> None:
        """Append the stored batches of a partition to the queue."""
        self._queue.extend(self._paused.pop(where, ()))
        self._wake()

    # --- subscription events --------------------------------------------------------------------------

    def prefetched(self, items: list[Prefetched]) -> None:
        """Queue batches that arrived. If they are not admitted, reading ends, because a gap must never be delivered."""
        if self._admit is not None and not self._refused:
            self._refused = not self._admit(sum(item.batch.header.length for item in items))
            if self._refused:
                self.broken(
                    OverloadedError(
                        "reading has ended because `admit` refused the memory for received batches; create a consumer "
                        "at this position again later"
                    )
                )
        if self._refused:
            return
        self._queue.extend(items)
        self._wake()

    def failed(self, where: TopicPartition, error: BaseException) -> None:
        """Queue the error of a partition that cannot be read further, after its batches."""
        self._failures[where] = reason = _StoredError.of(error)
        self._queue.append(_Failure(where, reason))
        self._wake()

    def broken(self, error: BaseException) -> None:
        """End reading with an error, after the queued batches."""
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
    """Return the item with credit for itself only, and give the remainder back.

    The credit of an event is attached to its last batch; earlier ones may have been taken already.
    """
    size = _size(item)
    item.lender.give_back((item.credit or NONE).minus(size))
    return item._replace(credit=size)


def _free(item: Prefetched) -> None:
    if item.credit is not None:
        item.lender.give_back(item.credit)
