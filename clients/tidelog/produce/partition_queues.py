"""The partition queues of one producer, and the choice of a partition for records without one."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from tidelog.errors import TidelogError
from tidelog.produce.batches import Chunk
from tidelog.produce.partition_queue import PartitionQueue, QueueOptions
from tidelog.produce.producer_id import ProducerId
from tidelog.produce.producer_meter import ProducerMeter


class PartitionQueues:
    """Creates the partition queues of one producer, and chooses a queue for records without a partition.

    Args:
        on_settled: called with each chunk that has an outcome.
        meter: counts batches; None without metrics.

    Attributes:
        by_partition: the existing queues; a look-up here before `queue` saves a call for each batch.
    """

    def __init__(
        self, options: QueueOptions, on_settled: Callable[[Chunk], None], meter: ProducerMeter | None = None
    ) -> None:
        self._options = options
        self._shared_id = ProducerId(options.producer_id, is_named=options.is_named)
        self._on_settled = on_settled
        self._meter = meter
        self.by_partition: dict[int, PartitionQueue] = {}
        self._sticky: PartitionQueue | None = None

    def queue(self, partition: int) -> PartitionQueue:
        """Return the queue of a partition."""
        queue = self.by_partition.get(partition)
        if queue is None:
            queue = PartitionQueue(
                partition,
                self._options,
                on_settled=self._on_settled,
                meter=self._meter,
                shared_id=self._shared_id,
            )
            self.by_partition[partition] = queue
        return queue

    def least_loaded(self, partition_count: int, size_bytes: int) -> PartitionQueue:
        """Return the queue with the fewest unacknowledged bytes, or the previous one while its next batch has space."""
        if self._sticky is not None and self._sticky.has_space(size_bytes):
            return self._sticky
        # Ties are broken round-robin, so that a low rate of records still reaches every partition.
        turn = self._sticky.partition + 1 if self._sticky is not None else secrets.randbelow(partition_count)
        number, fewest_bytes = 0, -1
        for step in range(partition_count):
            each = (turn + step) % partition_count
            queue = self.by_partition.get(each)
            unsettled_bytes = queue.unsettled_bytes if queue is not None else 0
            if fewest_bytes < 0 or unsettled_bytes < fewest_bytes:
                number, fewest_bytes = each, unsettled_bytes
            if not unsettled_bytes:
                break
        self._sticky = self.queue(number)
        return self._sticky

    def all_in_flight(self, partition_count: int) -> bool:
        """Return whether each partition has a batch in flight, so that draining can wait for the next answer."""
        if len(self.by_partition) < partition_count:
            return False
        for queue in self.by_partition.values():  # noqa: SIM110 - `all` would run a generator for each record sent alone
            if not queue.in_flight:
                return False
        return True

    def unsettled(self) -> list[Chunk]:
        """Return every chunk without an outcome."""
        return [chunk for queue in self.by_partition.values() for chunk in queue.unsettled()]

    def fail_all(self, error: TidelogError) -> None:
        """Fail everything that is not in flight."""
        for queue in self.by_partition.values():
            queue.fail_all(error)
