"""Between the client's parts and `ClientMetrics`: what is told when, in terms of batches. Made where somebody counts.

A producer's buffer is told as changes and not as a level, so that several producers of a topic, and several clients,
add up. A consumer's lag is what it was told of a partition's end less what was taken, so it grows while nobody takes
what arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from tidelog.batches import Load, OutgoingBatch
from tidelog.errors import TidelogError
from tidelog.metrics import ClientMetrics
from tidelog.model import TopicPartition
from tidelog.subscription import Prefetched
from tidelog_proto.batch.record_batch import RecordBatch

_log: Final = logging.getLogger("tidelog.client")


class Teller:
    """Calls somebody's metrics; what they raise is logged once and goes no further."""

    def __init__(self, metrics: ClientMetrics) -> None:
        self.metrics = metrics
        self._failed = False

    def tell(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a method of the metrics."""
        try:
            call(*arguments)
        except Exception:  # noqa: BLE001 - whatever it is, it is not to end a producer or a consumer
            if not self._failed:
                self._failed = True
                _log.exception(
                    "the metrics of this client raise errors in %r: what they count is incomplete from now on, "
                    "publishing and reading go on; this is said once",
                    call,
                )

    def reconnected(self, address: tuple[str, int]) -> None:
        """The connection to a node stands again."""
        host, port = address
        self.tell(self.metrics.reconnected, f"{host}:{port}")

    def throttled(self, address: tuple[str, int], delay_s: float) -> None:
        """A node delays this client by so many seconds more; metrics of before there were quotas are not told."""
        host, port = address
        call: Callable[..., None] | None = getattr(self.metrics, "throttled", None)
        if call is not None:
            self.tell(call, f"{host}:{port}", delay_s)


class ProducerMeter:
    """Tells what becomes of one producer's records.

    Args:
        teller: whom.
        topic: the producer's.
        buffered_bytes: returns what the producer has accepted and not delivered.
        delivery_timeout_s: from a record's acceptance to its deadline.
    """

    def __init__(
        self, teller: Teller, topic: str, buffered_bytes: Callable[[], int], delivery_timeout_s: float
    ) -> None:
        self._tell, self._metrics = teller.tell, teller.metrics
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

    def failed(self, loads: Sequence[Load], error: TidelogError) -> None:
        """Loads were given up together."""
        if loads:
            self._tell(self._metrics.failed, self._topic, sum(load.count for load in loads), error.code_name)

    def weigh(self) -> None:
        """Tell of the buffer if it has changed."""
        buffered_bytes = self._now_buffered_bytes()
        if change_bytes := buffered_bytes - self._buffered_bytes:
            self._buffered_bytes = buffered_bytes
            self._tell(self._metrics.buffered, self._topic, change_bytes)


class ConsumerMeter:
    """Tells what one consumer takes of its partitions, and how much it has in front of it in each."""

    def __init__(self, teller: Teller) -> None:
        self._tell, self._metrics = teller.tell, teller.metrics
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
