"""Keeps every partition of a consumer subscribed, at its exact position, at whoever owns it.

One task watches over it. Partitions without a subscription are taken up again grouped by owner, each group by a small
task of its own, so that an owner who cannot be reached holds nobody else up; a partition that fails waits longer each
time until something arrives, and news about owners ends the wait. Positions here are those of what has *arrived*: a
partition that changes hands is subscribed where its arrivals ended, so nothing is lost or repeated.

Three things end the service of a partition: the node says so, the connection breaks, or metadata names another owner
(`owner_moves.py`). The last matters when the old owner says nothing: subscriptions wait for nothing in particular, so a
connection that has been quiet for `PROBE_S` is asked a question, and its silence is then noticed like any other.

Where an owner is gone and none follows, for want of a quorum, another replica is subscribed (`stand_ins.py`) and says
what it knows is committed. Every `PROBE_S` it is looked whether the owner is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import Final, Protocol

from tidelog.backoff import Backoff
from tidelog.connection import Address, Connection, results_of
from tidelog.consumer_options import ConsumerOptions, resolve_added
from tidelog.errors import ClosedError, OffsetOutOfRangeError, TidelogError, error_of, told
from tidelog.metadata import gone_error
from tidelog.owner_moves import Expectation
from tidelog.paging import in_requests
from tidelog.routing import Router
from tidelog.stand_ins import Reached
from tidelog.subscription import Credit, Prefetched, Subscription
from tidelog_proto import broker_pb2 as pb

NEW_PARTITIONS_S: Final = 30.0
"""How often a consumer of all partitions looks for new ones."""

PROBE_S: Final = 3.0
"""How long the connection of a subscription may be quiet before the node is asked something."""

TELLING_FAILURES: Final = 6
"""After so many failures in a row, which takes a second or two, the user is told what a partition waits for."""

_log: Final = logging.getLogger("tidelog.consumer")
_MS: Final = 1000


class Reader(Protocol):
    """The consumer, as what serves it sees it."""

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived."""

    def added(self, positions: dict[int, int]) -> None:
        """Partitions are read from now on, beginning there."""

    def broken(self, error: BaseException) -> None:
        """Reading cannot go on."""


