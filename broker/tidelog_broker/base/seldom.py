"""Lines of the log that strangers can cause: so many a second, and then how many more."""

from __future__ import annotations

import logging
import time
from typing import Final

LINES_PER_S: Final = 5


class SeldomLog:
    """Says what happens, unless it happens all the time.

    Args:
        log: where.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._second = 0
        self._said = 0
        self._unsaid = 0

    def info(self, text: str, *values: object) -> None:
        """Say a line, or count it."""
        second = int(time.monotonic())
        if second != self._second:
            if self._unsaid:
                self._log.info("and %d times more, or something like it", self._unsaid)
            self._second, self._said, self._unsaid = second, 0, 0
        if self._said < LINES_PER_S:
            self._said += 1
            self._log.info(text, *values)
        else:
            self._unsaid += 1
