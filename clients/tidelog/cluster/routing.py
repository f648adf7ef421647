"""Selects the connection for each request: the owner of a partition, or any node that answers.

The router looks routes up in `Metadata`, refreshes missing or stale ones (`metadata_refresh.py`), and retries retriable
failures until the request timeout. A request that any node can answer is sent to a responsive node, and hedged if that
node is slow (`hedged_requests.py`). A request to an owner is abandoned if the partition has moved and the old owner is
silent, or if the node of a read is silent (`owner_changes.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from tidelog.base.backoff import Backoff
from tidelog.cluster.answers import check_answer
from tidelog.cluster.callers import Caller, CallerTickets
from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.connection_pool import ConnectionPool
from tidelog.cluster.fallback_replicas import FallbackReplicas, ReadReplica
from tidelog.cluster.hedged_requests import race, summary
from tidelog.cluster.known_ends import KnownEnds
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.metadata_refresh import MetadataRefresher
from tidelog.cluster.metadata_requests import MetadataRequests
from tidelog.cluster.nearest_replica import NearestReplica
from tidelog.cluster.owner_changes import LOG_AFTER_S, SILENCE_S, Expect, Expectation, OwnerChanges, unless_moved
from tidelog.cluster.read_epochs import ReadEpochs
from tidelog.cluster.topic_schemas import TopicSchemas
from tidelog.cluster.trace_contexts import carry_current
from tidelog.errors import (
    ClosedError,
    ConnectionLostError,
    NodeUnreachableError,
    NotOwnerError,
    OverloadedError,
    QuorumLostError,
    SequenceError,
    TidelogError,
    UnknownPartitionError,
    UnknownTopicError,
    describe_error,
)
from tidelog.model import TopicPartition, TopicRoute
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame
from tidelog_proto.wire.pending_requests import settle

T = TypeVar("T")

HEDGE_S: Final = 0.3
"""How long a node may take to connect or to answer from its metadata before another one is asked as well."""

REQUEST_HEDGE_S: Final = 1.0
"""How long a node may take to answer a request that may need a quorum, before another one is asked as well."""

_log: Final = logging.getLogger("tidelog.client")


class Router:
    """Selects the connection for each request, and keeps the metadata cache.

    The router closes the connection pool unless it acts on behalf of another principal (`caller`).
    """

    def __init__(
        self,
        bootstrap: list[Address],
        pool: ConnectionPool,
        *,
        request_timeout_s: float,
        quorum_timeout_s: float | None = None,
        zone: str = "",
        caller: Caller | None = None,
    ) -> None:
        self.metadata = Metadata()
        self.known_ends = KnownEnds()
        self.read_epochs = ReadEpochs()
        self.pool = pool
        self.schemas = TopicSchemas(self.call_any)
        self.request_timeout_s = request_timeout_s
        self.quorum_timeout_s = request_timeout_s if quorum_timeout_s is None else quorum_timeout_s
        self.owner_changes = OwnerChanges(self.metadata, self.refresh_later)
        self.fallback_replicas = FallbackReplicas(self.metadata, pool, self.probe)
        self.nearest_replica = NearestReplica(self.metadata, pool, zone)
        self._zone = zone
        self.unreported: set[object] = set()
        """Producers with unreported failures; kept until the client is closed, which raises one of them."""
        self.caller_tickets = CallerTickets(caller)
        self._bootstrap = bootstrap
        self._requests = MetadataRequests(self.metadata, call=self.call, take=self.take_metadata, first_of=self._hedged)
        self._refresher = MetadataRefresher(self._requests.ask)
        self._watchers: dict[str, set[Callable[[], None]]] = {}

    def for_caller(self, caller: Caller) -> Router:
        """Return a router on behalf of a principal, with a metadata cache of its own and this router's connections."""
        return Router(
            self._bootstrap,
            self.pool,
            request_timeout_s=self.request_timeout_s,
            quorum_timeout_s=self.quorum_timeout_s,
            zone=self._zone,
            caller=caller,
        )

    # ------------------------------------------------------------------------------------------- requests

    async def call(self, connection: Connection, envelope: pb.Envelope, *, wait_s: float = 0.0) -> Frame:
        """Send a request and return its answer, checked to be of the right kind.

        Args:
            connection: the connection to the node.
            wait_s: how long the node is asked to hold the answer back, in addition to the request timeout.
        """
        kind = envelope.WhichOneof("kind")
        assert kind is not None, "a request has a kind"
        carry_current(envelope)
        self.caller_tickets.attach(envelope, connection)
        try:
            frame = await connection.call(envelope, timeout_s=self.request_timeout_s + wait_s, wait_s=wait_s)
        except TidelogError as error:
            self.caller_tickets.note_error(envelope, error)
            raise
        return check_answer(kind, frame, connection)

    async def call_reader(
        self, partitions: Sequence[TopicPartition], replica: ReadReplica, envelope: pb.Envelope, *, wait_s: float = 0
    ) -> Frame:
        """Send a request to the replica that serves reads; abandon it for another replica if there is no answer.

        Raises:
            ConnectionLostError: the request was abandoned.
            TidelogError: as `call`.
        """
        connection, instead_of = replica.connection, partial(self.instead_of, replica)
        expect = partial(self._expect, partitions, connection, wait_s=wait_s, reads=True, instead_of=instead_of)
        return await self._call_unless_moved(connection, envelope, expect, wait_s=wait_s)

    async def call_owner(
        self, partition: TopicPartition, connection: Connection, envelope: pb.Envelope, *, wait_s: float = 0
    ) -> Frame:
        """Send a request to a partition's owner; abandon it when the owner does not answer and another node took over.

        Raises:
            ConnectionLostError: the request was abandoned.
            TidelogError: as `call`.
        """
        expect = partial(self._expect, [partition], connection, wait_s=wait_s)
        return await self._call_unless_moved(connection, envelope, expect, wait_s=wait_s)

    async def call_any(self, make: Callable[[], pb.Envelope], *, repeatable: bool) -> Frame:
        """Send a request to any node, with retries until the request timeout.

        Args:
            make: creates the envelope for each attempt.
            repeatable: False for a request that must not run twice; it is retried only after a failure without effect.
        """

        async def ask(connection: Connection) -> Frame:
            return await self.call(connection, make())

        about = make().WhichOneof("kind")
        return await self.retrying(lambda: self.at_any(ask, repeatable=repeatable), repeatable=repeatable, about=about)

    async def at_any(
        self, ask: Callable[[Connection], Awaitable[T]], *, repeatable: bool = True, first: Address | None = None
    ) -> T:
        """Ask one node, and another one when it fails; if the request is `repeatable`, also when it is slow.

        The node at `first` is preferred unless it seems to have failed. One failure is not final: a node that is
        partitioned from the cluster fails requests that others can serve.

        Raises:
            TidelogError: a node's error that is not retriable; no node could answer; or the outcome of a request that
                is not `repeatable` is unknown.
        """
        if not repeatable:
            return await self._at_one_after_the_other(ask, first)

        async def attempt(address: Address) -> T:
            return await ask(await self.pool.get(address))

        candidates = self._candidates(first=first)
        return await race([partial(attempt, address) for address in candidates], stagger_s=REQUEST_HEDGE_S)

    async def _at_one_after_the_other(self, ask: Callable[[Connection], Awaitable[T]], first: Address | None) -> T:
        failures: list[TidelogError] = []
        left = self._candidates(first=first)
        while left:
            try:
                connection = await race([partial(self.pool.get, each) for each in left], stagger_s=HEDGE_S)
            except NodeUnreachableError as error:
                failures.append(error)
                break
            try:
                return await ask(connection)
            except TidelogError as error:
                if not error.retriable or not error.definite:
                    raise
                failures.append(error)
            left = [each for each in left if each != connection.address]
        raise summary(failures)

    async def retrying(
        self,
        attempt: Callable[[], Awaitable[T]],
        *,
        repeatable: bool,
        topic: str | None = None,
        about: str | None = None,
    ) -> T:
        """Run `attempt` until it succeeds, fails permanently, or one of the client's time limits is over.

        Args:
            repeatable: see `call_any`.
            topic: changed metadata of this topic ends the wait for the next attempt; None: only time ends it.
            about: name of the operation in the log; None: the topic.

        Raises:
            TidelogError: the last failure.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self.request_timeout_s
        is_logged = False
        backoff = Backoff()
        while True:
            try:
                return await attempt()
            except TidelogError as error:
                if not error.retriable or not (repeatable or error.definite):
                    raise
                wait_s = backoff.next_wait_s(error.retry_after_ms)
                if loop.time() + wait_s >= deadline:
                    raise
                if isinstance(error, QuorumLostError) and loop.time() - began >= self.quorum_timeout_s:
                    raise
                if self.pool.should_give_up(error, loop.time() + wait_s - began):
                    raise
                if not is_logged and loop.time() - began >= LOG_AFTER_S:
                    is_logged = True
                    left_s = math.ceil(deadline - loop.time())
                    what, why = about or topic, describe_error(error)
                    _log.warning("%s: a request failed, retrying for at most %d s more: %s", what, left_s, why)
                if topic is None:
                    await asyncio.sleep(wait_s)
                else:
                    await self.news(topic, wait_s)

    async def retry_for_topic(
        self,
        topic: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        repeatable: bool,
        partition: int | None = None,
    ) -> T:
        """Retry `attempt` like `retrying`, for one topic; update the cache from errors, refresh a stale topic id once.

        Args:
            repeatable: see `call_any`.
            partition: the partition that errors are about, if it is a single one.

        Raises:
            TidelogError: the last failure.
        """
        cached = self.metadata.topic(topic) is not None

        async def learning() -> T:
            try:
                return await attempt()
            except TidelogError as error:
                self.learn_from(topic, error, partition)
                raise

        try:
            return await self.retrying(learning, repeatable=repeatable, topic=topic)
        except UnknownTopicError:
            if not cached:
                raise
            return await self.retrying(learning, repeatable=repeatable, topic=topic)

    # -------------------------------------------------------------------------------------------- routing

    def connection_now(self, topic: str, partition: int) -> Connection | None:
        """Return the open connection to a partition's owner; None if the owner or connection is missing."""
        address = self.metadata.owner_address(topic, partition)
        return None if address is None else self.pool.now(address)

    async def connection(self, topic: str, partition: int) -> Connection:
        """Return the connection to a partition's owner; one attempt.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition does not exist.
            NotOwnerError: the owner is currently unknown.
            TidelogError: as `ConnectionPool.get`.
        """
        await self.topic_with(topic, [partition])
        address = self.metadata.owner_address(topic, partition)
        if address is None:
            self.refresh_later(topic)
            raise NotOwnerError(f"the owner of {topic!r}/{partition} is currently unknown; try again")
        connected = self.pool.now(address)
        if connected is not None:
            return connected
        try:
            expect = partial(self._expect, [TopicPartition(topic, partition)], address)
            return await unless_moved(self.owner_changes, expect, self.pool.get(address))
        except NodeUnreachableError:
            self.refresh_later(topic)
            raise

    async def reading_connection(self, topic: str, partition: int) -> ReadReplica:
        """Return the owner of a partition, or another replica if the owner has failed for `FALLBACK_AFTER_S`.

        This is a single attempt.

        Raises:
            TidelogError: as `connection`.
        """
        await self.topic(topic)
        try:
            return await self.fallback_replicas.find(topic, partition, lambda: self.connection(topic, partition))
        except NodeUnreachableError:
            self.refresh_later(topic)
            raise

    async def near_reader(self, topic: str, partition: int) -> ReadReplica | None:
        """Return a replica in the client's zone to read instead of the owner.

        None if the owner is in that zone or unknown, the zone has no replica, or the replica cannot be connected.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        await self.topic(topic)
        address = self.nearest_replica.address(topic, partition)
        connection = None if address is None else await self.nearest_replica.connection(address)
        return None if connection is None else ReadReplica(connection, is_owner=False, is_near=True)

    def instead_of(self, replica: ReadReplica, where: TopicPartition) -> Address | None:
        """Return the address of the owner that a replica replaces; None if it is the owner, or the owner is unknown.

        A nearest replica serves partitions of several owners, so it is looked up for each partition.
        """
        return self.metadata.owner_address(*where) if replica.is_near else replica.instead_of

    async def any_connection(self) -> Connection:
        """Return a connection to any node: an open one with a responsive node, otherwise the first that can be opened.

        Raises:
            NodeUnreachableError: no node can be reached; with the failure of each attempt.
        """
        return await race([partial(self.pool.get, each) for each in self._candidates()], stagger_s=HEDGE_S)

    async def topic(self, name: str) -> TopicRoute:
        """Return a topic's route, requesting it if it is not cached.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        return self.metadata.topic(name) or await self.topic_now(name)

    async def topic_now(self, name: str) -> TopicRoute:
        """Return a topic's current route, confirmed by the metadata owner if it can be reached.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        await self.refresh(name, fresh=True)
        route = self.metadata.topic(name)
        if route is None:
            raise UnknownTopicError(
                f"topic {name!r} does not exist; check the name, or create it with create_topic() or `tidelog topic "
                f"create {name}`"
            )
        return route

    async def confirmed_topic(self, name: str) -> TopicRoute:
        """Return the current route of a topic; a cached one is confirmed within `CONFIRM_S`, ahead of other requests.

        Raises:
            UnknownTopicError: the topic does not exist.
        """
        if self.metadata.topic(name) is not None:
            await self._requests.confirm(name)
        return await self.topic(name)

    async def topic_with(self, name: str, partitions: Iterable[int]) -> TopicRoute:
        """Return the route of a topic with these partitions, refreshing it if some are not cached.

        Raises:
            UnknownTopicError, UnknownPartitionError: the topic or partition certainly does not exist.
        """
        numbers = list(partitions)
        route = await self.topic(name)
        if not all(partition in route.partitions for partition in numbers):
            await self.refresh(name, must_confirm=True)
            route = await self.topic(name)
        missing = [partition for partition in numbers if partition not in route.partitions]
        if missing:
            which = missing if len(missing) > 1 else missing[0]
            raise UnknownPartitionError(f"topic {name!r} has partitions 0 to {route.partition_count - 1}, got {which}")
        return route

    # ------------------------------------------------------------------------------------ metadata updates

    def learn_from(self, topic: str, error: TidelogError, partition: int | None = None) -> None:
        """Update the cached route of a topic or partition from an error."""
        if isinstance(error, UnknownTopicError):
            # The id no longer exists; the name may belong to a new topic.
            if error.topic_id:
                self.metadata.note_deleted(topic, error.topic_id)
            else:
                self.metadata.forget(topic)
        elif error.retriable and not isinstance(error, (OverloadedError, SequenceError)):
            if isinstance(error, NotOwnerError) and partition is not None:
                before = self.metadata.revision
                self.metadata.note_epoch(topic, partition, error.epoch)
                if self.metadata.revision != before:
                    self._changed(topic)
            self.refresh_later(topic)

    def stored_in(self, topic: str, partition: int, epoch: int) -> None:
        """Refresh the metadata if records were stored in a newer epoch than the cached one, whose owner may differ."""
        route = self.metadata.route(topic, partition)
        if route is not None and epoch > route.epoch:
            self.refresh_later(topic)

    def take_metadata(self, reply: pb.MetadataReply, heard_from: Address) -> tuple[bool, Mapping[str, TidelogError]]:
        """Merge an answer and notify watchers; return whether it changed the cache, and the errors of topics."""
        before = self.metadata.revision
        errors = self.metadata.merge(reply, heard_from)
        news = self.metadata.revision != before
        if news:
            for topic in reply.topics:
                self._changed(topic.name)
        return news, errors

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever the metadata of a topic changes, until the returned function is called."""
        self._watchers.setdefault(topic, set()).add(callback)

        def unwatch() -> None:
            of_topic = self._watchers.get(topic, set())
            of_topic.discard(callback)
            if not of_topic:
                self._watchers.pop(topic, None)

        return unwatch

    async def news(self, topic: str, wait_s: float) -> None:
        """Wait until the metadata of a topic changes, for at most `wait_s` seconds; a node is long-polled for it."""
        heard = asyncio.Event()
        unwatch = self.watch(topic, heard.set)

        def ask_again(answer: asyncio.Future[None]) -> None:
            if not answer.cancelled() and not isinstance(answer.exception(), ClosedError) and not heard.is_set():
                self._refresher.request(topic, awaits_change=True).add_done_callback(ask_again)

        self._refresher.request(topic, awaits_change=True).add_done_callback(ask_again)
        try:
            async with asyncio.timeout(wait_s):
                await heard.wait()
        except TimeoutError:
            pass
        finally:
            heard.set()
            unwatch()

    def probe(self, topic: str, partition: int, connection: Connection) -> None:
        """Send a request to a quiet owner, so that its silence is detected."""
        if not connection.ready:
            return
        envelope = pb.Envelope(metadata=pb.Metadata(topics=[topic]))
        try:
            self.caller_tickets.attach(envelope, connection)
        except TidelogError:
            return  # Not sent: the principal's credentials are no longer valid.
        answer = connection.request(envelope, timeout_s=self.request_timeout_s)
        expectation = self.owner_changes.expect(topic, partition, connection, lambda _: None)

        def answered(done: asyncio.Future[Frame]) -> None:
            self.owner_changes.forget(expectation)
            if not done.cancelled() and done.exception() is None:
                self.take_metadata(done.result().envelope.metadata_reply, connection.address)

        answer.add_done_callback(answered)

    def refresh_later(self, topic: str) -> None:
        """Request metadata of a topic in the background."""
        self._refresher.request(topic, awaits_change=True)

    async def refresh(self, topic: str, *, fresh: bool = False, must_confirm: bool = False) -> None:
        """Request metadata of a topic; see `MetadataRefresher.request`.

        Raises:
            UnknownTopicError: the topic does not exist.
            EpochChangingError: with `must_confirm`, the metadata cannot be confirmed.
        """
        await asyncio.shield(self._refresher.request(topic, fresh=fresh, must_confirm=must_confirm))

    async def close(self) -> None:
        """Cancel refreshes; close the connections unless they are those of another router (`for_caller`)."""
        self.owner_changes.close()
        await self._refresher.close()
        if self.caller_tickets.caller is None:
            await self.pool.close()

    # ------------------------------------------------------------------------------------------- internals

    async def _hedged(self, attempt: Callable[[Connection], Awaitable[T]], rounds: int) -> T:
        """Hedge `attempt` over the candidate nodes, started `HEDGE_S` apart; return the first success.

        Args:
            attempt: sends the request with a connection.
            rounds: see `_candidates`.
        """

        async def at(address: Address) -> T:
            return await attempt(await self.pool.get(address))

        return await race([partial(at, address) for address in self._candidates(rounds)], stagger_s=HEDGE_S)

    def _candidates(self, rounds: int = 0, first: Address | None = None) -> list[Address]:
        """Return all known addresses by preference: `first`, open connections, others, and those that seem to fail.

        After `rounds` unsuccessful rounds, the addresses are rotated by that number, and open connections are no longer
        preferred.
        """
        standing = {connection.address: connection for connection in self.pool.open_connections()}

        def rank(address: Address) -> int:
            connection = standing.get(address)
            if connection is not None and not (connection.ready and connection.silent_s < SILENCE_S):
                return 3
            if connection is None and self.pool.doubtful(address):
                return 2
            if address == first:
                return -1
            return 1 if connection is None and not rounds else 0

        known = list(dict.fromkeys([*self._bootstrap, *self.metadata.addresses()]))
        turn = rounds % len(known)
        return sorted([*known[turn:], *known[:turn]], key=rank)

    def _changed(self, topic: str) -> None:
        self.owner_changes.changed(topic)
        for callback in list(self._watchers.get(topic, ())):
            callback()

    async def _call_unless_moved(
        self, connection: Connection, envelope: pb.Envelope, expect: Expect, *, wait_s: float
    ) -> Frame:
        """Send a request; abandon it if the node does not answer and one of the partitions has moved away from it.

        Raises:
            ConnectionLostError: the request was abandoned.
        """
        if not connection.ready:
            return await unless_moved(self.owner_changes, expect, self.call(connection, envelope, wait_s=wait_s))
        kind = str(envelope.WhichOneof("kind"))
        carry_current(envelope)
        self.caller_tickets.attach(envelope, connection)
        answer = connection.request(envelope, timeout_s=self.request_timeout_s + wait_s, wait_s=wait_s)
        expected = expect(partial(settle, answer))
        try:
            frame = await connection.outcome(kind, answer, wait_s=wait_s)
        except TidelogError as error:
            self.caller_tickets.note_error(envelope, error)
            raise
        finally:
            for expectation in expected:
                self.owner_changes.forget(expectation)
        return check_answer(kind, frame, connection)

    def _expect(
        self,
        partitions: Sequence[TopicPartition],
        at: Connection | Address,
        abandon: Callable[[ConnectionLostError], None],
        *,
        wait_s: float = 0.0,
        reads: bool = False,
        instead_of: Callable[[TopicPartition], Address | None] = lambda _: None,
    ) -> list[Expectation]:
        """Register a pending answer for each of the partitions; see `OwnerChanges.expect`."""
        return [
            self.owner_changes.expect(
                *each,
                at,
                abandon,
                wait_s=wait_s,
                instead_of=instead_of(each),
                reads=reads and self.fallback_replicas.has_others(*each),
            )
            for each in partitions
        ]


def repeated(request: pb.Envelope) -> pb.Envelope:
    """Return a copy of a request: each attempt needs an envelope of its own."""
    envelope = pb.Envelope()
    envelope.CopyFrom(request)
    return envelope
