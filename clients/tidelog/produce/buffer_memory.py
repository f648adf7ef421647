"""The buffer memory of a producer: bytes of accepted, undelivered records, and a FIFO queue of waiting calls.

A call that has to wait, for memory or for the topic's metadata, enters the queue, and later calls wait for their turn
after it: records are accepted in the order of the calls. While a call waits, no other call gets memory, even if its
record would fit: small records do not overtake large ones. One call at a time has the turn, and keeps it until all of
its records are accepted; only the call with the turn may wait for memory.

A caller of `ready()` waits for memory first and puts a record afterwards. It keeps the turn as a *claim*: the next
`put` reserves memory ahead of the queue, which ends the claim. Without claims, the `put` would be refused because other
calls wait, its caller would queue again, and so would the next one: no call would make progress. An unused claim
expires after a few iterations of the event loop.

Rejected: futures that reserve memory for a waiting call. The call resumes only in the next iteration of the loop, and
a call that arrives before that would be accepted first.
"""

from __future__ import annotations

import asyncio
from typing import Final

CLAIM_TURNS: Final = 8
"""Number of loop iterations after which an unused claim expires. A caller in a task, `gather` or `wait` resumes only
some iterations after its `ready()` has returned."""


class BufferMemory:
    """Reserves the buffer memory of one producer for calls, in their order; belongs to one event loop.

    Args:
        bytes_max: the limit; a record that is larger gets the whole buffer once it is empty.
    """

    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self.reservation_bytes = 0
        """The part of `used_bytes` that `wait_ready` has reserved for threads, until `release_reservation`."""
        self.bytes_max = bytes_max
        # Fair: a new call cannot acquire the lock between its release and the resumption of the next waiter.
        self._turn = asyncio.Lock()
        self.waiting_calls = 0
        """Number of calls that are queued or have the turn."""
        self._waiter: asyncio.Future[None] | None = None
        self._claim: asyncio.Handle | None = None
        """Ends the claim of a caller that has waited for memory and not used it yet."""
        self._closed: Exception | None = None

    @property
    def has_waiters(self) -> bool:
        """Whether a call is queued or has the turn."""
        return self.waiting_calls > 0

    @property
    def free_bytes(self) -> int:
        """Bytes that may be reserved if no call is queued."""
        return max(0, self.bytes_max - self.used_bytes)

    def try_reserve(self, size_bytes: int, *, has_turn: bool = False, claiming: bool = False) -> bool:
        """Reserve memory if it is free and no call is queued; return whether it was reserved.

        Args:
            has_turn: whether the caller has the turn (`acquire_turn`), so that queued calls do not matter.
            claiming: whether the call may use the claim of an earlier `wait_ready`; the claim then ends.
        """
        used_bytes = self.used_bytes
        claim = self._claim if claiming else None
        if (self.waiting_calls and not has_turn and claim is None) or (
            used_bytes and used_bytes + size_bytes > self.bytes_max
        ):
            return False
        self.used_bytes = used_bytes + size_bytes
        if claim is not None:
            self._end_claim(claim)
        return True

    async def acquire_turn(self) -> None:
        """Queue until the caller has the turn, the exclusive right to reserve memory; `release_turn` ends it."""
        self.waiting_calls += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self.waiting_calls -= 1
            raise

    def release_turn(self) -> None:
        """End the caller's turn."""
        self.waiting_calls -= 1
        self._turn.release()

    async def reserve(self, size_bytes: int) -> None:
        """Wait for memory and reserve it; the caller must have the turn.

        Raises:
            Exception: the error that was passed to `close`.
        """
        await self.wait_for_space(size_bytes)
        self.try_reserve(size_bytes, has_turn=True)

    async def wait_for_space(self, size_bytes: int) -> None:
        """Wait until memory is free, without reserving it; the caller must have the turn.

        Raises:
            Exception: the error that was passed to `close`.
        """
        while True:
            if self._closed is not None:
                raise self._closed
            if not self.used_bytes or self.used_bytes + size_bytes <= self.bytes_max:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def wait_ready(self, size_bytes: int, *, claim: bool) -> None:
        """Queue until memory is free.

        Args:
            claim: whether to keep the turn for the `try_reserve` that follows; otherwise the memory is reserved here,
                for a thread.

        Raises:
            Exception: the error that was passed to `close`.
        """
        await self.acquire_turn()
        try:
            await self.wait_for_space(size_bytes)
        except BaseException:
            self.release_turn()
            raise
        if claim:
            self._expire_claim(CLAIM_TURNS)
        else:
            self.try_reserve(size_bytes, has_turn=True)
            self.reservation_bytes += size_bytes
            self.release_turn()

    def release_reservation(self, size_bytes: int) -> None:
        """Release memory that `wait_ready` has reserved for a thread."""
        self.reservation_bytes -= size_bytes
        self.release(size_bytes)

    def reserve_over_limit(self, size_bytes: int) -> None:
        """Count memory that is used already, even beyond the limit."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Release reserved memory."""
        self.used_bytes -= size_bytes
        if self._waiter is not None:
            self._wake()

    def close(self, error: Exception) -> None:
        """Raise an error in all calls that wait."""
        self._closed = error
        if self._claim is not None:
            self._end_claim(self._claim)
        self._wake()

    def _expire_claim(self, turns: int) -> None:
        if turns:
            self._claim = asyncio.get_running_loop().call_soon(self._expire_claim, turns - 1)
        else:
            self._claim = None
            self.release_turn()

    def _end_claim(self, claim: asyncio.Handle) -> None:
        claim.cancel()
        self._claim = None
        self.release_turn()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
