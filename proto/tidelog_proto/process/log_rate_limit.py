"""Lines of the log that strangers can cause: so many in a time, and then how many more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable


class SeldomLog:
    """Says what happens, unless it happens all the time. Of one thread.

    Args:
        log: where.
        level: of its lines.
        lines: so many are said in `every_s`.
        every_s: in seconds.
        now_s: a clock that only goes on.
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
        """When the time ends that is counted now."""
        self._said = 0
        self._unsaid = 0

    def say(self, text: str, *values: object) -> None:
        """Say a line, or count it."""
        now_s = self._now_s()
        if now_s >= self._ends_s:
            if self._unsaid:
                self._log.log(self._level, "and %d times more, or something like it", self._unsaid)
            self._ends_s, self._said, self._unsaid = now_s + self._every_s, 0, 0
        if self._said < self._lines:
            self._said += 1
            self._log.log(self._level, text, *values)
        else:
            self._unsaid += 1
