"""One producer per topic for all requests of one caller, so that concurrent requests share native batches.

Callers never share a producer, because nodes check the permissions of a batch for one caller. Without authentication
there is one caller.

A producer is created at the first publish to a topic, and dropped as the least recently used when all callers together
have too many. A dropped producer that is in use is retired: its last request closes it.

Requests are accepted one after the other, each as a whole, in the order in which they began. The records of a client
are therefore stored in its order, also while the topic's owner is unknown or the buffer is full. A request takes its
place in the queue before its first await, and keeps it when its topic was recreated and it continues with a new
producer (`QueuePlace.again`): the new producer accepts no later request until all requests that began with the old
producer are accepted.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from tidelog.client import Client
from tidelog.errors import TidelogError
from tidelog.produce.bulk_append import BulkAppender
from tidelog.produce.producer import Producer

_LOG: Final = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Accepted(Protocol[T_co]):
    """Records that a producer has accepted."""

    async def settled(self) -> T_co:
        """Wait until each record is stored or has failed; return the outcomes."""
        ...


@dataclass(slots=True, eq=False)
class _Entry:
    """A producer and its requests, identified by their places in the queue of all requests.

    Attributes:
        earlier: retired producers of the topic that were still in use when this one was created.
        later: producers created while this one was in use.
        users: requests that use it.
        coming: a heap of the requests that it has not accepted yet.
        awaited: the requests in `coming` that wait for their turn.
    """

    topic: str
    producer: Producer
    earlier: tuple[_Entry, ...] = ()
    later: list[_Entry] = field(default_factory=list)
    users: set[int] = field(default_factory=set)
    coming: list[int] = field(default_factory=list)
    awaited: dict[int, asyncio.Future[None]] = field(default_factory=dict)
    retired: bool = False

    def join(self, place: int) -> None:
        self.users.add(place)
        heapq.heappush(self.coming, place)

    async def turn(self, place: int) -> None:
        """Wait until all requests before `place` have been accepted, here or by an earlier producer, or have left."""
        while not self._is_next(place):
            self.awaited[place] = future = asyncio.get_running_loop().create_future()
            try:
                await future
            finally:
                del self.awaited[place]

    def went(self, place: int) -> None:
        """Remove a request that was accepted or has left."""
        if self.coming[0] == place:
            heapq.heappop(self.coming)
        else:
            self.coming.remove(place)
            heapq.heapify(self.coming)
        self.stir()

    def stir(self) -> None:
        """Wake the first request, if it is its turn."""
        future = self.awaited.get(self.coming[0]) if self.coming else None
        if future is not None and not future.done() and self._is_next(self.coming[0]):
            future.set_result(None)

    def _is_next(self, place: int) -> bool:
        if self.coming[0] != place:
            return False
        self.earlier = tuple(entry for entry in self.earlier if entry.users)
        return all(min(entry.users) >= place for entry in self.earlier)


class QueuePlace:
    """The place of one request in the queue of its topic."""

    def __init__(self, producers: Producers, topic: str, place: int) -> None:
        self._producers = producers
        self._topic = topic
        self._place = place
        self._entries = [producers.join(topic, place)]
        self._is_coming = True

    @property
    def producer(self) -> Producer:
        """The topic's producer, while this request uses it."""
        return self._entries[-1].producer

    @asynccontextmanager
    async def accepting(self) -> AsyncIterator[Producer]:
        """Wait until all earlier requests are accepted; later ones wait until the block ends."""
        await self._entries[-1].turn(self._place)
        try:
            yield self.producer
        finally:
            self._went()
            await self._leave_all_but(1)

    async def again(self) -> None:
        """Continue with a new producer at the same place, because the topic of the current producer was deleted."""
        await self._producers.forget(self._topic, self.producer)
        self._went()
        self._entries.append(self._producers.join(self._topic, self._place))
        self._is_coming = True

    async def leave(self) -> None:
        """Leave the queue."""
        self._went()
        await self._leave_all_but(0)

    def _went(self) -> None:
        if self._is_coming:
            self._is_coming = False
            self._entries[-1].went(self._place)

    async def _leave_all_but(self, count: int) -> None:
        while len(self._entries) > count:
            await self._producers.leave(self._entries.pop(0), self._place)


