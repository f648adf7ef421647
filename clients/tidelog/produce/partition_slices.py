"""Splitting of columns into slices for partition queues: each for one partition, none larger than a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tidelog.model import TopicRoute
from tidelog.produce.partition_queue import QueueOptions
from tidelog.produce.partition_queues import PartitionQueues
from tidelog.produce.record_preparation import RecordPreparation
from tidelog.produce.splitting import group_by_partition, split_rows
from tidelog_proto.batch.key_partitions import partitions_of_keys

KEYED_SORT_BYTES: Final = 32 * 1024 * 1024
"""Keyed columns are sorted by partition in parts of this size, which bounds the memory of the copy."""


class SizedSlice(NamedTuple):
    """Rows for one partition, or for any partition if that is None, and their size in bytes."""

    partition: int | None
    columns: pa.RecordBatch
    size_bytes: int


class PartitionSlicer:
    """Splits columns of one producer into slices that each fit into a batch of one partition.

    Args:
        options: options of the partition queues, which limit the size of a batch.
        preparation: the producer's record preparation, with its partitioner.
        queues: the partition queues; the least loaded one gets the rows without a key.
    """

    def __init__(self, options: QueueOptions, preparation: RecordPreparation, queues: PartitionQueues) -> None:
        self._options = options
        self._preparation = preparation
        self._queues = queues

    def split(
        self,
        route: TopicRoute,
        batches: Sequence[pa.RecordBatch],
        partition: int | None,
        orders: list[pa.Array[Any]],
        keys: Sequence[bytes | None] | None = None,
    ) -> Iterator[SizedSlice]:
        """Yield the rows of canonical columns as slices; add the sort order of sorted parts to `orders`.

        Args:
            partition: the partition of all rows; None if the keys or the partitioner decide.
            orders: receives, for each part that is sorted, the input index of each row.
            keys: the list that the key column of a single batch was made from; None otherwise.

        Raises:
            Exception: an error of the partitioner; nothing was yielded.
        """
        # A partitioner may raise, so it is called for all rows before the first of them is accepted.
        targets: Iterable[pa.Array[Any] | None] = repeat(None)
        if partition is None and self._preparation.has_partitioner:
            targets = [self._chosen(columns, route.partition_count) for columns in batches]
        for columns, chosen in zip(batches, targets, strict=False):
            if partition is not None or (chosen is None and "key" not in columns.schema.names):
                yield from self._split(partition, columns, columns.nbytes)
                continue
            at, count = 0, route.partition_count
            for part in split_rows(columns, bytes_max=KEYED_SORT_BYTES, records_max=columns.num_rows):
                rows = part.num_rows
                of_part = None if chosen is None else chosen.slice(at, rows)
                if of_part is None:
                    of_part = partitions_of_keys(part, count, keys if keys and len(keys) == rows else None)
                at += rows
                grouped = group_by_partition(
                    part, of_part, lambda: self._queues.least_loaded(route.partition_count, 0).partition
                )
                orders.append(grouped.order)
                for each in grouped.slices:
                    yield from self._split(each.partition, each.columns, each.size_bytes)

    def _chosen(self, columns: pa.RecordBatch, partition_count: int) -> pa.Array[Any]:
        """Return the partition that the partitioner chooses for each row, or null for the default."""
        keyed = "key" in columns.schema.names
        keys = columns.column("key").to_pylist() if keyed else [None] * columns.num_rows
        chosen: pa.Array[Any] = pa.array(self._preparation.targets(keys, partition_count), pa.int32())
        return chosen

    def _split(self, partition: int | None, columns: pa.RecordBatch, size_bytes: int) -> Iterator[SizedSlice]:
        options = self._options
        if 0 < columns.num_rows <= options.batch_records and size_bytes <= options.batch_bytes:
            yield SizedSlice(partition, columns, size_bytes)
            return
        for rows in split_rows(columns, bytes_max=options.batch_bytes, records_max=options.batch_records):
            yield SizedSlice(partition, rows, rows.nbytes)  # `nbytes` of a slice counts only its own rows
