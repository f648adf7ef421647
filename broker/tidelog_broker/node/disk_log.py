"""Log lines about a full disk: one when it fills up and one when it has space again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)


class DiskLog:
    """Logs when a node's disk fills up and when it has space again.

    Args:
        clock_s: a monotonic clock.
    """

    def __init__(self, path: Path, clock_s: Callable[[], float]) -> None:
        self._path = path
        self._clock_s = clock_s
        self._full_since_s: float | None = None
        self._counted = 0
        self._refused = 0

    def look(self, *, is_full: bool, refused: int) -> None:
        """Log that the disk has filled up, or that it has space again; do nothing if neither has changed.

        Args:
            is_full: whether the disk is full now.
            refused: number of publishes that this node has refused so far because of a full disk.
        """
        self._refused += max(0, refused - self._counted)
        self._counted = refused
        if is_full and self._full_since_s is None:
            self._full_since_s = self._clock_s()
            log.warning(
                "the disk of %s is full and publishes are refused; delete topics, shorten retention or enlarge the "
                "disk",
                self._path,
            )
        elif not is_full and self._full_since_s is not None:
            took_s, self._full_since_s = self._clock_s() - self._full_since_s, None
            fields = (self._path, self._refused, took_s)
            log.info("the disk of %s has space again; %d publishes were refused in %.0f s", *fields)
            self._refused = 0
