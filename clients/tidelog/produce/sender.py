"""The sender: writes the batches of a producer's partition queues to the partition owners.

Queues that are awake are served once in each iteration of the event loop, so batches for several partitions of one node
are sent in one PUBLISH. A batch leaves its queue only when it can be written at once: the owner is known, its
connection is established and accepts bytes, and no batch of the queue is in flight on another connection. Therefore no
batch overtakes another. If the owner or the connection is missing, a task of the queue looks for it and wakes the
queue.

If a partition has moved and its old owner does not answer, the batches in flight there are abandoned
(`owner_changes.py`): their outcome is unknown, and they are resent to the new owner with the same sequence numbers.
Late answers to them are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from tidelog.base.backoff import Backoff
from tidelog.base.weak_callback import watch_weakly
from tidelog.cluster.answers import check_answer, results_of
from tidelog.cluster.connection import Connection
from tidelog.cluster.metadata import deleted_topic_error
from tidelog.cluster.owner_changes import LOG_AFTER_S, Expectation
from tidelog.cluster.routing import Router
from tidelog.cluster.throttle import Throttle
from tidelog.cluster.trace_contexts import carry
from tidelog.errors import (
    ClosedError,
    ConnectionLostError,
    NodeUnreachableError,
    OverloadedError,
    TidelogError,
    describe_error,
    error_of,
)
from tidelog.model import PartitionRoute
from tidelog.produce.batches import OutgoingBatch
from tidelog.produce.deduplicated_records import DroppedRecords
from tidelog.produce.partition_queue import RETRY_S_MAX, PartitionQueue
from tidelog.produce.producer_instances import ProducerInstance
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.sequence_errors import foreign_duplicate_error
from tidelog.produce.silent_node_detection import SilentNodeDetector
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.row_layout import row_layout
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.wire.frames import Frame

FRAME_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Maximum size of a PUBLISH with several batches: all of them wait for its answer, which waits for the last of them."""

FRAME_BATCHES_TARGET: Final = 128
"""Maximum number of batches of a PUBLISH if there are more: the node works on one while this client makes the next."""

REQUEST_S_MIN: Final = 0.25
"""Minimum timeout of a PUBLISH, even if a record in it expires earlier; the request timeout may be shorter."""
_MS: Final = 1000
_log: Final = logging.getLogger("tidelog.client")


Sent = tuple[PartitionQueue, OutgoingBatch, Expectation]
"""One attempt to send a batch; its outcome is ignored if the batch no longer expects this attempt."""


class Target(NamedTuple):
    """The connection to the owner of a partition of the producer's topic, according to a revision of the metadata."""

    revision: int
    connection: Connection
    epoch: int


class RetryTimer(NamedTuple):
    """The retry timer of a queue, and the route of the failed attempt: if the route changes, the retry is immediate."""

    queue: PartitionQueue
    handle: asyncio.TimerHandle
    route: PartitionRoute | None


class RecordSource(Protocol):
    """Collects records in an open batch before they are queued; drained by a `Sender`."""

    @property
    def batch(self) -> object | None:
        """The open batch; None without records."""
        ...

    def drain_if_sendable(self) -> None:
        """Drain the open batch if a queue could send it, and wake the queues."""
        ...


