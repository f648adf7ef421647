"""Rate limit for log lines that unauthenticated clients can cause."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class RateLimitedLog:
    """Logs at most `lines` lines in `every_s` seconds. Not thread-safe.

    The number of suppressed lines is logged before the first line after these seconds. If no further line follows, the
    number is not logged.

    Args:
        log: the logger.
        level: level of all lines.
        lines: maximum number of lines in `every_s` seconds.
        every_s: duration of an interval, which begins with a line.
        now_s: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        log: logging.Logger,
        *,
        level: int = logging.INFO,
        lines: int = 5,
        every_s: float = 1.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._level = level
        self._lines = lines
        self._every_s = every_s
        self._now_s = now_s
        self._ends_s = 0.0
        """End of the current interval."""
        self._logged = 0
        self._suppressed = 0

    def say(self, text: str, *values: object) -> None:
        """Log a line, or count it as suppressed."""
        now_s = self._now_s()
        if now_s >= self._ends_s:
            if self._suppressed:
                self._log.log(self._level, "%d similar messages suppressed", self._suppressed)
            self._ends_s, self._logged, self._suppressed = now_s + self._every_s, 0, 0
        if self._logged < self._lines:
            self._logged += 1
            self._log.log(self._level, text, *values)
        else:
            self._suppressed += 1
