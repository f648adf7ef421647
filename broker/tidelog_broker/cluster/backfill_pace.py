"""How fast a node backfills, all its partitions together, so that making copies does not slow publishing down.

A node that was away, or has been given copies to make, could fetch as fast as its links and disks allow, and publishing
would pay for it on both sides. So the ranges are given out in time: each is asked for when its turn comes, one after
the other at the pace that the operator has set. A second's worth may go at once, and first ranges are small, so that
small histories are whole at once. A retry of what did not come is not counted again. Rejected: pacing by the source,
which does not know what else its reader fetches, and would have to keep what waits.
"""

from __future__ import annotations

from collections.abc import Callable

_BURST_MS = 1000.0


class BackfillPace:
    """Gives out turns.

    Args:
        bytes_per_s: the pace; 0: as fast as it goes.
        now_ms: a monotonic clock.
    """

    def __init__(self, bytes_per_s: int, now_ms: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_ms = now_ms
        self._taken_until_ms = now_ms() - _BURST_MS

    def wait_ms(self, size_bytes: int) -> int:
        """Take the next turn, for so many bytes, and return in how many milliseconds it comes."""
        if not self._bytes_per_s:
            return 0
        now_ms = self._now_ms()
        begins_ms = max(self._taken_until_ms, now_ms - _BURST_MS)
        self._taken_until_ms = begins_ms + 1000 * size_bytes / self._bytes_per_s
        return max(0, round(begins_ms - now_ms))
