"""The consumer: reads partitions in order and without end, through lost connections and moved partitions.

`Serving` keeps every partition subscribed at its exact position; batches arrive by push and wait in a queue that
credits bound. Positions of what has *arrived* are its business, positions of what was *handed out* the cursor's, and
only the latter are committed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from tidelog import reading
from tidelog.cursor import Cursor
from tidelog.errors import InvalidRequestError, OverloadedError, UnknownPartitionError, UsageError
from tidelog.model import Committed, ConsumedBatch, Record
from tidelog.routing import Router
from tidelog.serving import Serving
from tidelog.start import Beginning, ConsumerOptions, OnOutOfRange, Start, find_rest, resolve_start
from tidelog.subscription import Prefetched

__all__ = ["Consumer", "ConsumerOptions", "OnOutOfRange", "Start"]


class Consumer:
    """Reads one topic. Made by `Client.consumer`; iterate over it for records, or over `batches()` for columns.

    Use it as an async context manager, or `close` it. One task at a time may iterate. It reads the topic that has the
    name when it begins: when that one is deleted, iterating ends with UnknownTopicError, whatever is made under its
    name.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        options: ConsumerOptions,
        check: Callable[[], None],
        admit: Callable[[int], bool] | None = None,
    ) -> None:
        self.topic = topic
        self._router = router
        self._options = options
        self._check_usable = check
        self._admit = admit
        self._refused = False
        self._cursor = Cursor()
        self._serving = Serving(router, topic, options, self)
        self._queue: deque[Prefetched] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._begun = False
        self._finding: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # ---------------------------------------------------------------------------------------------- reading

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        while True:
            record = self._cursor.next_record()
            if record is not None:
                return record
            batch = await self.next_batch()
            if batch is None:
                raise StopAsyncIteration
            self._cursor.load(batch)

    async def batches(self) -> AsyncIterator[ConsumedBatch]:
        """Iterate over batches: columns instead of records."""
        rest = self._cursor.rest()
        if rest is not None:
            yield rest
        while (batch := await self.next_batch()) is not None:
            yield self._cursor.whole(batch)

    async def next_batch(self) -> ConsumedBatch | None:
        """Wait for the next batch and return it; None when the consumer was closed.

        The batch does not count as handed out; iteration does that. For who keeps positions himself.

        Raises:
            OffsetOutOfRangeError: retention has overtaken the position (with `on_out_of_range="error"`).
            TidelogError: reading cannot go on.
        """
        self._check_usable()
        await self.begin()
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
        return ConsumedBatch(self.topic, item.partition, item.batch)

    # -------------------------------------------------------------------------------------------- positions

    def position(self) -> dict[int, int]:
        """Return partition -> offset of the next record that will be handed out."""
        return self._cursor.positions

    async def commit(self, *, note: str = "") -> dict[int, Committed]:
        """Store the positions of what was handed out for the group; return what holds now.

        Raises:
            InvalidRequestError: the consumer has no group.
            UnknownTopicError: the topic that was read is gone; one of its name that was made since is another.
        """
        if self._options.group is None:
            raise InvalidRequestError("this consumer has no group to commit for; use client.consumer(..., group=...)")
        self._check_usable()
        positions = self._cursor.uncommitted()
        held = await reading.commit(
            self._router,
            self._options.group,
            self.topic,
            positions,
            reset=False,
            note=note,
            topic_id=self._serving.topic_id or None,
        )
        self._cursor.committed(positions)
        return held

    async def seek(self, partition: int, offset: int) -> None:
        """Go on at `offset` in one partition; what was received ahead of it is dropped.

        Raises:
            UnknownPartitionError: this consumer does not read the partition.
        """
        await self.begin()
        if partition not in self._serving.partitions:
            raise UnknownPartitionError(f"this consumer reads partitions {self._serving.partitions}, not {partition}")
        if offset < 0:
            raise InvalidRequestError("offsets are not negative")
        for item in self._queue:
            if item.credit is not None and item.partition == partition:
                item.subscription.give_back(item.credit)
        self._queue = deque(item for item in self._queue if item.partition != partition)
        self._cursor.seek(partition, offset)
        self._serving.seek(partition, offset)

    # -------------------------------------------------------------------------------------------- lifecycle

    async def begin(self) -> None:
        """Find the positions to begin at and subscribe; iteration does it by itself.

        A partition of which no replica can be asked is added when one can; a group waits until a quorum knows where it
        stands. The log (`tidelog.consumer`) says what is waited for.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing.
        """
        if not self._may_begin():
            return
        self._check_usable()
        beginning = await resolve_start(self._router, self.topic, self._options)
        if not self._may_begin():  # somebody was faster, or closed it meanwhile
            return
        self._begun = True
        unknown = beginning.search.missing if beginning.search else ()
        self._serving.begin(beginning.positions, beginning.topic_id, unknown)
        self._find_rest(beginning)

    async def close(self) -> None:
        """Stop. Whoever iterates comes to the end. Nothing is committed by this. Doing it twice does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._finding is not None:
            self._finding.cancel()
            await asyncio.gather(self._finding, return_exceptions=True)
        await self._serving.close()
        self._queue.clear()
        self._wake()

    # -------------------------------------------------------------------------------- what serving reports

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

    def added(self, positions: dict[int, int]) -> None:
        """Partitions are read from now on."""
        self._cursor.begin(positions)

    def broken(self, error: BaseException) -> None:
        """Reading cannot go on; the user is told after what has arrived."""
        self._error = self._error or error
        self._wake()

    # --------------------------------------------------------------------------------------------- internals

    def _find_rest(self, beginning: Beginning) -> None:
        if beginning.search is None:
            return

        def found(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.broken(error)

        finding = find_rest(self._router, self.topic, beginning.search, self._serving.add)
        self._finding = asyncio.get_running_loop().create_task(finding, name=f"begin {self.topic}")
        self._finding.add_done_callback(found)

    def _may_begin(self) -> bool:
        return not self._begun and not self._closed

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
