"""The metrics of one consumer, updated per batch.

Lag is the last reported log end minus the position of taken records, so it grows while the application takes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidelog.base.metric_calls import MetricCalls
from tidelog.model import TopicPartition
from tidelog.subscriptions.subscription import Prefetched
from tidelog_proto.batch.record_batch import RecordBatch


class ConsumerMeter:
    """Reports the batches that one consumer takes, and its lag in each partition."""

    def __init__(self, metric_calls: MetricCalls) -> None:
        self._report, self._metrics = metric_calls.call, metric_calls.metrics
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    def moved(self, positions: Mapping[TopicPartition, int]) -> None:
        """Set the positions of partitions, at the start or after a seek."""
        self._positions.update(positions)
        for where in positions:
            self._report_lag(where)

    def arrived(self, items: Sequence[Prefetched]) -> None:
        """Update the log end and lag of a partition of which batches arrived."""
        last = items[-1]
        self._ends[last.where] = last.high_watermark
        self._report_lag(last.where)

    def taken(self, where: TopicPartition, batch: RecordBatch) -> None:
        """Count a batch that was taken; a batch without records only moves the position over a gap."""
        if batch.end_offset <= self._positions.get(where, 0):
            return  # Counted already: the batch was put back, because its partition was paused.
        self._positions[where] = batch.end_offset
        if len(batch):
            self._report(self._metrics.consumed, *where, len(batch), batch.header.length)
        self._report_lag(where)

    def left(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the lag of partitions that are no longer read."""
        for where in partitions:
            self._positions.pop(where, None)
            if self._ends.pop(where, None) is not None:
                self._report(self._metrics.lag, *where, None)

    def closed(self) -> None:
        """Remove the lag of all partitions."""
        self.left(list(self._ends))

    def _report_lag(self, where: TopicPartition) -> None:
        if where in self._ends:
            lag = max(0, self._ends[where] - self._positions.get(where, 0))
            self._report(self._metrics.lag, *where, lag)
