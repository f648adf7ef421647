"""Creation, change and deletion of topics, with retries when the outcome of an attempt is unknown.

Creating and deleting are not idempotent, and the node, or the metadata owner to which the node forwards the request,
may fail before it answers. The next attempt determines the outcome from the current state: a missing topic was deleted,
and an existing topic with the requested configuration was created. If another client created the same topic
concurrently, the result is the same. A deletion names the topic id, because an earlier attempt may be executed late and
must not delete a recreated topic. The current state is read from the metadata owner, through any node, because the
metadata of a lagging node may be outdated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.errors import EpochChangingError, TidelogError, TopicExistsError, UnknownTopicError
from tidelog.requests.needed_permission import requiring
from tidelog_proto import broker_pb2 as pb

T = TypeVar("T")


async def create(router: Router, request: pb.TopicCreate, *, exist_ok: bool = False) -> pb.TopicReply:
    """Create a topic and return its description, or the first page of the description.

    Args:
        exist_ok: return the description of a topic that exists.

    Raises:
        TopicExistsError: the topic exists, no earlier attempt created it, and `exist_ok` is False.
        TidelogError: as `Router.call_any`; `definite` says whether it is certain that nothing was created.
    """

    async def attempt(unsure: bool) -> pb.TopicReply:
        try:
            return (await _ask(router, topic_create=request)).topic_reply
        except TopicExistsError:
            existing = await _described(router, request.name) if unsure or exist_ok else None
            if existing is None or not (exist_ok or _matches_request(existing.topics[0].config, request.config)):
                raise
            return existing

    return await _retry_until_known(router, attempt, f"creating topic {request.name!r}")


async def alter(router: Router, request: pb.TopicAlter) -> pb.TopicReply:
    """Change settings of a topic and return its description, or the first page of the description. Idempotent.

    Raises:
        TidelogError: as `Router.call_any`.
    """
    frame = await router.call_any(lambda: pb.Envelope(topic_alter=request), repeatable=True)
    router.metadata.forget(request.name)  # the cached route may lack new partitions
    return frame.envelope.topic_reply


async def delete(router: Router, name: str) -> None:
    """Delete a topic.

    Raises:
        UnknownTopicError: the topic does not exist.
        TidelogError: as `Router.call_any`; `definite` says whether it is certain that nothing was deleted.
    """
    async with requiring(router, pb.OP_DELETE, name):
        existing = await _described(router, name)
    if existing is None:
        raise UnknownTopicError(f"topic {name!r} does not exist; check the name with `tidelog topic list`")
    topic_id = existing.topics[0].topic_id

    async def attempt(unsure: bool) -> None:
        if unsure:
            current = await _described(router, name)
            if current is None or current.topics[0].topic_id != topic_id:
                return
        try:
            await _ask(router, topic_delete=pb.TopicDelete(name=name, topic_id=topic_id))
        except UnknownTopicError:
            if not unsure:
                raise

    await _retry_until_known(router, attempt, f"deleting topic {name!r}")
    router.metadata.note_deleted(name, topic_id)


async def describe(router: Router, name: str) -> pb.TopicReply:
    """Return the description of a topic, or its first page.

    If the metadata owner does not confirm the description, any node's own metadata is returned.

    Raises:
        UnknownTopicError: the topic does not exist.
        EpochChangingError: the returned metadata is older than what this client knows already.
        TidelogError: as `Router.call_any`.
    """

    def asking(*, confirmed: bool) -> Awaitable[pb.TopicReply]:
        envelope = pb.Envelope(topic_describe=pb.TopicDescribe(name=name, confirmed=confirmed))

        async def ask(connection: Connection) -> pb.TopicReply:
            return (await router.call(connection, envelope)).envelope.topic_reply

        return router.at_any(ask)

    async def attempt() -> pb.TopicReply:
        try:
            existing = await asking(confirmed=True)
        except TidelogError as error:
            if not error.retriable:
                raise
            existing = await asking(confirmed=False)
        if router.metadata.is_stale(existing.topics[0]):
            raise EpochChangingError(f"no reachable node has current metadata of topic {name!r}; try again")
        return existing

    return await router.retrying(attempt, repeatable=True, about=f"topic {name!r}")


async def _retry_until_known(router: Router, attempt: Callable[[bool], Awaitable[T]], about: str) -> T:
    """Run `attempt` until it succeeds, fails permanently, or the request timeout is over.

    Args:
        attempt: called with True if the outcome of an earlier attempt is unknown.
        about: the operation, for messages.

    Raises:
        TidelogError: the last failure; or, if the last attempt was refused with a retriable error, the failure of the
            first attempt whose outcome is unknown.
    """
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
            raise unknown from error  # The last attempt was refused, but an earlier one may have succeeded.
        raise


async def _ask(router: Router, **kind: Any) -> pb.Envelope:
    async def ask(connection: Any) -> pb.Envelope:
        return (await router.call(connection, pb.Envelope(**kind))).envelope

    return await router.at_any(ask, repeatable=False)


async def _described(router: Router, name: str) -> pb.TopicReply | None:
    """Return the current description of a topic, or its first page; None if the topic certainly does not exist."""
    request = pb.Envelope(topic_describe=pb.TopicDescribe(name=name, confirmed=True))
    try:
        frame = await router.call_any(lambda: request, repeatable=True)
    except UnknownTopicError:
        return None
    return frame.envelope.topic_reply


def _matches_request(config: pb.TopicConfig, requested: pb.TopicConfig) -> bool:
    """Return whether a configuration has every requested setting; others may have any value."""
    return all(getattr(config, field.name) == value for field, value in requested.ListFields())
