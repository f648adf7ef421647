"""Formatting of log messages as single lines, and suppression of repeated warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog_proto.printable import printable

LINE_CHARS_MAX: Final = 64_000


class LineFormatter(logging.Formatter):
    """Escapes unprintable characters in a message. Tracebacks after it keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it so
        """Return the line of a message."""
        record.message = printable(record.message, LINE_CHARS_MAX)
        return super().formatMessage(record)


REPEATED_MAX: Final = 5
"""Maximum number of warnings that one line of code logs within `PERIOD_S`; the first one after that period states how
many were suppressed."""
PERIOD_S: Final = 10.0


@dataclass(slots=True)
class _Period:
    ends_s: float = 0.0
    logged: int = 0
    suppressed: int = 0


class RepeatFilter(logging.Filter):
    """Suppresses warnings that one line of code repeats, for example about a full disk under many partitions.

    Errors and records of other levels, such as the audit log's, all pass.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        super().__init__()
        self._now_s = now_s
        self._periods: dict[tuple[str, int], _Period] = {}
        """The current period of each line of code that has logged a warning, by logger and line number."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record; the first one of a period states the number that was suppressed."""
        if record.levelno != logging.WARNING:
            return True
        period = self._periods.setdefault((record.name, record.lineno), _Period())
        now_s = self._now_s()
        suppressed = 0
        if now_s >= period.ends_s:
            suppressed, period.suppressed = period.suppressed, 0
            period.ends_s, period.logged = now_s + PERIOD_S, 0
        if period.logged >= REPEATED_MAX:
            period.suppressed += 1
            return False
        period.logged += 1
        if suppressed:
            record.msg, record.args = f"{record.getMessage()} ({suppressed} similar messages suppressed)", ()
        return True
