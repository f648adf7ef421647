"""Answers to METADATA that wait for news, so that a client whose owner is gone hears of the next one at once.

A client whose owner is gone would have to ask again and again, less often the longer it takes: on two busy cores the
distance between two questions was as long as the takeover itself. So it says what it knows, and for how long the answer
may be held back. Who waits is noted with the topics that it waits for; a decision lets only those look.

They look a few at a time, and after each few the node does something else for as long as that took. A node that takes
over a thousand partitions of which five hundred clients want to know would otherwise tell each of them of each
partition, and do nothing but that for a minute; so who waits for its turn hears of more at once. All who look at a
topic share one view of it, in which only partitions that have changed are looked up anew; and each is told of those
alone that are news to it.

Rejected: telling every connection of every change (the node would have to remember for each client what it cares about,
and a thousand partitions that change hands are a thousand messages to clients that use one), a number that counts
the changes of this node's view (anything anywhere would wake everybody, and it means nothing at the next node), and
telling of changes at a fixed distance: too far for a single partition, too near for thousands of clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from typing import Final, NamedTuple

from tidelog_broker.cluster.routes import Route
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX, KIB, MIB, PARTITIONS_MAX

WAIT_MS_MAX: Final = 10_000
"""No answer is held back for longer, whatever is asked for."""

KNOWN_PARTITIONS_MAX: Final = 4 * PARTITIONS_MAX
"""Of all topics of a question together; an answer about as many would fit no envelope."""

HELD_TOPICS_MAX: Final = 256
"""Of one question. One with more is answered at once: each look at it would take too long."""
HELD_BYTES_MAX: Final = 64 * MIB
"""What questions that are held may take, all together. Past this they are answered at once."""

LOOKS_PER_TURN: Final = 16
PAUSE_S_MAX: Final = 0.05
"""Between two turns, when the first was long because the whole machine was busy."""
VIEW_S: Final = 0.5
"""For how long a view is shared. What changes a route says so; this is for what does not."""

_HELD_BYTES: Final = 4 * KIB
_TOPIC_BYTES: Final = 512
_EPOCH_BYTES: Final = 8

RouteOf = Callable[[tuple[bytes, int]], Route | None]


class TopicView(NamedTuple):
    """What a node has to tell of a topic.

    Attributes:
        record: its record then.
        routes: for each partition the newest epoch, None where that is unknown.
        owned: the number of that epoch, -1 where it is unknown or has no owner.
    """

    record: pb.TopicRecord
    routes: list[Route | None]
    owned: list[int]

    def look_up(self, index: int, route_of: RouteOf) -> None:
        """Look a partition up anew."""
        route = route_of((self.record.topic_id, index))
        self.routes[index] = route
        self.owned[index] = route.epoch if route is not None and route.owner else -1


@dataclass(slots=True, eq=False)
class Held:
    """A question whose answer is held back.

    Attributes:
        woken: it is time to look: there may be news, or the time is over.
        is_over: the time is over.
    """

    woken: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False


@dataclass(slots=True)
class _Listened:
    """A topic that somebody waits for."""

    waiting: dict[Held, None] = field(default_factory=dict)
    view: TopicView | None = None
    stale: set[int] = field(default_factory=set)
    """Partitions that have changed since the view was made."""
    fresh_until: float = 0.0


class RouteNews:
    """Who looks when for news about which topics."""

    def __init__(self) -> None:
        self._topics: dict[bytes, _Listened] = {}
        self._due: dict[Held, None] = {}
        """Who has its turn next, in order."""
        self._looking = False
        self._began_at = 0.0
        self._held_bytes = 0

    def changed(self, topic_id: bytes, partition: int | None = None) -> None:
        """A partition of the topic has another epoch; None: the topic itself has changed."""
        listened = self._topics.get(topic_id)
        if listened is not None:
            if partition is None:
                listened.view = None
            else:
                listened.stale.add(partition)
            self._let_look(listened.waiting)

    def wake(self) -> None:
        """Let everybody look now: the node is about to stop."""
        for listened in self._topics.values():
            for held in listened.waiting:
                held.woken.set()

    def may_hold(self, known: Sequence[pb.KnownEpochs]) -> bool:
        """Whether one more question may be held."""
        return 0 < len(known) <= HELD_TOPICS_MAX and self._held_bytes + _size_bytes(known) <= HELD_BYTES_MAX

    @contextlib.contextmanager
    def listening(self, known: Sequence[pb.KnownEpochs], *, wait_s: float) -> Iterator[Held]:
        """Give what is woken when it is time to look, also for the first time, until the context is left."""
        held, topics, size_bytes = Held(), {each.topic_id for each in known}, _size_bytes(known)
        self._held_bytes += size_bytes
        for topic_id in topics:
            self._topics.setdefault(topic_id, _Listened()).waiting[held] = None
        timer = asyncio.get_running_loop().call_later(wait_s, self._over, held)
        self._let_look({held: None})
        try:
            yield held
        finally:
            timer.cancel()
            self._held_bytes -= size_bytes
            self._due.pop(held, None)
            for topic_id in topics:
                waiting = self._topics[topic_id].waiting
                del waiting[held]
                if not waiting:
                    del self._topics[topic_id]

    def view(self, record: pb.TopicRecord, route_of: RouteOf) -> TopicView:
        """Return what there is to tell of a topic; it is shared, so don't change it.

        Args:
            record: its newest record here.
            route_of: finds the newest epoch of a partition.
        """
        listened = self._topics.get(record.topic_id)
        if listened is None:
            return view_of(record, route_of)
        now = asyncio.get_running_loop().time()
        view = listened.view
        stale, listened.stale = listened.stale, set()
        if view is None or view.record is not record or now >= listened.fresh_until:
            view = listened.view = view_of(record, route_of)
            listened.fresh_until = now + VIEW_S
        else:
            for index in stale.intersection(range(len(view.routes))):
                view.look_up(index, route_of)
        return view

    def _over(self, held: Held) -> None:
        """Those who began together end together: they, too, take turns."""
        held.is_over = True
        self._let_look({held: None})

    def _let_look(self, waiting: dict[Held, None]) -> None:
        self._due.update(waiting)
        if self._due and not self._looking:
            self._looking = True
            self._look()

    def _look(self) -> None:
        """Let the next few look: each does all of it in one go, in the loop's next turn."""
        if not self._due:
            self._looking = False
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._began, loop)
        for held in list(islice(self._due, LOOKS_PER_TURN)):
            del self._due[held]
            held.woken.set()
        loop.call_soon(self._looked, loop)

    def _began(self, loop: asyncio.AbstractEventLoop) -> None:
        self._began_at = loop.time()

    def _looked(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(min(loop.time() - self._began_at, PAUSE_S_MAX), self._look)


def view_of(record: pb.TopicRecord, route_of: RouteOf) -> TopicView:
    """Return what there is to tell of a topic now."""
    partitions = record.config.partitions
    view = TopicView(record, [None] * partitions, [-1] * partitions)
    for index in range(partitions):
        view.look_up(index, route_of)
    return view


def described(record: pb.TopicRecord, routes: Iterable[tuple[int, Route | None]]) -> pb.TopicInfo:
    """Return what METADATA says of a topic and some of its partitions; nothing of one whose route is unknown."""
    info = pb.TopicInfo(name=record.name, topic_id=record.topic_id, config=record.config, serial=record.serial)
    for index, route in routes:
        if route is not None:
            info.partitions.add(partition=index, owner=route.owner, epoch=route.epoch, placement=route.placement)
    return info


def is_news(known: pb.KnownEpochs, view: TopicView | None) -> bool:
    """Whether this node knows more of a topic than who asks.

    Args:
        known: what that is.
        view: what this node knows; None if there is no such topic.
    """
    if view is None or len(view.owned) > len(known.news_from):
        return True
    return any(map(operator.ge, view.owned, known.news_from))


def news_of(known: pb.KnownEpochs, view: TopicView) -> list[int]:
    """Return the partitions of a topic of which this node knows more than who asks."""
    are_news = map(operator.ge, view.owned, known.news_from)
    return [*compress(count(), are_news), *range(len(known.news_from), len(view.owned))]


def check_known(known: Sequence[pb.KnownEpochs]) -> None:
    """Check what a question says to be known, before anything is done with it.

    Raises:
        ProtocolError: INVALID_REQUEST for too much.
    """
    if len(known) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"{len(known)} topics known; say at most {ENTRIES_PER_REQUEST_MAX}")
    partitions = sum(len(each.news_from) for each in known)
    if partitions > KNOWN_PARTITIONS_MAX:
        raise ProtocolError(pb.INVALID_REQUEST, f"{partitions} partitions known; say at most {KNOWN_PARTITIONS_MAX}")


def _size_bytes(known: Sequence[pb.KnownEpochs]) -> int:
    return _HELD_BYTES + _TOPIC_BYTES * len(known) + _EPOCH_BYTES * sum(len(each.news_from) for each in known)
