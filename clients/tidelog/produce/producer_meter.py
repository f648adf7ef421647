"""The metrics of one producer, reported once for each batch.

Buffered bytes are reported as changes, not as a level, so that the values of several producers and clients add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog.base.metric_calls import MetricCalls
from tidelog.errors import TidelogError
from tidelog.produce.batches import Chunk, OutgoingBatch


class ProducerMeter:
    """Reports the sent, acknowledged, failed and buffered records of one producer.

    Args:
        buffered_bytes: returns the bytes that the producer has accepted and not delivered.
        delivery_timeout_s: time from acceptance to the deadline of a record, in seconds.
    """

    def __init__(
        self, metric_calls: MetricCalls, topic: str, buffered_bytes: Callable[[], int], delivery_timeout_s: float
    ) -> None:
        self._call, self._metrics = metric_calls.call, metric_calls.metrics
        self._topic = topic
        self._now_buffered_bytes = buffered_bytes
        self._delivery_timeout_s = delivery_timeout_s
        self._buffered_bytes = 0

    def sent(self, batch: OutgoingBatch) -> None:
        """Count a batch that was written to a connection."""
        call = self._metrics.sent if batch.last_error is None else self._metrics.retried
        self._call(call, self._topic, batch.count, batch.length)

    def acknowledged(self, batch: OutgoingBatch, now: float) -> None:
        """Count an acknowledged batch.

        Args:
            now: current time of the event loop's clock, which deadlines use.
        """
        latency_s = now - (batch.deadline - self._delivery_timeout_s)
        self._call(self._metrics.acknowledged, self._topic, batch.count, batch.length, latency_s)

    def failed(self, chunks: Sequence[Chunk], error: TidelogError) -> None:
        """Count chunks that failed with the same error."""
        if chunks:
            self._call(self._metrics.failed, self._topic, sum(chunk.count for chunk in chunks), error.code_name)

    def report_buffered(self) -> None:
        """Report the change of the buffered bytes, if any."""
        buffered_bytes = self._now_buffered_bytes()
        if change_bytes := buffered_bytes - self._buffered_bytes:
            self._buffered_bytes = buffered_bytes
            self._call(self._metrics.buffered, self._topic, change_bytes)
