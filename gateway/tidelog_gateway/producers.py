"""One producer per topic for all requests of one caller, so that those at the same time share native batches.

Where the gateway asks nobody who he is there is one caller. What is sent in one batch is judged as one caller's, so two
never share a producer: a lane in common would let one write with the other's right.

Producers are made when a topic is first published to and closed when they have given way to more recently used ones,
of all callers together. One that is in use is never closed under its users: it is retired, and the last user closes it.

Requests are accepted one after the other, each whole, in the order in which they began: so what a client sends in one
order is stored in that order, also while the topic's owner is looked for or the buffer is full. Nothing that may take
time lies between a request's beginning and its place in that line. A request keeps its place when its producer turns
out to belong to a topic that is gone and it goes on with the next one (`Place.again`): until all that began with the
old producer are done with it, nobody who began later is accepted by the new one.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from tidelog.client import Client
from tidelog.errors import TidelogError
from tidelog.produce.open_batch import RecordLists
from tidelog.produce.producer import Producer
from tidelog.produce.receipts import PendingRows

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Entry:
    """A producer and the requests that use it, told apart by their places in the line of all requests.

    Attributes:
        earlier: retired producers of the topic that were still in use when this one was made.
        later: those that were made while this one was.
        users: requests that are not done with it.
        coming: a heap of those that it has not accepted yet.
        awaited: of these, those that wait for their turn.
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
        """Wait until all that stand before `place` are accepted, here or by an earlier producer, or have left."""
        while not self._is_next(place):
            self.awaited[place] = future = asyncio.get_running_loop().create_future()
            try:
                await future
            finally:
                del self.awaited[place]

    def went(self, place: int) -> None:
        """It is accepted, or has left without."""
        if self.coming[0] == place:
            heapq.heappop(self.coming)
        else:
            self.coming.remove(place)
            heapq.heapify(self.coming)
        self.stir()

    def stir(self) -> None:
        """Let the first go on, if it is its turn."""
        future = self.awaited.get(self.coming[0]) if self.coming else None
        if future is not None and not future.done() and self._is_next(self.coming[0]):
            future.set_result(None)

    def _is_next(self, place: int) -> bool:
        if self.coming[0] != place:
            return False
        self.earlier = tuple(entry for entry in self.earlier if entry.users)
        return all(min(entry.users) >= place for entry in self.earlier)


class Place:
    """One request's place in the line of those that publish to its topic."""

    def __init__(self, producers: Producers, topic: str, place: int) -> None:
        self._producers = producers
        self._topic = topic
        self._place = place
        self._entries = [producers.join(topic, place)]
        self._is_coming = True

    @property
    def producer(self) -> Producer:
        """The topic's producer, for as long as this request uses it."""
        return self._entries[-1].producer

    @asynccontextmanager
    async def accepting(self) -> AsyncIterator[Producer]:
        """Hold the line while the producer accepts this request; whoever began before was accepted before."""
        await self._entries[-1].turn(self._place)
        try:
            yield self.producer
        finally:
            self._went()
            await self._leave_all_but(1)

    async def again(self) -> None:
        """Go on with another producer, at the same place: the topic of this one is gone."""
        await self._producers.forget(self._topic, self.producer)
        self._went()
        self._entries.append(self._producers.join(self._topic, self._place))
        self._is_coming = True

    async def leave(self) -> None:
        """Be done."""
        self._went()
        await self._leave_all_but(0)

    def _went(self) -> None:
        if self._is_coming:
            self._is_coming = False
            self._entries[-1].went(self._place)

    async def _leave_all_but(self, kept: int) -> None:
        while len(self._entries) > kept:
            await self._producers.leave(self._entries.pop(0), self._place)


