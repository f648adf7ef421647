"""What earlier instances of a producer have stored of the piece of work that one does once more.

They are fenced by the time that anybody looks, so what they have stored is all there and stays as it is. It lies at
the end of the log, behind the record with which the first of them began; so the log is read backwards, in growing
stretches, until that is found, or something older of the same producer, or the start of the log.

Rejected: asking the owner. It remembers the newest few batches of a producer, which are not all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from tidelog import offset_search, reading
from tidelog.named_producer import Instance
from tidelog.ranges import FETCH_BYTES, WAIT_MS
from tidelog.routing import Router
from tidelog.work_roll import Enlisted
from tidelog_proto.batch import RecordBatch

STRETCH_MIN: Final = 65_536
"""Offsets that are looked through first."""
_GROWTH: Final = 4


class EarlierTries:
    """Of one producer, which has begun.

    Args:
        router: the client's.
        topic: its name.
        instance: that does the work now.
    """

    def __init__(self, router: Router, topic: str, instance: Instance) -> None:
        self._router = router
        self._topic = topic
        self._instance = instance

    @property
    def exist(self) -> bool:
        """Whether somebody has begun the same before: nearly never."""
        assert self._instance.epoch, "this one has begun"
        return not self._instance.is_first

    @property
    def enlisted(self) -> Enlisted | None:
        """What is known of all parts of the piece, whoever had begun them; None where it has no parts."""
        return self._instance.enlisted

    async def batches(self) -> AsyncIterator[tuple[int, RecordBatch]]:
        """Yield what they have stored, with its partition, in no order; memory holds one fetch of it.

        Raises:
            TidelogError: a partition cannot be read.
        """
        if not self.exist:
            return
        for partition in sorted(self._instance.entered):
            async for batch in self._stored_in(partition):
                yield partition, batch

    async def _stored_in(self, partition: int) -> AsyncIterator[RecordBatch]:
        found = await offset_search.list_offsets(self._router, self._topic, "latest", [partition])
        start, end = found[partition].log_start_offset, found[partition].high_watermark
        stretch, seen_all = STRETCH_MIN, False
        while end > start and not seen_all:
            offset = begin = max(start, end - stretch)
            while offset < end:
                fetched = await reading.fetch(
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
                    if batch.header.producer_id != self._instance.producer_id or batch.base_offset >= end:
                        continue
                    if batch.header.base_offset < begin and begin > start:
                        continue  # the stretch before this one has all of it
                    epoch = batch.header.producer_epoch
                    seen_all |= epoch < self._instance.first_epoch
                    seen_all |= batch.control and epoch == self._instance.first_epoch
                    if not batch.control and epoch >= self._instance.first_epoch:
                        yield batch
                if fetched.next_offset <= offset:
                    break  # a hole at the end, of records that were deleted
                offset = fetched.next_offset
            end, stretch = begin, stretch * _GROWTH
