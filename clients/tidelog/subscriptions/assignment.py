"""The partitions that a consumer reads, and what came of them: they may be changed at any time while it is read.

`SubscriptionKeeper` keeps every partition subscribed at its exact position; batches arrive by push and wait in `ReceiveBuffer`, which
credits bound. Positions of what has *arrived* are SubscriptionKeeper's business, positions of what was *handed out* the cursor's,
and only the latter are committed. Whoever decides which partitions are read (the consumer's user, what looks for new
ones, a group) says so here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from tidelog.cluster.metadata import gone_error
from tidelog.cluster.routing import Router
from tidelog.errors import InvalidRequestError, TidelogError, UnknownPartitionError
from tidelog.model import ConsumedBatch, TopicPartition
from tidelog.subscriptions.consumer_meter import ConsumerMeter
from tidelog.subscriptions.consumer_options import ConsumerOptions, dead_letter_loop_error
from tidelog.subscriptions.cursor import Cursor
from tidelog.subscriptions.load_meter import LoadMeter
from tidelog.subscriptions.prefetch import Credit, Prefetch
from tidelog.subscriptions.receive_buffer import ReceiveBuffer
from tidelog.subscriptions.subscription import Prefetched
from tidelog.subscriptions.subscription_keeper import SubscriptionKeeper
from tidelog_proto.batch.record_batch import RecordBatch


class Assignment:
    """The partitions of one consumer, with where its user stands in each.

    Args:
        router: the client's.
        options: what the consumer was asked for.
        admit, dropped: see `ReceiveBuffer`.
        meter: told of what arrives and of what is taken; None: nobody counts.

    Attributes:
        cursor: where the user is.
        topic_ids: of the topics that are or were read, by name: what `positions` are positions in.
        let_go: asked when a topic is gone; True where reading goes on without it.
        loads: measures how much is read; None: nobody asks. Set before anything is read.
    """

    def __init__(
        self,
        router: Router,
        options: ConsumerOptions,
        admit: Callable[[int], bool] | None = None,
        meter: ConsumerMeter | None = None,
        *,
        dropped: Callable[[int], None] | None = None,
    ) -> None:
        self.cursor = Cursor(options.decoding)
        self.survives_deletion: Callable[[str], bool] = lambda _: False
        self.loads: LoadMeter | None = None
        self._router = router
        self._dead_letter = options.dead_letter
        self._prefetch = Prefetch(options.prefetch)
        self._buffer = ReceiveBuffer(admit, dropped)
        self._meter = meter
        self._keeper = SubscriptionKeeper(
            router,
            self._prefetch,
            self,
            on_out_of_range=options.on_out_of_range,
            wanted=options.wanted,
            skips_forbidden=options.pattern is not None,
        )
        self._paused: set[TopicPartition] = set()
        """What the user has paused. Nothing is handed out of that, nor of what is held back."""
        self._held_back: set[TopicPartition] = set()
        self._watched: dict[str, Callable[[], None]] = {}
        self._at_once: Callable[[int, RecordBatch], bool] | None = None
        self._closed = False

    @property
    def topic_ids(self) -> dict[str, bytes]:
        """Of the topics that are or were read, by name."""
        return self._keeper.topic_ids

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are read, the paused ones too."""
        return self._keeper.partitions

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which the user wants nothing for now."""
        return frozenset(self._paused)

    # --------------------------------------------------------------------------------------------- changing

    async def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read more partitions from now on, each from an offset; one that is read already goes on there.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing; nothing is changed.
            InvalidRequestError: an offset is negative; it is the consumer's own dead-letter topic.
            TidelogError: no node can be reached.
        """
        if any(offset < 0 for offset in positions.values()):
            raise InvalidRequestError("offsets are not negative")
        if any(where.topic == self._dead_letter for where in positions):
            raise dead_letter_loop_error(self._dead_letter or "")
        ids: dict[str, bytes] = {}
        for topic in dict.fromkeys(where.topic for where in positions):
            numbers = [where.partition for where in positions if where.topic == topic]
            ids[topic] = await self._topic_id(topic, numbers)
        if not self._closed:
            self.add(positions, ids)

    def add(self, positions: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> None:
        """As `assign`, for who knows that the partitions are there, and the ids of their topics.

        Raises:
            UnknownTopicError: another topic of one of these names is read already.
        """
        read = {where.topic for where in self._keeper.partitions}
        for topic, topic_id in topic_ids.items():
            if topic in read and self.topic_ids[topic] != topic_id:
                raise gone_error(topic)
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
        """Read some partitions no more; those that are not read are left out.

        From now on nothing of them is handed out.

        Returns:
            Where the user stands in each, which is what may be committed.
        """
        there = frozenset(partitions) & self._keeper.partitions
        stands = self.cursor.forget(there)
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
        return stands

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on at `offset` in one partition; what was received ahead of it is dropped.

        Raises:
            UnknownPartitionError: it is not read.
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
        """Hand out nothing of some partitions until `resume`.

        What was received ahead waits, as far as half the bound goes; the rest comes again later.

        Raises:
            UnknownPartitionError: one is not read.
        """
        self._stop_delivery(partitions, self._paused)

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out what comes of some partitions again.

        Raises:
            UnknownPartitionError: one is not read.
        """
        self.check(partitions)
        self._resume_delivery(self._paused.intersection(partitions), self._paused)

    def hold(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out nothing of some partitions until `release`, whatever the user pauses and resumes meanwhile."""
        self._stop_delivery(partitions, self._held_back)

    def release(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out what is held back of some partitions, but for those that the user has paused meanwhile."""
        self._resume_delivery(self._held_back.intersection(partitions), self._held_back)

    def check(self, partitions: Collection[TopicPartition]) -> None:
        """Refuse partitions that are not read.

        Raises:
            UnknownPartitionError: there is one.
        """
        for where in partitions:
            if where not in self._keeper.partitions:
                known = ", ".join(f"{topic}/{number}" for topic, number in sorted(self._keeper.partitions)[:20])
                raise UnknownPartitionError(
                    f"this consumer does not read {where.topic}/{where.partition}; it reads {known or 'nothing'}"
                )

    # ---------------------------------------------------------------------------------------------- reading

    def suspend_while(self, is_suspended: Callable[[], bool]) -> None:
        """Hand out nothing while `is_suspended()`: what has arrived may be another's, and is either lost soon or not."""
        self._buffer.is_suspended = is_suspended

    async def wait_while_suspended(self) -> None:
        """Wait until it is known whether what has arrived is still to be handed out.

        Raises:
            TidelogError: why nothing more arrives.
        """
        await self._buffer.wait_while_suspended()

    @property
    def has_arrivals(self) -> bool:
        """Whether `next_batch` would not wait."""
        return self._buffer.has_items

    def at_once(self, take: Callable[[int, RecordBatch], bool]) -> None:
        """See `Consumer.at_once`."""
        self._at_once = take

    def batch_now(self) -> ConsumedBatch | None:
        """As `next_batch`, where there is one already; None where that has to wait, or raise."""
        item = self._buffer.take_now()
        return None if item is None else self._taken(item)

    async def next_batch(self) -> ConsumedBatch | None:
        """Wait for the next batch and return it; None when this was closed. It does not count as handed out.

        Raises:
            TidelogError: why nothing more arrives, of anything or of one partition.
        """
        item = await self._buffer.take()
        if item is None:
            return None
        return self._taken(item)

    def put_back(self, batch: ConsumedBatch) -> None:
        """Have a batch that was taken come next again."""
        where, cost = TopicPartition(batch.topic, batch.partition), Credit(len(batch), batch.batch.header.length)
        self._prefetch.keep(cost)
        self._buffer.put_back(Prefetched(where, batch.batch, self._prefetch, cost))

    async def close(self) -> None:
        """Stop: whoever waits comes to the end."""
        self._closed = True
        for topic in list(self._watched):
            self._unwatch(topic)
        await self._keeper.close()
        self._buffer.close()
        if self._meter is not None:
            self._meter.closed()

    # ----------------------------------------------------------------------------------- what serving reports

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived."""
        self._buffer.prefetched(items)
        if self._meter is not None:
            self._meter.arrived(items)

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        """Hand a batch that has just arrived to the function of `at_once`; False where it has to wait."""
        take = self._at_once
        if take is None or self._meter is not None or self.loads is not None or not self._buffer.has_waiter:
            return False
        return take(where.partition, batch)

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """One partition cannot be read on; the others are."""
        self._buffer.failed(where, error)

    def topic_deleted(self, topic: str, error: TidelogError) -> None:
        """A topic that is read is gone, or another has its name."""
        if self.survives_deletion(topic):
            self.unassign([where for where in self._keeper.partitions if where.topic == topic])
        else:
            self.broken(error)

    def broken(self, error: BaseException) -> None:
        """Reading cannot go on."""
        self._buffer.broken(error)

    # --------------------------------------------------------------------------------------------- internals

    def _taken(self, item: Prefetched) -> ConsumedBatch:
        if self._meter is not None:
            self._meter.taken(item.where, item.batch)
        if self.loads is not None:
            self.loads.taken(item.where, item.batch.end_offset, item.batch.header.length)
        return ConsumedBatch(*item.where, item.batch)

    async def _topic_id(self, topic: str, partitions: list[int]) -> bytes:
        route = await self._router.about_topic(
            topic, lambda: self._router.topic_with(topic, partitions), repeatable=True
        )
        return route.topic_id

    def _stop_delivery(self, partitions: Collection[TopicPartition], reason: set[TopicPartition]) -> None:
        """Hand out nothing of some partitions, for a reason: those that are paused, or that are held back.

        Raises:
            UnknownPartitionError: one is not read.
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
        """Hand out what comes of some partitions again, as far as there is no other reason not to."""
        reason.difference_update(partitions)
        for where in partitions:
            if where not in self._paused and where not in self._held_back:
                self._buffer.resume(where)
                self._keeper.resume(where)

    def _take_back(self, where: TopicPartition) -> Prefetched | None:
        """Return what is left of the batch at hand, counted as something that waits."""
        rest = self.cursor.take_back(where)
        if rest is None:
            return None
        cost = Credit(len(rest), rest.batch.header.length)
        self._prefetch.keep(cost)
        return Prefetched(where, rest.batch, self._prefetch, cost)

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
            self.topic_deleted(topic, gone_error(topic))
        self._keeper.metadata_changed()
