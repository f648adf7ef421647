"""The clock for timestamps and ages: the wall clock, protected against jumps.

Retention compares the timestamps of appends with the time, so a wall clock that jumps a year ahead would delete
everything, and a single record stamped then would keep its segment for a year. So the wall clock is trusted while it
advances like the monotonic clock. When they differ by more than `TOLERANCE_US`, in either direction, time advances with
the monotonic clock; the wall clock is trusted again only after it has kept its new time for `settle_s`. The skipped
time never counts as an age, because this node cannot know whether it has passed for records that were stamped before.

After a start it is unknown how long the machine was off. The wall clock is trusted for timestamps; for ages, the time
between a log's newest timestamp and the start counts only after the wall clock has been stable for `settle_s`.

So a jump that is corrected within `settle_s` deletes nothing, and after a long downtime or a late correction deletions
happen later, never earlier. Not protected: a clock that is wrong for longer than `settle_s`, or that was wrong when the
node started and stamped records; and timestamps of another node's wrong clock. The monotonic clock includes the time
in which the machine sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

TOLERANCE_US: Final = 300_000_000
"""Largest step of the wall clock, 5 minutes, that is accepted as a correction."""

SETTLE_S_DEFAULT: Final = 3600
GAPS_MAX: Final = 16


def _since_boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SteadyClock:
    """A clock in µs since 1970, protected against jumps of the wall clock as the module describes.

    Args:
        settle_s: how long the wall clock must be stable after a jump before it is trusted.
        tolerance_us: the largest step of the wall clock that is accepted at once.
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
        """The wall clock's time when this clock was made."""
        self._ahead_us = self.began_us - self._began_ns // 1000
        """The returned time minus the time of the monotonic clock."""
        self._rival: tuple[int, int] | None = None
        """After a jump that is not trusted yet: the wall clock's time minus that of the monotonic clock, and the
        monotonic time in ns since which the wall clock has been stable."""
        self._gaps: list[tuple[int, int]] = []
        """Accepted jumps forward, the earliest first: the time before the jump, and its length, both in µs."""

    @property
    def is_held(self) -> bool:
        """Whether the wall clock has jumped and is not trusted."""
        self.now_us()
        return self._rival is not None

    def now_us(self) -> int:
        """Return the time in µs since 1970.

        The returned time may decrease by up to the tolerance, and by more when a wrong clock is corrected.
        """
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
            if len(self._gaps) > GAPS_MAX:
                # Merge two jumps into one of their total length at the later time, so that no record ages early.
                (_, first_us), (at_us, second_us) = self._gaps[:2]
                self._gaps[:2] = [(at_us, first_us + second_us)]
        self._ahead_us, self._rival = ahead_us, None

    def stamped_before_us(self, age_us: int, newest_at_start_us: int) -> int:
        """Return the time, in µs since 1970, before which every timestamp is certainly older than `age_us`.

        Args:
            newest_at_start_us: the newest timestamp of the log when this process first opened it; the time between
                that timestamp and the start does not count until `settle_s` after the start.
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
