"""One producer per topic for the whole application, so that concurrent requests share native batches.

Producers are made when a topic is first published to and closed when they have given way to more recently
used ones. One that is in use is never closed under its users: it is retired, and the last user closes it.

Requests are accepted one after the other, each whole, in the order in which they began: so what a client sends in one
order is stored in that order, also while the topic's owner is looked for or the buffer is full. Nothing that may take
time lies between a request's beginning and its place in that line.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from tidelog.client import Client
from tidelog.errors import TidelogError
from tidelog.producer import Producer

_LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Entry:
    producer: Producer
    users: int = 0
    retired: bool = False
    accepting: asyncio.Lock = field(default_factory=asyncio.Lock)


class Producers:
    """The producers of an application; at most `limit` of them are kept while idle."""

    def __init__(self, client: Client, *, limit: int, delivery_timeout_s: float) -> None:
        self._client = client
        self._limit = limit
        self._delivery_timeout_s = delivery_timeout_s
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @asynccontextmanager
    async def use(self, topic: str) -> AsyncIterator[tuple[Producer, asyncio.Lock]]:
        """Lend the topic's producer for the length of the block, and what is to be held while it accepts a request."""
        entry = self._entries.get(topic)
        if entry is None:
            entry = self._entries[topic] = _Entry(
                self._client.producer(topic, delivery_timeout_s=self._delivery_timeout_s)
            )
        self._entries.move_to_end(topic)
        entry.users += 1
        try:
            yield entry.producer, entry.accepting
        finally:
            entry.users -= 1
            if entry.retired and not entry.users:
                await _close(topic, entry.producer)
            await self._trim()

    async def forget(self, topic: str, producer: Producer | None = None) -> None:
        """Stop keeping the topic's producer, or only `producer` if it is still that: its topic is gone."""
        entry = self._entries.get(topic)
        if entry is not None and producer in {None, entry.producer}:
            del self._entries[topic]
            await self._retire(topic, entry)

    async def close(self) -> None:
        """Close every producer; what they have accepted is sent first."""
        entries = list(self._entries.items())
        self._entries.clear()
        for topic, entry in entries:
            entry.retired = True
            await _close(topic, entry.producer)

    async def _trim(self) -> None:
        while len(self._entries) > self._limit:
            topic, oldest = self._entries.popitem(last=False)
            await self._retire(topic, oldest)

    async def _retire(self, topic: str, entry: _Entry) -> None:
        entry.retired = True
        if not entry.users:
            await _close(topic, entry.producer)


async def _close(topic: str, producer: Producer) -> None:
    """Close a producer. What could not be delivered belongs to requests that were given up: that is for the log."""
    try:
        await producer.close()
    except TidelogError as error:
        _LOG.warning("closing the producer of %s: %s", topic, error)