class Serving:
    """The subscriptions of one consumer."""

    def __init__(self, router: Router, topic: str, options: ConsumerOptions, reader: Reader) -> None:
        self.topic = topic
        self.topic_id = b""
        """Of the topic that is read, from the beginning to the end; empty before."""
        self._router = router
        self._options = options
        self._reader = reader
        self._arrived: dict[int, int] = {}
        self._serving: dict[int, Subscription | None] = {}
        self._subscriptions: dict[Subscription, tuple[Connection, int]] = {}
        self._expected: dict[int, Expectation] = {}
        self._unknown: set[int] = set()
        """Partitions of which nobody knows yet where to begin."""
        self._stand_ins: set[int] = set()
        """Partitions that another node than the owner serves, or is to serve; the user was told."""
        self._doubted_at: dict[Subscription, float] = {}
        """When nodes were asked whether they only let something else wait."""
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._added: dict[int, asyncio.Task[None]] = {}
        """New partitions, and who looks for where to begin in them."""
        self._backoffs: dict[int, Backoff] = {}
        self._retry_at: dict[int, float] = {}
        self._stirred = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._broken = False

    @property
    def partitions(self) -> list[int]:
        """The partitions that are read."""
        return sorted(self._serving)

    # -------------------------------------------------------------------------------------------- lifecycle

    def begin(self, positions: dict[int, int], topic_id: bytes, unknown: Collection[int] = ()) -> None:
        """Read from now on, partition -> offset; of those in `unknown` the offset is told later, by `add`."""
        assert self._keeper is None, "it begins once"
        self.topic_id = topic_id
        self._unknown.update(unknown)
        self.add(positions)
        self._keeper = asyncio.get_running_loop().create_task(self._keep(), name=f"consume {self.topic}")
        self._keeper.add_done_callback(self._kept)

    def seek(self, partition: int, offset: int) -> None:
        """Go on at `offset` in one partition."""
        serving = self._serving[partition]
        if serving is not None:
            # The subscription is ended whole: the node has no message that takes one partition out of it.
            self._drop(serving)
        self._arrived[partition] = offset
        self._stir()

    async def close(self) -> None:
        """Stop."""
        tasks = [*dict.fromkeys([*self._attempts.values(), *self._added.values()])]
        tasks += [self._keeper] if self._keeper else []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for subscription in list(self._subscriptions):
            self._drop(subscription)

    # ----------------------------------------------------------------------------- what subscriptions report

    def prefetched(self, items: list[Prefetched]) -> None:
        """Batches arrived."""
        for item in items:
            self._backoffs.pop(item.partition, None)
        self._reader.prefetched(items)

    def detached(self, subscription: Subscription, partitions: list[int], error: TidelogError) -> None:
        """Partitions are no longer served by a subscription."""
        for partition in partitions:
            self._arrived[partition] = subscription.positions.pop(partition)
            self._release(partition)
            self._router.learn_from(self.topic, error, partition)
            self._wait_after(partition, error)
        if not subscription.positions:
            self._drop(subscription)
        policy = self._options.on_out_of_range
        if isinstance(error, OffsetOutOfRangeError) and policy != "error":
            offset = error.log_start_offset if policy == "earliest" else error.high_watermark
            for partition in partitions:
                _log.warning(
                    "%s/%d: offset %d is gone, the log begins at %d now and ends at %d: going on at %d, because "
                    "on_out_of_range is %r",
                    self.topic,
                    partition,
                    self._arrived[partition],
                    error.log_start_offset,
                    error.high_watermark,
                    offset,
                    policy,
                )
                self._arrived[partition] = offset
        elif not error.retriable and not isinstance(error, ClosedError):
            self.broken(error)
        self._stir()

    def _wait_after(self, partition: int, error: TidelogError) -> None:
        """Wait as long as the node asks for, and say what for if that goes on."""
        backoff = self._backoffs.get(partition)
        if backoff is None or not error.retriable:
            return
        retry_at = asyncio.get_running_loop().time() + error.retry_after_ms / _MS
        self._retry_at[partition] = max(self._retry_at.get(partition, 0.0), retry_at)
        self._tell_failure(partition, error)

    def broken(self, error: TidelogError) -> None:
        """Reading cannot go on."""
        self._broken = True
        self._reader.broken(error)
        self._stir()

    # --------------------------------------------------------------------------------------------- keeping

    async def _keep(self) -> None:
        """Keep every partition subscribed until the consumer is closed or broken."""
        loop = asyncio.get_running_loop()
        look_at = loop.time() + NEW_PARTITIONS_S
        unwatch = self._router.watch(self.topic, self._news)
        try:
            while not self._broken:
                now = loop.time()
                if now >= look_at and self._options.partitions is None:
                    self._router.refresh_later(self.topic)
                    self._look_at_topic()
                    look_at = now + NEW_PARTITIONS_S
                self._probe_quiet_connections()
                self._leave_who_should_not_serve()
                self._begin_attempts(now)
                try:
                    async with asyncio.timeout_at(self._wake_at(now, look_at)):
                        await self._stirred.wait()
                except TimeoutError:
                    continue
                self._stirred.clear()
        finally:
            unwatch()

    def _kept(self, keeper: asyncio.Task[None]) -> None:
        """Tell the user of a bug in the keeper: without it nothing would ever arrive."""
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self._reader.broken(error)

    def _wake_at(self, now: float, look_at: float) -> float:
        waiting = [
            self._retry_at.get(partition, now)
            for partition, serving in self._serving.items()
            if serving is None and partition not in self._attempts
        ]
        return min([look_at, now + PROBE_S, *waiting])

    def _news(self) -> None:
        """Something about the topic has changed: do not wait any longer, and look for new partitions."""
        self._retry_at.clear()
        self._look_at_topic()
        self._stir()

    def _look_at_topic(self) -> None:
        """Take up partitions that were added; end where it is another topic."""
        route = self._router.metadata.topic(self.topic)
        if route is not None and route.topic_id != self.topic_id:
            self.broken(gone_error(self.topic))
        elif route is not None and self._options.partitions is None:
            known = {*self._serving, *self._added, *self._unknown}
            self._take_up([partition for partition in route.partitions if partition not in known])

    def _take_up(self, partitions: list[int]) -> None:
        """Begin to read partitions that were added."""
        if partitions:
            task = asyncio.get_running_loop().create_task(self._begin_in(partitions), name=f"begin in {partitions}")
            self._added |= dict.fromkeys(partitions, task)
            task.add_done_callback(partial(self._taken_up, partitions))

    async def _begin_in(self, partitions: list[int]) -> None:
        try:
            positions = await resolve_added(self._router, self.topic, self._options, partitions)
        except TidelogError as error:
            if not error.retriable:
                self.broken(error)
                return
            _log.warning(
                "%s: where to begin in the new partitions %s is not known yet, it is looked for again within %d s: %s",
                self.topic,
                partitions,
                NEW_PARTITIONS_S,
                told(error),
            )
        else:
            self.add(positions)

    def _taken_up(self, partitions: list[int], task: asyncio.Task[None]) -> None:
        for partition in partitions:  # what failed is tried again with the next look for new ones
            del self._added[partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._reader.broken(error)

    def add(self, positions: dict[int, int]) -> None:
        """Read more partitions from now on."""
        self._unknown.difference_update(positions)
        for partition, offset in positions.items():
            self._serving[partition] = None
            self._arrived[partition] = offset
        self._reader.added(positions)
        self._stir()

    def _stir(self) -> None:
        self._stirred.set()

    def _probe_quiet_connections(self) -> None:
        for subscription, (connection, _) in self._subscriptions.items():
            # A question that is under way is enough; its answer makes the connection not quiet. But what is under way
            # may be a publish that waits for a quorum, which says nothing of the node.
            now = asyncio.get_running_loop().time()
            doubted_at = self._doubted_at.get(subscription)
            if doubted_at is not None and connection.quiet_s < now - doubted_at:
                del self._doubted_at[subscription]
                doubted_at = None
            doubted = doubted_at is None and connection.silent_s >= PROBE_S
            if subscription.positions and connection.quiet_s >= PROBE_S and (doubted or not connection.silent_s):
                self._router.probe(self.topic, next(iter(subscription.positions)), connection)
                if doubted:
                    self._doubted_at[subscription] = now

    def _leave_who_should_not_serve(self) -> None:
        """Leave an owner that is silent for others, and others for an owner that is back."""
        stand_ins = self._router.stand_ins
        for subscription, (connection, _) in list(self._subscriptions.items()):
            for partition in subscription.positions:
                if self._serving[partition] is not subscription:
                    continue
                if partition in self._stand_ins:
                    leaves = stand_ins.owner_is_back(self.topic, partition)
                    self._router.refresh_later(self.topic)
                else:
                    leaves = self._is_deaf(subscription, connection) and stand_ins.exist(self.topic, partition)
                if leaves:
                    self._drop(subscription)  # whole: see `seek`
                    self._stir()
                    break

    def _is_deaf(self, subscription: Subscription, connection: Connection) -> bool:
        """Whether a node has said nothing at all since it was asked because of its silence."""
        doubted_at = self._doubted_at.get(subscription)
        if doubted_at is None:
            return False
        since_s = asyncio.get_running_loop().time() - doubted_at
        return since_s >= PROBE_S and connection.quiet_s >= since_s

    def _tell_who_serves(self, reached: Reached, partitions: list[int]) -> None:
        known, name = self._stand_ins.intersection(partitions), reached.connection.name
        if reached.is_owner:
            self._stand_ins -= known
            if known:
                _log.warning("%s: partitions %s are read from their owner %s again", self.topic, sorted(known), name)
        elif len(known) < len(partitions):
            self._stand_ins.update(partitions)
            _log.warning(
                "%s: nobody can be reached who owns partitions %s, perhaps too few nodes are up: "
                "what %s knows was committed is read, and nothing newer until there is an owner",
                self.topic,
                partitions,
                name,
            )

    # ----------------------------------------------------------------------------------------- subscribing

    def _begin_attempts(self, now: float) -> None:
        """Take up what is not served and need not wait, one task for each owner."""
        groups: dict[Address | None, list[int]] = {}
        for partition, serving in self._serving.items():
            if serving is None and partition not in self._attempts and self._retry_at.get(partition, now) <= now:
                address = self._router.metadata.owner_address(self.topic, partition)
                groups.setdefault(address, []).append(partition)
        for partitions in groups.values():
            task = asyncio.get_running_loop().create_task(self._attempt(partitions), name=f"subscribe {self.topic}")
            for partition in partitions:
                self._attempts[partition] = task
                backoff = self._backoffs.setdefault(partition, Backoff())
                self._retry_at[partition] = now + backoff.next_wait_s()
            task.add_done_callback(partial(self._attempted, partitions))

    def _attempted(self, partitions: list[int], task: asyncio.Task[None]) -> None:
        for partition in partitions:
            del self._attempts[partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._reader.broken(error)
        self._stir()

    async def _attempt(self, partitions: list[int]) -> None:
        """Subscribe partitions of one owner, or of none: at other nodes, perhaps several."""
        metadata = self._router.metadata
        rest = partitions
        while rest:
            first, *rest = rest
            try:
                reached = await self._router.reading_connection(self.topic, first)
                address = reached.connection.address
                if reached.is_owner:
                    mine = [each for each in (first, *rest) if metadata.owner_address(self.topic, each) == address]
                    rest = []  # what has moved meanwhile is another attempt's
                else:
                    more = dict.fromkeys(
                        each for each in rest if address in metadata.replica_addresses(self.topic, each)
                    )
                    mine, rest = [first, *more], [each for each in rest if each not in more]
                for part in in_requests(mine):
                    await self._subscribe(reached, part)
            except TidelogError as error:
                self._router.learn_from(self.topic, error)
                self._tell_failure(first, error)
                if not error.retriable:
                    self.broken(error)
                if not error.retriable or not self._router.stand_ins.is_away(self.topic, first):
                    return

    def _tell_failure(self, partition: int, error: TidelogError) -> None:
        backoff = self._backoffs.get(partition)
        if error.retriable and backoff is not None and backoff.failures == TELLING_FAILURES:
            _log.warning("%s/%d: nothing comes yet, still trying: %s", self.topic, partition, told(error))

    async def _subscribe(self, reached: Reached, partitions: list[int]) -> None:
        connection = reached.connection
        self._tell_who_serves(reached, partitions)
        if (await self._router.topic(self.topic)).topic_id != self.topic_id:
            raise gone_error(self.topic)
        window = Credit(self._options.prefetch_records, self._options.prefetch_bytes)
        positions = {partition: self._arrived[partition] for partition in partitions}
        subscription_id = connection.new_subscription_id()
        send_credit = partial(self._send_credit, connection, subscription_id)
        wanted = self._options.wanted
        subscription = Subscription(self.topic_id, positions, window, send_credit, self, filtered=wanted is not None)
        connection.subscribe(subscription_id, subscription)
        self._subscriptions[subscription] = (connection, subscription_id)
        request = pb.Subscribe(
            subscription_id=subscription_id,
            entries=[
                pb.SubscribeEntry(
                    topic_id=self.topic_id,
                    partition=partition,
                    offset=offset,
                    filter=wanted.to_message() if wanted is not None else None,
                )
                for partition, offset in positions.items()
            ],
            credit_records=window.records,
            credit_bytes=window.bytes,
        )
        # Events may come before the answer is looked at.
        for partition in partitions:
            self._serving[partition] = subscription
        try:
            frame = await self._router.call_reader(self.topic, partitions, reached, pb.Envelope(subscribe=request))
            results = results_of(frame.envelope.subscribe_reply.results, len(partitions), connection)
        except BaseException:
            self._drop(subscription)
            raise
        for partition, result in zip(partitions, results, strict=True):
            if result.HasField("error"):
                subscription.end(partition, error_of(result.error, connection.name))
            elif self._serving[partition] is subscription:
                self._expected[partition] = self._router.moves.expect(
                    self.topic,
                    partition,
                    connection,
                    partial(subscription.end, partition),
                    wait_s=None,
                    instead_of=reached.instead_of,
                )
        self._router.moves.changed(self.topic)  # it may have moved while the answer was on its way

    def _send_credit(self, connection: Connection, subscription_id: int, credit: Credit) -> None:
        connection.send(
            pb.Envelope(credit=pb.Credit(subscription_id=subscription_id, records=credit.records, bytes=credit.bytes))
        )

    def _release(self, partition: int) -> None:
        self._serving[partition] = None
        expected = self._expected.pop(partition, None)
        if expected is not None:
            self._router.moves.forget(expected)

    def _drop(self, subscription: Subscription) -> None:
        """End a subscription; its partitions keep the positions of what has arrived."""
        self._doubted_at.pop(subscription, None)
        connection, subscription_id = self._subscriptions.pop(subscription, (None, 0))
        if connection is None:
            return
        connection.unsubscribe(subscription_id)
        for partition, offset in subscription.positions.items():
            self._arrived[partition] = offset
            self._release(partition)
        subscription.positions.clear()
