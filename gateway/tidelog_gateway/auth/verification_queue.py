"""The queues of callers that wait for verification: one for each kind of credentials, so that none delays the others.

Verification of a token may have to wait for the token's issuer, which an unauthenticated client can provoke with
unknown key ids; verification of a password takes CPU time. API keys wait for neither. Renewals of verified callers have
their own slots and do not wait for new callers. New callers take turns by client address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from typing import Final, TypeVar

from tidelog_gateway.auth.credentials import CredentialsKind
from tidelog_gateway.problems import Problem
from tidelog_proto.flow.fair_slots import FairSlots, SlotBounds

KEY_SLOTS: Final = 32
"""Maximum concurrent requests that verify API keys of new callers; renewals of known callers have as many slots."""
TOKEN_SLOTS: Final = 16
"""Maximum concurrent requests that verify tokens of new callers; a node queues at most 64 while it fetches keys."""
PASSWORD_SLOTS: Final = 4
"""Maximum concurrent requests that verify passwords of new callers: each takes some 20 ms of CPU time."""
WAITING_MAX: Final = 1024
"""Maximum number of new callers whose API key is being verified or waits for it; the same number for tokens."""
PASSWORDS_WAITING_MAX: Final = 256
"""Maximum number of new callers whose password is being verified or waits for it."""
ADDRESS_SLOTS: Final = 8
"""Maximum concurrent verifications of one kind and client address."""
ADDRESS_WAITING_MAX: Final = 128
"""Maximum number of verifications of one kind and client address that run or wait."""
NODE_TIMEOUT_S: Final = 5.0
"""Timeout of one verification."""

_ResultT = TypeVar("_ResultT")


class VerificationQueue:
    """Limits the concurrent verifications of one kind of credentials.

    Args:
        at_once: maximum number of concurrent verifications of new callers; known callers have as many slots of their
            own.
        waiting: maximum number of new callers whose verification runs or waits.
        workers: number of worker processes of the gateway, by which all limits are divided.

    Attributes:
        pending: digests of the credentials of new callers whose verification runs or waits.
        waiting_max: maximum size of `pending`.
    """

    def __init__(self, at_once: int, waiting: int, workers: int = 1) -> None:
        at_once, waiting = max(1, at_once // workers), max(1, waiting // workers)
        self.pending: set[bytes] = set()
        self.waiting_max = waiting
        address_slots = max(1, ADDRESS_SLOTS // workers)
        self._new = FairSlots(
            SlotBounds(at_once, address_slots, key_waiting_max=max(1, ADDRESS_WAITING_MAX // workers) - address_slots)
        )
        self._known = asyncio.Semaphore(at_once)

    @contextlib.asynccontextmanager
    async def turn(self, address: Hashable) -> AsyncIterator[None]:
        """Hold one of the slots for new callers during the block; wait for it, in turn with other client addresses.

        Raises:
            FullError: too many verifications for the address wait.
        """
        await self._new.take(address)
        try:
            yield
        finally:
            self._new.give_back(address)

    async def verify(self, ask: Callable[[], Awaitable[_ResultT]], *, is_known: bool) -> _ResultT:
        """Call `ask` within `NODE_TIMEOUT_S`.

        A known caller waits for one of the slots of known callers first; a new caller already holds a slot (`turn`).

        Raises:
            Problem: 503, no node answered in time; also the errors of `ask`.
        """
        async with self._known if is_known else contextlib.nullcontext():
            try:
                async with asyncio.timeout(NODE_TIMEOUT_S):
                    return await ask()
            except TimeoutError:
                raise unanswered(NODE_TIMEOUT_S) from None


def verification_queues(workers: int = 1) -> Mapping[CredentialsKind, VerificationQueue]:
    """Return a queue for each kind of credentials, with the limits of one of `workers` processes."""
    return {
        "key": VerificationQueue(KEY_SLOTS, WAITING_MAX, workers),
        "token": VerificationQueue(TOKEN_SLOTS, WAITING_MAX, workers),
        "password": VerificationQueue(PASSWORD_SLOTS, PASSWORDS_WAITING_MAX, workers),
    }


def unanswered(within_s: float) -> Problem:
    """Return the 503 for credentials that no node has verified within a time limit."""
    detail = f"no node has verified the credentials within {within_s:g} s; send the request again"
    return Problem(503, "not_identified", detail, retryable=True)
