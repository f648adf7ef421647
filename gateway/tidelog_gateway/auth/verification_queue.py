"""The lines in which callers wait to be looked at: one for each kind of credentials, so that none holds up the others.

What is asked about a token may take as long as its issuer takes, which strangers choose by naming keys that nobody has;
a password takes a core. An API key waits for neither, and whoever is known already, whose ticket is renewed, waits for
nobody who is new.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from tidelog_gateway.auth.credentials import Kind
from tidelog_gateway.auth.fair_queue import AddressTurns
from tidelog_gateway.problems import Problem

KEYS_AT_ONCE: Final = 32
"""Questions to nodes about API keys of new callers that are under way; as many again about known ones."""
TOKENS_AT_ONCE: Final = 16
"""The same of tokens; a node holds 64 back at most while it looks for their keys."""
PASSWORDS_AT_ONCE: Final = 4
"""The same of passwords: each takes some 20 ms of a core."""
WAITING_MAX: Final = 1024
"""Credentials of new callers that wait for that, of each kind."""
PASSWORDS_WAITING_MAX: Final = 256
ADDRESS_ASKED_AT_ONCE: Final = 8
"""Credentials of one kind and address that are looked at, or wait for one of those turns."""
ADDRESS_WAITING_MAX: Final = 128
"""The same, with those that wait for that."""
ASKED_S: Final = 5.0
"""For so long nodes are asked about one at most."""

_ResultT = TypeVar("_ResultT")


class Line:
    """Callers who have shown one kind of credentials.

    Args:
        at_once: of new ones that are asked about; as many of known ones.
        waiting: new ones that are asked about or wait.
        workers: among which both, and the turns of an address, are divided.

    Attributes:
        asked: marks of new ones that are asked about or wait.
        waiting_max: as told.
        addresses: turns of new ones by where they come from.
    """

    def __init__(self, at_once: int, waiting: int, workers: int = 1) -> None:
        at_once, waiting = max(1, at_once // workers), max(1, waiting // workers)
        self.asked: set[bytes] = set()
        self.waiting_max = waiting
        self.addresses = AddressTurns(
            at_once=max(1, ADDRESS_ASKED_AT_ONCE // workers), waiting=max(1, ADDRESS_WAITING_MAX // workers)
        )
        self._of_new = asyncio.Semaphore(at_once)
        self._of_known = asyncio.Semaphore(at_once)

    async def asking(self, ask: Callable[[], Awaitable[_ResultT]], *, is_known: bool) -> _ResultT:
        """Ask about somebody when it is his turn, and not for long.

        Raises:
            Problem: 503, there was no answer in time.
        """
        async with self._of_known if is_known else self._of_new:
            try:
                async with asyncio.timeout(ASKED_S):
                    return await ask()
            except TimeoutError:
                raise unanswered() from None


def lines(workers: int = 1) -> Mapping[Kind, Line]:
    """Return a line for each kind of credentials, in one of several workers."""
    return {
        "key": Line(KEYS_AT_ONCE, WAITING_MAX, workers),
        "token": Line(TOKENS_AT_ONCE, WAITING_MAX, workers),
        "password": Line(PASSWORDS_AT_ONCE, PASSWORDS_WAITING_MAX, workers),
    }


def unanswered() -> Problem:
    """Return the 503 for credentials about which no node has said anything in time."""
    detail = "no node has said in time who you are, which says nothing of what you have shown: send the request again"
    return Problem(503, "not_identified", detail, retryable=True)
