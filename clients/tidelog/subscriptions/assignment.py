"""The partitions that a consumer reads, which may change at any time, and their received batches.

`SubscriptionKeeper` keeps every partition subscribed at its exact position; the nodes push batches, which wait in
`ReceiveBuffer` within the prefetch limit. The keeper tracks positions of *received* records, the cursor those of
*delivered* records; only the latter are committed. Partitions are added and removed here by the application
(`Consumer.assign`), by topic discovery and by the consumer group.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Final

from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError, TidelogError, UnknownPartitionError
from tidelog.model import ConsumedBatch, TopicPartition, TopicRoute
from tidelog.requests.needed_permission import requiring
from tidelog.subscriptions.consumer_meter import ConsumerMeter
from tidelog.subscriptions.consumer_options import ConsumerOptions, dead_letter_loop_error
from tidelog.subscriptions.cursor import Cursor
from tidelog.subscriptions.field_binding import FieldBinding
from tidelog.subscriptions.load_meter import LoadMeter
from tidelog.subscriptions.prefetch import Credit, Prefetch
from tidelog.subscriptions.receive_buffer import ReceiveBuffer
from tidelog.subscriptions.subscription import Prefetched
from tidelog.subscriptions.subscription_keeper import SubscriptionKeeper
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import RecordBatch

_log: Final = logging.getLogger("tidelog.consumer")

SCHEMAS_WAIT_S: Final = 1.0
"""How long received batches wait for the newest schemas of their topics."""

PARTITIONS_NAMED_MAX: Final = 20
"""Maximum number of partitions that an error names."""


class Assignment:
    """Reads the partitions of one consumer, and queues their batches.

    Args:
        meter: counts received and taken batches; None without metrics.

    Attributes:
        cursor: the positions of delivered records.
        topic_ids: name -> id of the topics that are or were read.
        survives_deletion: called with the name of a deleted topic; returns whether reading continues without it.
        loads: measures the load of each partition; None if the consumer is not a group member. Set before reading
            starts.
    """

    def __init__(self, router: Router, options: ConsumerOptions, meter: ConsumerMeter | None = None) -> None:
        self.cursor = Cursor(options.decoding, options.view)
        self.survives_deletion: Callable[[str], bool] = lambda _: False
        self.loads: LoadMeter | None = None
        self._router = router
        self._dead_letter = options.dead_letter
        self._view = options.view
        self._prefetch = Prefetch(options.prefetch)
        self._buffer = ReceiveBuffer(options.admit, options.dropped)
        self._meter = meter
        self._keeper = SubscriptionKeeper(
            router,
            self._prefetch,
            self,
            on_out_of_range=options.on_out_of_range,
            record_filter=options.record_filter,
            skips_forbidden=options.pattern is not None,
            fields=FieldBinding(
                router, options.view.columns, options.view.where, is_narrowing=options.dead_letter is None
            ),
        )
        self._columns = options.view.columns
        self._paused: set[TopicPartition] = set()
        """Partitions from which nothing is delivered because the application has paused them."""
        self._held_back: set[TopicPartition] = set()
        """Partitions from which nothing is delivered until `release`; see `hold`."""
        self._watched: dict[str, Callable[[], None]] = {}
        self._at_once: Callable[[int, RecordBatch], bool] | None = None
        self._closed = False
        self._schema_revision = -1
        """Revision of the metadata as of which the newest schemas are known."""

    @property
    def topic_ids(self) -> dict[str, bytes]:
        """Name -> id of the topics that are or were read."""
        return self._keeper.topic_ids

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are read, including paused ones."""
        return self._keeper.partitions

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that the application has paused."""
        return frozenset(self._paused)

    # --------------------------------------------------------------------------------------------- changing

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read additional partitions, each from an offset; a partition that is read already continues there.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist; nothing is changed.
            InvalidRequestError: an offset is negative, or the topic is the consumer's own dead-letter topic.
            TidelogError: no node can be reached, or the principal may not read a topic.
        """
        for (topic, partition), offset in positions.items():
            if offset < 0:
                raise InvalidRequestError(f"offset must be >= 0, got {offset} for {topic}/{partition}")
        if any(where.topic == self._dead_letter for where in positions):
            raise dead_letter_loop_error(self._dead_letter or "")
        ids: dict[str, bytes] = {}
        for topic in dict.fromkeys(where.topic for where in positions):
            numbers = [where.partition for where in positions if where.topic == topic]
            ids[topic] = await self._topic_id(topic, numbers)
        if not self._closed:
            self.add(positions, ids)

    def add(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> None:
        """Assign partitions that are known to exist, with the ids of their topics; see `assign`.

        Raises:
            UnknownTopicError: a topic with the same name and another id is read already.
        """
        read = {where.topic for where in self._keeper.partitions}
        for topic, topic_id in topic_ids.items():
            if topic in read and self.topic_ids[topic] != topic_id:
                raise deleted_topic_error(topic)
        self.topic_ids.update(topic_ids)
        standing = self._keeper.partitions
        for where, offset in positions.items():
            if where in standing:
                self.seek(where, offset)
        new = {where: offset for where, offset in positions.items() if where not in standing}
        if new:
            self.cursor.begin(new)
            self._keeper.add(new)
            if self._meter is not None:
                self._meter.moved(new)
            if self.loads is not None:
                self.loads.begin(new)
        for topic in topic_ids:
            self._watch(topic)

    def unassign(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Stop reading partitions; those that are not read are ignored. Nothing more of them is delivered.

        Returns:
            The position in each partition, which may be committed.
        """
        there = frozenset(partitions) & self._keeper.partitions
        positions = self.cursor.forget(there)
        self._buffer.drop(there)
        self._paused -= there
        self._held_back -= there
        self._keeper.remove(there)
        if self._meter is not None:
            self._meter.left(there)
        if self.loads is not None:
            self.loads.end(there)
        left = {where.topic for where in self._keeper.partitions}
        for topic in {where.topic for where in there} - left:
            self._unwatch(topic)
        return positions

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Continue at `offset` in one partition; received records of it are dropped.

        Raises:
            UnknownPartitionError: the partition is not read.
        """
        self.check([where])
        self._buffer.drop([where])
        self.cursor.seek(where, offset)
        self._keeper.seek(where, offset)
        if self._meter is not None:
            self._meter.moved({where: offset})
        if self.loads is not None:
            self.loads.seek(where)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver nothing from partitions until `resume`.

        Received batches are kept up to half of the prefetch limit; later batches are dropped and received again after
        `resume`.

        Raises:
            UnknownPartitionError: a partition is not read.
        """
        self._stop_delivery(partitions, self._paused)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver paused partitions again.

        Raises:
            UnknownPartitionError: a partition is not read.
        """
        self.check(partitions)
        self._resume_delivery(self._paused.intersection(partitions), self._paused)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver nothing from partitions until `release`, independently of `pause` and `resume`.

        Raises:
            UnknownPartitionError: a partition is not read.
        """
        self._stop_delivery(partitions, self._held_back)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Deliver partitions that were held back, except those that the application has paused."""
        self._resume_delivery(self._held_back.intersection(partitions), self._held_back)

    def check(self, partitions: Collection[TopicPartition]) -> None:
        """Refuse partitions that are not read.

        Raises:
            UnknownPartitionError: a partition is not read.
        """
        for where in partitions:
            if where not in self._keeper.partitions:
                read = sorted(self._keeper.partitions)
                names = ", ".join(f"{topic}/{number}" for topic, number in read[:PARTITIONS_NAMED_MAX])
                more = f" and {len(read) - PARTITIONS_NAMED_MAX} more" if len(read) > PARTITIONS_NAMED_MAX else ""
                raise UnknownPartitionError(
                    f"this consumer does not read {where.topic}/{where.partition}; it reads {names or 'nothing'}{more}"
                )

    # ---------------------------------------------------------------------------------------------- reading

    def suspend_while(self, is_suspended: Callable[[], bool]) -> None:
        """Deliver nothing while `is_suspended()`: after the session expired another member may own the partitions."""
        self._buffer.is_suspended = is_suspended

    async def wait_while_suspended(self) -> None:
        """Wait until it is known whether received records may still be delivered.

        Raises:
            TidelogError: the reason why reading has ended.
        """
        await self._buffer.wait_while_suspended()

    @property
    def has_arrivals(self) -> bool:
        """Whether `next_batch` would return or raise immediately."""
        return self._buffer.has_items

    def at_once(self, take: Callable[[int, RecordBatch], bool]) -> None:
        """See `Consumer.at_once`."""
        self._at_once = take

    def batch_now(self) -> ConsumedBatch | None:
        """Return the next batch if one has been received; None if `next_batch` would wait or raise."""
        if self._schema_revision != self._router.metadata.revision:
            return None
        item = self._buffer.take_now()
        return None if item is None else self._counted(item)

    async def next_batch(self) -> ConsumedBatch | None:
        """Wait for the next batch and return it; None when closed. The batch does not count as delivered.

        Raises:
            TidelogError: the reason why reading has ended, in general or for one partition.
        """
        if self._schema_revision != self._router.metadata.revision:
            await self._read_newer_schemas()
        item = await self._buffer.take()
        if item is None:
            return None
        return self._counted(item)

    async def _read_newer_schemas(self) -> None:
        """Read the newest schemas of the topics that have newer ones, according to the metadata."""
        metadata, schemas = self._router.metadata, self._router.schemas
        revision = metadata.revision
        for topic, topic_id in list(self.topic_ids.items()):
            route, newest = metadata.topic(topic), schemas.newest(topic_id)
            if route is None or route.topic_id != topic_id or not route.schema_number:
                continue
            if newest is None or newest.number < route.schema_number:
                try:
                    async with asyncio.timeout(SCHEMAS_WAIT_S):
                        await schemas.refresh(topic_id)
                except (TidelogError, TimeoutError) as error:
                    # Until the metadata change again, rows are shown under the newest schema that is known.
                    _log.debug("the schemas of %r cannot be read: %r", topic, error)
        self._schema_revision = revision

    def put_back(self, batch: ConsumedBatch) -> None:
        """Return a batch that was taken to the front of the queue."""
        where, cost = TopicPartition(batch.topic, batch.partition), Credit(len(batch), batch.batch.header.length)
        self._prefetch.keep(cost)
        self._buffer.put_back(Prefetched(where, batch.batch, self._prefetch, cost, schema=batch.schema))

    async def close(self) -> None:
        """Stop reading; pending calls of `next_batch` return None."""
        self._closed = True
        for topic in list(self._watched):
            self._unwatch(topic)
        await self._keeper.close()
        self._buffer.close()
        if self._meter is not None:
            self._meter.closed()

    # ----------------------------------------------------------------------------------- subscription events

    def prefetched(self, items: list[Prefetched]) -> None:
        """Queue batches that arrived."""
        self._buffer.prefetched(items)
        if self._meter is not None:
            self._meter.arrived(items)

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        """Pass an arrived batch to the function of `at_once`; False if it must be queued."""
        take = self._at_once
        if take is None or self._meter is not None or self.loads is not None or not self._buffer.has_waiter:
            return False
        if batch.layout is not None:  # its function handles values that are bytes
            return False
        return take(where.partition, batch)

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """Report that one partition cannot be read further; reading of other partitions continues."""
        self._buffer.failed(where, error)

    def topic_deleted(self, topic: str, error: TidelogError) -> None:
        """Handle the deletion of a topic that is read, or its replacement by a topic with the same name."""
        if self.survives_deletion(topic):
            self.unassign([where for where in self._keeper.partitions if where.topic == topic])
        else:
            self.broken(error)

    def broken(self, error: BaseException) -> None:
        """End reading with an error."""
        self._buffer.broken(error)

    # --------------------------------------------------------------------------------------------- internals

    def _counted(self, item: Prefetched) -> ConsumedBatch:
        if self._meter is not None:
            self._meter.taken(item.where, item.batch)
        if self.loads is not None:
            self.loads.taken(item.where, item.batch.end_offset, item.batch.header.length)
        batch = ConsumedBatch(*item.where, item.batch)
        if item.batch.layout is not None:
            schema = item.schema or self._router.schemas.newest(self.topic_ids[item.where.topic])
            batch = ConsumedBatch(*item.where, item.batch, schema, self._columns)
        try:
            return self._view.kept(batch)
        except TidelogError:
            self.put_back(batch)  # the next call raises the error again
            raise

    async def _topic_id(self, topic: str, partitions: list[int]) -> bytes:
        is_read = any(where.topic == topic for where in self._keeper.partitions)

        async def attempt() -> TopicRoute:
            if not is_read:
                await self._router.confirmed_topic(topic)
            return await self._router.topic_with(topic, partitions)

        async with requiring(self._router, pb.OP_CONSUME, topic):
            return (await self._router.retry_for_topic(topic, attempt, repeatable=True)).topic_id

    def _stop_delivery(self, partitions: Collection[TopicPartition], reason: set[TopicPartition]) -> None:
        """Stop delivery of partitions for a reason.

        Args:
            reason: the set of paused or of held-back partitions, to which the partitions are added.

        Raises:
            UnknownPartitionError: a partition is not read.
        """
        self.check(partitions)
        for where in dict.fromkeys(partitions):
            stops = where not in self._paused and where not in self._held_back
            reason.add(where)
            if not stops:
                continue
            first = self._take_back(where)
            self._keeper.pause(where)
            room = self._prefetch.paused_max.minus(self._buffer.paused_size)
            again_at = self._buffer.pause(where, first, room)
            if again_at is not None:
                self._keeper.rewind(where, again_at)

    def _resume_delivery(self, partitions: Collection[TopicPartition], reason: set[TopicPartition]) -> None:
        """Remove partitions from the set `reason`, and deliver those that have no other reason to wait."""
        reason.difference_update(partitions)
        for where in partitions:
            if where not in self._paused and where not in self._held_back:
                self._buffer.resume(where)
                self._keeper.resume(where)

    def _take_back(self, where: TopicPartition) -> Prefetched | None:
        """Return the undelivered rest of the current batch, counted as a received batch; None if nothing is left of it.

        None also if the current batch is of another partition.
        """
        rest = self.cursor.take_back(where)
        if rest is None:
            return None
        cost = Credit(len(rest), rest.batch.header.length)
        self._prefetch.keep(cost)
        return Prefetched(where, rest.batch, self._prefetch, cost, schema=rest.schema)

    def _watch(self, topic: str) -> None:
        if topic not in self._watched:
            self._watched[topic] = self._router.watch(topic, lambda: self._metadata_changed(topic))

    def _unwatch(self, topic: str) -> None:
        unwatch = self._watched.pop(topic, None)
        if unwatch is not None:
            unwatch()

    def _metadata_changed(self, topic: str) -> None:
        route = self._router.metadata.topic(topic)
        if route is not None and route.topic_id != self.topic_ids.get(topic):
            self.topic_deleted(topic, deleted_topic_error(topic))
        self._keeper.metadata_changed()
