"""Held METADATA requests that are answered when a partition's owner changes, so that clients learn of it at once.

With polling, a client whose owner has failed would ask less and less often, and on a busy machine the interval would
grow as long as the takeover itself. So a client sends the epochs that it knows, and how long the answer may be held.
Held requests are registered by topic, and a change wakes only those of its topic.

Woken requests are processed in rounds of a few requests, and each round is followed by a pause as long as the round.
Without the pauses, a node that takes over a thousand partitions while five hundred clients wait would send each client
one answer per partition, and do nothing else for a minute; a request that waits for a round collects several changes.
All requests for a topic share one view of the topic, in which only changed partitions are looked up again; each answer
contains only partitions that are new to its client. The view of a large topic is kept until its age is over, because a
client with an answer sends its next request at once, and making the view takes a microsecond or more a partition.

Rejected: pushing every change to every connection (the node would have to store each client's interest, and a thousand
changes are a thousand messages to clients that use one partition); a version number of this node's view (any change
would wake all clients, and the number means nothing at another node); a fixed interval between answers (too long for
one partition, too short for thousands of clients).
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
from tidelog_proto.limits import ENTRIES_PER_REQUEST_MAX, KIB, KNOWN_PARTITIONS_MAX, MIB

WAIT_MS_MAX: Final = 10_000
"""Longest time for which a request is held."""

HELD_TOPICS_MAX: Final = 256
"""Limit of a held request's topics. A request with more is answered at once, since each check would take too long."""
HELD_BYTES_MAX: Final = 64 * MIB
"""Memory limit of all held requests. Beyond it, requests are answered at once."""

LOOKS_PER_TURN: Final = 16
"""Number of woken requests that are checked in one round."""
LOOKED_PER_TURN: Final = 65_536
"""About how many known partitions are compared in one round, by at least one request: about 3 ms."""
LOOKED_UP_AT_ONCE: Final = 4_096
"""Maximum number of a topic's partitions that are looked up before other tasks of the event loop run: about 4 ms."""
PAUSE_S_MAX: Final = 0.05
"""Longest pause between two rounds, in case a round was slow because the whole machine was busy."""
VIEW_S: Final = 0.5
"""Maximum age of a shared view, for changes that are not reported to `RouteWatch.changed`."""
VIEWED_PARTITIONS: Final = 10_000
"""The view of a larger topic may be older, in proportion: up to about fifty times the time of making it."""

_HELD_BYTES: Final = 4 * KIB
_TOPIC_BYTES: Final = 512
_EPOCH_BYTES: Final = 8

RouteOf = Callable[[tuple[bytes, int]], Route | None]


class TopicView(NamedTuple):
    """A node's view of the metadata of one topic.

    Attributes:
        record: the topic's record when the view was taken.
        routes: the newest epoch of each partition, None if unknown.
        owned: for each partition, the number of its epoch in `routes`; -1 if it is unknown or has no owner.
    """

    record: pb.TopicRecord
    routes: list[Route | None]
    owned: list[int]

    def extend(self, stop: int, route_of: RouteOf) -> None:
        """Look up the following partitions of the topic, up to, but not including, `stop`."""
        topic_id = self.record.topic_id
        more = [route_of((topic_id, index)) for index in range(len(self.routes), stop)]
        self.routes.extend(more)
        self.owned.extend([-1 if route is None or not route.owner else route.epoch for route in more])

    def look_up(self, index: int, route_of: RouteOf) -> None:
        """Update one partition in the view."""
        route = route_of((self.record.topic_id, index))
        self.routes[index] = route
        self.owned[index] = route.epoch if route is not None and route.owner else -1


@dataclass(slots=True, eq=False)
class HeldRequest:
    """A METADATA request that waits until the metadata of one of its topics changes, or its time is over.

    Attributes:
        partitions: number of partitions that the request lists as known.
        woken: set when the request has to be checked, after a change or when its time is over.
        is_over: whether its time is over.
    """

    partitions: int = 0
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False


