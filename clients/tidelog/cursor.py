"""Where the user of a consumer is: which records were handed out, and what is left of the batch at hand. No I/O.

The asynchronous and the blocking consumer both use it, so "what was handed out" means the same in both.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.model import ConsumedBatch, Record


class Cursor:
    """Positions of what was handed out, by partition: each the offset of the next record."""

    def __init__(self) -> None:
        self._positions: dict[int, int] = {}
        self._uncommitted: dict[int, int] = {}
        self._batch: ConsumedBatch | None = None
        self._records: Iterator[Record] = iter(())
        self._left = 0

    @property
    def positions(self) -> dict[int, int]:
        """Return partition -> next offset, for partitions that something is known of."""
        return dict(self._positions)

    def begin(self, positions: dict[int, int]) -> None:
        """Note where partitions begin that nothing was handed out of yet."""
        for partition, offset in positions.items():
            self._positions.setdefault(partition, offset)

    def load(self, batch: ConsumedBatch) -> None:
        """Take a batch to hand out record by record; one without records is handed out by that."""
        self._batch = batch
        self._records = iter(batch)
        self._left = len(batch)
        if not self._left:
            self.whole(batch)

    def next_record(self) -> Record | None:
        """Hand out the next record of the loaded batch; None when it is used up."""
        record = next(self._records, None)
        if record is None or self._batch is None:
            self._batch = None
            return record
        self._left -= 1
        # Behind the last one nothing is left up to the end, which may lie further on.
        self._move(record.partition, record.offset + 1 if self._left else self._batch.batch.end_offset)
        return record

    def rest(self) -> ConsumedBatch | None:
        """Hand out what is left of the loaded batch as a batch; None when there is nothing left."""
        batch, self._batch, self._records = self._batch, None, iter(())
        if batch is None:
            return None
        left = batch.batch.slice_from(self._positions.get(batch.partition, 0))
        return self.whole(ConsumedBatch(batch.topic, batch.partition, left)) if len(left) else None

    def whole(self, batch: ConsumedBatch) -> ConsumedBatch:
        """Hand out a whole batch."""
        self._move(batch.partition, batch.batch.end_offset)
        return batch

    def seek(self, partition: int, offset: int) -> None:
        """Go on at `offset`; what is left of a loaded batch of this partition is dropped."""
        if self._batch is not None and self._batch.partition == partition:
            self._batch, self._records = None, iter(())
        self._move(partition, offset)

    def uncommitted(self) -> dict[int, int]:
        """Return the positions that moved since `committed`."""
        return dict(self._uncommitted)

    def committed(self, positions: dict[int, int]) -> None:
        """Note that these positions are stored."""
        for partition, offset in positions.items():
            if self._uncommitted.get(partition) == offset:
                del self._uncommitted[partition]

    def _move(self, partition: int, offset: int) -> None:
        self._positions[partition] = offset
        self._uncommitted[partition] = offset
