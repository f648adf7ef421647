"""Answers to METADATA that wait for news, so that who misses an owner hears of the next one at once.

A client whose owner is gone would have to ask again and again, less often the longer it takes: on two busy cores the
distance between two questions was as long as the takeover itself. So it says what it knows, and for how long the answer
may be held back. Who waits is noted with the topics that it waits for; a decision wakes only those.

Rejected: telling every connection of every change (the node would have to remember for each client what it cares about,
and a thousand partitions that change hands are a thousand messages to clients that use one), and a number that counts
the changes of this node's view (anything anywhere would wake everybody, and it means nothing at the next node).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tidelog_broker.routes import Route
from tidelog_proto import broker_pb2 as pb

WAIT_MS_MAX: Final = 10_000
"""No answer is held back for longer, whatever is asked for."""

RouteOf = Callable[[tuple[bytes, int]], Route | None]


class RouteNews:
    """Who is woken by news about which topics."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, set[asyncio.Event]] = {}

    def changed(self, topic_id: bytes) -> None:
        """A partition of the topic has another epoch, or the topic itself has changed."""
        for woken in self._waiting.get(topic_id, ()):
            woken.set()

    def wake(self) -> None:
        """Let everybody look: the node is about to stop."""
        for topic_id in self._waiting:
            self.changed(topic_id)

    @contextlib.contextmanager
    def listening(self, topic_ids: Iterable[bytes]) -> Iterator[asyncio.Event]:
        """Give an event that is set by news about any of the topics, until the context is left."""
        woken, topics = asyncio.Event(), set(topic_ids)
        for topic_id in topics:
            self._waiting.setdefault(topic_id, set()).add(woken)
        try:
            yield woken
        finally:
            for topic_id in topics:
                of_topic = self._waiting[topic_id]
                of_topic.discard(woken)
                if not of_topic:
                    del self._waiting[topic_id]


def is_news(known: pb.KnownEpochs, topic: pb.TopicRecord | None, route_of: RouteOf) -> bool:
    """Whether this node knows more of a topic than who asks.

    Args:
        known: what that is.
        topic: the topic's newest record here, None for an unknown one.
        route_of: finds the newest epoch of a partition.
    """
    if topic is None or topic.deleted or topic.config.partitions > len(known.news_from):
        return True
    for partition, news_from in enumerate(known.news_from):
        route = route_of((known.topic_id, partition))
        if route is not None and route.owner and route.epoch >= news_from:
            return True
    return False
