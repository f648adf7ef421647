"""Keeps every partition of a consumer subscribed, at its exact position, at whoever owns it.

One task watches over it. Partitions without a subscription are taken up again grouped by owner, each group by a small
task of its own, so that an owner who cannot be reached holds nobody else up; a partition that fails waits longer each
time until something arrives, and news about owners ends the wait. Positions here are those of what has *arrived*: a
partition that changes hands is subscribed where its arrivals ended, so nothing is lost or repeated.

Three things end the service of a partition: the node says so, the connection breaks, or metadata names another owner
(`owner_changes.py`). The last matters when the old owner says nothing (`liveness_probe.py`).

Where an owner is gone and none follows, for want of a quorum, another replica is subscribed (`fallback_replicas.py`)
and says what it knows is committed. Every `PROBE_S` it is looked whether the owner is back.
With a zone, a replica in it is read instead of an owner elsewhere (`nearest_replica.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.fallback_replicas import Reached
from tidelog.cluster.metadata import gone_error
from tidelog.cluster.nearest_replica import monitor_lag
from tidelog.cluster.owner_changes import Expectation
from tidelog.cluster.read_epochs import ArrivedEpochs
from tidelog.cluster.routing import Router
from tidelog.errors import (
    ClosedError,
    ForbiddenError,
    OffsetOutOfRangeError,
    TidelogError,
    UnknownTopicError,
    error_of,
    told,
)
from tidelog.model import Offset, TopicPartition
from tidelog.requests import list_offsets
from tidelog.requests.paging import in_requests, request_count
from tidelog.requests.record_filters import RecordFilter
from tidelog.subscriptions import liveness_probe
from tidelog.subscriptions.consumer_options import OnOutOfRange
from tidelog.subscriptions.liveness_probe import LivenessProbe
from tidelog.subscriptions.prefetch import Credit, Prefetch
from tidelog.subscriptions.resubscribe_backoff import ResubscribeBackoff
from tidelog.subscriptions.subscription import Prefetched, Subscription
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import RecordBatch

SUBSCRIPTIONS_PER_NODE: Final = 4
"""With more of them at one node its partitions are subscribed anew, all together."""

_log: Final = logging.getLogger("tidelog.consumer")


class Reader(Protocol):
    """The consumer, as what serves it sees it."""

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived."""

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool: ...  # noqa: D102 - as of a `Listener`

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """One partition cannot be read on."""

    def topic_deleted(self, topic: str, error: TidelogError) -> None:
        """A topic that is read is gone, or another has its name."""

    def broken(self, error: BaseException) -> None:
        """Reading cannot go on."""