@dataclass(slots=True)
class _WatchedTopic:
    """A topic with held requests."""

    waiting: dict[HeldRequest, None] = field(default_factory=dict)
    view: TopicView | None = None
    stale: set[int] = field(default_factory=set)
    """Partitions that have changed since the view was made."""
    fresh_until: float = 0.0
    changes: int = 0
    """Number of changes of the topic itself."""
    making: asyncio.Future[None] | None = None
    """The view that is being made in slices, for all requests that wait for it."""
    expiry: asyncio.TimerHandle | None = None
    """Removes the topic when its view is too old and no request waits."""

    def show(self, view: TopicView) -> None:
        """Set the view, which was made just now."""
        self.view = view
        age_s = VIEW_S * max(1.0, len(view.routes) / VIEWED_PARTITIONS)
        self.fresh_until = asyncio.get_running_loop().time() + age_s

    def is_fresh(self, record: pb.TopicRecord) -> bool:
        """Return whether the view is of this record and young enough."""
        is_same = self.view is not None and self.view.record is record
        return is_same and asyncio.get_running_loop().time() < self.fresh_until


class RouteWatch:
    """Holds requests by topic, and wakes those of a topic for a check when its routes change, a few at a time."""

    def __init__(self) -> None:
        self._topics: dict[bytes, _WatchedTopic] = {}
        self._due_requests: dict[HeldRequest, None] = {}
        """Requests that are to be checked next, in order."""
        self._looking = False
        self._began_at = 0.0
        self._held_bytes = 0

    def changed(self, topic_id: bytes, partition: int | None = None) -> None:
        """Report a new epoch of a partition, or with None a change of the topic itself."""
        listened = self._topics.get(topic_id)
        if listened is not None:
            if partition is None:
                listened.view = None
                listened.changes += 1
            else:
                listened.stale.add(partition)
            self._wake_next(listened.waiting)

    def wake(self) -> None:
        """Wake all requests: the node is about to stop."""
        for listened in self._topics.values():
            for held in listened.waiting:
                held.woken.set()

    def may_hold(self, known: Sequence[pb.KnownEpochs]) -> bool:
        """Return whether another request may be held."""
        return 0 < len(known) <= HELD_TOPICS_MAX and self._held_bytes + _size_bytes(known) <= HELD_BYTES_MAX

    @contextlib.contextmanager
    def listening(self, known: Sequence[pb.KnownEpochs], *, wait_s: float) -> Iterator[HeldRequest]:
        """Hold a request while the context is open; it is also woken at the start, for a first check."""
        held = HeldRequest(sum(len(each.news_from) for each in known))
        topics, size_bytes = {each.topic_id for each in known}, _size_bytes(known)
        self._held_bytes += size_bytes
        for topic_id in topics:
            self._topics.setdefault(topic_id, _WatchedTopic()).waiting[held] = None
        timer = asyncio.get_running_loop().call_later(wait_s, self._over, held)
        self._wake_next({held: None})
        try:
            yield held
        finally:
            timer.cancel()
            self._held_bytes -= size_bytes
            self._due_requests.pop(held, None)
            for topic_id in topics:
                listened = self._topics[topic_id]
                del listened.waiting[held]
                self._forget_unless_used(topic_id, listened)

    def view(self, record: pb.TopicRecord, route_of: RouteOf) -> TopicView:
        """Return the metadata of a topic; it is shared, so the caller must not change it.

        Args:
            record: its newest record at this node.
            route_of: returns the newest epoch of a partition.
        """
        listened = self._topics.get(record.topic_id)
        if listened is None:
            return view_of(record, route_of)
        stale, listened.stale = listened.stale, set()
        view = listened.view
        if view is None or not listened.is_fresh(record):
            view = view_of(record, route_of)
            listened.show(view)
        else:
            for index in stale.intersection(range(len(view.routes))):
                view.look_up(index, route_of)
        return view

    async def prepare(self, record: pb.TopicRecord, route_of: RouteOf) -> None:
        """Make the view of a large topic in slices, if `view` would have to make it; for the arguments see there.

        Changes that are reported meanwhile are applied by `view`.
        """
        listened = self._topics.get(record.topic_id)
        if listened is None or record.config.partitions <= LOOKED_UP_AT_ONCE or listened.is_fresh(record):
            return
        if listened.making is not None:
            await asyncio.shield(listened.making)
            return
        making = listened.making = asyncio.get_running_loop().create_future()
        changes = listened.changes
        try:
            view = TopicView(record, [], [])
            for first in range(0, record.config.partitions, LOOKED_UP_AT_ONCE):
                view.extend(min(first + LOOKED_UP_AT_ONCE, record.config.partitions), route_of)
                await asyncio.sleep(0)
            if listened.changes == changes:
                listened.show(view)
        finally:
            listened.making = None
            making.set_result(None)

    def _forget_unless_used(self, topic_id: bytes, listened: _WatchedTopic) -> None:
        """Forget a topic without waiting requests, that of a large view when its age is over."""
        if listened.waiting or listened.expiry is not None:
            return
        loop = asyncio.get_running_loop()
        is_large = listened.view is not None and len(listened.view.routes) > LOOKED_UP_AT_ONCE
        if is_large and loop.time() < listened.fresh_until:
            listened.expiry = loop.call_at(listened.fresh_until, self._expired, topic_id, listened)
        else:
            del self._topics[topic_id]

    def _expired(self, topic_id: bytes, listened: _WatchedTopic) -> None:
        listened.expiry = None
        self._forget_unless_used(topic_id, listened)

    def _over(self, held: HeldRequest) -> None:
        """Schedule the answer to a request whose time is over; many requests may have begun at the same time."""
        held.is_over = True
        self._wake_next({held: None})

    def _wake_next(self, waiting: dict[HeldRequest, None]) -> None:
        self._due_requests.update(waiting)
        if self._due_requests and not self._looking:
            self._looking = True
            self._look()

    def _look(self) -> None:
        """Wake the next few requests, which are checked in the loop's next iteration."""
        if not self._due_requests:
            self._looking = False
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self._began, loop)
        room = LOOKED_PER_TURN
        for held in list(islice(self._due_requests, LOOKS_PER_TURN)):
            del self._due_requests[held]
            held.woken.set()
            room -= held.partitions
            if room <= 0:
                break
        loop.call_soon(self._schedule_next, loop)

    def _began(self, loop: asyncio.AbstractEventLoop) -> None:
        self._began_at = loop.time()

    def _schedule_next(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_later(min(loop.time() - self._began_at, PAUSE_S_MAX), self._look)


def view_of(record: pb.TopicRecord, route_of: RouteOf) -> TopicView:
    """Return the current metadata of a topic."""
    view = TopicView(record, [], [])
    view.extend(record.config.partitions, route_of)
    return view


def described(record: pb.TopicRecord, routes: Iterable[tuple[int, Route | None]], schema_number: int) -> pb.TopicInfo:
    """Return the METADATA of a topic and some of its partitions; partitions without a known route are omitted."""
    info = pb.TopicInfo(name=record.name, topic_id=record.topic_id, config=record.config, serial=record.serial)
    info.schema_number = schema_number
    for index, route in routes:
        if route is not None:
            info.partitions.add(partition=index, owner=route.owner, epoch=route.epoch, placement=route.placement)
    return info


def has_newer_metadata(known: pb.KnownEpochs, view: TopicView | None) -> bool:
    """Return whether this node's metadata of a topic is newer than a client's.

    Args:
        known: for each partition that the client knows, the lowest epoch that would be new to it.
        view: this node's view of the topic; None if the topic does not exist.
    """
    if view is None or len(view.owned) > len(known.news_from):
        return True
    return any(map(operator.ge, view.owned, known.news_from))


def changed_partitions(known: pb.KnownEpochs, view: TopicView) -> list[int]:
    """Return the partitions of a topic whose epoch at this node is newer than the one that the client knows."""
    are_news = map(operator.ge, view.owned, known.news_from)
    return [*compress(count(), are_news), *range(len(known.news_from), len(view.owned))]


def check_known(known: Sequence[pb.KnownEpochs]) -> None:
    """Check the number of topics and partitions that a request lists as known.

    Raises:
        ProtocolError: INVALID_REQUEST if a limit is exceeded.
    """
    if len(known) > ENTRIES_PER_REQUEST_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a request may list at most {ENTRIES_PER_REQUEST_MAX} known topics, got {len(known)}"
        )
    partitions = sum(len(each.news_from) for each in known)
    if partitions > KNOWN_PARTITIONS_MAX:
        raise ProtocolError(
            pb.INVALID_REQUEST, f"a request may list at most {KNOWN_PARTITIONS_MAX} known partitions, got {partitions}"
        )


def _size_bytes(known: Sequence[pb.KnownEpochs]) -> int:
    return _HELD_BYTES + _TOPIC_BYTES * len(known) + _EPOCH_BYTES * sum(len(each.news_from) for each in known)
