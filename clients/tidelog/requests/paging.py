"""Paged answers, requested page by page and merged, and requests with many entries.

A topic may be spread over several pages. A later page with the same topic id extends the topic; with another id the
topic was created again in between, and the earlier part is dropped. If a node repeats a page, BadReplyError is raised.

Requests for more partitions than the limit of one request are split: `in_requests`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

from tidelog.cluster.routing import Router
from tidelog.errors import BadReplyError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX

SLICE_ENTRIES: Final = 512
"""Number of entries that are converted, in a few milliseconds, before other work of the event loop runs."""


class _TopicPage(Protocol):
    """A page for `pages`: an answer to TOPIC list, TOPIC describe, CLUSTER_STATUS or METADATA."""

    @property
    def next(self) -> pb.TopicCursor:
        """The cursor of the next page."""
        ...

    def HasField(self, field_name: str, /) -> bool:  # noqa: N802 - protobuf's name
        """Return whether there is a next page."""
        ...


PageT = TypeVar("PageT", bound=_TopicPage)
EntryT = TypeVar("EntryT")


def in_requests(entries: list[EntryT], most: int | None = None) -> Iterator[list[EntryT]]:
    """Split the entries of a large request; yield the entries of each resulting request, in order.

    Args:
        most: maximum number of entries of a request; None: the limit of the protocol.
    """
    most = most or ENTRIES_PER_REQUEST_MAX
    for start in range(0, len(entries), most):
        yield entries[start : start + most]


async def in_slices(entries: list[EntryT]) -> AsyncIterator[list[EntryT]]:
    """Yield the entries in slices of `SLICE_ENTRIES`, between which other work of the event loop runs."""
    for start in range(0, len(entries), SLICE_ENTRIES):
        if start:
            await asyncio.sleep(0)
        yield entries[start : start + SLICE_ENTRIES]


def request_count(entries: int, most: int) -> int:
    """Return the number of requests for a number of entries, with at most `most` in each."""
    return -(-entries // most)


class MergedTopics:
    """Merges the topics of pages, in the order in which each topic first appeared."""

    def __init__(self) -> None:
        self._topics: dict[str, pb.TopicInfo] = {}

    def add(self, infos: Iterable[pb.TopicInfo]) -> None:
        """Merge the topics of a page."""
        for info in infos:
            known = self._topics.get(info.name)
            if known is None or known.topic_id != info.topic_id:
                self._topics[info.name] = info
                continue
            known.config.CopyFrom(info.config)
            known.partitions.extend(info.partitions)

    def topics(self) -> list[pb.TopicInfo]:
        """Return all topics."""
        return list(self._topics.values())


async def pages(ask: Callable[[pb.TopicCursor | None], Awaitable[PageT]]) -> AsyncIterator[PageT]:
    """Yield the pages of an answer.

    Args:
        ask: requests the page after a cursor; None for the first page.

    Raises:
        BadReplyError: a page is repeated.
        TidelogError: an error of `ask`.
    """
    cursor: pb.TopicCursor | None = None
    while True:
        page = await ask(cursor)
        yield page
        if not page.HasField("next"):
            return
        if page.next == cursor:
            raise BadReplyError(
                f"a node returned the page after topic {page.next.topic!r} twice, so the list is incomplete; try again"
            )
        cursor = page.next


async def list_topics(router: Router, *, internal: bool) -> list[pb.TopicInfo]:
    """Return all topics."""
    merged = MergedTopics()

    async def ask(cursor: pb.TopicCursor | None) -> pb.TopicReply:
        envelope = pb.Envelope(topic_list=pb.TopicList(internal=internal, cursor=cursor))
        return (await router.call_any(lambda: envelope, repeatable=True)).envelope.topic_reply

    async for page in pages(ask):
        merged.add(page.topics)
    return merged.topics()


async def list_topic_page(router: Router, *, after: str, limit: int) -> tuple[list[pb.TopicInfo], bool]:
    """Return at most `limit` topics with names after `after`, without partitions, and whether there are more."""
    topics: list[pb.TopicInfo] = []
    first = pb.TopicCursor(topic=after) if after else None

    async def ask(cursor: pb.TopicCursor | None) -> pb.TopicReply:
        request = pb.TopicList(cursor=cursor or first, limit=limit - len(topics), brief=True)
        return (await router.call_any(lambda: pb.Envelope(topic_list=request), repeatable=True)).envelope.topic_reply

    async for page in pages(ask):
        topics += page.topics
        if len(topics) >= limit:
            return topics[:limit], len(topics) > limit or page.HasField("next")
    return topics, False


async def cluster_status(router: Router, *, nodes_only: bool = False) -> pb.ClusterStatusReply:
    """Return the state of the cluster, with all topics unless `nodes_only`."""
    merged = MergedTopics()
    status = pb.ClusterStatusReply()

    async def ask(cursor: pb.TopicCursor | None) -> pb.ClusterStatusReply:
        request = pb.ClusterStatus(cursor=cursor, nodes_only=nodes_only)
        frame = await router.call_any(lambda: pb.Envelope(cluster_status=request), repeatable=True)
        return frame.envelope.cluster_status_reply

    async for page in pages(ask):
        status.cluster_id = page.cluster_id
        status.nodes.extend(page.nodes)
        merged.add(page.topics)
    if not nodes_only:
        status.topics.extend(merged.topics())
    return status
