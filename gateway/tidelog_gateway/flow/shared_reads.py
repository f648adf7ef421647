"""Reads of a node that concurrent requests of one caller share, where they ask for the same records.

A read answers only requests that came before it was sent, so each is answered with the state of the log after it came.
While a read of a place is under way, the requests for that place gather, for at most `GATHER_S`: the first of them
sends the next read, and the others wait for its result. Nothing is kept for later requests.

Each caller has reads of its own, sent with its own permissions and at the expense of its own quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tidelog.errors import TidelogError
from tidelog.model import Fetched

GATHER_S: Final = 0.02
"""How long requests wait for the end of an earlier read before the next one is sent."""


class Place(NamedTuple):
    """What is read: from an offset of a partition on, about `max_bytes` as they are stored."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class Written(NamedTuple):
    """An answer in JSON, and how many records it has."""

    data: bytes
    records: int


class ReadResult:
    """The result of a read, with what requests that share it have written of it.

    Attributes:
        fetched: what the node returned.
        written: the answer, by the limits of a request in records and in bytes.
    """

    __slots__ = ("fetched", "written")

    def __init__(self, fetched: Fetched) -> None:
        self.fetched = fetched
        self.written: dict[tuple[int, int], Written] = {}


_Outcome = ReadResult | TidelogError | None
"""None: the request that was to send the read has left."""


class _Read:
    """A read under way, and the request that waits for its end to send the next one."""

    __slots__ = ("waiter",)

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class SharedReads:
    """The reads of one caller.

    Args:
        read: reads a place.
    """

    def __init__(self, read: Callable[[Place], Awaitable[Fetched]]) -> None:
        self._read = read
        self._under_way: dict[Place, _Read] = {}
        """The read of each place that was sent last."""
        self._gathering: dict[Place, list[asyncio.Future[_Outcome]]] = {}
        """By place, the requests that wait for the next read, besides the one that sends it."""

    def __len__(self) -> int:
        """Return how many reads are under way or gather requests."""
        return len(self._under_way) + len(self._gathering)

    async def fetch(self, place: Place) -> ReadResult:
        """Return the result of a read that is sent from now on.

        Raises:
            TidelogError: as `Client.fetch`; the same for all that shared the read.
        """
        while (gathering := self._gathering.get(place)) is not None:
            joined: asyncio.Future[_Outcome] = asyncio.get_running_loop().create_future()
            gathering.append(joined)
            outcome = await joined
            if isinstance(outcome, TidelogError):
                raise outcome
            if outcome is not None:
                return outcome
        return await self._send(place)

    async def _send(self, place: Place) -> ReadResult:
        followers: list[asyncio.Future[_Outcome]] = []
        outcome: _Outcome = None
        own = _Read()
        try:
            earlier = self._under_way.get(place)
            if earlier is not None:
                self._gathering[place] = followers
                try:
                    await _end_of(earlier)
                finally:
                    del self._gathering[place]
            self._under_way[place] = own
            outcome = ReadResult(await self._read(place))
        except TidelogError as error:
            outcome = error
            raise
        else:
            return outcome
        finally:
            if self._under_way.get(place) is own:
                del self._under_way[place]
            own.wake()
            for follower in followers:
                if not follower.done():
                    follower.set_result(outcome)


async def _end_of(read: _Read) -> None:
    """Wait until a read has ended, or `GATHER_S`."""
    loop = asyncio.get_running_loop()
    read.waiter = loop.create_future()
    timer = loop.call_later(GATHER_S, read.wake)
    try:
        await read.waiter
    finally:
        timer.cancel()