class SubscriptionKeeper:
    """The subscriptions of one consumer.

    Args:
        router: the client's.
        prefetch: bounds what is received ahead.
        reader: gets what arrives.
        on_out_of_range: what is done where retention has overtaken a position.
        wanted: which records; None for all.
        skips_forbidden: whether what may not be read ends nothing, and is read on when it may be.
    """

    def __init__(
        self,
        router: Router,
        prefetch: Prefetch,
        reader: Reader,
        *,
        on_out_of_range: OnOutOfRange,
        wanted: RecordFilter | None = None,
        skips_forbidden: bool = False,
    ) -> None:
        self.topic_ids: dict[str, bytes] = {}
        """Of the topics that are read, by name: a partition belongs to the topic that it began with."""
        self._router = router
        self._prefetch = prefetch
        self._reader = reader
        self._on_out_of_range = on_out_of_range
        self._wanted = wanted
        self._skips_forbidden = skips_forbidden
        self._arrived: dict[TopicPartition, int] = {}
        self._epochs = ArrivedEpochs(router.ends, router.epochs)
        self._subscription_of: dict[TopicPartition, Subscription | None] = {}
        self._paused: set[TopicPartition] = set()
        self._failed: set[TopicPartition] = set()
        """What cannot be read on where it is: it waits for a seek."""
        self._subscriptions: dict[Subscription, tuple[Connection, int]] = {}
        self._expected: dict[TopicPartition, Expectation] = {}
        self._on_fallback: set[TopicPartition] = set()
        """Partitions that another node than the owner serves, or is to serve; the user was told."""
        self.near_replicas: dict[TopicPartition, Address] = {}
        """Partitions that a replica in the client's zone serves, and where that is."""
        self._liveness_probe = LivenessProbe(router)
        self._backoff = ResubscribeBackoff()
        self._attempts: dict[TopicPartition, asyncio.Task[None]] = {}
        self._wake_event = asyncio.Event()
        prefetch.on_starved = self.wake
        self._task: asyncio.Task[None] | None = None
        self._lag_monitor: asyncio.Task[None] | None = None
        self._broken = False

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are read, the paused ones too."""
        return frozenset(self._subscription_of)

    # ---------------------------------------------------------------------------------- what the consumer wants

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read more partitions from now on, each from an offset; their topics are in `topic_ids`."""
        for where, offset in positions.items():
            self._subscription_of[where] = None
            self._arrived[where] = offset
            self._epochs.begin(where, self.topic_ids[where.topic], offset)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="consume")
            self._task.add_done_callback(self._task_done)
            if self._router.nearby.zone:
                look = monitor_lag(self._router.nearby, self)
                self._lag_monitor = asyncio.get_running_loop().create_task(look, name="look at replicas")
                self._lag_monitor.add_done_callback(self._task_done)
        self.wake()

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Read some partitions no more."""
        for where in partitions:
            self._unsubscribe(where)
            del self._subscription_of[where], self._arrived[where]
            self._epochs.forget(where)
            for each in (self._paused, self._failed, self._on_fallback):
                each.discard(where)
        self._backoff.reset(partitions)
        self.wake()

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Go on at `offset` in one partition."""
        self._unsubscribe(where)
        self._arrived[where] = offset
        self._epochs.forget(where)
        self._failed.discard(where)
        self.wake()

    def pause(self, where: TopicPartition) -> None:
        """Receive nothing of a partition until `resume`."""
        self._paused.add(where)
        self._unsubscribe(where)
        self.wake()

    def resume(self, where: TopicPartition) -> None:
        """Receive it again, from where its arrivals ended."""
        self._paused.discard(where)
        self.wake()

    def rewind(self, where: TopicPartition, offset: int) -> None:
        """What arrived of a paused partition from `offset` on was let go: it is to come again."""
        self._arrived[where] = offset
        self._epochs.forget(where)

    def wake(self) -> None:
        """Look at once at what is to be done."""
        self._wake_event.set()

    def metadata_changed(self) -> None:
        """Something about a topic has changed: do not wait any longer."""
        self._backoff.retry_now()
        self.wake()

    async def close(self) -> None:
        """Stop."""
        tasks = [*dict.fromkeys(self._attempts.values())]
        tasks += [task for task in (self._task, self._lag_monitor) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in list(self._subscriptions):
            self._drop(subscription)

    def _unsubscribe(self, where: TopicPartition) -> None:
        subscription_now = self._subscription_of[where]
        if subscription_now is not None:
            # The subscription is ended whole: the node has no message that takes one partition out of it.
            self._restart(subscription_now)

    def _restart(self, subscription: Subscription) -> None:
        """End a subscription that nothing is wrong with: its partitions are subscribed again at once."""
        self._backoff.reset(subscription.positions)
        self._drop(subscription)
        self.wake()

    # ----------------------------------------------------------------------------- what subscriptions report

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived."""
        for item in items:
            self._backoff.arrived(item.where)
        self._epochs.arrived(self.topic_ids[items[-1].where.topic], items)
        self._reader.prefetched(items)

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        """See `subscription.Listener`."""
        if not self._reader.take_at_once(where, batch):
            return False
        self._backoff.arrived(where)
        self._epochs.passed(where, self.topic_ids[where.topic], batch)
        return True

    def detached(self, subscription: Subscription, partitions: Collection[TopicPartition], error: TidelogError) -> None:
        """Partitions are no longer served by a subscription."""
        for where in partitions:
            if where not in subscription.positions:
                continue  # taken away because of one before it
            self._arrived[where] = subscription.positions.pop(where)
            if where in self.near_replicas and not isinstance(
                error, (OffsetOutOfRangeError, UnknownTopicError, ClosedError)
            ):
                self._router.nearby.shun(self.near_replicas[where], told(error))
            self._release(where)
            self._router.learn_from(where.topic, error, where.partition)
            self._backoff.failed(where, error)
            if isinstance(error, OffsetOutOfRangeError):
                self._out_of_range(where, error)
            elif not error.retriable and not isinstance(error, ClosedError):
                self.failed(where, error)
        if not subscription.positions:
            self._drop(subscription)
        self.wake()

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """What stands in the way of a partition is in the way of all: of its topic, or of the whole consumer."""
        if isinstance(error, UnknownTopicError):
            self._reader.topic_deleted(where.topic, error)
        elif self._skips_forbidden and isinstance(error, ForbiddenError):
            self._backoff.refused(where, error)
        else:
            self._break(error)

    def _failed_all(self, partitions: Iterable[TopicPartition], topic: str, error: TidelogError) -> None:
        for where in partitions:
            if where.topic == topic:
                self.failed(where, error)

    def _out_of_range(self, where: TopicPartition, error: OffsetOutOfRangeError) -> None:
        if self._on_out_of_range == "error":
            self._failed.add(where)
            self._reader.failed(where, error)
            return
        offset = error.log_start_offset if self._on_out_of_range == "earliest" else error.high_watermark
        _log.warning(
            "%s/%d: position %d is out of range, the log begins at %d now and ends at %d: going on at %d, because "
            "on_out_of_range is %r: %s",
            *where,
            self._arrived[where],
            error.log_start_offset,
            error.high_watermark,
            offset,
            self._on_out_of_range,
            told(error),
        )
        self._arrived[where] = offset
        self._epochs.forget(where)

    def _break(self, error: TidelogError) -> None:
        """Reading cannot go on."""
        self._broken = True
        self._reader.broken(error)
        self.wake()

    # ------------------------------------------------------------------------------ replicas that are near

    @property
    def read_at_owner(self) -> list[TopicPartition]:
        """The partitions that are read at their owner."""
        return [
            where
            for where, subscription_now in self._subscription_of.items()
            if subscription_now is not None and where not in self.near_replicas and where not in self._on_fallback
        ]

    def position_with_credit(self, where: TopicPartition) -> int | None:
        """Return where the arrivals of a partition have ended; None where no more may come: there is no credit."""
        subscription_now = self._subscription_of.get(where)
        return (
            subscription_now.positions.get(where)
            if subscription_now is not None and subscription_now.window.may_send
            else None
        )

    def resubscribe(self, partitions: Iterable[TopicPartition]) -> None:
        """Subscribe partitions again, wherever that is to be now."""
        for where in partitions:
            if where in self._subscription_of:
                self._unsubscribe(where)

    def beyond_end(self, where: TopicPartition, end: Offset) -> None:
        """A partition is read from beyond its end, as its owner says; the replica that serves it only waits there."""
        self._unsubscribe(where)
        self._out_of_range(where, list_offsets.beyond(*where, self._arrived[where], end))
        self.wake()

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the ends of logs as their owners say; without those that do not say it now."""
        return await list_offsets.ends_of(self._router, partitions)

    # --------------------------------------------------------------------------------------------- keeping

    async def _run(self) -> None:
        """Keep every partition subscribed until the consumer is closed or broken."""
        loop = asyncio.get_running_loop()
        while not self._broken:
            now = loop.time()
            self._liveness_probe.probe(self._subscriptions)
            self._switch_replicas()
            self._reclaim_credit()
            self._begin_attempts(now)
            try:
                async with asyncio.timeout_at(self._wake_at(now)):
                    await self._wake_event.wait()
            except TimeoutError:
                continue
            self._wake_event.clear()

    def _task_done(self, keeper: asyncio.Task[None]) -> None:
        """Tell the user of a bug in the keeper: without it nothing would ever arrive."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._reader.broken(error)

    def _wake_at(self, now: float) -> float:
        free = (
            where
            for where, subscription_now in self._subscription_of.items()
            if subscription_now is None and self._may_attempt(where)
        )
        return min([now + liveness_probe.PROBE_S, *(self._backoff.due_at(where, now) for where in free)])

    def _may_attempt(self, where: TopicPartition) -> bool:
        return where not in self._attempts and where not in self._paused and where not in self._failed

    def _switch_replicas(self) -> None:
        """Leave an owner that is silent for others, and others for an owner that is back."""
        stand_ins = self._router.stand_ins
        for subscription, (connection, _) in list(self._subscriptions.items()):
            for where in subscription.positions:
                if self._subscription_of[where] is not subscription:
                    continue
                if where in self._on_fallback:
                    leaves = stand_ins.owner_is_back(*where)
                    self._router.refresh_later(where.topic)
                else:
                    leaves = self._liveness_probe.is_unresponsive(subscription, connection) and stand_ins.exist(*where)
                if leaves:
                    if where in self.near_replicas:
                        self._router.nearby.shun(self.near_replicas[where], "it says nothing")
                    self._drop(subscription)  # whole: see `_unsubscribe`
                    self.wake()
                    break

    def _reclaim_credit(self) -> None:
        """Make subscriptions anew that have credit which others need: there is no message that takes some back."""
        overdrawn = self._prefetch.overdrawn()
        if overdrawn:
            for subscription in [each for each in self._subscriptions if each.window in overdrawn]:
                self._restart(subscription)

    def _log_replica(self, reached: Reached, partitions: list[TopicPartition]) -> None:
        if reached.is_near:
            self._on_fallback.difference_update(partitions)
            return
        name = reached.connection.name
        for topic in dict.fromkeys(where.topic for where in partitions):
            mine = [where for where in partitions if where.topic == topic]
            known = self._on_fallback.intersection(mine)
            if reached.is_owner:
                self._on_fallback -= known
                if known:
                    _log.warning("%s: partitions %s are read from their owner %s again", topic, _numbers(known), name)
            elif len(known) < len(mine):
                self._on_fallback.update(mine)
                _log.warning(
                    "%s: nobody can be reached who owns partitions %s, perhaps too few nodes are up: "
                    "what %s knows was committed is read, and nothing newer until there is an owner",
                    topic,
                    _numbers(mine),
                    name,
                )

    # ----------------------------------------------------------------------------------------- subscribing

    def _begin_attempts(self, now: float) -> None:
        """Take up what is not served and need not wait, one task for each owner."""
        groups: dict[Address | None, list[TopicPartition]] = {}
        owners: dict[Address | None, int] = {}
        for where, subscription_now in self._subscription_of.items():
            if where in self._paused:
                continue
            address = self._router.nearby.address(*where) or self._router.metadata.owner_address(*where)
            owners[address] = owners.get(address, 0) + 1
            if subscription_now is None and self._may_attempt(where) and self._backoff.due_at(where, now) <= now:
                groups.setdefault(address, []).append(where)
        many = len(self._subscriptions) + len(groups) + len(set(self._attempts.values()))
        self._prefetch.subscription_count = max(many, sum(request_count(count) for count in owners.values()))
        for address, partitions in groups.items():
            self._merge_small_subscriptions(address, partitions)
            task = asyncio.get_running_loop().create_task(self._attempt(partitions), name="subscribe")
            for where in partitions:
                self._attempts[where] = task
                self._backoff.tried(where, now)
            task.add_done_callback(partial(self._attempted, partitions))

    def _merge_small_subscriptions(self, address: Address | None, partitions: list[TopicPartition]) -> None:
        """Take up along with some what many small subscriptions at the same node serve."""
        there = [each for each, (connection, _) in self._subscriptions.items() if connection.address == address]
        if len(there) >= SUBSCRIPTIONS_PER_NODE + request_count(sum(len(each.positions) for each in there)):
            for subscription in there:
                partitions += [where for where in subscription.positions if where not in self._attempts]
                self._restart(subscription)

    def _attempted(self, partitions: list[TopicPartition], task: asyncio.Task[None]) -> None:
        for where in partitions:
            if self._attempts.get(where) is task:
                del self._attempts[where]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._reader.broken(error)
        self.wake()

    async def _attempt(self, partitions: list[TopicPartition]) -> None:
        """Subscribe partitions of one owner, or of none: at other nodes, perhaps several."""
        metadata = self._router.metadata
        rest = partitions
        while rest:
            first, *rest = rest
            near = self._router.nearby.address(*first)
            try:
                reached = await self._find_replica(first, near)
                address = reached.connection.address
                if reached.is_near:
                    mine = [each for each in (first, *rest) if self._router.nearby.address(*each) == near]
                    rest = [each for each in rest if each not in mine]
                elif reached.is_owner:
                    mine = [each for each in (first, *rest) if metadata.owner_address(*each) == address]
                    rest = []  # what has moved meanwhile is another attempt's
                else:
                    more = dict.fromkeys(each for each in rest if address in metadata.replica_addresses(*each))
                    mine, rest = [first, *more], [each for each in rest if each not in more]
                for part in in_requests(mine):
                    await self._subscribe(reached, part)
            except TidelogError as error:
                if near is not None and near == self._router.nearby.address(*first):
                    self._router.nearby.shun(near, told(error))
                self._router.learn_from(first.topic, error)
                self._backoff.log_wait(first, error)
                if not error.retriable and self._is_free(first):
                    self._failed_all(partitions if isinstance(error, ForbiddenError) else [first], first.topic, error)
                if not error.retriable or not self._router.stand_ins.is_away(*first):
                    return

    async def _find_replica(self, where: TopicPartition, near: Address | None) -> Reached:
        """Return who is to serve a partition.

        Raises:
            TidelogError: as `Router.reading_connection`.
        """
        connection = None if near is None else await self._router.nearby.connection(near)
        if connection is None:
            return await self._router.reading_connection(*where)
        return Reached(connection, is_owner=False, is_near=True)

    def _is_free(self, where: TopicPartition) -> bool:
        """Whether a partition is still to be subscribed: it may have been taken away, paused or taken up meanwhile."""
        return where in self._subscription_of and self._subscription_of[where] is None and where not in self._paused

    async def _known_topics(self, partitions: list[TopicPartition]) -> dict[bytes, str]:
        """Return topic id -> name; topics that are gone are told of and left out."""
        topics: dict[bytes, str] = {}
        for name in dict.fromkeys(where.topic for where in partitions):
            expected = self.topic_ids.get(name)
            try:
                route = await self._router.topic(name)
            except UnknownTopicError as error:
                self._reader.topic_deleted(name, error)
                continue
            except ForbiddenError as error:
                self._failed_all(partitions, name, error)
                continue
            if route.topic_id == expected:
                topics[route.topic_id] = name
            elif expected is not None:
                self._reader.topic_deleted(name, gone_error(name))
        return topics

    async def _subscribe(self, reached: Reached, partitions: list[TopicPartition]) -> None:
        connection = reached.connection
        topics = await self._known_topics(partitions)
        names = set(topics.values())
        partitions = [where for where in partitions if where.topic in names and self._is_free(where)]
        if not partitions:
            return
        self._log_replica(reached, partitions)
        window = self._prefetch.open()
        positions = {where: self._arrived[where] for where in partitions}
        wanted = self._wanted
        subscription = Subscription(topics, positions, window, self, filtered=wanted is not None)
        subscription_id = connection.new_subscription_id()
        connection.subscribe(subscription_id, subscription)
        self._subscriptions[subscription] = (connection, subscription_id)
        request = pb.Subscribe(
            subscription_id=subscription_id,
            entries=[
                pb.SubscribeEntry(
                    topic_id=self.topic_ids[where.topic],
                    partition=where.partition,
                    offset=offset,
                    filter=wanted.to_message() if wanted is not None else None,
                    record_epoch=self._epochs.at(where),
                )
                for where, offset in positions.items()
            ],
            credit_records=window.outstanding.records,
            credit_bytes=window.outstanding.bytes,
        )
        # Events may come before the answer is looked at.
        for where in partitions:
            self._subscription_of[where] = subscription
            if reached.is_near:
                self.near_replicas[where] = connection.address
        try:
            frame = await self._router.call_reader(partitions, reached, pb.Envelope(subscribe=request))
            results = results_of(frame.envelope.subscribe_reply.results, len(partitions), connection)
        except BaseException:
            self._drop(subscription)
            raise
        for where, result in zip(partitions, results, strict=True):
            if result.HasField("error"):
                subscription.end(where, error_of(result.error, connection.name))
            elif self._subscription_of.get(where) is subscription:
                self._expected[where] = self._router.moves.expect(
                    *where,
                    connection,
                    partial(self._owner_changed, subscription, where, is_near=reached.is_near),
                    wait_s=None,
                    instead_of=self._router.instead_of(reached, where),
                )
        window.ready(partial(self._send_credit, connection, subscription_id))
        self.wake()  # there may have been too little credit left for it
        for name in names:
            self._router.moves.changed(name)  # it may have moved while the answer was on its way

    def _owner_changed(
        self, subscription: Subscription, where: TopicPartition, error: TidelogError, *, is_near: bool
    ) -> None:
        """Metadata names another owner: whoever serves a partition in place of the old one is looked at again."""
        if not is_near:
            subscription.end(where, error)
        elif self._subscription_of.get(where) is subscription:
            self._restart(subscription)  # nothing is wrong with the replica

    def _send_credit(self, connection: Connection, subscription_id: int, credit: Credit) -> None:
        more = pb.Credit(subscription_id=subscription_id, records=credit.records, bytes=credit.bytes)
        connection.send(pb.Envelope(credit=more))

    def _release(self, where: TopicPartition) -> None:
        self._subscription_of[where] = None
        self.near_replicas.pop(where, None)
        expected = self._expected.pop(where, None)
        if expected is not None:
            self._router.moves.forget(expected)

    def _drop(self, subscription: Subscription) -> None:
        """End a subscription; its partitions keep the positions of what has arrived."""
        self._liveness_probe.forget(subscription)
        connection, subscription_id = self._subscriptions.pop(subscription, (None, 0))
        if connection is None:
            return
        connection.unsubscribe(subscription_id)
        for where, offset in subscription.positions.items():
            self._arrived[where] = offset
            self._release(where)
        subscription.positions.clear()
        subscription.window.close()


def _numbers(partitions: Iterable[TopicPartition]) -> list[int]:
    return sorted(where.partition for where in partitions)
