"""How soon each partition is subscribed again: later each time, until something arrives or there is news."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from tidelog.base.backoff import Backoff
from tidelog.errors import TidelogError, told
from tidelog.model import TopicPartition

LOG_AFTER_FAILURES: Final = 6
"""After so many failures in a row, which takes a second or two, the user is told what a partition waits for."""

REFUSED_S: Final = 10.0
"""So long after a refusal it is asked again whether a partition may be read by now."""

_log: Final = logging.getLogger("tidelog.consumer")
_MS: Final = 1000


class ResubscribeBackoff:
    """The waits of one consumer's partitions."""

    def __init__(self) -> None:
        self._backoffs: dict[TopicPartition, Backoff] = {}
        self._retry_at: dict[TopicPartition, float] = {}
        self._refused: set[str] = set()
        """The topics of which the user was told that he may not read them."""

    def due_at(self, where: TopicPartition, now: float) -> float:
        """Return the loop time at which a partition may be tried; `now` where it need not wait."""
        return self._retry_at.get(where, now)

    def tried(self, where: TopicPartition, now: float) -> None:
        """A partition is tried."""
        backoff = self._backoffs.setdefault(where, Backoff())
        self._retry_at[where] = now + backoff.next_wait_s()

    def arrived(self, where: TopicPartition) -> None:
        """Something has arrived of it."""
        if self._backoffs or self._refused:
            self._backoffs.pop(where, None)
            self._refused.discard(where.topic)

    def reset(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing is known of some partitions any more, good or bad."""
        for where in partitions:
            self._backoffs.pop(where, None)
            self._retry_at.pop(where, None)

    def retry_now(self) -> None:
        """Nobody need wait any longer."""
        self._retry_at.clear()

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """Wait as long as the node asks for, and say what for if that goes on."""
        if where in self._backoffs and error.retriable:
            retry_at = asyncio.get_running_loop().time() + error.retry_after_ms / _MS
            self._retry_at[where] = max(self._retry_at.get(where, 0.0), retry_at)
            self.log_wait(where, error)

    def refused(self, where: TopicPartition, error: TidelogError) -> None:
        """It may not be read, which may change, but not at once: wait, and say so once for its topic."""
        self._retry_at[where] = asyncio.get_running_loop().time() + REFUSED_S
        if where.topic not in self._refused:
            self._refused.add(where.topic)
            _log.warning("%s: reading goes on without it while it may not be read: %s", where.topic, told(error))

    def log_wait(self, where: TopicPartition, error: TidelogError) -> None:
        """Say once what a partition waits for."""
        backoff = self._backoffs.get(where)
        if error.retriable and backoff is not None and backoff.failures == LOG_AFTER_FAILURES:
            _log.warning("%s/%d: nothing comes yet, still trying: %s", *where, told(error))