class Sender:
    """Sends the batches of one producer's partition queues to the owners; belongs to one event loop.

    Args:
        source: drained before queues are served; None if records are queued directly.
        instance: the instance of a named producer; None for others.
        use_schema: called with the newest schema after a node has refused records for theirs.

    Attributes:
        topic_id: id of the producer's topic; set before a queue is served, and constant from then on.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        *,
        acks: pb.Acks,
        loop: asyncio.AbstractEventLoop,
        request_timeout_s: float | None = None,
        source: RecordSource | None = None,
        instance: ProducerInstance | None = None,
        clock_us: Callable[[], int] | None = None,
        meter: ProducerMeter | None = None,
        use_schema: Callable[[Schema], None] = lambda _: None,
    ) -> None:
        self.topic_id = b""
        self._router = router
        self._tickets = router.caller_tickets
        self._topic = topic
        self._acks = acks
        self._loop = loop
        self._request_timeout_s = router.request_timeout_s if request_timeout_s is None else request_timeout_s
        self._source = source
        self._instance = instance
        self._clock_us = clock_us
        self._meter = meter
        self._awake: dict[int, PartitionQueue] = {}
        self._scheduled = False
        self._closed = False
        self._timers: dict[int, RetryTimer] = {}
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._targets: dict[int, Target] = {}
        self._in_flight_on: dict[int, Connection] = {}
        self._unanswered: SilentNodeDetector[list[Sent]] = SilentNodeDetector(loop, self._node_lost)
        self._unwatch = watch_weakly(partial(router.watch, topic), loop, self._routes_changed)
        self._owner_lookups: dict[int, asyncio.Task[None]] = {}
        self._use_schema = use_schema
        self._schema_reads: dict[int, asyncio.Task[None]] = {}
        self._stalled_since: dict[int, float] = {}
        """Time of the first failure of each partition whose publishes fail."""
        self._stall_logged = False
        """Whether the failures were logged."""

    def wake(self, queue: PartitionQueue) -> None:
        """Serve a queue in the next iteration of the event loop."""
        self._awake[queue.partition] = queue
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def wake_soon(self) -> None:
        """Drain the source and serve its queues in the next iteration of the event loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def serve_now(self) -> None:
        """Serve the queues that are awake now, for callers that put records without yielding to the event loop."""
        self._serve()

    async def close(self) -> None:
        """Stop looking for owners and serving queues. Answers to batches in flight are still handled."""
        self._closed = True
        self._unwatch()
        self._unanswered.close()
        for timer in self._timers.values():
            timer.handle.cancel()
        for handle in self._expiries.values():
            handle.cancel()
        lookups = [*self._owner_lookups.values(), *self._schema_reads.values()]
        for lookup in lookups:
            lookup.cancel()
        await asyncio.gather(*lookups, return_exceptions=True)

    # --------------------------------------------------------------------------------------------- serving

    def _serve(self) -> None:
        if self._source is not None and self._source.batch is not None and not self._closed:
            self._source.drain_if_sendable()  # queues that this wakes are served below
        self._scheduled = False
        if self._closed:
            return
        if self._meter is not None:
            self._meter.report_buffered()
        awake, self._awake = self._awake, {}
        now, now_us = self._loop.time(), time.time_ns() // 1000 if self._clock_us is None else self._clock_us()
        serving = list(awake.values())
        # One batch of each queue in a round: a PUBLISH never has two batches of one partition, so that pipelined
        # batches are answered individually.
        while serving:
            of_nodes: dict[Connection, list[tuple[PartitionQueue, OutgoingBatch]]] = {}
            remaining: list[PartitionQueue] = []
            for queue in serving:
                connection = self._connection(queue, now)
                batch = None if connection is None else queue.next_to_send(now, now_us)
                if connection is not None and batch is not None:
                    of_nodes.setdefault(connection, []).append((queue, batch))
                    if connection.throttle is not None or self._tickets.is_throttled:
                        for throttle in self._tickets.throttles(connection):
                            throttle.published(batch.length)
                    if queue.has_more:
                        remaining.append(queue)
                else:
                    self._wake_later(queue, now)
            for connection, of_node in of_nodes.items():
                self._publish(connection, of_node, now)
            serving = remaining

    def _connection(self, queue: PartitionQueue, now: float) -> Connection | None:
        """Return the connection that can be written to now; None if the queue is empty or has to wait."""
        queue.expire(now)
        if queue.idle:
            return None
        target = self._targets.get(queue.partition)
        if target is None or target.revision != self._router.metadata.revision or target.connection.closed:
            target = self._find_target(queue)
            if target is None:
                return None
        connection = target.connection
        if self._in_flight_on.get(queue.partition) is not connection and queue.in_flight:
            return None  # The queue is woken when the batches on the other connection are answered or abandoned.
        if (
            connection.liveness is not None
            and connection.liveness.is_lost
            and self._fail_if_unreachable(queue, connection)
        ):
            return None
        if not connection.ready:
            connection.when_ready(partial(self.wake, queue))
            return None
        if connection.throttle is not None or self._tickets.is_throttled:
            for throttle in self._tickets.throttles(connection):
                if not throttle.may_publish():
                    throttle.when_open((self, queue.partition), partial(self.wake, queue))
                    self._wait_for_quota(queue, throttle, now)
                    return None
        return connection

    def _find_target(self, queue: PartitionQueue) -> Target | None:
        """Return the connection to the owner of a queue's partition; None if the queue cannot send now.

        If the owner is unknown or not connected, or older instances are not fenced yet, a task resolves that and wakes
        the queue. If another topic has the name now, the records of the queue fail.
        """
        metadata, partition = self._router.metadata, queue.partition
        if self._is_topic_replaced():
            queue.fail_all(deleted_topic_error(self._topic))
            return None
        if queue.awaits_fencing and self._instance is not None and partition in self._instance.fenced_partitions:
            queue.start_epoch(self._instance.epoch)
        connection = None if queue.awaits_fencing else self._router.connection_now(self._topic, partition)
        route = metadata.route(self._topic, partition)
        if connection is None or route is None:
            if partition not in self._owner_lookups:
                lookup = self._loop.create_task(self._find_owner(queue), name=f"look for the owner of {partition}")
                self._owner_lookups[partition] = lookup
            return None
        target = self._targets[partition] = Target(metadata.revision, connection, route.epoch)
        return target

    def _fail_if_unreachable(self, queue: PartitionQueue, connection: Connection) -> bool:
        """Fail the records for a lost node unless another node can take over; return whether the queue is idle then."""
        error = NodeUnreachableError(
            f"{connection.name} is connected but does not answer, and no other node answers; check that the nodes run"
        )
        if not self._router.pool.should_give_up(error, math.inf):
            return False
        queue.fail_all(error)
        return queue.idle

    def _wait_for_quota(self, queue: PartitionQueue, throttle: Throttle, now: float) -> None:
        """Delay a queue until a quota allows it; its records expire at their deadlines, see also `_expire_early`."""
        queue.hold_until(throttle.open_at, OverloadedError(f"the quota of {throttle.principal} is used up"))
        self._expire_early(queue, now)
        self._expire_later(queue)

    def _expire_early(self, queue: PartitionQueue, now: float) -> None:
        """On behalf of a principal, immediately fail the records that a quota delays past their deadline."""
        if self._tickets.caller is not None:
            queue.expire(now, by=queue.throttled_until)

    def _is_topic_replaced(self) -> bool:
        """Return whether the topic was replaced by another one of this name; batches in flight are still answered."""
        route = self._router.metadata.topic(self._topic)
        return route is not None and route.topic_id != self.topic_id

    def _expire_later(self, queue: PartitionQueue) -> None:
        """Schedule the expiry of records that wait for a quota."""
        at = queue.next_expiry
        if at < math.inf and queue.partition not in self._expiries:
            self._expiries[queue.partition] = self._loop.call_at(at, self._expires, queue)

    def _expires(self, queue: PartitionQueue) -> None:
        del self._expiries[queue.partition]
        connection = self._router.connection_now(self._topic, queue.partition)
        if connection is not None:  # Batches that were in flight may have increased the delay.
            queue.throttled_until = max(
                queue.throttled_until, *(each.open_at for each in self._tickets.throttles(connection)), 0.0
            )
        self.wake(queue)

    def _wake_later(self, queue: PartitionQueue, now: float) -> None:
        at = queue.wake_at()
        if at is not None and queue.throttled_until > now:
            self._expire_early(queue, now)
            self._expire_later(queue)
        if at is not None and queue.partition not in self._timers:
            handle = self._loop.call_at(at, self._retry_due, queue)
            route = self._router.metadata.route(self._topic, queue.partition)
            self._timers[queue.partition] = RetryTimer(queue, handle, route)

    def _retry_due(self, queue: PartitionQueue) -> None:
        del self._timers[queue.partition]
        self.wake(queue)

    def _routes_changed(self) -> None:
        """Retry at once in partitions whose route has changed."""
        for partition, timer in list(self._timers.items()):
            if self._router.metadata.route(self._topic, partition) != timer.route:
                timer.handle.cancel()
                timer.queue.retry_now()
                self._retry_due(timer.queue)

    async def _find_owner(self, queue: PartitionQueue) -> None:
        """Fence older instances if needed, look for the owner of a queue's partition and connect to that node.

        Records that expire meanwhile fail. An error that is not retriable, or no reachable node for the client's
        timeout, fails all records of the queue.
        """
        backoff, began = Backoff(longest_s=RETRY_S_MAX), self._loop.time()
        try:
            while not queue.idle:
                try:
                    if queue.awaits_fencing and self._instance is not None:
                        async with asyncio.timeout_at(queue.first_deadline):
                            await self._instance.fence(queue.partition)
                    await self._router.connection(self._topic, queue.partition)
                except TimeoutError:
                    queue.expire(self._loop.time())
                except TidelogError as error:
                    if not error.retriable:
                        queue.fail_all(deleted_topic_error(self._topic) if self._is_topic_replaced() else error)
                        return
                    queue.last_send_error = error
                    queue.expire(self._loop.time())
                    wait_s = backoff.next_wait_s(error.retry_after_ms)
                    if self._router.pool.should_give_up(error, self._loop.time() + wait_s - began):
                        queue.fail_all(error)
                        began = self._loop.time()
                    self._log_stall(queue, error)
                    await self._router.news(self._topic, wait_s)
                else:
                    return
        finally:
            del self._owner_lookups[queue.partition]
            if not queue.idle:
                self.wake(queue)

    # ------------------------------------------------------------------------------------------ publishing

    def _publish(self, connection: Connection, batches: list[tuple[PartitionQueue, OutgoingBatch]], now: float) -> None:
        """Write batches for one node, in as many requests as their sizes need."""
        if len(batches) == 1:
            self._write(connection, batches, batches[0][1].length, now)
            return
        frame: list[tuple[PartitionQueue, OutgoingBatch]] = []
        size_bytes = 0
        for queue, batch in batches:
            if frame and (size_bytes + batch.length > FRAME_BYTES_TARGET or len(frame) == FRAME_BATCHES_TARGET):
                self._write(connection, frame, size_bytes, now)
                frame, size_bytes = [], 0
            frame.append((queue, batch))
            size_bytes += batch.length
        self._write(connection, frame, size_bytes, now)

    def _write(
        self, connection: Connection, batches: list[tuple[PartitionQueue, OutgoingBatch]], size_bytes: int, now: float
    ) -> None:
        envelope = pb.Envelope()
        publish = envelope.publish
        parts: list[bytes | memoryview] = []
        sent: list[Sent] = []
        traces: list[str] = []
        deadline = math.inf
        for queue, batch in batches:
            encoded, partition = batch.encoded, queue.partition
            publish.entries.add(topic_id=self.topic_id, partition=partition, length=batch.length)
            parts += (encoded.header, encoded.body, *encoded.rest)
            deadline = min(deadline, batch.deadline)
            self._in_flight_on[partition] = connection
            batch.expected = self._router.owner_changes.expect(
                self._topic, partition, connection, partial(self._abandoned, queue, batch)
            )
            sent.append((queue, batch, batch.expected))
            for chunk in batch.chunks:
                traces += chunk.traces
        timeout_s = min(self._request_timeout_s, max(REQUEST_S_MIN, deadline - now))
        publish.acks, publish.timeout_ms = self._acks, int(timeout_s * _MS)
        if traces:
            carry(envelope, traces)
        try:
            if self._tickets.caller is not None:
                self._tickets.attach(envelope, connection)
            connection.ask(
                envelope,
                parts,
                attachment_bytes=size_bytes,
                timeout_s=timeout_s,
                answered=partial(self._answered, connection, sent, envelope),
            )
        except TidelogError as error:
            if connection.throttle is not None or self._tickets.is_throttled:
                self._release_throttles(connection, sent)
            self._failed(sent, error)
            return
        if connection.liveness is not None:
            self._unanswered.sent(connection, sent)
        if self._meter is not None:
            for _, batch in batches:
                self._meter.sent(batch)

    def _release_throttles(self, connection: Connection, sent: Sequence[Sent]) -> None:
        """Release the bytes of batches in the throttles of the node, after an answer or if they could not be sent."""
        for throttle in self._tickets.throttles(connection):
            throttle.answered(sum(batch.length for _, batch, _ in sent))

    def _answered(
        self, connection: Connection, sent: list[Sent], request: pb.Envelope, answer: Frame | TidelogError
    ) -> None:
        if connection.liveness is not None:
            self._unanswered.answered(connection, sent)
        if not isinstance(answer, TidelogError) and (answer.envelope.caller_throttle_ms or self._tickets.is_throttled):
            self._tickets.note_throttle(answer.envelope, connection)
        if connection.throttle is not None or self._tickets.is_throttled:
            self._release_throttles(connection, sent)
        if isinstance(answer, TidelogError):
            self._tickets.note_error(request, answer)
            self._failed(sent, answer)
            return
        results = answer.envelope.publish_reply.results
        if len(results) != len(sent):  # also if the answer is of another kind, which has no such results
            try:
                results_of(
                    check_answer("publish", answer, connection).envelope.publish_reply.results, len(sent), connection
                )
            except TidelogError as error:
                self._failed(sent, error)
                return
        now = self._loop.time()
        for attempt, result in zip(sent, results, strict=True):
            if self._is_expected(attempt):
                self._settle(attempt[0], attempt[1], result, connection, now)
        if self._source is not None and self._source.batch is not None:
            self.wake_soon()

    def _settle(
        self, queue: PartitionQueue, batch: OutgoingBatch, result: pb.PublishResult, connection: Connection, now: float
    ) -> None:
        """Handle the answer to a batch."""
        if result.duplicate and queue.is_foreign_duplicate(batch):
            self._handle_error(queue, batch, foreign_duplicate_error(), now)
        elif result.HasField("error"):
            self._handle_error(queue, batch, error_of(result.error, connection.name), now)
        else:
            drops = DroppedRecords(result.duplicates, result.dropped) if result.duplicates else None
            queue.acknowledged(batch, result.base_offset, result.append_timestamp_us, drops)
            if self._meter is not None:
                self._meter.acknowledged(batch, now)
            if self._stalled_since:
                self._clear_stall(queue)
            # The node stores one record of its own for a batch whose records were all dropped.
            stored = max(batch.count - result.duplicates, 1)
            partition, epoch = queue.partition, result.epoch
            end_offset = result.base_offset + stored
            self._router.known_ends.note(self.topic_id, partition, epoch=epoch, end_offset=end_offset)
            target = self._targets.get(partition)
            if target is None or target.revision != self._router.metadata.revision or epoch > target.epoch:
                self._router.stored_in(self._topic, partition, epoch)
        if not queue.idle:
            self.wake(queue)

    def _failed(self, sent: Sequence[Sent], error: TidelogError) -> None:
        now = self._loop.time()
        for attempt in sent:
            if self._is_expected(attempt):
                queue, batch, _ = attempt
                self._handle_error(queue, batch, error, now)
                self.wake(queue)

    def _is_expected(self, attempt: Sent) -> bool:
        """Return whether the outcome of an attempt is still expected, and stop expecting it."""
        _, batch, expected = attempt
        if batch.expected is not expected:
            return False
        batch.expected = None
        self._router.owner_changes.forget(expected)
        return True

    def _abandoned(self, queue: PartitionQueue, batch: OutgoingBatch, error: TidelogError) -> None:
        """Handle a batch whose partition has moved while the old owner does not answer."""
        batch.expected = None
        self._handle_error(queue, batch, error, self._loop.time())
        queue.retry_now()
        self.wake(queue)

    def _node_lost(self, sent: list[Sent], error: ConnectionLostError) -> None:
        """Fail the batches that were sent to a lost node and the queued records, unless another node can be reached."""
        if not self._router.pool.should_give_up(error, math.inf):
            return  # Another node may take over the partitions, and the batches are resent to it.
        for attempt in sent:
            queue, batch, _ = attempt
            connection = self._in_flight_on[queue.partition]
            if self._is_expected(attempt):
                self._handle_error(queue, batch, error, self._loop.time())
                self._fail_if_unreachable(queue, connection)
                self.wake(queue)

    def _handle_error(self, queue: PartitionQueue, batch: OutgoingBatch, error: TidelogError, now: float) -> None:
        queue.failed(batch, error, now)
        connection = self._in_flight_on.get(queue.partition)
        if (
            isinstance(error, OverloadedError)
            and connection is not None
            and self._tickets.note_rejection(error, connection)
        ):
            queue.retry_now()  # The queue waits for the quota instead, which may end earlier.
        if queue.awaits_schema and queue.partition not in self._schema_reads and not self._closed:
            name = f"read the schemas for {queue.partition}"
            self._schema_reads[queue.partition] = self._loop.create_task(self._read_schema(queue), name=name)
        if error.retriable:
            self._log_stall(queue, error)
        self._router.learn_from(self._topic, error, queue.partition)
        if self._closed:
            queue.fail_all(ClosedError("the producer was closed before this record was acknowledged"))

    async def _read_schema(self, queue: PartitionQueue) -> None:
        """Let a queue encode refused records under the newest schema of the topic."""
        newest = None
        try:
            schema = await self._router.schemas.refresh(self.topic_id)
            self._use_schema(schema)
            newest = row_layout(schema)
        except TidelogError as error:
            _log.debug("the schemas of %r cannot be read: %s", self._topic, describe_error(error))
        finally:
            del self._schema_reads[queue.partition]
        queue.use_schema(newest)
        self.wake(queue)

    # --------------------------------------------------------------------------------------------- logging

    def _log_stall(self, queue: PartitionQueue, error: TidelogError) -> None:
        """Log the error of a partition that has failed for a while; not again until all partitions work."""
        if queue.idle:
            self._clear_stall(queue)
            return
        now = self._loop.time()
        since = self._stalled_since.setdefault(queue.partition, now)
        if not self._stall_logged and now - since >= LOG_AFTER_S:
            self._stall_logged = True
            where = (self._topic, queue.partition)
            _log.warning("%s/%d: publishing fails, retrying: %s", *where, describe_error(error))

    def _clear_stall(self, queue: PartitionQueue) -> None:
        if self._stalled_since.pop(queue.partition, None) is not None and not self._stalled_since:
            self._stall_logged = False
