"""Which connection a request goes to: the owner of a partition, or any node that answers.

Looks things up in `Metadata`, asks a node when something is missing or turned out to be stale, and retries what may
be retried until the request's time is up. Refreshes of the same topic that are wanted at once are one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from tidelog.backoff import Backoff
from tidelog.connection import Address, Connection
from tidelog.errors import (
    BadReplyError,
    ConnectionLostError,
    EpochChangingError,
    LimboError,
    NodeUnreachableError,
    NotOwnerError,
    ShuttingDownError,
    TidelogError,
    UnknownPartitionError,
    UnknownTopicError,
)
from tidelog.metadata import Metadata
from tidelog.model import TopicRoute
from tidelog.pool import ConnectionPool, join
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.frames import Frame

T = TypeVar("T")
R = TypeVar("R")

ANSWERS: Final = {
    "metadata": "metadata_reply",
    "publish": "publish_reply",
    "fetch": "fetch_reply",
    "list_offsets": "list_offsets_reply",
    "subscribe": "subscribe_reply",
    "unsubscribe": "unsubscribe_reply",
    "commit": "commit_reply",
    "committed": "committed_reply",
    "topic_create": "topic_reply",
    "topic_describe": "topic_reply",
    "topic_list": "topic_reply",
    "topic_alter": "topic_reply",
    "topic_delete": "topic_reply",
    "cluster_status": "cluster_status_reply",
}
"""The kind that answers each kind of request."""

_MOVED: Final = (
    NotOwnerError,
    EpochChangingError,
    ShuttingDownError,
    LimboError,
    ConnectionLostError,
    NodeUnreachableError,
)
"""Errors after which another node may be the owner."""


def check_answer(kind: str, frame: Frame, connection: Connection) -> Frame:
    """Return `frame` if it is what answers `kind`; otherwise close the connection.

    Raises:
        BadReplyError: it is not.
    """
    answered = frame.envelope.WhichOneof("kind")
    if answered == ANSWERS[kind]:
        return frame
    bad = BadReplyError(f"{connection.address[0]}:{connection.address[1]} answered {kind} with {answered}")
    connection.close(bad)
    raise bad


def results_of(results: Iterable[R], count: int, connection: Connection) -> list[R]:
    """Return an answer's results if there is one for each question; otherwise close the connection.

    Raises:
        BadReplyError: there are more or fewer.
    """
    found = list(results)
    if len(found) != count:
        bad = BadReplyError(
            f"{connection.address[0]}:{connection.address[1]}: {len(found)} results for {count} entries"
        )
        connection.close(bad)
        raise bad
    return found


class Router:
    """Finds connections; owns the metadata cache and the pool."""

    def __init__(self, bootstrap: list[Address], pool: ConnectionPool, *, request_timeout_s: float) -> None:
        self.metadata = Metadata()
        self.pool = pool
        self.request_timeout_s = request_timeout_s
        self._bootstrap = bootstrap
        self._closed = False
        self._refreshes: dict[str, asyncio.Task[None]] = {}

    # ------------------------------------------------------------------------------------------- requests

    async def call(self, connection: Connection, envelope: pb.Envelope, *, timeout_s: float | None = None) -> Frame:
        """Send a request and return its answer, checked to be of the right kind."""
        kind = envelope.WhichOneof("kind")
        assert kind is not None, "a request has a kind"
        frame = await connection.call(envelope, timeout_s=self.request_timeout_s if timeout_s is None else timeout_s)
        return check_answer(kind, frame, connection)

    async def call_any(self, make: Callable[[], pb.Envelope], *, repeatable: bool) -> Frame:
        """Send a request to any node, again and again until it is answered or the request timeout is over.

        Args:
            make: makes the envelope, anew for each try.
            repeatable: False for what must not be done twice; it is then only tried again when it is certain
                that nothing happened.
        """

        async def attempt() -> Frame:
            return await self.call(await self.any_connection(), make())

        return await self.retrying(attempt, repeatable=repeatable)

    async def retrying(self, attempt: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        """Run `attempt` until it succeeds, fails for good, or the request timeout is over.

        Raises:
            TidelogError: the last failure.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.request_timeout_s
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
                await asyncio.sleep(wait_s)

    async def about_topic(self, topic: str, attempt: Callable[[], Awaitable[T]], *, repeatable: bool) -> T:
        """As `retrying`, for a question about one topic: errors teach the cache, a stale topic id is looked up anew.

        Raises:
            TidelogError: the last failure.
        """
        cached = self.metadata.topic(topic) is not None

        async def learning() -> T:
            try:
                return await attempt()
            except TidelogError as error:
                self.learn_from(topic, error)
                raise

        try:
            return await self.retrying(learning, repeatable=repeatable)
        except UnknownTopicError:
            if not cached:
                raise
            return await self.retrying(learning, repeatable=repeatable)

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
        route = await self.topic(topic)
        if partition not in route.partitions:
            await self.refresh(topic)  # it may have grown since
            route = await self.topic(topic)
        if partition not in route.partitions:
            raise UnknownPartitionError(
                f"topic {topic!r} has partitions 0 to {route.partition_count - 1}, not {partition}"
            )
        address = self.metadata.owner_address(topic, partition)
        if address is None:
            self._refresh_later(topic)
            raise NotOwnerError(f"nobody knows the owner of {topic!r}/{partition} right now")
        try:
            return await self.pool.get(address)
        except NodeUnreachableError:
            self._refresh_later(topic)
            raise

    async def any_connection(self) -> Connection:
        """Return a connection to some node: one that stands, else the first that can be reached.

        Raises:
            NodeUnreachableError: nobody can be reached; says what each attempt met.
        """
        standing = self.pool.open_connections()
        if standing:
            return next((connection for connection in standing if connection.ready), standing[0])
        failures: list[str] = []
        for address in dict.fromkeys([*self._bootstrap, *self.metadata.addresses()]):
            try:
                return await self.pool.get(address)
            except (NodeUnreachableError, ConnectionLostError, BadReplyError) as error:
                failures.append(str(error))
        raise NodeUnreachableError("; ".join(failures))

    async def topic(self, name: str) -> TopicRoute:
        """Return a topic's route, asking a node if it is not known.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        route = self.metadata.topic(name)
        if route is None:
            await self.refresh(name)
            route = self.metadata.topic(name)
            if route is None:
                raise UnknownTopicError(f"there is no topic {name!r}")
        return route

    def learn_from(self, topic: str, error: TidelogError) -> None:
        """Note what an error says about the cached route of a topic."""
        if isinstance(error, UnknownTopicError):
            # The id is no longer known; the name may stand for a new topic.
            self.metadata.forget(topic)
        elif isinstance(error, _MOVED):
            self._refresh_later(topic)

    def _refresh_later(self, topic: str) -> None:
        if topic not in self._refreshes and not self._closed:
            self._start_refresh(topic)

    async def refresh(self, topic: str) -> None:
        """Ask a node about a topic.

        Raises:
            UnknownTopicError: there is no such topic.
        """
        await join(self._refreshes.get(topic) or self._start_refresh(topic))

    async def close(self) -> None:
        """Give up refreshes and close the connections."""
        self._closed = True
        refreshes = list(self._refreshes.values())
        for refresh in refreshes:
            refresh.cancel()
        await asyncio.gather(*refreshes, return_exceptions=True)
        await self.pool.close()

    def _start_refresh(self, topic: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._refresh(topic), name=f"refresh {topic}")
        self._refreshes[topic] = task
        task.add_done_callback(lambda done: self._refresh_done(topic, done))
        return task

    def _refresh_done(self, topic: str, task: asyncio.Task[None]) -> None:
        self._refreshes.pop(topic, None)
        if not task.cancelled():
            task.exception()  # a refresh in the background has nobody who waits for it

    async def _refresh(self, topic: str) -> None:
        connection = await self.any_connection()
        frame = await self.call(connection, pb.Envelope(metadata=pb.Metadata(topics=[topic])))
        errors = self.metadata.merge(frame.envelope.metadata_reply, connection.address)
        if topic in errors:
            raise errors[topic]
