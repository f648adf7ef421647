"""Splitting of columns by batch size and by partition, without Python code for each record.

Splitting by size makes slices, without copies. Splitting by partition costs one stable sort of the partition numbers
and one `take` of the columns, for any number of partitions.

Rejected: a filter for each partition, which reads all columns once for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

INT16_MAX: Final = 0x7FFF

_BINARY: Final = pa.binary()


class PartitionSlice(NamedTuple):
    """Rows for one partition, and their size in bytes; `partition` is None if the rows may go to any partition."""

    partition: int | None
    columns: pa.RecordBatch
    size_bytes: int


class GroupedRows(NamedTuple):
    """Slices in the order of sending, and the input index of each of their rows."""

    slices: list[PartitionSlice]
    order: pa.Array[Any]


def split_rows(columns: pa.RecordBatch, *, bytes_max: int, records_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in slices of about `bytes_max` bytes and at most `records_max` rows, at least one each.

    A slice with very large rows is halved until it fits, so a slice of more than one row has at most four times
    `bytes_max`.
    """
    rows, size_bytes = columns.num_rows, columns.nbytes
    if rows == 0:
        return
    if rows <= records_max and size_bytes <= bytes_max:
        yield columns
        return
    step = max(1, min(records_max, rows * bytes_max // max(1, size_bytes)))
    for at in range(0, rows, step):
        part = columns.slice(at, step)
        if part.num_rows > 1 and part.nbytes > 4 * bytes_max:
            half = part.num_rows // 2
            yield from split_rows(part.slice(0, half), bytes_max=bytes_max, records_max=records_max)
            yield from split_rows(part.slice(half), bytes_max=bytes_max, records_max=records_max)
        else:
            yield part


def group_by_partition(columns: pa.RecordBatch, targets: pa.Array[Any], keyless: Callable[[], int]) -> GroupedRows:
    """Group rows by their partition, keeping the input's order within each partition.

    Args:
        columns: canonical columns.
        targets: the partition of each row as int32; null for any partition.
        keyless: chooses the partition of rows with null, if other rows have a partition: all rows need one before they
            are sorted.
    """
    if targets.null_count == len(targets):
        everything = PartitionSlice(None, columns, columns.nbytes)
        return GroupedRows([everything], pa.array(range(columns.num_rows), pa.int64()))
    if targets.null_count:
        targets = pc.fill_null(targets, pa.scalar(keyless(), targets.type))
    numbers: npt.NDArray[np.int32] = targets.to_numpy()
    # NumPy sorts 16-bit integers with a radix sort, in linear time; its calls cost less than Arrow's kernels here.
    counts = np.bincount(numbers)
    order = np.argsort(numbers.astype(np.int16) if len(counts) <= INT16_MAX else numbers, kind="stable")
    indices: pa.Array[Any] = pa.array(order, pa.int64())
    sorted_columns = columns.take(indices)
    present = np.flatnonzero(counts).tolist()
    bounds = [0, *np.cumsum(counts[present]).tolist()]
    slices = [sorted_columns.slice(begin, end - begin) for begin, end in pairwise(bounds)]
    return GroupedRows(list(map(PartitionSlice, present, slices, _sizes(sorted_columns, slices, bounds))), indices)


def _sizes(columns: pa.RecordBatch, slices: list[pa.RecordBatch], bounds: list[int]) -> list[int]:
    """Return approximately `nbytes` of each slice: validity bitmaps are not counted.

    Args:
        columns: the sliced columns; not a slice themselves.
        slices: adjacent slices.
        bounds: the start of the first slice, and the end of each.
    """
    sizes = [0] * len(slices)
    for column in columns.columns:
        if column.type != _BINARY:
            return [each.nbytes for each in slices]  # Slow: this walks the columns, at 6 µs a slice.
        ends = memoryview(column.buffers()[1]).cast("i")  # type: ignore[arg-type]  # a buffer, as the type says
        for number, (begin, end) in enumerate(pairwise(bounds)):
            sizes[number] += ends[end] - ends[begin] + 4 * (end - begin + 1)
    return sizes
