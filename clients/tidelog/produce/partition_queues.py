"""The lanes of one producer, and which of them takes what may go anywhere."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from tidelog.errors import TidelogError
from tidelog.produce.batches import Chunk
from tidelog.produce.partition_queue import PartitionQueue, QueueOptions
from tidelog.produce.producer_id import ProducerId
from tidelog.produce.producer_meter import ProducerMeter


class PartitionQueues:
    """Lanes by partition, made when they are first needed.

    Args:
        options: of all of them.
        on_settled: called with each load that has an outcome.
        meter: told of what becomes of records; None: nobody counts.

    Attributes:
        by_partition: those that there are; to look there first saves a call a batch.
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
        """Return the lane of a partition."""
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
        """Return the lane with the fewest bytes under way; the last one as long as its batch still gathers."""
        if self._sticky is not None and self._sticky.has_space(size_bytes):
            return self._sticky
        # Among equals the next in turn, so that a slow trickle reaches every partition.
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
        """Whether each partition has a batch whose answer is due: its coming is soon enough to give out more."""
        if len(self.by_partition) < partition_count:
            return False
        return all(queue.in_flight for queue in self.by_partition.values())

    def unsettled(self) -> list[Chunk]:
        """Return every load without an outcome."""
        return [chunk for queue in self.by_partition.values() for chunk in queue.unsettled()]

    def fail_all(self, error: TidelogError) -> None:
        """Give up everything that is not in flight."""
        for queue in self.by_partition.values():
            queue.fail_all(error)
