"""Carries a producer's batches to their owners: the thin shell around the lanes.

Lanes that have something to do are collected and served once per turn of the event loop, so batches for different
partitions of one node travel in one PUBLISH. A batch leaves its lane only when it can be written at once: the owner
is known, its connection stands and takes bytes, and nothing of the lane is in flight on another connection. That is why
nothing here can overtake anything else. Whatever is missing is looked for by one small task per lane, which then wakes
the lane.

When a partition has moved and its old owner is silent, the batches in flight there are abandoned (`owner_changes.py`):
they end with an unknown outcome and are sent again, under the same sequence, to the new owner. Answers that still come
to them are not looked at.
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
from tidelog.produce.deduplicated_records import Drops
from tidelog.produce.partition_queue import RETRY_S_MAX, Lane, known_before
from tidelog.produce.producer_instances import Instance
from tidelog.produce.producer_meter import ProducerMeter
from tidelog.produce.silent_node_detection import PublishWatch
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import BATCHES_PER_PUBLISH_MAX
from tidelog_proto.wire.frames import Frame

FRAME_BYTES_TARGET: Final = 4 * 1024 * 1024
"""A PUBLISH is closed when it has grown past this; its reply comes when its last batch is done."""

REQUEST_S_MIN: Final = 0.25
_MS: Final = 1000
_log: Final = logging.getLogger("tidelog.client")


@dataclass(slots=True, eq=False)
class Shipment:
    """A batch on its way and the lane that waits for its answer; `expected` until it came or was given up."""

    lane: Lane
    batch: OutgoingBatch
    expected: Expectation | None = None


class RetryTimer(NamedTuple):
    """When a lane tries again, and the route that it failed on."""

    lane: Lane
    handle: asyncio.TimerHandle
    route: PartitionRoute | None


class Source(Protocol):
    """Where records gather that no lane has yet."""

    @property
    def gathering(self) -> object | None:
        """What there is of them."""
        ...

    def offer(self) -> None:
        """Give them to lanes if one could send them; what gets something is woken."""
        ...


class Sender:
    """Serves the lanes of one producer. Belongs to one event loop; makes tasks only when a lane needs one.

    Before lanes are served, `source` is asked for more. `instance` is that of a named producer, None for others.
    `topic_id` is the topic that the producer writes to: set before a lane is served, and never another.
    """

    def __init__(
        self,
        router: Router,
        topic: str,
        *,
        acks: pb.Acks,
        loop: asyncio.AbstractEventLoop,
        request_timeout_s: float | None = None,
        source: Source | None = None,
        instance: Instance | None = None,
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
        self._ready: dict[int, Lane] = {}
        self._scheduled = False
        self._closed = False
        self._timers: dict[int, RetryTimer] = {}
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._flying_on: dict[int, Connection] = {}
        self._unanswered: PublishWatch[list[Shipment]] = PublishWatch(loop, self._fell_silent)
        self._unwatch = watch_weakly(partial(router.watch, topic), loop, self._routes_changed)
        self._seekers: dict[int, asyncio.Task[None]] = {}
        self._troubled_since: dict[int, float] = {}
        """Partitions in which nothing is stored at the moment."""
        self._told = False
        """Whether the user knows of those."""

    def wake(self, lane: Lane) -> None:
        """Serve `lane` in this turn of the loop, after everybody who runs now."""
        self._ready[lane.partition] = lane
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def wake_soon(self) -> None:
        """Ask the source for more, and serve what it gives, in this turn of the loop."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def serve_now(self) -> None:
        """Serve the lanes that are awake at once: for a loop that puts records and does not let others run."""
        self._serve()

    async def close(self) -> None:
        """Stop seeking and waking. What is in flight is still answered."""
        self._closed = True
        self._unwatch()
        self._unanswered.close()
        for timer in self._timers.values():
            timer.handle.cancel()
        for handle in self._expiries.values():
            handle.cancel()
        seekers = list(self._seekers.values())
        for seeker in seekers:
            seeker.cancel()
        await asyncio.gather(*seekers, return_exceptions=True)

    # --------------------------------------------------------------------------------------------- serving

    def _serve(self) -> None:
        if self._source is not None and self._source.gathering is not None and not self._closed:
            self._source.offer()  # what it wakes is served now: this turn is not over yet
        self._scheduled = False
        if self._closed:
            return
        if self._meter is not None:
            self._meter.weigh()
        ready, self._ready = self._ready, {}
        now, now_us = self._loop.time(), self._clock_us()
        serving = list(ready.values())
        # One batch of each lane a round: a PUBLISH never holds two of one partition, so that pipelined batches are
        # answered one by one.
        while serving:
            shipments: dict[Connection, list[Shipment]] = {}
            going_on: list[Lane] = []
            for lane in serving:
                connection = self._connection(lane, now)
                batch = None if connection is None else lane.next_to_send(now, now_us)
                if connection is not None and batch is not None:
                    shipments.setdefault(connection, []).append(Shipment(lane, batch))
                    if connection.throttle is not None or self._tickets.is_throttled:
                        for throttle in self._tickets.throttles(connection):
                            throttle.published(batch.encoded.length)
                    if lane.has_more:
                        going_on.append(lane)
                else:
                    self._wake_later(lane, now)
            for connection, of_node in shipments.items():
                self._publish(connection, of_node, now)
            serving = going_on

    def _connection(self, lane: Lane, now: float) -> Connection | None:
        """Return the connection to write to right now; None when something has to happen first."""
        lane.expire(now)
        if lane.idle:
            return None
        if self._is_gone():
            lane.fail_all(deleted_topic_error(self._topic))
            return None
        if lane.is_barred and self._instance is not None and lane.partition in self._instance.entered:
            lane.enter(self._instance.epoch)
        connection = None if lane.is_barred else self._router.connection_now(self._topic, lane.partition)
        if connection is None:
            if lane.partition not in self._seekers:
                seeker = self._loop.create_task(self._seek(lane), name=f"seek the owner of {lane.partition}")
                self._seekers[lane.partition] = seeker
            return None
        if self._flying_on.get(lane.partition) is not connection and lane.flying:
            return None  # what is in flight elsewhere is answered or abandoned first, and that wakes the lane
        if connection.liveness is not None and connection.liveness.is_lost and self._gives_up(lane, connection):
            return None
        if not connection.ready:
            connection.when_ready(partial(self.wake, lane))
            return None
        if connection.throttle is not None or self._tickets.is_throttled:
            for throttle in self._tickets.throttles(connection):
                if not throttle.may_publish():
                    throttle.when_open((self, lane.partition), partial(self.wake, lane))
                    self._is_held(lane, throttle, now)
                    return None
        return connection

    def _gives_up(self, lane: Lane, connection: Connection) -> bool:
        """Fail what a lane has for a lost node, unless another node may take its place; return whether it did."""
        error = NodeUnreachableError(f"{connection.name} is connected and silent, and so are all other nodes")
        if not self._router.pool.should_give_up(error, math.inf):
            return False
        lane.fail_all(error)
        return lane.idle

    def _is_held(self, lane: Lane, throttle: Throttle, now: float) -> None:
        """Let a lane wait for a quota, and give up in time what waits for too long."""
        lane.held(throttle.open_at, OverloadedError(f"the quota of {throttle.principal} is used up"))
        self._give_up_early(lane, now)
        self._expire_later(lane)

    def _give_up_early(self, lane: Lane, now: float) -> None:
        """Let a caller who waits for an answer hear at once that his records wait for longer than they may."""
        if self._tickets.caller is not None:
            lane.expire(now, by=lane.held_until)

    def _is_gone(self) -> bool:
        """Whether the name stands for another topic now. What is on its way to the old one is judged by its answer."""
        route = self._router.metadata.topic(self._topic)
        return route is not None and route.topic_id != self.topic_id

    def _expire_later(self, lane: Lane) -> None:
        """Look at a lane in time to give up what waits for a quota for too long."""
        at = lane.next_expiry
        if at < math.inf and lane.partition not in self._expiries:
            self._expiries[lane.partition] = self._loop.call_at(at, self._expires, lane)

    def _expires(self, lane: Lane) -> None:
        del self._expiries[lane.partition]
        connection = self._router.connection_now(self._topic, lane.partition)
        if connection is not None:  # the debt may have grown by what was on its way
            lane.held_until = max(lane.held_until, *(each.open_at for each in self._tickets.throttles(connection)), 0.0)
        self.wake(lane)

    def _wake_later(self, lane: Lane, now: float) -> None:
        at = lane.wake_at()
        if at is not None and lane.held_until > now:
            self._give_up_early(lane, now)
            self._expire_later(lane)
        if at is not None and lane.partition not in self._timers:
            handle = self._loop.call_at(at, self._timer_rang, lane)
            route = self._router.metadata.route(self._topic, lane.partition)
            self._timers[lane.partition] = RetryTimer(lane, handle, route)

    def _timer_rang(self, lane: Lane) -> None:
        del self._timers[lane.partition]
        self.wake(lane)

    def _routes_changed(self) -> None:
        """Let lanes that wait to try again do so at once where somebody else is asked now."""
        for partition, timer in list(self._timers.items()):
            if self._router.metadata.route(self._topic, partition) != timer.route:
                timer.handle.cancel()
                timer.lane.hurry()
                self._timer_rang(timer.lane)

    async def _seek(self, lane: Lane) -> None:
        """Find the lane's owner and a connection to it; give up what expires meanwhile."""
        backoff, began = Backoff(longest_s=RETRY_S_MAX), self._loop.time()
        try:
            while not lane.idle:
                try:
                    if lane.is_barred and self._instance is not None:
                        async with asyncio.timeout_at(lane.first_deadline):
                            await self._instance.enter(lane.partition)
                    await self._router.connection(self._topic, lane.partition)
                except TimeoutError:
                    lane.expire(self._loop.time())
                except TidelogError as error:
                    if not error.retriable:
                        lane.fail_all(deleted_topic_error(self._topic) if self._is_gone() else error)
                        return
                    lane.in_the_way = error
                    lane.expire(self._loop.time())
                    wait_s = backoff.next_wait_s(error.retry_after_ms)
                    if self._router.pool.should_give_up(error, self._loop.time() + wait_s - began):
                        lane.fail_all(error)
                        began = self._loop.time()
                    self._tell_trouble(lane, error)
                    await self._router.news(self._topic, wait_s)
                else:
                    return
        finally:
            del self._seekers[lane.partition]
            if not lane.idle:
                self.wake(lane)

    # ------------------------------------------------------------------------------------------ publishing

    def _publish(self, connection: Connection, shipments: list[Shipment], now: float) -> None:
        if len(shipments) == 1:
            self._write(connection, shipments, shipments[0].batch.encoded.length, now)
            return
        frame: list[Shipment] = []
        size_bytes = 0
        for shipment in shipments:
            length = shipment.batch.encoded.length
            if frame and (size_bytes + length > FRAME_BYTES_TARGET or len(frame) == BATCHES_PER_PUBLISH_MAX):
                self._write(connection, frame, size_bytes, now)
                frame, size_bytes = [], 0
            frame.append(shipment)
            size_bytes += length
        self._write(connection, frame, size_bytes, now)

    def _write(self, connection: Connection, shipments: list[Shipment], size_bytes: int, now: float) -> None:
        left_s = min([shipment.batch.deadline for shipment in shipments]) - now
        timeout_s = min(self._request_timeout_s, max(REQUEST_S_MIN, left_s))
        envelope = pb.Envelope()
        publish = envelope.publish
        publish.acks, publish.timeout_ms = self._acks, int(timeout_s * _MS)
        parts: list[bytes | memoryview] = []
        for shipment in shipments:
            encoded, partition = shipment.batch.encoded, shipment.lane.partition
            publish.entries.add(topic_id=self.topic_id, partition=partition, length=encoded.length)
            parts += (encoded.header, encoded.body, *encoded.rest)
            self._flying_on[partition] = connection
            shipment.expected = self._router.owner_changes.expect(
                self._topic, partition, connection, partial(self._abandoned, shipment)
            )
        traces = [trace for shipment in shipments for load in shipment.batch.loads for trace in load.delivery.traces]
        if traces:
            carry(envelope, traces)
        try:
            self._tickets.attach(envelope, connection)
            connection.ask(
                envelope,
                parts,
                attachment_bytes=size_bytes,
                timeout_s=timeout_s,
                answered=partial(self._answered, connection, shipments, envelope),
            )
        except TidelogError as error:
            if connection.throttle is not None or self._tickets.is_throttled:
                self._came_back(connection, shipments)
            self._failed(shipments, error)
            return
        if connection.liveness is not None:
            self._unanswered.sent(connection, shipments)
        if self._meter is not None:
            for shipment in shipments:
                self._meter.sent(shipment.batch)

    def _came_back(self, connection: Connection, shipments: Sequence[Shipment]) -> None:
        """Count as on their way no more what a node bounds."""
        for throttle in self._tickets.throttles(connection):
            throttle.answered(sum(shipment.batch.encoded.length for shipment in shipments))

    def _answered(
        self, connection: Connection, shipments: list[Shipment], asked: pb.Envelope, answer: Frame | TidelogError
    ) -> None:
        if connection.liveness is not None:
            self._unanswered.answered(connection, shipments)
        if not isinstance(answer, TidelogError) and (answer.envelope.caller_throttle_ms or self._tickets.is_throttled):
            self._tickets.note_throttle(answer.envelope, connection)
        if connection.throttle is not None or self._tickets.is_throttled:
            self._came_back(connection, shipments)
        if isinstance(answer, TidelogError):
            self._tickets.note_error(asked, answer)
            self._failed(shipments, answer)
            return
        try:
            reply = check_answer("publish", answer, connection).envelope.publish_reply
            results = results_of(reply.results, len(shipments), connection)
        except TidelogError as error:
            self._failed(shipments, error)
            return
        now = self._loop.time()
        for shipment, result in zip(shipments, results, strict=True):
            if not self._is_expected(shipment):
                continue
            if result.duplicate and shipment.lane.is_not_its_own(shipment.batch):
                self._judge(shipment, known_before(), now)
            elif result.HasField("error"):
                self._judge(shipment, error_of(result.error, connection.name), now)
            else:
                drops = Drops(result.duplicates, result.dropped) if result.duplicates else None
                shipment.lane.acknowledged(shipment.batch, result.base_offset, result.append_timestamp_us, drops)
                if self._meter is not None:
                    self._meter.acknowledged(shipment.batch, now)
                self._no_trouble(shipment.lane)
                # Of a batch of which nothing was left there is one record, which is for the node.
                stored = max(shipment.batch.count - result.duplicates, 1)
                partition, end_offset = shipment.lane.partition, result.base_offset + stored
                self._router.known_ends.note(self.topic_id, partition, epoch=result.epoch, end_offset=end_offset)
                self._router.stored_in(self._topic, partition, result.epoch)
            if not shipment.lane.idle:
                self.wake(shipment.lane)
        if self._source is not None and self._source.gathering is not None:
            self.wake_soon()

    def _failed(self, shipments: Sequence[Shipment], error: TidelogError) -> None:
        now = self._loop.time()
        for shipment in shipments:
            if self._is_expected(shipment):
                self._judge(shipment, error, now)
                self.wake(shipment.lane)

    def _is_expected(self, shipment: Shipment) -> bool:
        """Tell whether an answer to it still counts; from now on none does."""
        expected, shipment.expected = shipment.expected, None
        if expected is None:
            return False
        self._router.owner_changes.forget(expected)
        return True

    def _abandoned(self, shipment: Shipment, error: TidelogError) -> None:
        """The partition has moved, and the old owner does not answer."""
        shipment.expected = None
        self._judge(shipment, error, self._loop.time())
        shipment.lane.hurry()
        self.wake(shipment.lane)

    def _fell_silent(self, shipments: list[Shipment], error: ConnectionLostError) -> None:
        """Give up what was sent to a lost node, and what waits behind that, where no other node can be asked."""
        if not self._router.pool.should_give_up(error, math.inf):
            return  # another node may take the partitions, and the batches are sent there
        for shipment in shipments:
            connection = self._flying_on[shipment.lane.partition]
            if self._is_expected(shipment):
                self._judge(shipment, error, self._loop.time())
                self._gives_up(shipment.lane, connection)
                self.wake(shipment.lane)

    def _judge(self, shipment: Shipment, error: TidelogError, now: float) -> None:
        lane = shipment.lane
        lane.failed(shipment.batch, error, now)
        connection = self._flying_on.get(lane.partition)
        if (
            isinstance(error, OverloadedError)
            and connection is not None
            and self._tickets.note_rejection(error, connection)
        ):
            lane.hurry()  # what it waits for from now on is the quota, which may end before that
        if error.retriable:
            self._tell_trouble(lane, error)
        self._router.learn_from(self._topic, error, lane.partition)
        if self._closed:
            lane.fail_all(ClosedError("the producer was closed before this record was acknowledged"))

    # --------------------------------------------------------------------------------------------- telling

    def _tell_trouble(self, lane: Lane, error: TidelogError) -> None:
        """Say what a partition waits for when that goes on, once until all is well again."""
        if lane.idle:
            self._no_trouble(lane)
            return
        now = self._loop.time()
        since = self._troubled_since.setdefault(lane.partition, now)
        if not self._told and now - since >= LOG_AFTER_S:
            self._told = True
            where = (self._topic, lane.partition)
            _log.warning("%s/%d: nothing can be published yet, still trying: %s", *where, describe_error(error))

    def _no_trouble(self, lane: Lane) -> None:
        if self._troubled_since.pop(lane.partition, None) is not None and not self._troubled_since:
            self._told = False
