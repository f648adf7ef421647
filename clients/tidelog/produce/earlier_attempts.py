"""What earlier instances of a producer have stored of the piece of work that one does once more.

They are fenced by the time that anybody looks, so what they have stored is all there and stays as it is. It lies at
the end of the log, behind the record with which the first of them began; so the log is read backwards, in growing
stretches, until that is found, or something older of the same producer, or the start of the log. For several producers
it is read once.

Rejected: asking the owner. It remembers the newest few batches of a producer, which are not all.
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

STRETCH_MIN: Final = 65_536
"""Offsets that are looked through first."""
_GROWTH: Final = 4


class EarlierAttempts:
    """Of one producer, which has begun.

    Args:
        router: the client's.
        topic: its name.
        instance: that does the work now.

    Attributes:
        instance: the same.
    """

    def __init__(self, router: Router, topic: str, instance: ProducerInstance) -> None:
        self._router = router
        self._topic = topic
        self.instance = instance

    @property
    def exist(self) -> bool:
        """Whether somebody has begun the same before: nearly never."""
        assert self.instance.epoch, "this one has begun"
        return not self.instance.is_first

    @property
    def registration(self) -> Registration | None:
        """What is known of all parts of the piece, whoever had begun them; None where it has no parts."""
        return self.instance.registration

    async def batches(self, others: Iterable[EarlierAttempts] = ()) -> AsyncIterator[tuple[int, RecordBatch]]:
        """Yield what they have stored, with its partition, in no order; memory holds one fetch of it.

        Args:
            others: of more producers of the topic, whose batches come, too.

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
        """Yield batches of producers, given by id, from some epoch on."""
        found = await list_offsets.list_offsets(self._router, self._topic, "latest", [partition])
        start, end = found[partition].log_start_offset, found[partition].high_watermark
        stretch, wanted = STRETCH_MIN, set(first_epochs)
        while end > start and wanted:
            offset = begin = max(start, end - stretch)
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
                        continue  # the stretch before this one has all of it
                    if epoch < first_epoch or (batch.control and epoch == first_epoch):
                        wanted.discard(producer_id)
                    if not batch.control and epoch >= first_epoch:
                        yield batch
                if fetched.next_offset <= offset:
                    break  # a hole at the end, of records that were deleted
                offset = fetched.next_offset
            end, stretch = begin, stretch * _GROWTH
