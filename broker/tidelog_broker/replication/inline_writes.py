"""Decides whether the event loop writes a group to the page cache itself, or passes it to an I/O worker.

A copy into the page cache takes a fraction of a millisecond, two thread switches cost more than a small one, and on a
single core a worker adds no parallelism. But the same call can stall when the kernel throttles writers or memory is
short. So the event loop writes itself only while that is fast: after a write that was slow because it waited, all
writes go to the workers for a while, then one is tried again. A write that was merely preempted does not count, because
with few processors the thread switches are what costs. The clock cannot distinguish the two; the count of voluntary
context switches can.

The duration of a copy depends on its target: 5 to 10 GB/s into a reused file, a tenth of that or less into fresh pages.
With thousands of growing logs the event loop would do little else. So the policy estimates from recent large writes,
and passes writes into slow memory to a worker if they would take longer than two thread switches; from time to time it
tries one again.
"""

from __future__ import annotations

import resource
import time
from typing import Final

INLINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger group always goes to a worker: its copy alone would take about a millisecond."""

LARGE_BYTES: Final = 64 * 1024
"""A smaller write costs a worker more than the copy itself, wherever it is written."""

WORTH_S: Final = 150e-6
SLOW_S_PER_BYTE: Final = 0.5e-9
"""A large write expected to take longer goes to a worker while the copy rate is below 2 GB/s."""

TRIED_S: Final = 0.05
TRIED_SHARE: Final = 0.02
"""The share of the event loop that such writes may take, which gives the interval between two of them."""

SLOW_S: Final = 0.005
PAUSE_S: Final = 0.5

_THREAD: Final = getattr(resource, "RUSAGE_THREAD", None)


class InlineWrites:
    """Decides for the writes of one node. Times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._paused_until_s = 0.0
        self._s_per_byte = 0.0
        """Estimated from the last large writes, biased towards fast ones, because a slow one may have been preempted.
        """
        self._measured_s = 0.0

    def allows(self, size_bytes: int, now_s: float) -> bool:
        """Return whether the event loop may write a group of this size itself."""
        if now_s < self._paused_until_s or size_bytes > INLINE_BYTES_MAX:
            return False
        if size_bytes < LARGE_BYTES or self._s_per_byte <= SLOW_S_PER_BYTE:
            return True
        expected_s = size_bytes * self._s_per_byte
        return expected_s <= WORTH_S or now_s >= self._measured_s + max(TRIED_S, expected_s / TRIED_SHARE)

    def took(self, size_bytes: int, seconds: float, now_s: float, *, sleeps_before: int) -> None:
        """Record the duration of an inline write, at its end; `sleeps_before` is `sleeps()` at its beginning."""
        if size_bytes >= LARGE_BYTES:
            taken, known = seconds / size_bytes, self._s_per_byte
            self._s_per_byte = taken if taken < known else known + (taken - known) / 8
            self._measured_s = now_s
        if seconds > SLOW_S and sleeps() != sleeps_before:
            self._paused_until_s = now_s + PAUSE_S


def sleeps() -> int:
    """Return a counter that changes if this thread has waited since the last call.

    If the system does not count per thread, it always changes.
    """
    return resource.getrusage(_THREAD).ru_nvcsw if _THREAD is not None else time.perf_counter_ns()
