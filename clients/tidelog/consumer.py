"""The consumer: reads partitions in order and without end, through lost connections and moved partitions.

One task keeps every partition subscribed at its exact position; batches arrive by push and wait in a queue that credits
bound. Positions of what has *arrived* belong to the subscriptions, positions of what was *handed out* to the cursor,
and only the latter are committed. After a disturbance a partition is subscribed again where its arrivals ended, so
nothing is lost or repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import TracebackType
from typing import Final, Self

from tidelog import reading
from tidelog.backoff import Backoff
from tidelog.connection import Connection
from tidelog.cursor import Cursor
from tidelog.errors import (
    ClosedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    TidelogError,
    UnknownPartitionError,
    UsageError,
    error_of,
)
from tidelog.model import Committed, ConsumedBatch, Record
from tidelog.routing import Router, results_of
from tidelog.start import ConsumerOptions, OnOutOfRange, Start, resolve_start
from tidelog.subscription import Credit, Prefetched, Subscription
from tidelog_proto import broker_pb2 as pb

__all__ = ["Consumer", "ConsumerOptions", "OnOutOfRange", "Start"]

NEW_PARTITIONS_S: Final = 30.0
"""How often a consumer of all partitions looks for new ones."""

_log: Final = logging.getLogger("tidelog.consumer")


class Consumer:
    """Reads one topic. Made by `Client.consumer`; iterate over it for records, or over `batches()` for columns.

    Use it as an async context manager, or `close` it. One task at a time may iterate.
    """

    def __init__(self, router: Router, topic: str, options: ConsumerOptions, check: Callable[[], None]) -> None:
        self.topic = topic
        self._router = router
        self._options = options
        self._check_usable = check
        self._cursor = Cursor()
        self._arrived: dict[int, int] = {}
        self._serving: dict[int, Subscription | None] = {}
        self._subscriptions: dict[Subscription, tuple[Connection, int]] = {}
        self._queue: deque[Prefetched] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._unserved = asyncio.Event()
        self._backoff = Backoff()
        self._keeper: asyncio.Task[None] | None = None
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
        """
        if self._options.group is None:
            raise InvalidRequestError("this consumer has no group to commit for; use client.consumer(..., group=...)")
        self._check_usable()
        positions = self._cursor.uncommitted()
        held = await reading.commit(self._router, self._options.group, self.topic, positions, reset=False, note=note)
        self._cursor.committed(positions)
        return held

    async def seek(self, partition: int, offset: int) -> None:
        """Go on at `offset` in one partition; what was received ahead of it is dropped.

        Raises:
            UnknownPartitionError: this consumer does not read the partition.
        """
        await self.begin()
        if partition not in self._serving:
            raise UnknownPartitionError(f"this consumer reads partitions {sorted(self._serving)}, not {partition}")
        if offset < 0:
            raise InvalidRequestError("offsets are not negative")
        for item in self._queue:
            if item.credit is not None and item.partition == partition:
                item.subscription.give_back(item.credit)
        self._queue = deque(item for item in self._queue if item.partition != partition)
        self._cursor.seek(partition, offset)
        serving = self._serving[partition]
        if serving is not None:
            # The subscription is ended whole: the node has no message that takes one partition out of it.
            self._drop(serving)
        self._arrived[partition] = offset
        self._unserved.set()

    # -------------------------------------------------------------------------------------------- lifecycle

    async def begin(self) -> None:
        """Find the positions to begin at and subscribe; iteration does it by itself.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing.
        """
        if not self._may_begin():
            return
        self._check_usable()
        positions = await resolve_start(self._router, self.topic, self._options)
        if not self._may_begin():  # somebody was faster, or closed it meanwhile
            return
        self._add(positions)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"consume {self.topic}")
        self._keeper.add_done_callback(self._kept)

    async def close(self) -> None:
        """Stop. Whoever iterates comes to the end. Nothing is committed by this. Doing it twice does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        for subscription in list(self._subscriptions):
            self._drop(subscription)
        self._queue.clear()
        self._wake()

    # ----------------------------------------------------------------------------- what subscriptions report

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived (a subscription calls this)."""
        self._backoff.reset()
        self._queue.extend(items)
        self._wake()

    def detached(self, subscription: Subscription, partitions: list[int], error: TidelogError) -> None:
        """Partitions are no longer served (a subscription calls this)."""
        for partition in partitions:
            self._arrived[partition] = subscription.positions.pop(partition)
            self._serving[partition] = None
        if not subscription.positions:
            self._drop(subscription)
        self._router.learn_from(self.topic, error)
        policy = self._options.on_out_of_range
        if isinstance(error, OffsetOutOfRangeError) and policy != "error":
            offset = error.log_start_offset if policy == "earliest" else error.high_watermark
            for partition in partitions:
                _log.warning(
                    "%s/%d: offset %d is gone, going on at %d", self.topic, partition, self._arrived[partition], offset
                )
                self._arrived[partition] = offset
        elif not error.retriable and not isinstance(error, ClosedError):
            self.broken(error)
        self._unserved.set()

    def broken(self, error: TidelogError) -> None:
        """Reading cannot go on; the user is told after what has arrived (a subscription calls this)."""
        self._error = self._error or error
        self._wake()

    # --------------------------------------------------------------------------------------------- internals

    def _may_begin(self) -> bool:
        return self._keeper is None and not self._closed

    def _add(self, positions: dict[int, int]) -> None:
        for partition, offset in positions.items():
            if partition not in self._serving:
                self._serving[partition] = None
                self._arrived[partition] = offset
        self._cursor.begin(positions)
        self._unserved.set()

    async def _keep(self) -> None:
        """Keep every partition subscribed until the consumer is closed or broken."""
        while self._error is None:
            try:
                async with asyncio.timeout(NEW_PARTITIONS_S if self._options.partitions is None else None):
                    await self._unserved.wait()
            except TimeoutError:
                await self._look_for_new_partitions()
                continue
            self._unserved.clear()
            if self._backoff.failures:
                await asyncio.sleep(self._backoff.wait_s)
            self._backoff.next_wait_s()  # until something arrives, the next disturbance waits longer
            try:
                await self._subscribe_unserved()
            except TidelogError as error:
                self._router.learn_from(self.topic, error)
                if not error.retriable:
                    self.broken(error)
                self._unserved.set()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """Tell the user of a bug in the keeper: without it nothing would ever arrive."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._error = self._error or error
            self._wake()

    async def _look_for_new_partitions(self) -> None:
        try:
            await self._router.refresh(self.topic)
        except TidelogError as error:
            _log.warning("cannot look for new partitions of %s: %s", self.topic, error)
            return
        route = self._router.metadata.topic(self.topic)
        new = [partition for partition in route.partitions if partition not in self._serving] if route else []
        if new:
            self._add(dict.fromkeys(new, 0))

    async def _subscribe_unserved(self) -> None:
        unserved = [partition for partition, serving in self._serving.items() if serving is None]
        groups: dict[Connection, list[int]] = {}
        for partition in unserved:
            groups.setdefault(await self._router.connection(self.topic, partition), []).append(partition)
        for connection, partitions in groups.items():
            await self._subscribe(connection, partitions)

    async def _subscribe(self, connection: Connection, partitions: list[int]) -> None:
        route = await self._router.topic(self.topic)
        window = Credit(self._options.prefetch_records, self._options.prefetch_bytes)
        positions = {partition: self._arrived[partition] for partition in partitions}
        subscription_id = connection.new_subscription_id()
        send_credit = partial(self._send_credit, connection, subscription_id)
        subscription = Subscription(route.topic_id, positions, window, send_credit, self)
        connection.subscribe(subscription_id, subscription)
        self._subscriptions[subscription] = (connection, subscription_id)
        request = pb.Subscribe(
            subscription_id=subscription_id,
            entries=[
                pb.SubscribeEntry(topic_id=route.topic_id, partition=partition, offset=offset)
                for partition, offset in positions.items()
            ],
            credit_records=window.records,
            credit_bytes=window.bytes,
        )
        # Events may come before the answer is looked at.
        for partition in partitions:
            self._serving[partition] = subscription
        try:
            frame = await self._router.call(connection, pb.Envelope(subscribe=request))
            results = results_of(frame.envelope.subscribe_reply.results, len(partitions), connection)
        except BaseException:
            self._drop(subscription)
            raise
        for partition, result in zip(partitions, results, strict=True):
            if result.HasField("error"):
                subscription.end(partition, error_of(result.error))

    def _send_credit(self, connection: Connection, subscription_id: int, credit: Credit) -> None:
        connection.send(
            pb.Envelope(credit=pb.Credit(subscription_id=subscription_id, records=credit.records, bytes=credit.bytes))
        )

    def _drop(self, subscription: Subscription) -> None:
        """End a subscription; its partitions keep the positions of what has arrived."""
        connection, subscription_id = self._subscriptions.pop(subscription, (None, 0))
        if connection is None:
            return
        connection.unsubscribe(subscription_id)
        for partition, offset in subscription.positions.items():
            self._arrived[partition] = offset
            self._serving[partition] = None
        subscription.positions.clear()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
