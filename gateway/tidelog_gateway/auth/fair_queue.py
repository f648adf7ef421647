"""Turns of addresses at which callers are looked at: few of each at a time, so that none takes those of all others.

Who comes beyond that waits, in order, and there is an end to it for each address, too. So a flood of credentials from
one address has, of what is asked and of what waits, no more than that, whoever else comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


class FullError(Exception):
    """As many of an address wait as may."""


@dataclass(slots=True)
class _Line:
    turns: asyncio.Semaphore
    length: int = 0


class AddressTurns:
    """See the module.

    Args:
        at_once: of one address.
        waiting: the same, with those that wait.
    """

    def __init__(self, *, at_once: int, waiting: int) -> None:
        self._at_once = at_once
        self._waiting = waiting
        self._lines: dict[str, _Line] = {}

    def __len__(self) -> int:
        """Return how many addresses have anybody here."""
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn of an address, and have it.

        Raises:
            FullError: too many wait.
        """
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _Line(asyncio.Semaphore(self._at_once))
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
