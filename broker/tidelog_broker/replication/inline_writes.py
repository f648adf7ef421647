"""Whether the event loop may write a group to the page cache itself, instead of handing it to an I/O worker.

A copy into the page cache takes a fraction of a millisecond, two thread switches cost more than a small one, and a
node lives on one core, where a worker is no second pair of hands. But the same call can stall when the kernel
throttles writers or memory is short. So the loop writes by itself only while that is quick: a write that was slow
because it waited sends everything to the workers for a while, and then one more is tried. One that only lost the
processor does not count: where processors are short, two thread switches are what costs. A clock does not tell them
apart; the system does, since who waits gives the processor away, and who is preempted does not.

How long a copy takes depends on where it goes: into a file that is used again at 5 to 10 GB/s, into pages that nobody
has written before at a tenth of that or less. Where thousands of logs grow, the loop would do little else. So it goes
by what its last large writes took for their size, and leaves to a worker what goes into slow memory and would take
longer than two thread switches; now and then it tries one again.
"""

from __future__ import annotations

import resource
import time
from typing import Final

INLINE_BYTES_MAX: Final = 4 * 1024 * 1024
"""A group larger than this always goes to a worker: its copy alone would take about a millisecond."""

LARGE_BYTES: Final = 64 * 1024
"""What is smaller costs a worker more than the copy, wherever it goes."""

WORTH_S: Final = 150e-6
SLOW_S_PER_BYTE: Final = 0.5e-9
"""A large write that is expected to take longer, where memory takes no more than 2 GB/s, is left to a worker."""

TRIED_S: Final = 0.05
TRIED_SHARE: Final = 0.02
"""How long after the last one is tried all the same, and the share of the loop that this may take."""

SLOW_S: Final = 0.005
PAUSE_S: Final = 0.5

_THREAD: Final = getattr(resource, "RUSAGE_THREAD", None)


class InlineWrites:
    """The policy of one node. Times are the caller's clock, in seconds."""

    def __init__(self) -> None:
        self._paused_until_s = 0.0
        self._s_per_byte = 0.0
        """What the last large writes took, the fast ones first of all: a slow one may have lost the processor."""
        self._measured_s = 0.0

    def allows(self, size_bytes: int, now_s: float) -> bool:
        """Whether a group of this size may be written from the event loop."""
        if now_s < self._paused_until_s or size_bytes > INLINE_BYTES_MAX:
            return False
        if size_bytes < LARGE_BYTES or self._s_per_byte <= SLOW_S_PER_BYTE:
            return True
        expected_s = size_bytes * self._s_per_byte
        return expected_s <= WORTH_S or now_s >= self._measured_s + max(TRIED_S, expected_s / TRIED_SHARE)

    def took(self, size_bytes: int, seconds: float, now_s: float, *, sleeps_before: int) -> None:
        """Note how long such a write took, at its end; `sleeps_before` is what `sleeps` returned at its beginning."""
        if size_bytes >= LARGE_BYTES:
            taken, known = seconds / size_bytes, self._s_per_byte
            self._s_per_byte = taken if taken < known else known + (taken - known) / 8
            self._measured_s = now_s
        if seconds > SLOW_S and sleeps() != sleeps_before:
            self._paused_until_s = now_s + PAUSE_S


def sleeps() -> int:
    """Return a number that is another one when this thread has waited since the last call.

    Where the system does not count for single threads it is always another one.
    """
    return resource.getrusage(_THREAD).ru_nvcsw if _THREAD is not None else time.perf_counter_ns()
