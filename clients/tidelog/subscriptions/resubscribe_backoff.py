"""Back-off of resubscriptions by partition: exponential, reset by received batches or changed metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from tidelog.base.backoff import Backoff
from tidelog.errors import TidelogError, describe_error
from tidelog.model import TopicPartition

LOG_AFTER_FAILURES: Final = 6
"""After this many failed attempts in a row the client logs why a partition is not read.

The waits between these attempts add up to 0.3 to 0.6 s.
"""

REFUSED_S: Final = 10.0
"""How long to wait after a partition was forbidden before trying again."""

_log: Final = logging.getLogger("tidelog.consumer")
_MS: Final = 1000


class ResubscribeBackoff:
    """Decides when each partition of one consumer may be subscribed again, and logs why it is not read.

    Attributes:
        by_partition: the back-offs of partitions that were tried since their last batch or `reset`; usually empty, so
            that `arrived` need not be called.
        refused_topics: topics whose refusal was logged.
    """

    def __init__(self) -> None:
        self.by_partition: dict[TopicPartition, Backoff] = {}
        self.refused_topics: set[str] = set()
        self._retry_at: dict[TopicPartition, float] = {}

    def due_at(self, where: TopicPartition, now: float) -> float:
        """Return the loop time at which a partition may be tried; `now` if it need not wait."""
        return self._retry_at.get(where, now)

    def tried(self, where: TopicPartition, now: float) -> None:
        """Note an attempt to subscribe a partition."""
        backoff = self.by_partition.setdefault(where, Backoff())
        self._retry_at[where] = now + backoff.next_wait_s()

    def arrived(self, where: TopicPartition) -> None:
        """Reset the back-off of a partition from which a batch arrived."""
        self.by_partition.pop(where, None)
        self.refused_topics.discard(where.topic)

    def reset(self, partitions: Iterable[TopicPartition]) -> None:
        """Reset the back-off of partitions."""
        for where in partitions:
            self.by_partition.pop(where, None)
            self._retry_at.pop(where, None)

    def retry_now(self) -> None:
        """End all waits, because metadata has changed."""
        self._retry_at.clear()

    def failed(self, where: TopicPartition, error: TidelogError) -> None:
        """Wait at least as long as the node's hint; log the reason after several failures."""
        if where in self.by_partition and error.retriable:
            retry_at = asyncio.get_running_loop().time() + error.retry_after_ms / _MS
            self._retry_at[where] = max(self._retry_at.get(where, 0.0), retry_at)
            self.log_wait(where, error)

    def refused(self, where: TopicPartition, error: TidelogError) -> None:
        """Wait after a partition was forbidden, which may change; log the refusal once per topic."""
        self._retry_at[where] = asyncio.get_running_loop().time() + REFUSED_S
        if where.topic not in self.refused_topics:
            self.refused_topics.add(where.topic)
            _log.warning(
                "%s: not allowed to read this topic; reading the others, retrying every %.0f s: %s",
                where.topic,
                REFUSED_S,
                describe_error(error),
            )

    def log_wait(self, where: TopicPartition, error: TidelogError) -> None:
        """Log once why a partition is not read."""
        backoff = self.by_partition.get(where)
        if error.retriable and backoff is not None and backoff.failures == LOG_AFTER_FAILURES:
            _log.warning("%s/%d: cannot subscribe to this partition, still retrying: %s", *where, describe_error(error))
