"""The memory for what a producer has accepted and not delivered, and the line of those who cannot be taken at once.

A call that has to wait, because the buffer is full or because it is not known yet where its records go, enters a line,
and whoever comes meanwhile stands behind it: that is how records are accepted in the order in which they were given,
whatever the first of them waited for. Nobody else takes room while somebody stands in line, not even what would fit:
small records do not overtake large ones. One call at a time has the turn and keeps it until all of it is accepted.

Who only waited for room, to put a record afterwards, keeps his turn as a *claim*: the next put takes its room past the
line, which ends the claim. Without it whoever came first would be refused because of those behind him, go to the end of
the line, and so would the next one: nobody would ever get anything. A claim that is not used lapses after a few turns
of the loop, so nobody is held up by who does not come back.

Rejected: a queue of futures that reserve room for who waits. Who is told of his room goes on only in the loop's next
turn, and a call that comes in between would be accepted first.
"""

from __future__ import annotations

import asyncio
from typing import Final

CLAIM_TURNS: Final = 8
"""So many turns of the loop a claim lasts: who waits through a task, `gather` or `wait` hears of it some turns on."""


class BufferMemory:
    """The buffer of one producer; belongs to one event loop.

    Args:
        bytes_max: how much may be taken; what is larger gets the buffer for itself alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self.used_bytes = 0
        self.kept_bytes = 0
        """Of that, what is taken for records that have not come yet, by `ready` without a claim, until `let_go`."""
        self.bytes_max = bytes_max
        self._turn = asyncio.Lock()  # serves in the order of coming, also while the one who is next wakes up
        self._in_line = 0
        self._waiter: asyncio.Future[None] | None = None
        self._claim: asyncio.Handle | None = None
        """Ends the turn of somebody who waited for room and has not come for it yet."""
        self._closed: Exception | None = None

    @property
    def has_waiters(self) -> bool:
        """Whether somebody stands in line, or has the turn."""
        return self._in_line > 0

    @property
    def free_bytes(self) -> int:
        """What may be taken, were there nobody in line."""
        return max(0, self.bytes_max - self.used_bytes)

    def try_reserve(self, size_bytes: int, *, has_turn: bool = False, claiming: bool = False) -> bool:
        """Take room if it is free and nobody stands in line.

        Args:
            size_bytes: how much.
            has_turn: the caller has the turn, so it need not queue.
            claiming: may use the claim that somebody has, which ends it.
        """
        used_bytes = self.used_bytes
        claim = self._claim if claiming else None
        if (self._in_line and not has_turn and claim is None) or (
            used_bytes and used_bytes + size_bytes > self.bytes_max
        ):
            return False
        self.used_bytes = used_bytes + size_bytes
        if claim is not None:
            self._end_claim(claim)
        return True

    async def acquire_turn(self) -> None:
        """Stand in line until it is one's turn; it ends with `leave`."""
        self._in_line += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._in_line -= 1
            raise

    def release_turn(self) -> None:
        """End one's turn."""
        self._in_line -= 1
        self._turn.release()

    async def reserve(self, size_bytes: int) -> None:
        """Take room as soon as there is some; for who has the turn.

        Raises:
            Exception: what `close` was given.
        """
        await self.wait_for_space(size_bytes)
        self.try_reserve(size_bytes, has_turn=True)

    async def wait_for_space(self, size_bytes: int) -> None:
        """Wait until there is so much room, without taking it; for who has the turn.

        Raises:
            Exception: what `close` was given.
        """
        while True:
            if self._closed is not None:
                raise self._closed
            if not self.used_bytes or self.used_bytes + size_bytes <= self.bytes_max:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def wait_ready(self, size_bytes: int, *, claim: bool) -> None:
        """Stand in line until there is so much room.

        Args:
            size_bytes: how much.
            claim: keep the turn for the `take` that follows; else take the room at once, for who comes from elsewhere.

        Raises:
            Exception: what `close` was given.
        """
        await self.acquire_turn()
        try:
            await self.wait_for_space(size_bytes)
        except BaseException:
            self.release_turn()
            raise
        if claim:
            self._lapse(CLAIM_TURNS)
        else:
            self.try_reserve(size_bytes, has_turn=True)
            self.kept_bytes += size_bytes
            self.release_turn()

    def release_kept(self, size_bytes: int) -> None:
        """Let others have what was kept."""
        self.kept_bytes -= size_bytes
        self.release(size_bytes)

    def reserve_over_limit(self, size_bytes: int) -> None:
        """Count what is there already, whether it fits or not."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Let others have what was taken."""
        self.used_bytes -= size_bytes
        self._wake()

    def close(self, error: Exception) -> None:
        """Let nobody wait any longer."""
        self._closed = error
        if self._claim is not None:
            self._end_claim(self._claim)
        self._wake()

    def _lapse(self, turns: int) -> None:
        if turns:
            self._claim = asyncio.get_running_loop().call_soon(self._lapse, turns - 1)
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
