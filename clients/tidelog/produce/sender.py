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
from dataclasses import dataclass
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
from tidelog.produce.partition_queue import RETRY_S_MAX, PartitionQueue, foreign_duplicate_error
from tidelog.produce.producer_instances import ProducerInstance
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.silent_node_detection import SilentNodeDetector
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import BATCHES_PER_PUBLISH_MAX
from tidelog_proto.wire.frames import Frame

FRAME_BYTES_TARGET: Final = 4 * 1024 * 1024
"""Size at which no further batch is added to a PUBLISH; it is answered when its last batch is done."""

REQUEST_S_MIN: Final = 0.25
_MS: Final = 1000
_log: Final = logging.getLogger("tidelog.client")


@dataclass(slots=True, eq=False)
class SentBatch:
    """A batch in flight and its queue; `expected` is set until the answer arrives or is abandoned."""

    queue: PartitionQueue
    batch: OutgoingBatch
    expected: Expectation | None = None


class RetryTimer(NamedTuple):
    """The retry timer of a queue, and the route of the failed attempt."""

    queue: PartitionQueue
    handle: asyncio.TimerHandle
    route: PartitionRoute | None


class RecordSource(Protocol):
    """The interface of the record accumulator that the sender uses."""

    @property
    def batch(self) -> object | None:
        """The open batch; None without records."""
        ...

    def drain_if_sendable(self) -> None:
        """Drain the open batch if a queue could send it, and wake the queues."""
        ...


