"""The metrics of one producer, in terms of batches.

The buffer is told as changes and not as a level, so that several producers of a topic, and several clients, add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.base.metric_calls import MetricCalls
from tidelog.errors import TidelogError
from tidelog.produce.batches import Chunk, OutgoingBatch


class ProducerMeter:
    """Tells what becomes of one producer's records.

    Args:
        teller: whom.
        topic: the producer's.
        buffered_bytes: returns what the producer has accepted and not delivered.
        delivery_timeout_s: from a record's acceptance to its deadline.
    """

    def __init__(
        self, metric_calls: MetricCalls, topic: str, buffered_bytes: Callable[[], int], delivery_timeout_s: float
    ) -> None:
        self._tell, self._metrics = metric_calls.tell, metric_calls.metrics
        self._topic = topic
        self._now_buffered_bytes = buffered_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._buffered_bytes = 0

    def sent(self, batch: OutgoingBatch) -> None:
        """A batch was written to a connection."""
        call = self._metrics.sent if batch.last_error is None else self._metrics.retried
        self._tell(call, self._topic, batch.count, batch.encoded.length)

    def acknowledged(self, batch: OutgoingBatch, now: float) -> None:
        """A batch was acknowledged; `now` is the clock of deadlines."""
        latency_s = now - (batch.deadline - self._delivery_timeout_s)
        self._tell(self._metrics.acknowledged, self._topic, batch.count, batch.encoded.length, latency_s)

    def failed(self, chunks: Sequence[Chunk], error: TidelogError) -> None:
        """Loads were given up together."""
        if chunks:
            self._tell(self._metrics.failed, self._topic, sum(chunk.count for chunk in chunks), error.code_name)

    def report_buffered(self) -> None:
        """Tell of the buffer if it has changed."""
        buffered_bytes = self._now_buffered_bytes()
        if change_bytes := buffered_bytes - self._buffered_bytes:
            self._buffered_bytes = buffered_bytes
            self._tell(self._metrics.buffered, self._topic, change_bytes)
