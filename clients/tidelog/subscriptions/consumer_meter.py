"""The metrics of one consumer, in terms of batches.

A consumer's lag is what it was told of a partition's end less what was taken, so it grows while nobody takes what
arrives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tidelog.base.metric_calls import MetricCalls
from tidelog.model import TopicPartition
from tidelog.subscriptions.subscription import Prefetched
from tidelog_proto.batch.record_batch import RecordBatch


class ConsumerMeter:
    """Tells what one consumer takes of its partitions, and how much it has in front of it in each."""

    def __init__(self, metric_calls: MetricCalls) -> None:
        self._tell, self._metrics = metric_calls.call, metric_calls.metrics
        self._taken: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    def moved(self, positions: Mapping[TopicPartition, int]) -> None:
        """What is taken next lies there: the consumer begins, or goes on elsewhere."""
        self._taken.update(positions)
        for where in positions:
            self._tell_lag(where)

    def arrived(self, items: Sequence[Prefetched]) -> None:
        """A frame came with batches of one partition, and with its end."""
        last = items[-1]
        self._ends[last.where] = last.high_watermark
        self._tell_lag(last.where)

    def taken(self, where: TopicPartition, batch: RecordBatch) -> None:
        """A batch was taken; one without records is but a step over a gap."""
        if batch.end_offset <= self._taken.get(where, 0):
            return  # taken before, and put back because its partition was paused
        self._taken[where] = batch.end_offset
        if len(batch):
            self._tell(self._metrics.consumed, *where, len(batch), batch.header.length)
        self._tell_lag(where)

    def left(self, partitions: Collection[TopicPartition]) -> None:
        """The consumer reads some partitions no more, and has no lag in them."""
        for where in partitions:
            self._taken.pop(where, None)
            if self._ends.pop(where, None) is not None:
                self._tell(self._metrics.lag, *where, None)

    def closed(self) -> None:
        """The consumer has no lag any more."""
        self.left(list(self._ends))

    def _tell_lag(self, where: TopicPartition) -> None:
        if where in self._ends:
            lag = max(0, self._ends[where] - self._taken.get(where, 0))
            self._tell(self._metrics.lag, *where, lag)
