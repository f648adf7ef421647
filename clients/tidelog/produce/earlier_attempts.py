"""Reads the batches that earlier, fenced instances of a producer have stored for the same piece of work.

The instances are fenced before the log is read, so the set of their batches does not change any more. The batches are
at the end of the log, after the control record with which the first of these instances began. So the log is read
backwards, in growing ranges, until that record, an older batch of the same producer or the start of the log is found.
For several producers the log is read once.

Rejected: asking the partition's owner, which remembers only the last few batches of a producer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Final

from tidelog.cluster.routing import Router
from tidelog.produce.producer_instances import ProducerInstance
from tidelog.produce.work_registry import Registration
from tidelog.requests import fetch_and_commit, list_offsets
from tidelog.requests.offset_ranges import FETCH_BYTES, WAIT_MS
from tidelog_proto.batch.record_batch import RecordBatch

RANGE_OFFSETS_MIN: Final = 65_536
"""Number of offsets in the first range."""
_GROWTH: Final = 4


class EarlierAttempts:
    """Finds what earlier attempts at a producer's piece of work have stored; usable after the producer has begun."""

    def __init__(self, router: Router, topic: str, instance: ProducerInstance) -> None:
        self._router = router
        self._topic = topic
        self.instance = instance

    @property
    def exist(self) -> bool:
        """Whether another instance has begun the same piece of work before, which is rare."""
        assert self.instance.epoch, "the instance has begun"
        return not self.instance.is_first

    @property
    def registration(self) -> Registration | None:
        """The registration of this part of the piece of work; None if the work has no parts."""
        return self.instance.registration

    async def batches(self, others: Iterable[EarlierAttempts] = ()) -> AsyncIterator[tuple[int, RecordBatch]]:
        """Yield each batch that the earlier attempts have stored, with its partition; in no defined order.

        At most one fetched answer is held in memory.

        Args:
            others: attempts of other producers of the topic, whose batches are yielded as well.

        Raises:
            TidelogError: a partition cannot be read.
        """
        instances = [each.instance for each in (self, *others) if each.exist]
        for partition in sorted(set().union(*(each.fenced_partitions for each in instances))):
            first_epochs = {
                each.producer_id: each.first_epoch for each in instances if partition in each.fenced_partitions
            }
            async for batch in self._stored_in(partition, first_epochs):
                yield partition, batch

    async def _stored_in(self, partition: int, first_epochs: Mapping[int, int]) -> AsyncIterator[RecordBatch]:
        """Yield the batches of producers, from the given epoch of each producer id on."""
        offsets = await list_offsets.list_offsets(self._router, self._topic, "latest", [partition])
        start, end = offsets[partition].log_start_offset, offsets[partition].high_watermark
        range_size, producer_ids = RANGE_OFFSETS_MIN, set(first_epochs)
        while end > start and producer_ids:
            offset = begin = max(start, end - range_size)
            while offset < end:
                fetched = await fetch_and_commit.fetch(
                    self._router,
                    self._topic,
                    partition,
                    offset,
                    max_bytes=FETCH_BYTES,
                    min_bytes=1,
                    wait_ms=WAIT_MS,
                    control=True,
                )
                for batch in fetched.batches:
                    producer_id, epoch = batch.header.producer_id, batch.header.producer_epoch
                    first_epoch = first_epochs.get(producer_id)
                    if first_epoch is None or batch.base_offset >= end:
                        continue
                    if batch.header.base_offset < begin and begin > start:
                        continue  # The next range, which precedes this one, has the whole batch.
                    if epoch < first_epoch or (batch.control and epoch == first_epoch):
                        producer_ids.discard(producer_id)
                    if not batch.control and epoch >= first_epoch:
                        yield batch
                if fetched.next_offset <= offset:
                    break  # the records at the end were deleted
                offset = fetched.next_offset
            end, range_size = begin, range_size * _GROWTH
