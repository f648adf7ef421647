"""What has arrived for a consumer and was not handed out yet, and who waits for it: what `Serving` reports to."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from tidelog.errors import OverloadedError, UsageError
from tidelog.meters import ConsumerMeter
from tidelog.subscription import Prefetched


class Arrivals:
    """A queue that credits bound. It ends when it is closed, or with an error behind what arrived before.

    Args:
        begun: told of partitions that are read from now on, and where they begin.
        admit: asked with the bytes of what arrives whether that may be kept; None: always.
        meter: told of what arrives and of what is taken; None: nobody counts.
    """

    def __init__(
        self,
        begun: Callable[[dict[int, int]], None],
        admit: Callable[[int], bool] | None = None,
        meter: ConsumerMeter | None = None,
    ) -> None:
        self._begun = begun
        self._admit = admit
        self._meter = meter
        self._refused = False
        self._queue: deque[Prefetched] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._closed = False

    async def take(self) -> Prefetched | None:
        """Wait for the next batch and return it, with its credit given back; None when this was closed.

        Raises:
            UsageError: another task waits already.
            TidelogError: why nothing more arrives.
        """
        while not self._queue:
            if self._closed:
                return None
            if self._error is not None:
                raise self._error
            if self._waiter is not None and not self._waiter.done():
                raise UsageError("one task at a time iterates over a consumer; make a consumer for each")
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        item = self._queue.popleft()
        if item.credit is not None:
            item.subscription.give_back(item.credit)
        if self._meter is not None:
            self._meter.taken(item.partition, item.batch)
        return item

    def drop(self, partition: int, offset: int) -> None:
        """Let go of what has arrived of a partition, which is read on at `offset`."""
        if self._meter is not None:
            self._meter.moved({partition: offset})
        for item in self._queue:
            if item.credit is not None and item.partition == partition:
                item.subscription.give_back(item.credit)
        self._queue = deque(item for item in self._queue if item.partition != partition)

    def close(self) -> None:
        """Let go of everything; whoever waits comes to the end."""
        self._closed = True
        self._queue.clear()
        if self._meter is not None:
            self._meter.closed()
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
        if self._meter is not None:
            self._meter.arrived(items)
        self._wake()

    def added(self, positions: dict[int, int]) -> None:
        """Partitions are read from now on."""
        self._begun(positions)
        if self._meter is not None:
            self._meter.moved(positions)

    def broken(self, error: BaseException) -> None:
        """Reading cannot go on; the user is told after what has arrived."""
        self._error = self._error or error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
