"""The consumer: reads partitions in order and without end, through lost connections and moved partitions.

`Serving` keeps every partition subscribed at its exact position; batches arrive by push and wait in `Arrivals`, which
credits bound. Positions of what has *arrived* are Serving's business, positions of what was *handed out* the cursor's,
and only the latter are committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from tidelog import reading
from tidelog.arrivals import Arrivals
from tidelog.consumer_options import Beginning, ConsumerOptions, OnOutOfRange, Start, find_rest, resolve_start
from tidelog.cursor import Cursor
from tidelog.errors import InvalidRequestError, UnknownPartitionError
from tidelog.meters import ConsumerMeter, Teller
from tidelog.model import Committed, ConsumedBatch, Record
from tidelog.routing import Router
from tidelog.subscription_keeper import Serving

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
        *,
        admit: Callable[[int], bool] | None = None,
        teller: Teller | None = None,
    ) -> None:
        self.topic = topic
        self._router = router
        self._options = options
        self._check_usable = check
        self._cursor = Cursor()
        meter = None if teller is None else ConsumerMeter(teller, topic)
        self._arrivals = Arrivals(self._cursor.begin, admit, meter)
        self._serving = Serving(router, topic, options, self._arrivals)
        self._begun = False
        self._finding: asyncio.Task[None] | None = None
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
            self._cursor.whole(batch)
            if len(batch):
                yield batch
            del batch  # nobody but the user keeps it while the next one is waited for

    async def next_batch(self) -> ConsumedBatch | None:
        """Wait for the next batch and return it; None when the consumer was closed.

        The batch does not count as handed out; iteration does that. For who keeps positions himself: they are where a
        batch ends, `batch.end_offset`. A batch without records says that nothing is left up to there.

        Raises:
            OffsetOutOfRangeError: retention has overtaken the position (with `on_out_of_range="error"`).
            TidelogError: reading cannot go on.
        """
        self._check_usable()
        await self.begin()
        item = await self._arrivals.take()
        return None if item is None else ConsumedBatch(self.topic, item.partition, item.batch)

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
        self._arrivals.drop(partition, offset)
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
        self._arrivals.close()

    # --------------------------------------------------------------------------------------------- internals

    def _find_rest(self, beginning: Beginning) -> None:
        if beginning.search is None:
            return

        def found(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._arrivals.broken(error)

        finding = find_rest(self._router, self.topic, beginning.search, self._serving.add)
        self._finding = asyncio.get_running_loop().create_task(finding, name=f"begin {self.topic}")
        self._finding.add_done_callback(found)

    def _may_begin(self) -> bool:
        return not self._begun and not self._closed