class ProducerLimit:
    """The producers of all callers, least recently used first; at most `limit` of them are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: OrderedDict[tuple[Producers, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def used(self, producers: Producers, topic: str) -> None:
        """Mark a producer as the most recently used one."""
        self._order[producers, topic] = None
        self._order.move_to_end((producers, topic))

    def dropped(self, producers: Producers, topic: str) -> None:
        """Remove a producer."""
        self._order.pop((producers, topic), None)

    async def trim(self) -> None:
        """Drop the least recently used producers above the limit."""
        while len(self._order) > self._limit:
            (producers, topic), _ = self._order.popitem(last=False)
            await producers.forget(topic)


class Producers:
    """Creates, shares and closes the producers of one caller: one for each topic.

    Args:
        producer_limit: limit of producers, of all callers together.
        delivery_timeout_s: time after which a record that is not stored yet fails.
    """

    def __init__(self, client: Client, *, producer_limit: ProducerLimit, delivery_timeout_s: float) -> None:
        self._client = client
        self._producer_limit = producer_limit
        self._delivery_timeout_s = delivery_timeout_s
        self._entries: dict[str, _Entry] = {}
        self._retired: dict[str, list[_Entry]] = {}
        """Retired producers of each topic that are still in use."""
        self._places = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, topic: str) -> AsyncIterator[QueuePlace]:
        """Give a request a place in the topic's queue during the block."""
        place = QueuePlace(self, topic, next(self._places))
        try:
            yield place
        finally:
            await place.leave()
            await self._producer_limit.trim()

    async def store_at_once(self, topic: str, put: Callable[[BulkAppender], Accepted[T] | None]) -> T | None:
        """Accept records at once by `put` if no request waits in the topic's queue; return their outcomes when known.

        Return None, without accepting them, if they cannot be accepted at once.

        Raises:
            TidelogError: the producer has failed or is closed.
        """
        entry = self._entries.get(topic)
        if entry is None or entry.coming or (entry.earlier and any(earlier.users for earlier in entry.earlier)):
            return None
        pending = put(entry.producer.bulk_appender)
        if pending is None:
            return None
        self._producer_limit.used(self, topic)
        place = next(self._places)
        entry.users.add(place)
        try:
            return await pending.settled()
        finally:
            entry.users.discard(place)
            if entry.later or entry.retired:
                await self.leave(entry, place)

    def join(self, topic: str, place: int) -> _Entry:
        """Add a request to the topic's producer, which is created if needed."""
        entry = self._entries.get(topic)
        if entry is None:
            producer = self._client.producer(topic, delivery_timeout_s=self._delivery_timeout_s)
            entry = self._entries[topic] = _Entry(topic, producer, tuple(self._retired.get(topic, ())))
            for earlier in entry.earlier:
                earlier.later.append(entry)
        self._producer_limit.used(self, topic)
        entry.join(place)
        return entry

    async def leave(self, entry: _Entry, place: int) -> None:
        """Remove a request from a producer; the last one closes a retired producer."""
        entry.users.discard(place)
        for later in entry.later:
            later.stir()
        if entry.retired and not entry.users:
            retired = self._retired.get(entry.topic, [])
            if entry in retired:
                retired.remove(entry)
                if not retired:
                    del self._retired[entry.topic]
                await _close(entry.topic, entry.producer)

    async def forget(self, topic: str, producer: Producer | None = None) -> None:
        """Retire the producer of a topic, because the topic was deleted or the producer was used least recently.

        Args:
            producer: retire it only if it is still the topic's producer; None: retire any producer of the topic.
        """
        entry = self._entries.get(topic)
        if entry is not None and producer in {None, entry.producer}:
            del self._entries[topic]
            self._producer_limit.dropped(self, topic)
            await self._retire(entry)

    async def close(self, *, within_s: float) -> None:
        """Close all producers; accepted records are sent first, within the time limit."""
        entries = list(self._entries.values())
        self._entries.clear()
        for entry in entries:
            self._producer_limit.dropped(self, entry.topic)
        try:
            async with asyncio.timeout(within_s):
                for entry in entries:
                    entry.retired = True
                    await _close(entry.topic, entry.producer)
        except TimeoutError:
            _LOG.warning(
                "closed the producers before all accepted records were delivered; the outcome of these records is "
                "unknown (the time limit was %g s)",
                within_s,
            )

    async def _retire(self, entry: _Entry) -> None:
        entry.retired = True
        if entry.users:
            self._retired.setdefault(entry.topic, []).append(entry)
        else:
            await _close(entry.topic, entry.producer)


async def _close(topic: str, producer: Producer) -> None:
    """Close a producer. Records that it could not deliver belong to abandoned requests, so the error is only logged."""
    try:
        await producer.close()
    except TidelogError as error:
        _LOG.warning("cannot close the producer of topic %r: %s", topic, error)
