"""Request coalescing: concurrent requests of one caller for the same records share one read from a node.

A read answers only requests that arrived before it was sent, so that each sees the state of the log after its arrival.
While a read of a position is in flight, requests for the same position wait for at most `GATHER_S`: the first one sends
the next read, and the others share its result. Results are not cached for later requests.

Callers do not share reads: each read has its caller's permissions and counts against its quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from tidelog.errors import TidelogError
from tidelog.model import Fetched

GATHER_S: Final = 0.02
"""How long requests wait for the end of an earlier read before the next one is sent."""


class ReadPosition(NamedTuple):
    """The position and size of a read: a partition, an offset, and about `max_bytes` as stored."""

    topic: str
    partition: int
    offset: int
    max_bytes: int


class Written(NamedTuple):
    """An answer in JSON, and its number of records."""

    data: bytes
    records: int


class ReadResult:
    """The result of a read, with the answers that were encoded from it.

    Attributes:
        written: answers by their limits in records and bytes.
    """

    __slots__ = ("fetched", "written")

    def __init__(self, fetched: Fetched) -> None:
        self.fetched = fetched
        self.written: dict[tuple[int, int], Written] = {}


_Outcome = ReadResult | TidelogError | None
"""The node's answer; None: the request that should have sent the read was cancelled."""


class _Read:
    """A read in flight, and the request that sends the next one when it has ended."""

    __slots__ = ("waiter",)

    def __init__(self) -> None:
        self.waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class SharedReads:
    """Answers concurrent requests of one caller for the same records by one read.

    Args:
        read: sends a read to a node.
    """

    def __init__(self, read: Callable[[ReadPosition], Awaitable[Fetched]]) -> None:
        self._read = read
        self._under_way: dict[ReadPosition, _Read] = {}
        """The newest read of each position."""
        self._gathering: dict[ReadPosition, list[asyncio.Future[_Outcome]]] = {}
        """By position, the requests that wait for the next read, except the one that sends it."""

    def __len__(self) -> int:
        """Return the number of reads that are in flight or awaited by requests."""
        return len(self._under_way) + len(self._gathering)

    async def fetch(self, place: ReadPosition) -> ReadResult:
        """Return the result of a read that is sent after this call.

        Raises:
            TidelogError: as `Client.fetch`; all requests that share the read get the same error.
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

    async def _send(self, place: ReadPosition) -> ReadResult:
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
    """Wait until a read ends, at most `GATHER_S`."""
    loop = asyncio.get_running_loop()
    read.waiter = loop.create_future()
    timer = loop.call_later(GATHER_S, read.wake)
    try:
        await read.waiter
    finally:
        timer.cancel()
