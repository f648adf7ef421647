"""Fair queueing of authentication by client address.

Each address has a limit of concurrent verifications, and a bounded queue of waiting ones in order of arrival. A flood
of credentials from one address therefore delays only that address.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class FullError(Exception):
    """The address has reached its limit of waiting callers."""


@dataclass(slots=True)
class _AddressQueue:
    turns: asyncio.Semaphore
    length: int = 0


class FairQueue:
    """A queue for each client address.

    Args:
        at_once: concurrent turns of one address.
        waiting: callers of one address with and without a turn.
    """

    def __init__(self, *, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._waiting = waiting
        self._lines: dict[str, _AddressQueue] = {}

    def __len__(self) -> int:
        """Return the number of addresses with callers in the queue."""
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn of an address, and hold it during the block.

        Raises:
            FullError: the address has too many waiting callers.
        """
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _AddressQueue(asyncio.Semaphore(self._at_once))
        if line.length >= self._waiting:
            raise FullError
        line.length += 1
        try:
            async with line.turns:
                yield
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[address]
