"""The memory for what a producer has accepted and not delivered, and the line of those who cannot be taken at once.

A call that has to wait, because the buffer is full or because it is not known yet where its records go, enters a line,
and whoever comes meanwhile stands behind it: that is how records are accepted in the order in which they were given,
whatever the first of them waited for. Nobody else takes room while somebody stands in line, not even what would fit:
small records do not overtake large ones. One call at a time has the turn and keeps it until all of it is accepted.

Rejected: a queue of futures that reserve room for who waits. Who is told of his room goes on only in the loop's next
turn, and a call that comes in between would be accepted first.
"""

from __future__ import annotations

import asyncio


class Room:
    """The buffer of one producer; belongs to one event loop.

    Args:
        bytes_max: how much may be taken; what is larger gets the buffer for itself alone.
    """

    def __init__(self, bytes_max: int) -> None:
        self.taken_bytes = 0
        self.bytes_max = bytes_max
        self._turn = asyncio.Lock()  # serves in the order of coming, also while the one who is next wakes up
        self._in_line = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed: Exception | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody stands in line, or has the turn."""
        return self._in_line > 0

    @property
    def free_bytes(self) -> int:
        """What may be taken, were there nobody in line."""
        return max(0, self.bytes_max - self.taken_bytes)

    def take(self, size_bytes: int, *, in_turn: bool = False) -> bool:
        """Take room if it is free and nobody stands in line; who has the turn does not mind the line."""
        taken_bytes = self.taken_bytes
        if (self._in_line and not in_turn) or (taken_bytes and taken_bytes + size_bytes > self.bytes_max):
            return False
        self.taken_bytes = taken_bytes + size_bytes
        return True

    async def enter(self) -> None:
        """Stand in line until it is one's turn; it ends with `leave`."""
        self._in_line += 1
        try:
            await self._turn.acquire()
        except BaseException:
            self._in_line -= 1
            raise

    def leave(self) -> None:
        """End one's turn."""
        self._in_line -= 1
        self._turn.release()

    async def wait(self, size_bytes: int) -> None:
        """Take room as soon as there is some; for who has the turn.

        Raises:
            Exception: what `close` was given.
        """
        await self.wait_free(size_bytes)
        self.take(size_bytes, in_turn=True)

    async def wait_free(self, size_bytes: int) -> None:
        """Wait until there is so much room, without taking it; for who has the turn.

        Raises:
            Exception: what `close` was given.
        """
        while True:
            if self._closed is not None:
                raise self._closed
            if not self.taken_bytes or self.taken_bytes + size_bytes <= self.bytes_max:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def force(self, size_bytes: int) -> None:
        """Count what is there already, whether it fits or not."""
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Let others have what was taken."""
        self.taken_bytes -= size_bytes
        self._wake()

    def close(self, error: Exception) -> None:
        """Let nobody wait any longer."""
        self._closed = error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