class Sender:
    """Serves the partition queues of one producer; belongs to one event loop.

    Before queues are served, `source` is drained. `instance` is the instance of a named producer, None for others.
    `topic_id` is the id of the producer's topic; it is set before a queue is served and never changes.
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
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        meter: ProducerMeter | None = None,
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
        self._in_flight_on: dict[int, Connection] = {}
        self._unanswered: SilentNodeDetector[list[SentBatch]] = SilentNodeDetector(loop, self._node_lost)
        self._unwatch = watch_weakly(partial(router.watch, topic), loop, self._routes_changed)
        self._owner_lookups: dict[int, asyncio.Task[None]] = {}
        self._stalled_since: dict[int, float] = {}
        """Partitions whose publishes fail, with the time of the first failure."""
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
        lookups = list(self._owner_lookups.values())
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
        now, now_us = self._loop.time(), self._clock_us()
        serving = list(awake.values())
        # One batch of each queue in a round: a PUBLISH never has two batches of one partition, so that pipelined
        # batches are answered individually.
        while serving:
            sent_batches: dict[Connection, list[SentBatch]] = {}
            remaining: list[PartitionQueue] = []
            for queue in serving:
                connection = self._connection(queue, now)
                batch = None if connection is None else queue.next_to_send(now, now_us)
                if connection is not None and batch is not None:
                    sent_batches.setdefault(connection, []).append(SentBatch(queue, batch))
                    if connection.throttle is not None or self._tickets.is_throttled:
                        for throttle in self._tickets.throttles(connection):
                            throttle.published(batch.encoded.length)
                    if queue.has_more:
                        remaining.append(queue)
                else:
                    self._wake_later(queue, now)
            for connection, of_node in sent_batches.items():
                self._publish(connection, of_node, now)
            serving = remaining

    def _connection(self, queue: PartitionQueue, now: float) -> Connection | None:
        """Return the connection that can be written to now; None if the queue has to wait."""
        queue.expire(now)
        if queue.idle:
            return None
        if self._is_topic_replaced():
            queue.fail_all(deleted_topic_error(self._topic))
            return None
        if queue.awaits_fencing and self._instance is not None and queue.partition in self._instance.fenced_partitions:
            queue.start_epoch(self._instance.epoch)
        connection = None if queue.awaits_fencing else self._router.connection_now(self._topic, queue.partition)
        if connection is None:
            if queue.partition not in self._owner_lookups:
                lookup = self._loop.create_task(
                    self._find_owner(queue), name=f"look for the owner of {queue.partition}"
                )
                self._owner_lookups[queue.partition] = lookup
            return None
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

    def _fail_if_unreachable(self, queue: PartitionQueue, connection: Connection) -> bool:
        """Fail the records for a lost node unless another node can take over; return whether the queue is idle."""
        error = NodeUnreachableError(
            f"{connection.name} is connected and does not answer, and no other node answers; are the nodes running?"
        )
        if not self._router.pool.should_give_up(error, math.inf):
            return False
        queue.fail_all(error)
        return queue.idle

    def _wait_for_quota(self, queue: PartitionQueue, throttle: Throttle, now: float) -> None:
        """Delay a queue until a quota allows it, and fail records that the quota delays past their deadline."""
        queue.hold_until(throttle.open_at, OverloadedError(f"the quota of {throttle.principal} is used up"))
        self._expire_early(queue, now)
        self._expire_later(queue)

    def _expire_early(self, queue: PartitionQueue, now: float) -> None:
        """With a named caller, fail at once the records that a quota delays past their deadline."""
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
        """Look for the owner of a queue and connect to it; fail records that expire meanwhile."""
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

    def _publish(self, connection: Connection, sent_batches: list[SentBatch], now: float) -> None:
        if len(sent_batches) == 1:
            self._write(connection, sent_batches, sent_batches[0].batch.encoded.length, now)
            return
        frame: list[SentBatch] = []
        size_bytes = 0
        for sent_batch in sent_batches:
            length = sent_batch.batch.encoded.length
            if frame and (size_bytes + length > FRAME_BYTES_TARGET or len(frame) == BATCHES_PER_PUBLISH_MAX):
                self._write(connection, frame, size_bytes, now)
                frame, size_bytes = [], 0
            frame.append(sent_batch)
            size_bytes += length
        self._write(connection, frame, size_bytes, now)

    def _write(self, connection: Connection, sent_batches: list[SentBatch], size_bytes: int, now: float) -> None:
        left_s = min([sent_batch.batch.deadline for sent_batch in sent_batches]) - now
        timeout_s = min(self._request_timeout_s, max(REQUEST_S_MIN, left_s))
        envelope = pb.Envelope()
        publish = envelope.publish
        publish.acks, publish.timeout_ms = self._acks, int(timeout_s * _MS)
        parts: list[bytes | memoryview] = []
        for sent_batch in sent_batches:
            encoded, partition = sent_batch.batch.encoded, sent_batch.queue.partition
            publish.entries.add(topic_id=self.topic_id, partition=partition, length=encoded.length)
            parts += (encoded.header, encoded.body, *encoded.rest)
            self._in_flight_on[partition] = connection
            sent_batch.expected = self._router.owner_changes.expect(
                self._topic, partition, connection, partial(self._abandoned, sent_batch)
            )
        traces = [
            trace for sent_batch in sent_batches for chunk in sent_batch.batch.chunks for trace in chunk.delivery.traces
        ]
        if traces:
            carry(envelope, traces)
        try:
            self._tickets.attach(envelope, connection)
            connection.ask(
                envelope,
                parts,
                attachment_bytes=size_bytes,
                timeout_s=timeout_s,
                answered=partial(self._answered, connection, sent_batches, envelope),
            )
        except TidelogError as error:
            if connection.throttle is not None or self._tickets.is_throttled:
                self._release_throttles(connection, sent_batches)
            self._failed(sent_batches, error)
            return
        if connection.liveness is not None:
            self._unanswered.sent(connection, sent_batches)
        if self._meter is not None:
            for sent_batch in sent_batches:
                self._meter.sent(sent_batch.batch)

    def _release_throttles(self, connection: Connection, sent_batches: Sequence[SentBatch]) -> None:
        """Release the bytes of answered batches in the throttles of the node."""
        for throttle in self._tickets.throttles(connection):
            throttle.answered(sum(sent_batch.batch.encoded.length for sent_batch in sent_batches))

    def _answered(
        self, connection: Connection, sent_batches: list[SentBatch], request: pb.Envelope, answer: Frame | TidelogError
    ) -> None:
        if connection.liveness is not None:
            self._unanswered.answered(connection, sent_batches)
        if not isinstance(answer, TidelogError) and (answer.envelope.caller_throttle_ms or self._tickets.is_throttled):
            self._tickets.note_throttle(answer.envelope, connection)
        if connection.throttle is not None or self._tickets.is_throttled:
            self._release_throttles(connection, sent_batches)
        if isinstance(answer, TidelogError):
            self._tickets.note_error(request, answer)
            self._failed(sent_batches, answer)
            return
        try:
            reply = check_answer("publish", answer, connection).envelope.publish_reply
            results = results_of(reply.results, len(sent_batches), connection)
        except TidelogError as error:
            self._failed(sent_batches, error)
            return
        now = self._loop.time()
        for sent_batch, result in zip(sent_batches, results, strict=True):
            if not self._is_expected(sent_batch):
                continue
            if result.duplicate and sent_batch.queue.is_foreign_duplicate(sent_batch.batch):
                self._handle_error(sent_batch, foreign_duplicate_error(), now)
            elif result.HasField("error"):
                self._handle_error(sent_batch, error_of(result.error, connection.name), now)
            else:
                drops = DroppedRecords(result.duplicates, result.dropped) if result.duplicates else None
                sent_batch.queue.acknowledged(sent_batch.batch, result.base_offset, result.append_timestamp_us, drops)
                if self._meter is not None:
                    self._meter.acknowledged(sent_batch.batch, now)
                self._clear_stall(sent_batch.queue)
                # The node stores one record of its own for a batch whose records were all dropped.
                stored = max(sent_batch.batch.count - result.duplicates, 1)
                partition, end_offset = sent_batch.queue.partition, result.base_offset + stored
                self._router.known_ends.note(self.topic_id, partition, epoch=result.epoch, end_offset=end_offset)
                self._router.stored_in(self._topic, partition, result.epoch)
            if not sent_batch.queue.idle:
                self.wake(sent_batch.queue)
        if self._source is not None and self._source.batch is not None:
            self.wake_soon()

    def _failed(self, sent_batches: Sequence[SentBatch], error: TidelogError) -> None:
        now = self._loop.time()
        for sent_batch in sent_batches:
            if self._is_expected(sent_batch):
                self._handle_error(sent_batch, error, now)
                self.wake(sent_batch.queue)

    def _is_expected(self, sent_batch: SentBatch) -> bool:
        """Return whether the answer to a batch is still expected, and stop expecting it."""
        expected, sent_batch.expected = sent_batch.expected, None
        if expected is None:
            return False
        self._router.owner_changes.forget(expected)
        return True

    def _abandoned(self, sent_batch: SentBatch, error: TidelogError) -> None:
        """Handle a batch whose partition has moved while the old owner does not answer."""
        sent_batch.expected = None
        self._handle_error(sent_batch, error, self._loop.time())
        sent_batch.queue.retry_now()
        self.wake(sent_batch.queue)

    def _node_lost(self, sent_batches: list[SentBatch], error: ConnectionLostError) -> None:
        """Fail the batches that were sent to a lost node and the queued records, unless another node can be reached."""
        if not self._router.pool.should_give_up(error, math.inf):
            return  # Another node may take over the partitions, and the batches are resent to it.
        for sent_batch in sent_batches:
            connection = self._in_flight_on[sent_batch.queue.partition]
            if self._is_expected(sent_batch):
                self._handle_error(sent_batch, error, self._loop.time())
                self._fail_if_unreachable(sent_batch.queue, connection)
                self.wake(sent_batch.queue)

    def _handle_error(self, sent_batch: SentBatch, error: TidelogError, now: float) -> None:
        queue = sent_batch.queue
        queue.failed(sent_batch.batch, error, now)
        connection = self._in_flight_on.get(queue.partition)
        if (
            isinstance(error, OverloadedError)
            and connection is not None
            and self._tickets.note_rejection(error, connection)
        ):
            queue.retry_now()  # The queue waits for the quota instead, which may end earlier.
        if error.retriable:
            self._log_stall(queue, error)
        self._router.learn_from(self._topic, error, queue.partition)
        if self._closed:
            queue.fail_all(ClosedError("the producer was closed before this record was acknowledged"))

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