class Kept:
    """Which producers there are of all callers together, the longest unused first; at most `limit` of them stay."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._order: OrderedDict[tuple[Producers, str], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def used(self, producers: Producers, topic: str) -> None:
        """A producer is used now."""
        self._order[producers, topic] = None
        self._order.move_to_end((producers, topic))

    def dropped(self, producers: Producers, topic: str) -> None:
        """A producer is not kept any more."""
        self._order.pop((producers, topic), None)

    async def trim(self) -> None:
        """Let the longest unused go, as many as there are too many."""
        while len(self._order) > self._limit:
            (producers, topic), _ = self._order.popitem(last=False)
            await producers.forget(topic)


class Producers:
    """The producers of one caller.

    Args:
        client: the caller's.
        kept: how many there may be, of all callers.
        delivery_timeout_s: when to give up a record.
    """

    def __init__(self, client: Client, *, kept: Kept, delivery_timeout_s: float) -> None:
        self._client = client
        self._kept = kept
        self._delivery_timeout_s = delivery_timeout_s
        self._entries: dict[str, _Entry] = {}
        self._retired: dict[str, list[_Entry]] = {}
        """Of each topic, those that are still in use."""
        self._places = itertools.count()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, topic: str) -> AsyncIterator[Place]:
        """Give a request its place in the topic's line for the length of the block."""
        place = Place(self, topic, next(self._places))
        try:
            yield place
        finally:
            await place.leave()
            await self._kept.trim()

    async def store_at_once(self, topic: str, rows: RecordLists) -> PendingRows | None:
        """Accept records at once if no request waits in the topic's queue, and wait for their outcomes.

        None: they could not be accepted at once, and were not.

        Raises:
            TidelogError: the producer accepts nothing any more.
        """
        entry = self._entries.get(topic)
        if entry is None or entry.coming or any(earlier.users for earlier in entry.earlier):
            return None
        pending = entry.producer.rows.put(rows)
        if pending is None:
            return None
        self._kept.used(self, topic)
        place = next(self._places)
        entry.users.add(place)
        try:
            await pending.settled()
        finally:
            entry.users.discard(place)
            if entry.later or entry.retired:
                await self.leave(entry, place)
        return pending

    def join(self, topic: str, place: int) -> _Entry:
        """Let a request use the topic's producer; it is there from now on."""
        entry = self._entries.get(topic)
        if entry is None:
            producer = self._client.producer(topic, delivery_timeout_s=self._delivery_timeout_s)
            entry = self._entries[topic] = _Entry(topic, producer, tuple(self._retired.get(topic, ())))
            for earlier in entry.earlier:
                earlier.later.append(entry)
        self._kept.used(self, topic)
        entry.join(place)
        return entry

    async def leave(self, entry: _Entry, place: int) -> None:
        """A request does not use a producer any more."""
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
        """Stop keeping the topic's producer, or only `producer` if it is still that: its topic is gone."""
        entry = self._entries.get(topic)
        if entry is not None and producer in {None, entry.producer}:
            del self._entries[topic]
            self._kept.dropped(self, topic)
            await self._retire(entry)

    async def close(self, *, within_s: float) -> None:
        """Close every producer; what they have accepted is sent first, as far as the time allows."""
        entries = list(self._entries.values())
        self._entries.clear()
        for entry in entries:
            self._kept.dropped(self, entry.topic)
        try:
            async with asyncio.timeout(within_s):
                for entry in entries:
                    entry.retired = True
                    await _close(entry.topic, entry.producer)
        except TimeoutError:
            _LOG.warning("stopped before every record that was taken could be delivered; their outcome is unknown")

    async def _retire(self, entry: _Entry) -> None:
        entry.retired = True
        if entry.users:
            self._retired.setdefault(entry.topic, []).append(entry)
        else:
            await _close(entry.topic, entry.producer)


async def _close(topic: str, producer: Producer) -> None:
    """Close a producer. What could not be delivered belongs to requests that were given up: that is for the log."""
    try:
        await producer.close()
    except TidelogError as error:
        _LOG.warning("closing the producer of %s: %s", topic, error)
