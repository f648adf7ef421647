"""Changing topics: making and deleting are not to be done twice, and tried again when nobody knows what became of it.

The node that was asked may die, or the owner of the topics behind it, with the change half done. Then the next try says
which: a topic that is gone was deleted, one that is there as it was asked for was made. What only looks so because
somebody else did the same at the same time makes no difference to a topic that was to be made; one that was to be
deleted is told by its id from a new one of its name, by the owner as well: an earlier try may be done late. What is
there is asked of the owner of the topics, through whichever node: one that lags must not decide it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.errors import EpochChangingError, TidelogError, TopicExistsError, UnknownTopicError
from tidelog_proto import broker_pb2 as pb

T = TypeVar("T")


async def create(router: Router, request: pb.TopicCreate) -> pb.TopicReply:
    """Make a topic and return the answer that describes it, or begins to.

    Raises:
        TopicExistsError: there is one, and it was not made by this very request.
        TidelogError: as `Router.call_any`; `definite` says whether it is certain that nothing was made.
    """

    async def attempt(unsure: bool) -> pb.TopicReply:
        try:
            return (await _ask(router, topic_create=request)).topic_reply
        except TopicExistsError:
            found = await _described(router, request.name) if unsure else None
            if found is None or not _matches_request(found.topics[0].config, request.config):
                raise
            return found

    return await _retry_until_known(router, attempt, f"creating topic {request.name!r}")


async def alter(router: Router, request: pb.TopicAlter) -> pb.TopicReply:
    """Change settings of a topic and return the answer that describes it, or begins to. It may be done twice.

    Raises:
        TidelogError: as `Router.call_any`.
    """
    frame = await router.call_any(lambda: pb.Envelope(topic_alter=request), repeatable=True)
    router.metadata.forget(request.name)  # it may have new partitions
    return frame.envelope.topic_reply


async def delete(router: Router, name: str) -> None:
    """Delete a topic.

    Raises:
        UnknownTopicError: there is no such topic.
        TidelogError: as `Router.call_any`; `definite` says whether it is certain that nothing was deleted.
    """
    found = await _described(router, name)  # gone, in whatever way this ends without an error
    if found is None:
        raise UnknownTopicError(f"there is no topic {name!r}")
    topic_id = found.topics[0].topic_id

    async def attempt(unsure: bool) -> None:
        if unsure:
            standing = await _described(router, name)
            if standing is None or standing.topics[0].topic_id != topic_id:
                return
        try:
            await _ask(router, topic_delete=pb.TopicDelete(name=name, topic_id=topic_id))
        except UnknownTopicError:
            if not unsure:
                raise

    await _retry_until_known(router, attempt, f"deleting topic {name!r}")
    router.metadata.gone(name, topic_id)


async def describe(router: Router, name: str) -> pb.TopicReply:
    """Return the answer that describes a topic as it is now, or begins to; as some node knows it if nobody confirms it.

    Raises:
        UnknownTopicError: there is no such topic.
        TidelogError: as `Router.call_any`.
    """

    def asking(*, confirmed: bool) -> Awaitable[pb.TopicReply]:
        envelope = pb.Envelope(topic_describe=pb.TopicDescribe(name=name, confirmed=confirmed))

        async def ask(connection: Connection) -> pb.TopicReply:
            return (await router.call(connection, envelope)).envelope.topic_reply

        return router.at_any(ask)

    async def attempt() -> pb.TopicReply:
        try:
            found = await asking(confirmed=True)
        except TidelogError as error:
            if not error.retriable:
                raise
            found = await asking(confirmed=False)
        if router.metadata.is_stale(found.topics[0]):
            raise EpochChangingError(f"nobody who can be asked knows which topic is called {name!r} now")
        return found

    return await router.retrying(attempt, repeatable=True, about=f"topic {name!r}")


async def _retry_until_known(router: Router, attempt: Callable[[bool], Awaitable[T]], about: str) -> T:
    """Try until the request timeout is over; a try is told whether one before it has an unknown outcome."""
    unknown: TidelogError | None = None

    async def next_attempt() -> T:
        nonlocal unknown
        try:
            return await attempt(unknown is not None)
        except TidelogError as error:
            unknown = unknown or (None if error.definite else error)
            raise

    try:
        return await router.retrying(next_attempt, repeatable=True, about=about)
    except TidelogError as error:
        if unknown is not None and error.definite and error.retriable:
            raise unknown from error  # the last try was turned away; an earlier one may have done it
        raise


async def _ask(router: Router, **kind: Any) -> pb.Envelope:
    async def ask(connection: Any) -> pb.Envelope:
        return (await router.call(connection, pb.Envelope(**kind))).envelope

    return await router.at_any(ask, repeatable=False)


async def _described(router: Router, name: str) -> pb.TopicReply | None:
    """Return what there is of a name now, or begins to; None when there is certainly nothing."""
    asked = pb.Envelope(topic_describe=pb.TopicDescribe(name=name, confirmed=True))
    try:
        frame = await router.call_any(lambda: asked, repeatable=True)
    except UnknownTopicError:
        return None
    return frame.envelope.topic_reply


def _matches_request(config: pb.TopicConfig, asked: pb.TopicConfig) -> bool:
    """Whether a configuration has everything that was asked for; what was left to the node may be anything."""
    return all(getattr(config, field.name) == value for field, value in asked.ListFields())
