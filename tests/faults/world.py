"""Shared state of all clients of a run: existing partitions, their observations, and when they must be quiet."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Sequence
from random import Random

from tests.faults.history import History, Key
from tests.faults.nodes import Node

from tidelog.errors import TidelogError


class World:
    """One run's, seen from its clients.

    Args:
        nodes: of the cluster.
        keys: the partitions that exist at the beginning.
        history: takes what clients see.
        rng: decides.
        rate: records a second, all that publish to these partitions together.

    Attributes:
        keys: existing partitions, without those of recreated topics.
        topic_ids: of the topics of these partitions.
        last_ack: when a record of a partition was acknowledged last, by the monotonic clock.
        acks_seen: how many records of a partition were acknowledged.
        signs: number of signs of life of clients that must continue after healing, besides partitions.
        calm: whether a majority of nodes is healthy and reachable, so that answers can be confirmed.
        crashes: failures of clients themselves.
    """

    def __init__(self, nodes: Sequence[Node], keys: Sequence[Key], history: History, rng: Random, rate: float) -> None:
        self.nodes = nodes
        self.keys = list(keys)
        self.history = history
        self.rng = rng
        self.rate = rate
        self.topic_ids: dict[str, bytes] = {}
        self.last_ack = dict.fromkeys(keys, 0.0)
        self.acks_seen = dict.fromkeys(keys, 0)
        self.signs: Counter[str] = Counter()
        self._quieting = asyncio.Event()
        self.calm = True
        self.crashes: list[str] = []
        self._grown: set[Key] = set()
        self._producers = 0

    @property
    def quiet(self) -> bool:
        """Whether nothing more is to be sent."""
        return self._quieting.is_set()

    def be_quiet(self) -> None:
        """Nothing more is to be sent."""
        self._quieting.set()

    @property
    def topics(self) -> list[str]:
        """The topics, each once."""
        return list(dict.fromkeys(key.topic for key in self.keys))

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of every node."""
        return [node.address for node in self.nodes]

    def partitions_of(self, topic: str) -> list[Key]:
        """Return a topic's partitions."""
        return [key for key in self.keys if key.topic == topic]

    def next_producer(self, who: str) -> int:
        """Return the number of a producer that is new."""
        self._producers += 1
        self.history.producers[self._producers] = who
        return self._producers

    def grew(self, key: Key) -> None:
        """There is a partition more; from now on it counts."""
        if key not in self.acks_seen:
            self._grown.add(key)
            self.keys.append(key)
            self.last_ack[key] = time.monotonic()
            self.acks_seen[key] = 0

    def first_count(self, topic: str) -> int:
        """Return how many partitions a topic had at the beginning."""
        return sum(key not in self._grown for key in self.partitions_of(topic))

    def is_grown(self, key: Key) -> bool:
        """Whether the partition was added after the beginning."""
        return key in self._grown

    async def idle(self, seconds: float) -> None:
        """Wait, or until all is to be quiet."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._quieting.wait()

    def acked(self, place: Key | str, number: int, offset: int, key: Key) -> None:
        """A record that was sent to `place` is stored in the partition `key`."""
        self.history.ack(place, number, offset, key)
        if key.topic in self.topic_ids:
            self.grew(key)
            self.last_ack[key] = time.monotonic()
            self.acks_seen[key] += 1

    def failed(self, who: str, place: Key | str, number: int, error: TidelogError, *, there: bool = True) -> None:
        """A record was not acknowledged. `there`: whether its topic existed all the time."""
        if error.definite:
            self.history.refuse(place, number)
        self.complain(who, error, there=there)

    def complain(self, who: str, error: BaseException, *, there: bool = True) -> None:
        """A client met an error about something that was `there` all the time, or was not."""
        self.history.complain(who, type(error).__name__, str(error), there=there)
