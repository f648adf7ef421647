"""Rate limit of a node's backfill over all its partitions, so that copying does not slow down publishing.

A node that returns, or gets new copies, could fetch as fast as links and disks allow, at the cost of publishing on both
sides. So each range is requested at its scheduled time, one after the other at the configured rate. A burst of one
second is allowed, and first ranges are small, so that small histories are complete at once. The repetition of a request
without an answer is not counted again. Rejected: a limit at the source, which does not know the other fetches of the
receiving node, and would have to queue requests.
"""

from __future__ import annotations

from collections.abc import Callable

_BURST_MS = 1000.0


class BackfillRate:
    """Schedules the requests for ranges at a rate.

    Args:
        bytes_per_s: the rate; 0: unlimited.
        now_ms: a monotonic clock.
    """

    def __init__(self, bytes_per_s: int, now_ms: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._now_ms = now_ms
        self._taken_until_ms = now_ms() - _BURST_MS

    def wait_ms(self, size_bytes: int) -> int:
        """Reserve the next free time slot for a range of `size_bytes`; return the delay in ms until the slot begins."""
        if not self._bytes_per_s:
            return 0
        now_ms = self._now_ms()
        begins_ms = max(self._taken_until_ms, now_ms - _BURST_MS)
        self._taken_until_ms = begins_ms + 1000 * size_bytes / self._bytes_per_s
        return max(0, round(begins_ms - now_ms))
