"""What the time is, for stamps and for ages: the wall clock, unless it jumps.

What is too old is decided by the stamps of appends, so a wall clock that jumps a year ahead would delete everything,
and one moment of it would stamp a record that keeps its segment for a year. The wall clock is therefore believed while
it goes on as the monotonic clock does. When the two part by more than `TOLERANCE_US`, either way, time goes on by the
monotonic clock; only when the wall clock has stood by its new time for `settle_s` it is believed again. A time that
was left out in that way never counts as an age: what had been stamped before has lived through none of it, as far as
this node can know.

After a start there is no telling how long the machine was off. The wall clock is believed for stamps; but for ages the
time between the newest stamp of a log and the start counts only when the wall clock has stood for `settle_s`.

So a jump that is put right within `settle_s` deletes nothing, and what is deleted after a long time off, or after the
clock was put right at last, goes later and never earlier. Not protected: a clock that is wrong for longer than
`settle_s`, or was wrong when the node started and stamped records; and stamps that another node's wrong clock has made.
The monotonic clock is the one that goes on while the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

TOLERANCE_US: Final = 300_000_000
"""So far the wall clock may be put forward or back at once and be believed: it is being corrected."""

SETTLE_S_DEFAULT: Final = 3600
GAPS_MAX: Final = 16


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SteadyClock:
    """See the module. Times are µs since 1970.

    Args:
        settle_s: how long a wall clock that has jumped must stand before it is believed.
        tolerance_us: by how much it may be put forward or back at once.
        wall_ns, steady_ns: the two clocks, in ns.
    """

    def __init__(
        self,
        settle_s: float = SETTLE_S_DEFAULT,
        *,
        tolerance_us: int = TOLERANCE_US,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = _since_boot_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._steady_ns = steady_ns
        self._tolerance_us = tolerance_us
        self._settle_ns = int(settle_s * 1_000_000_000)
        self._began_ns = steady_ns()
        self.began_us = wall_ns() // 1000
        """What the time was at the start, as far as was known then."""
        self._ahead_us = self.began_us - self._began_ns // 1000
        """By how much the time that is told is ahead of the steady clock."""
        self._rival: tuple[int, int] | None = None
        """By how much the wall clock is ahead instead, and since when."""
        self._gaps: list[tuple[int, int]] = []
        """Where time went on after a jump, oldest first: from when, and how much was left out."""

    def now_us(self) -> int:
        """Return the time; between two calls it goes back by no more than the tolerance, but for a clock put right."""
        steady_ns = self._steady_ns()
        steady_us = steady_ns // 1000
        ahead_us = self._wall_ns() // 1000 - steady_us
        if -self._tolerance_us <= ahead_us - self._ahead_us <= self._tolerance_us:
            self._ahead_us, self._rival = ahead_us, None
            return steady_us + ahead_us
        if self._rival is None or abs(ahead_us - self._rival[0]) > self._tolerance_us:
            self._rival = (ahead_us, steady_ns)
        elif steady_ns - self._rival[1] >= self._settle_ns:
            self._believe(steady_us, ahead_us)
        return steady_us + self._ahead_us

    def _believe(self, steady_us: int, ahead_us: int) -> None:
        left_out_us = ahead_us - self._ahead_us
        if left_out_us > 0:
            self._gaps.append((steady_us + self._ahead_us, left_out_us))
            if (
                len(self._gaps) > GAPS_MAX
            ):  # two of them count as one that is as long, at the later: nothing goes earlier
                (_, first_us), (at_us, second_us) = self._gaps[:2]
                self._gaps[:2] = [(at_us, first_us + second_us)]
        self._ahead_us, self._rival = ahead_us, None

    def stamped_before_us(self, age_us: int, newest_at_start_us: int) -> int:
        """Return the time for which it holds that what was stamped by then is at least so old, surely.

        Args:
            age_us: how old.
            newest_at_start_us: the newest stamp that the log in question had when this process first looked at it; the
                time between that and the start does not count yet while the start is young.
        """
        at_us = self.now_us() - age_us
        gaps = self._gaps
        off_us = self.began_us - newest_at_start_us
        if off_us > 0 and self._steady_ns() - self._began_ns < self._settle_ns:
            gaps = [(newest_at_start_us, off_us), *gaps]
        for from_us, left_out_us in reversed(gaps):
            if at_us >= from_us + left_out_us:
                break
            at_us -= left_out_us
        return at_us
