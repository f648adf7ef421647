"""Which connection a request goes to: the owner of a partition, or any node that answers.

Looks things up in `Metadata`, asks a node when something is missing or turned out to be stale (`metadata_refresh.py`),
and retries what may be retried until the request's time is up. What any node answers goes to one that speaks, and to
another as well when that one takes long (`hedged_requests.py`); what only an owner answers is given up when the
partition has moved and the old owner is silent (`owner_changes.py`).
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
from tidelog.cluster.callers import Caller, Naming
from tidelog.cluster.connection import Address, Connection
from tidelog.cluster.connection_pool import ConnectionPool
from tidelog.cluster.fallback_replicas import Reached, StandIns
from tidelog.cluster.hedged_requests import race, summary
from tidelog.cluster.known_ends import Ends
from tidelog.cluster.metadata import Metadata
from tidelog.cluster.metadata_questions import MetadataQuestions
from tidelog.cluster.metadata_refresh import Refresher
from tidelog.cluster.nearest_replica import Nearby
from tidelog.cluster.owner_changes import SILENCE_S, TELL_AFTER_S, Expect, Expectation, Moves, unless_moved
from tidelog.cluster.read_epochs import ReadEpochs
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
    told,
)
from tidelog.model import TopicPartition, TopicRoute
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame
from tidelog_proto.wire.pending_requests import settle

T = TypeVar("T")

HEDGE_S: Final = 0.3
"""How long a node may take to connect or to tell what it knows before another one is asked as well."""


_log: Final = logging.getLogger("tidelog.client")

REQUEST_HEDGE_S: Final = 1.0
"""The same for requests that may have to be stored by a quorum."""


class Router:
    """Finds connections; owns the metadata cache and, unless it asks for a caller, the pool."""

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
        self.ends = Ends()
        self.epochs = ReadEpochs()
        self.pool = pool
        self.request_timeout_s = request_timeout_s
        self.quorum_timeout_s = request_timeout_s if quorum_timeout_s is None else quorum_timeout_s
        self.moves = Moves(self.metadata, self.refresh_later)
        self.stand_ins = StandIns(self.metadata, pool, self.probe)
        self.nearby = Nearby(self.metadata, pool, zone)
        self._zone = zone
        self.unreported: set[object] = set()
        """Producers with unreported failures: kept until the client is closed, which raises one."""
        self.naming = Naming(caller)
        self._bootstrap = bootstrap
        self._questions = MetadataQuestions(
            self.metadata, call=self.call, take=self.take_metadata, first_of=self._at_first
        )
        self._refresher = Refresher(self._questions.ask)
        self._watchers: dict[str, set[Callable[[], None]]] = {}

    def for_caller(self, caller: Caller) -> Router:
        """Return a router with a cache of its own that asks on behalf of a caller, over the connections of this one."""
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
            connection: where to.
            envelope: the request.
            wait_s: how long the node is asked to hold the answer back; the request timeout comes on top.
        """
        kind = envelope.WhichOneof("kind")
        assert kind is not None, "a request has a kind"
        carry_current(envelope)
        self.naming.name(envelope, connection)
        try:
            frame = await connection.call(envelope, timeout_s=self.request_timeout_s + wait_s, wait_s=wait_s)
        except TidelogError as error:
            self.naming.learn_from(envelope, error)
            raise
        return check_answer(kind, frame, connection)

    async def call_reader(
        self, partitions: Sequence[TopicPartition], reached: Reached, envelope: pb.Envelope, *, wait_s: float = 0
    ) -> Frame:
        """As `call`, to who serves readers; given up when it is silent and there is another owner, or replica.

        Raises:
            ConnectionLostError: it was given up.
            TidelogError: as `call`.
        """
        connection, instead_of = reached.connection, partial(self.instead_of, reached)
        expect = partial(self._expect, partitions, connection, wait_s=wait_s, reads=True, instead_of=instead_of)
        return await self._call_unless_moved(connection, envelope, expect, wait_s=wait_s)

    async def call_owner(
        self, partition: TopicPartition, connection: Connection, envelope: pb.Envelope, *, wait_s: float = 0
    ) -> Frame:
        """As `call`, to who owns a partition; given up when it is silent and there is another owner.

        Raises:
            ConnectionLostError: it was given up.
            TidelogError: as `call`.
        """
        expect = partial(self._expect, [partition], connection, wait_s=wait_s)
        return await self._call_unless_moved(connection, envelope, expect, wait_s=wait_s)

    async def call_any(self, make: Callable[[], pb.Envelope], *, repeatable: bool) -> Frame:
        """Send a request to any node, again and again until it is answered or the request timeout is over.

        Args:
            make: makes the envelope, anew for each try.
            repeatable: False for what must not be done twice; it is then only tried again when it is certain
                that nothing happened.
        """

        async def ask(connection: Connection) -> Frame:
            return await self.call(connection, make())

        about = make().WhichOneof("kind")
        return await self.retrying(lambda: self.at_any(ask, repeatable=repeatable), repeatable=repeatable, about=about)

    async def at_any(self, ask: Callable[[Connection], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Ask some node, and another one when it fails; if the question may be `repeatable`, also when it takes long.

        A node that is cut off the others says that it cannot, while they could: so its word alone does not count.

        Raises:
            TidelogError: nobody could answer; or, of what is not `repeatable`, it is unknown whether it was done.
        """
        if not repeatable:
            return await self._at_one_after_the_other(ask)

        async def attempt(address: Address) -> T:
            return await ask(await self.pool.get(address))

        return await race([partial(attempt, address) for address in self._candidates()], stagger_s=REQUEST_HEDGE_S)

    async def _at_one_after_the_other(self, ask: Callable[[Connection], Awaitable[T]]) -> T:
        failures: list[TidelogError] = []
        left = self._candidates()
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
        """Run `attempt` until it succeeds, fails for good, or the request timeout is over.

        Args:
            attempt: one try.
            repeatable: see `call_any`.
            topic: news about it end the wait for the next try.
            about: what the log calls that which is tried; None: the topic.

        Raises:
            TidelogError: the last failure.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self.request_timeout_s
        is_told = False
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
                if self.pool.gives_up(error, loop.time() + wait_s - began):
                    raise
                if not is_told and loop.time() - began >= TELL_AFTER_S:
                    is_told = True
                    left_s = math.ceil(deadline - loop.time())
                    _log.warning("%s: still trying, for another %d s at most: %s", about or topic, left_s, told(error))
                if topic is None:
                    await asyncio.sleep(wait_s)
                else:
                    await self.news(topic, wait_s)

    async def about_topic(
        self,
        topic: str,
        attempt: Callable[[], Awaitable[T]],
        *,
        repeatable: bool,
        partition: int | None = None,
    ) -> T:
        """As `retrying`, for a question about one topic: errors teach the cache, a stale topic id is looked up anew.

        Args:
            topic: its name.
            attempt: one try.
            repeatable: see `call_any`.
            partition: which one errors are about, if it is one.

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
        """Return the connection to a partition's owner if everything about it is known and it stands."""
        address = self.metadata.owner_address(topic, partition)
        return None if address is None else self.pool.now(address)

    async def connection(self, topic: str, partition: int) -> Connection:
        """Return the connection to a partition's owner; one try.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing.
            NotOwnerError: nobody knows the owner right now.
            TidelogError: as `ConnectionPool.get`.
        """
        await self.topic_with(topic, [partition])
        address = self.metadata.owner_address(topic, partition)
        if address is None:
            self.refresh_later(topic)
            raise NotOwnerError(f"nobody knows the owner of {topic!r}/{partition} right now")
        standing = self.pool.now(address)
        if standing is not None:
            return standing
        try:
            expect = partial(self._expect, [TopicPartition(topic, partition)], address)
            return await unless_moved(self.moves, expect, self.pool.get(address))
        except NodeUnreachableError:
            self.refresh_later(topic)
            raise

    async def reading_connection(self, topic: str, partition: int) -> Reached:
        """Return the connection to a partition's owner, or to another replica when that fails for a while; one try.

        Raises:
            TidelogError: as `connection`.
        """
        await self.topic(topic)
        try:
            return await self.stand_ins.find(topic, partition, lambda: self.connection(topic, partition))
        except NodeUnreachableError:
            self.refresh_later(topic)
            raise

    async def near_reader(self, topic: str, partition: int) -> Reached | None:
        """Return the connection to a replica in the client's zone, where the owner is elsewhere; None for none.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        await self.topic(topic)
        address = self.nearby.address(topic, partition)
        connection = None if address is None else await self.nearby.connection(address)
        return None if connection is None else Reached(connection, is_owner=False, is_near=True)

    def instead_of(self, reached: Reached, where: TopicPartition) -> Address | None:
        """Return where the owner of a partition is that somebody else serves in its place; None for the owner itself.

        One in whose place a nearer replica serves may change: each partition has its own.
        """
        return self.metadata.owner_address(*where) if reached.is_near else reached.instead_of

    async def any_connection(self) -> Connection:
        """Return a connection to some node: one that stands and speaks, else the first that can be reached.

        Raises:
            NodeUnreachableError: nobody can be reached; says what each attempt met.
        """
        return await race([partial(self.pool.get, each) for each in self._candidates()], stagger_s=HEDGE_S)

    async def topic(self, name: str) -> TopicRoute:
        """Return a topic's route, asking a node if it is not known.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        return self.metadata.topic(name) or await self.topic_now(name)

    async def topic_now(self, name: str) -> TopicRoute:
        """Return a topic's route as the cluster has it by now, or, if nobody can confirm it, as some node knows it.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        await self.refresh(name, fresh=True)
        route = self.metadata.topic(name)
        if route is None:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return route

    async def confirmed_topic(self, name: str) -> TopicRoute:
        """As `topic_now`, where a route is cached without waiting for other questions, and at most `CONFIRM_S`.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        if self.metadata.topic(name) is not None:
            await self._questions.confirm(name)
        return await self.topic(name)

    async def topic_with(self, name: str, partitions: Iterable[int]) -> TopicRoute:
        """Return the route of a topic that has these partitions; it may have grown since it was looked at.

        Raises:
            UnknownTopicError, UnknownPartitionError: there is no such thing, and that is certain.
        """
        wanted = list(partitions)
        route = await self.topic(name)
        if not all(partition in route.partitions for partition in wanted):
            await self.refresh(name, sure=True)
            route = await self.topic(name)
        missing = [partition for partition in wanted if partition not in route.partitions]
        if missing:
            which = missing if len(missing) > 1 else missing[0]
            raise UnknownPartitionError(f"topic {name!r} has partitions 0 to {route.partition_count - 1}, not {which}")
        return route

    # -------------------------------------------------------------------------------------------- learning

    def learn_from(self, topic: str, error: TidelogError, partition: int | None = None) -> None:
        """Note what an error says about the cached route of a topic, or of one of its partitions."""
        if isinstance(error, UnknownTopicError):
            # The id is no longer known; the name may stand for a new topic.
            if error.topic_id:
                self.metadata.gone(topic, error.topic_id)
            else:
                self.metadata.forget(topic)
        elif error.retriable and not isinstance(error, (OverloadedError, SequenceError)):
            if isinstance(error, NotOwnerError) and partition is not None:
                before = self.metadata.revision
                self.metadata.heard_of_epoch(topic, partition, error.epoch)
                if self.metadata.revision != before:
                    self._changed(topic)
            self.refresh_later(topic)

    def stored_in(self, topic: str, partition: int, epoch: int) -> None:
        """Note the epoch in which records were stored: a newer one than is known may be another owner's."""
        route = self.metadata.route(topic, partition)
        if route is not None and epoch > route.epoch:
            self.refresh_later(topic)

    def take_metadata(self, reply: pb.MetadataReply, heard_from: Address) -> tuple[bool, Mapping[str, TidelogError]]:
        """Take an answer in and tell whom it concerns; return whether it was news, and the errors of topics."""
        before = self.metadata.revision
        errors = self.metadata.merge(reply, heard_from)
        news = self.metadata.revision != before
        if news:
            for topic in reply.topics:
                self._changed(topic.name)
        return news, errors

    def watch(self, topic: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever there is news about a topic, until the returned function is called."""
        self._watchers.setdefault(topic, set()).add(callback)

        def unwatch() -> None:
            of_topic = self._watchers.get(topic, set())
            of_topic.discard(callback)
            if not of_topic:
                self._watchers.pop(topic, None)

        return unwatch

    async def news(self, topic: str, wait_s: float) -> None:
        """Wait `wait_s` seconds, or until there is news about a topic; it is asked for all the time."""
        heard = asyncio.Event()
        unwatch = self.watch(topic, heard.set)

        def ask_again(answer: asyncio.Future[None]) -> None:
            if not answer.cancelled() and not isinstance(answer.exception(), ClosedError) and not heard.is_set():
                self._refresher.want(topic, patient=True).add_done_callback(ask_again)

        self._refresher.want(topic, patient=True).add_done_callback(ask_again)
        try:
            async with asyncio.timeout(wait_s):
                await heard.wait()
        except TimeoutError:
            pass
        finally:
            heard.set()
            unwatch()

    def probe(self, topic: str, partition: int, connection: Connection) -> None:
        """Ask an owner that has been quiet for something, so that its silence is noticed."""
        if not connection.ready:
            return
        envelope = pb.Envelope(metadata=pb.Metadata(topics=[topic]))
        try:
            self.naming.name(envelope, connection)
        except TidelogError:
            return  # nobody waits for what he may ask
        answer = connection.request(envelope, timeout_s=self.request_timeout_s)
        expectation = self.moves.expect(topic, partition, connection, lambda _: None)

        def answered(done: asyncio.Future[Frame]) -> None:
            self.moves.forget(expectation)
            if not done.cancelled() and done.exception() is None:
                self.take_metadata(done.result().envelope.metadata_reply, connection.address)

        answer.add_done_callback(answered)

    def refresh_later(self, topic: str) -> None:
        """Ask for news about a topic in the background."""
        self._refresher.want(topic, patient=True)

    async def refresh(self, topic: str, *, fresh: bool = False, sure: bool = False) -> None:
        """Ask a node about a topic; see `Refresher.want`.

        Raises:
            UnknownTopicError: there is no such topic.
            EpochChangingError: with `sure`, nobody can confirm what is known of it.
        """
        await asyncio.shield(self._refresher.want(topic, fresh=fresh, sure=sure))

    async def close(self) -> None:
        """Give up refreshes and close the connections."""
        self.moves.close()
        await self._refresher.close()
        if self.naming.caller is None:
            await self.pool.close()

    # ------------------------------------------------------------------------------------------- internals

    async def _at_first(self, attempt: Callable[[Connection], Awaitable[T]], rounds: int) -> T:
        """Return the first success of an attempt at one node after the other; `rounds`: see `_candidates`."""

        async def at(address: Address) -> T:
            return await attempt(await self.pool.get(address))

        return await race([partial(at, address) for address in self._candidates(rounds)], stagger_s=HEDGE_S)

    def _candidates(self, rounds: int = 0) -> list[Address]:
        """Return all known addresses in the order in which they are worth being asked.

        Args:
            rounds: how often asking was in vain; then others come first, connected or not.
        """
        standing = {connection.address: connection for connection in self.pool.open_connections()}

        def rank(address: Address) -> int:
            connection = standing.get(address)
            if connection is not None:
                return 0 if connection.ready and connection.silent_s < SILENCE_S else 3
            if self.pool.doubtful(address):
                return 2
            return 0 if rounds else 1

        known = list(dict.fromkeys([*self._bootstrap, *self.metadata.addresses()]))
        turn = rounds % len(known)
        return sorted([*known[turn:], *known[:turn]], key=rank)

    def _changed(self, topic: str) -> None:
        self.moves.changed(topic)
        for callback in list(self._watchers.get(topic, ())):
            callback()

    async def _call_unless_moved(
        self, connection: Connection, envelope: pb.Envelope, expect: Expect, *, wait_s: float
    ) -> Frame:
        """As `call`, given up when one of the partitions has moved away from a node that is silent.

        Raises:
            ConnectionLostError: it was given up.
        """
        if not connection.ready:
            return await unless_moved(self.moves, expect, self.call(connection, envelope, wait_s=wait_s))
        kind = str(envelope.WhichOneof("kind"))
        carry_current(envelope)
        self.naming.name(envelope, connection)
        answer = connection.request(envelope, timeout_s=self.request_timeout_s + wait_s, wait_s=wait_s)
        expected = expect(partial(settle, answer))
        try:
            frame = await connection.outcome(kind, answer, wait_s=wait_s)
        except TidelogError as error:
            self.naming.learn_from(envelope, error)
            raise
        finally:
            for expectation in expected:
                self.moves.forget(expectation)
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
        """Note that an answer about each of the partitions is waited for; see `Moves.expect`."""
        return [
            self.moves.expect(
                *each,
                at,
                abandon,
                wait_s=wait_s,
                instead_of=instead_of(each),
                reads=reads and self.stand_ins.exist(*each),
            )
            for each in partitions
        ]


def repeated(asked: pb.Envelope) -> pb.Envelope:
    """Return a request once more: each try has an envelope of its own."""
    envelope = pb.Envelope()
    envelope.CopyFrom(asked)
    return envelope
