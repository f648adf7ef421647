"""Keeps every partition of a consumer subscribed, at its exact position, at its owner.

One task supervises all partitions. Partitions without a subscription are grouped by owner, and each group is subscribed
by a task of its own, so that an unreachable owner does not delay the others. A failing partition backs off until a
batch arrives or metadata changes. Positions here are those of *received* records: a moved partition is subscribed where
receiving ended, so nothing is lost or repeated.

A partition is detached when the node ends it, when the connection is lost, or when metadata names another owner
(`owner_changes.py`); the last case includes a silent owner (`liveness_probe.py`). Without an owner, for lack of a
quorum, another replica is subscribed, and the keeper checks every `PROBE_S` whether the owner is back
(`fallback_replicas.py`). With a zone, a replica in it is read instead of an owner in another zone
(`nearest_replica.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Final, Protocol

from tidelog.cluster.answers import results_of
from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.fallback_replicas import ReadReplica
from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.nearest_replica import monitor_lag
from tidelog.cluster.owner_changes import Expectation
from tidelog.cluster.read_epochs import ReceivedEpochs
from tidelog.cluster.routing import Router
from tidelog.errors import (
    ClosedError,
    ForbiddenError,
    OffsetOutOfRangeError,
    TidelogError,
    UnknownTopicError,
    describe_error,
    error_of,
)
from tidelog.model import Offset, TopicPartition
from tidelog.requests import list_offsets
from tidelog.requests.paging import in_requests, in_slices, request_count
from tidelog.requests.record_filters import RecordFilter
from tidelog.subscriptions import liveness_probe
from tidelog.subscriptions.consumer_options import OnOutOfRange
from tidelog.subscriptions.field_binding import BoundFields, FieldBinding
from tidelog.subscriptions.liveness_probe import LivenessProbe
from tidelog.subscriptions.prefetch import Credit, Prefetch
from tidelog.subscriptions.resubscribe_backoff import ResubscribeBackoff
from tidelog.subscriptions.subscription import Prefetched, Subscription
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.record_batch import RecordBatch

PARTITIONS_PER_SUBSCRIPTION: Final = 1_024
"""Maximum number of partitions of a subscription, which takes some milliseconds to prepare and to check."""
SUBSCRIPTIONS_PER_NODE: Final = 4
"""Number of surplus subscriptions of a node, more than its partitions need, at which they are merged."""

_log: Final = logging.getLogger("tidelog.consumer")


class Reader(Protocol):
    """The consumer for which a `SubscriptionKeeper` reads."""

    def prefetched(self, items: list[Prefetched]) -> None:
        """Queue batches that arrived."""

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool: ...  # noqa: D102 - see `Listener`

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """Handle a partition that cannot be read further."""

    def topic_deleted(self, topic: str, error: TidelogError) -> None:
        """Handle the deletion of a topic that is read, or its replacement by a topic with the same name."""

    def broken(self, error: BaseException) -> None:
        """End reading with an error."""


class SubscriptionKeeper:
    """Keeps the partitions of one consumer subscribed.

    Args:
        prefetch: limits the batches that are received and not yet taken.
        record_filter: selects the records that nodes send; None for all records.
        skips_forbidden: whether forbidden topics are skipped and retried, instead of ending the consumer.
        fields: the fields that are read; None for all.
    """

    def __init__(
        self,
        router: Router,
        prefetch: Prefetch,
        reader: Reader,
        *,
        on_out_of_range: OnOutOfRange,
        record_filter: RecordFilter | None = None,
        skips_forbidden: bool = False,
        fields: FieldBinding | None = None,
    ) -> None:
        self.topic_ids: dict[str, bytes] = {}
        """Name -> id of the topics that are read: a partition belongs to the topic that it began with."""
        self._router = router
        self._prefetch = prefetch
        self._reader = reader
        self._on_out_of_range = on_out_of_range
        self._record_filter = record_filter
        self._skips_forbidden = skips_forbidden
        self._fields = fields
        self._arrived: dict[TopicPartition, int] = {}
        self._epochs = ReceivedEpochs(router.known_ends, router.read_epochs)
        self._subscription_of: dict[TopicPartition, Subscription | None] = {}
        self._paused: set[TopicPartition] = set()
        self._failed: set[TopicPartition] = set()
        """Partitions that cannot be read at their position and wait for a seek."""
        self._subscriptions: dict[Subscription, tuple[Connection, int]] = {}
        self._expected: dict[TopicPartition, Expectation] = {}
        self._on_fallback: set[TopicPartition] = set()
        """Partitions that a replica serves in place of an unreachable owner; this was logged."""
        self.near_replicas: dict[TopicPartition, Address] = {}
        """Partitions that a replica in the client's zone serves, with its address."""
        self._liveness_probe = LivenessProbe(router)
        self._backoff = ResubscribeBackoff()
        self._attempts: dict[TopicPartition, asyncio.Task[None]] = {}
        self._schema_reads: dict[TopicPartition, asyncio.Task[None]] = {}
        """Partitions that are paused until a schema of their topic is known."""
        self._wake_event = asyncio.Event()
        prefetch.on_starved = self.wake
        self._task: asyncio.Task[None] | None = None
        self._lag_monitor: asyncio.Task[None] | None = None
        self._broken = False

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are read, including paused ones."""
        return frozenset(self._subscription_of)

    # ---------------------------------------------------------------------------------- requests of the consumer

    def add(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read additional partitions, each from an offset; their topics are in `topic_ids`."""
        for where, offset in positions.items():
            self._subscription_of[where] = None
            self._arrived[where] = offset
            self._epochs.begin(where, self.topic_ids[where.topic], offset)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="consume")
            self._task.add_done_callback(self._task_done)
            if self._router.nearest_replica.zone:
                work = monitor_lag(self._router.nearest_replica, self)
                self._lag_monitor = asyncio.get_running_loop().create_task(work, name="monitor replica lag")
                self._lag_monitor.add_done_callback(self._task_done)
        self.wake()

    def remove(self, partitions: Collection[TopicPartition]) -> None:
        """Stop reading partitions."""
        for where in partitions:
            self._unsubscribe(where)
            del self._subscription_of[where], self._arrived[where]
            self._epochs.forget(where)
            for each in (self._paused, self._failed, self._on_fallback):
                each.discard(where)
        self._backoff.reset(partitions)
        self.wake()

    def seek(self, where: TopicPartition, offset: int) -> None:
        """Continue at `offset` in one partition."""
        self._unsubscribe(where)
        self._arrived[where] = offset
        self._epochs.forget(where)
        self._failed.discard(where)
        self.wake()

    def pause(self, where: TopicPartition) -> None:
        """Stop receiving a partition until `resume`."""
        self._paused.add(where)
        self._unsubscribe(where)
        self.wake()

    def resume(self, where: TopicPartition) -> None:
        """Receive a partition again, from where receiving ended."""
        self._paused.discard(where)
        self.wake()

    def rewind(self, where: TopicPartition, offset: int) -> None:
        """Set the position of a paused partition back to `offset`, because later batches were discarded."""
        self._arrived[where] = offset
        self._epochs.forget(where)

    def wake(self) -> None:
        """Run the supervising task now."""
        self._wake_event.set()

    def metadata_changed(self) -> None:
        """End all back-offs, because metadata of a topic has changed."""
        self._backoff.retry_now()
        self.wake()

    async def close(self) -> None:
        """Stop all tasks and end all subscriptions."""
        tasks = [*dict.fromkeys(self._attempts.values()), *self._schema_reads.values()]
        tasks += [task for task in (self._task, self._lag_monitor) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in list(self._subscriptions):
            self._drop(subscription)

    def _unsubscribe(self, where: TopicPartition) -> None:
        current = self._subscription_of[where]
        if current is not None:
            # The whole subscription ends: the protocol has no message that removes one partition.
            self._restart(current)

    def _restart(self, subscription: Subscription) -> None:
        """End a working subscription, so that its partitions are resubscribed immediately."""
        self._backoff.reset(subscription.positions)
        self._drop(subscription)
        self.wake()

    # ----------------------------------------------------------------------------- subscription events

    def prefetched(self, items: list[Prefetched]) -> None:
        """Queue batches that arrived."""
        for item in items:
            self._backoff.arrived(item.where)
        self._epochs.arrived(self.topic_ids[items[-1].where.topic], items)
        self._reader.prefetched(items)

    def take_at_once(self, where: TopicPartition, batch: RecordBatch) -> bool:
        """See `subscription.Listener`."""
        if not self._reader.take_at_once(where, batch):
            return False
        backoff = self._backoff
        if backoff.by_partition or backoff.refused_topics:
            backoff.arrived(where)
        self._epochs.passed(where, self.topic_ids[where.topic], batch)
        return True

    def detached(self, subscription: Subscription, partitions: Collection[TopicPartition], error: TidelogError) -> None:
        """Handle partitions that a subscription no longer serves."""
        for where in partitions:
            if where not in subscription.positions:
                continue  # Handling an earlier partition has removed this one.
            self._arrived[where] = subscription.positions.pop(where)
            is_final = isinstance(error, (OffsetOutOfRangeError, UnknownTopicError, ClosedError))
            if where in self.near_replicas and not is_final:
                self._router.nearest_replica.exclude(self.near_replicas[where], describe_error(error))
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

    def schema_missing(self, where: TopicPartition, topic_id: bytes, number: int) -> None:
        """Receive a partition again from its position, when a schema of its topic is known."""
        if where in self._schema_reads:
            return
        self.pause(where)
        read = self._read_schema(where, topic_id, number)
        self._schema_reads[where] = asyncio.get_running_loop().create_task(read, name=f"read schema {number}")

    async def _read_schema(self, where: TopicPartition, topic_id: bytes, number: int) -> None:
        try:
            await self._router.schemas.refresh(topic_id)
            await self._router.schemas.layout(topic_id, number)
        except TidelogError as error:
            if not error.retriable and where in self._subscription_of:
                self.failed(where, error)
        finally:
            del self._schema_reads[where]
        self.resume(where)  # if the read failed, the next batch begins it again

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """Handle a final error of a partition, which affects its topic or the whole consumer."""
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
            "%s/%d: position %d is out of range: the log now has offsets %d to %d; continuing at %d because "
            "on_out_of_range is %r: %s",
            *where,
            self._arrived[where],
            error.log_start_offset,
            error.high_watermark,
            offset,
            self._on_out_of_range,
            describe_error(error),
        )
        self._arrived[where] = offset
        self._epochs.forget(where)

    def _break(self, error: TidelogError) -> None:
        """End reading with an error."""
        self._broken = True
        self._reader.broken(error)
        self.wake()

    # ------------------------------------------------------------------------------ nearest replicas

    @property
    def read_at_owner(self) -> list[TopicPartition]:
        """The partitions that are subscribed at their owner."""
        served = (where for where, current in self._subscription_of.items() if current is not None)
        return [where for where in served if where not in self.near_replicas and where not in self._on_fallback]

    def position_with_credit(self, where: TopicPartition) -> int | None:
        """Return the next offset to receive; None if the partition is not subscribed or its node has no credit left."""
        current = self._subscription_of.get(where)
        return current.positions.get(where) if current is not None and current.window.may_send else None

    def resubscribe(self, partitions: Iterable[TopicPartition]) -> None:
        """Subscribe partitions again, at the replica that is selected now."""
        for where in partitions:
            if where in self._subscription_of:
                self._unsubscribe(where)

    def beyond_end(self, where: TopicPartition, end: Offset) -> None:
        """Handle a position past the log end that the owner reports; a replica would wait there for records."""
        self._unsubscribe(where)
        self._out_of_range(where, list_offsets.beyond_end_error(*where, self._arrived[where], end))
        self.wake()

    async def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the ends of logs as reported by their owners; partitions whose owner does not answer are missing."""
        return await list_offsets.ends_of(self._router, partitions)

    # --------------------------------------------------------------------------------------------- supervision

    async def _run(self) -> None:
        """Keep every partition subscribed until the consumer is closed or failed."""
        loop = asyncio.get_running_loop()
        while not self._broken:
            now = loop.time()
            self._liveness_probe.probe(self._subscriptions)
            self._switch_replicas()
            self._reclaim_credit()
            await self._begin_attempts(now)
            try:
                async with asyncio.timeout_at(self._wake_at(now)):
                    await self._wake_event.wait()
            except TimeoutError:
                continue
            self._wake_event.clear()

    def _task_done(self, keeper: asyncio.Task[None]) -> None:
        """End reading if a background task failed unexpectedly, because no records are received without the task."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._reader.broken(error)

    def _wake_at(self, now: float) -> float:
        free = (
            where for where, current in self._subscription_of.items() if current is None and self._may_attempt(where)
        )
        return min([now + liveness_probe.PROBE_S, *(self._backoff.due_at(where, now) for where in free)])

    def _may_attempt(self, where: TopicPartition) -> bool:
        return where not in self._attempts and where not in self._paused and where not in self._failed

    def _switch_replicas(self) -> None:
        """Switch from an unresponsive replica to another one, and from a fallback back to the owner."""
        fallback = self._router.fallback_replicas
        for subscription, (connection, _) in list(self._subscriptions.items()):
            for where in subscription.positions:
                if self._subscription_of[where] is not subscription:
                    continue
                if where in self._on_fallback:
                    leaves = fallback.owner_has_returned(*where)
                    self._router.refresh_later(where.topic)
                else:
                    is_silent = self._liveness_probe.is_unresponsive(subscription, connection)
                    leaves = is_silent and fallback.has_others(*where)
                if leaves:
                    if where in self.near_replicas:
                        self._router.nearest_replica.exclude(self.near_replicas[where], "it does not respond")
                    self._drop(subscription)  # ends the whole subscription, see `_unsubscribe`
                    self.wake()
                    break

    def _reclaim_credit(self) -> None:
        """Restart subscriptions with unused credit that other subscriptions need; the protocol cannot revoke credit."""
        overdrawn = self._prefetch.overdrawn()
        if overdrawn:
            for subscription in [each for each in self._subscriptions if each.window in overdrawn]:
                self._restart(subscription)

    def _log_replica(self, replica: ReadReplica, partitions: list[TopicPartition]) -> None:
        if replica.is_near:
            self._on_fallback.difference_update(partitions)
            return
        name = replica.connection.name
        for topic in dict.fromkeys(where.topic for where in partitions):
            mine = [where for where in partitions if where.topic == topic]
            known = self._on_fallback.intersection(mine)
            if replica.is_owner:
                self._on_fallback -= known
                if known:
                    _log.warning("%s: reading partitions %s from their owner %s again", topic, _numbers(known), name)
            elif len(known) < len(mine):
                self._on_fallback.update(mine)
                _log.warning(
                    "%s: no owner of partitions %s can be reached, possibly for lack of a quorum: reading the "
                    "committed records that %s knows; newer ones follow when an owner is available",
                    topic,
                    _numbers(mine),
                    name,
                )

    # ----------------------------------------------------------------------------------------- subscribing

    async def _begin_attempts(self, now: float) -> None:
        """Subscribe the partitions that are due, with one task per owner."""
        groups: dict[Address | None, list[TopicPartition]] = {}
        owners: dict[Address | None, int] = {}
        async for part in in_slices(list(self._subscription_of)):
            for where in part:
                if where in self._paused:
                    continue
                address = self._router.nearest_replica.address(*where) or self._router.metadata.owner_address(*where)
                owners[address] = owners.get(address, 0) + 1
                if self._is_due(where, now):
                    groups.setdefault(address, []).append(where)
        many = len(self._subscriptions) + len(groups) + len(set(self._attempts.values()))
        self._prefetch.subscription_count = max(
            many, sum(request_count(count, PARTITIONS_PER_SUBSCRIPTION) for count in owners.values())
        )
        for address, found in groups.items():
            partitions = [where for where in found if self._is_due(where, now)]  # Some may have changed in between.
            if not partitions:
                continue
            self._merge_small_subscriptions(address, partitions)
            task = asyncio.get_running_loop().create_task(self._attempt(partitions), name="subscribe")
            self._attempts.update(dict.fromkeys(partitions, task))
            task.add_done_callback(partial(self._attempted, partitions))
            async for part in in_slices(partitions):
                for where in part:
                    self._backoff.tried(where, now)

    def _is_due(self, where: TopicPartition, now: float) -> bool:
        return self._is_free(where) and self._may_attempt(where) and self._backoff.due_at(where, now) <= now

    def _merge_small_subscriptions(self, address: Address | None, partitions: list[TopicPartition]) -> None:
        """If a node has too many subscriptions, end them and add their partitions to `partitions`.

        The caller subscribes these together.
        """
        there = [each for each, (connection, _) in self._subscriptions.items() if connection.address == address]
        if len(there) >= SUBSCRIPTIONS_PER_NODE + request_count(
            sum(len(each.positions) for each in there), PARTITIONS_PER_SUBSCRIPTION
        ):
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
        """Subscribe partitions of one owner; without an owner, at the replicas that hold them."""
        metadata = self._router.metadata
        rest = partitions
        while rest:
            first, *rest = rest
            near = self._router.nearest_replica.address(*first)
            try:
                replica = await self._find_replica(first, near)
                address = replica.connection.address
                if replica.is_near:
                    mine = [each for each in (first, *rest) if self._router.nearest_replica.address(*each) == near]
                    taken = set(mine)
                    rest = [each for each in rest if each not in taken]
                elif replica.is_owner:
                    mine = [each for each in (first, *rest) if metadata.owner_address(*each) == address]
                    rest = []  # Partitions that have moved are subscribed by another attempt.
                else:
                    more = dict.fromkeys(each for each in rest if address in metadata.replica_addresses(*each))
                    mine, rest = [first, *more], [each for each in rest if each not in more]
                for part in in_requests(mine, PARTITIONS_PER_SUBSCRIPTION):
                    await self._subscribe(replica, part)
            except TidelogError as error:
                if near is not None and near == self._router.nearest_replica.address(*first):
                    self._router.nearest_replica.exclude(near, describe_error(error))
                self._router.learn_from(first.topic, error)
                self._backoff.log_wait(first, error)
                if not error.retriable and self._is_free(first):
                    self._failed_all(partitions if isinstance(error, ForbiddenError) else [first], first.topic, error)
                if not error.retriable or not self._router.fallback_replicas.owner_has_failed(*first):
                    return

    async def _find_replica(self, where: TopicPartition, near: Address | None) -> ReadReplica:
        """Return the replica that is to serve a partition."""
        connection = None if near is None else await self._router.nearest_replica.connection(near)
        if connection is None:
            return await self._router.reading_connection(*where)
        return ReadReplica(connection, is_owner=False, is_near=True)

    def _is_free(self, where: TopicPartition) -> bool:
        """Return whether a partition still needs a subscription: it may have been removed, paused or subscribed."""
        return where in self._subscription_of and self._subscription_of[where] is None and where not in self._paused

    async def _known_topics(self, partitions: list[TopicPartition]) -> dict[bytes, str]:
        """Return topic id -> name; deleted topics are reported and left out."""
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
                self._reader.topic_deleted(name, deleted_topic_error(name))
        return topics

    async def _subscribe(self, replica: ReadReplica, partitions: list[TopicPartition]) -> None:
        connection = replica.connection
        topics = await self._known_topics(partitions)
        names = set(topics.values())
        bound = {} if self._fields is None else await self._fields.bind(names)
        partitions = [where for where in partitions if where.topic in names and self._is_free(where)]
        if not partitions:
            return
        self._log_replica(replica, partitions)
        window = self._prefetch.open()
        positions = {where: self._arrived[where] for where in partitions}
        subscription = Subscription(
            topics,
            positions,
            window,
            self,
            filtered=self._record_filter is not None or any(fields.where is not None for fields in bound.values()),
            schemas=self._router.schemas,
            bound={topic_id: fields.schema for topic_id, fields in bound.items()},
        )
        subscription_id = connection.new_subscription_id()
        connection.subscribe(subscription_id, subscription)
        self._subscriptions[subscription] = (connection, subscription_id)
        request = pb.Subscribe(
            subscription_id=subscription_id,
            entries=[self._entry(where, offset, bound) for where, offset in positions.items()],
            credit_records=window.outstanding.records,
            credit_bytes=window.outstanding.bytes,
        )
        # Events may be processed before the answer.
        for where in partitions:
            self._subscription_of[where] = subscription
            if replica.is_near:
                self.near_replicas[where] = connection.address
        try:
            frame = await self._router.call_reader(partitions, replica, pb.Envelope(subscribe=request))
            results = results_of(frame.envelope.subscribe_reply.results, len(partitions), connection)
        except BaseException:
            self._drop(subscription)
            raise
        for where, result in zip(partitions, results, strict=True):
            if result.HasField("error"):
                subscription.end(where, error_of(result.error, connection.name))
            elif self._subscription_of.get(where) is subscription:
                self._expected[where] = self._router.owner_changes.expect(
                    *where,
                    connection,
                    partial(self._owner_changed, subscription, where, is_near=replica.is_near),
                    wait_s=None,
                    instead_of=self._router.instead_of(replica, where),
                )
        window.ready(partial(self._send_credit, connection, subscription_id))
        self.wake()  # the initial credit may have been zero
        # A partition may have moved in the meantime.
        self._router.owner_changes.check([self._expected[where] for where in partitions if where in self._expected])

    def _entry(self, where: TopicPartition, offset: int, bound: Mapping[bytes, BoundFields]) -> pb.SubscribeEntry:
        topic_id, record_filter = self.topic_ids[where.topic], self._record_filter
        fields = bound.get(topic_id)
        if fields is not None and fields.where is not None:
            record_filter = (record_filter or RecordFilter())._replace(where=fields.where)
        return pb.SubscribeEntry(
            topic_id=topic_id,
            partition=where.partition,
            offset=offset,
            filter=record_filter.to_message() if record_filter is not None else None,
            record_epoch=self._epochs.at(where),
            projection=fields.projection if fields is not None else None,
        )

    def _owner_changed(
        self, subscription: Subscription, where: TopicPartition, error: TidelogError, *, is_near: bool
    ) -> None:
        """Handle a new owner of a partition: detach it, or select the nearest replica again."""
        if not is_near:
            subscription.end(where, error)
        elif self._subscription_of.get(where) is subscription:
            self._restart(subscription)  # The replica is healthy, so it is not excluded.

    def _send_credit(self, connection: Connection, subscription_id: int, credit: Credit) -> None:
        more = pb.Credit(subscription_id=subscription_id, records=credit.records, bytes=credit.bytes)
        connection.send(pb.Envelope(credit=more))

    def _release(self, where: TopicPartition) -> None:
        self._subscription_of[where] = None
        self.near_replicas.pop(where, None)
        expected = self._expected.pop(where, None)
        if expected is not None:
            self._router.owner_changes.forget(expected)

    def _drop(self, subscription: Subscription) -> None:
        """End a subscription; its partitions keep their positions."""
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
