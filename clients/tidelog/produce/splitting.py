"""Large inputs into pieces of a batch's size, and keyed inputs by partition, without a step a record in Python.

Splitting costs slices (no copies). Going by key costs one stable sort of the partition numbers and one `take` of the
columns, whatever the number of partitions is; rejected was a filter per partition, which reads everything once for
each of them.
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


class Piece(NamedTuple):
    """Rows for one partition, and their size in bytes; None is "any", for rows of which none has a key."""

    partition: int | None
    columns: pa.RecordBatch
    size_bytes: int


class Routed(NamedTuple):
    """Rows in the order in which they go out, and for each where it stood in the input."""

    pieces: list[Piece]
    order: pa.Array[Any]


def split_rows(columns: pa.RecordBatch, *, bytes_max: int, records_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in slices of about `bytes_max` bytes and at most `records_max` rows, at least one each.

    Rows of very different sizes are halved until they fit, so no slice of more than one row is above four times
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
        piece = columns.slice(at, step)
        if piece.num_rows > 1 and piece.nbytes > 4 * bytes_max:
            half = piece.num_rows // 2
            yield from split_rows(piece.slice(0, half), bytes_max=bytes_max, records_max=records_max)
            yield from split_rows(piece.slice(half), bytes_max=bytes_max, records_max=records_max)
        else:
            yield piece


def by_target(columns: pa.RecordBatch, targets: pa.Array[Any], keyless: Callable[[], int]) -> Routed:
    """Group rows by their partition, keeping the input's order within each partition.

    Args:
        columns: canonical columns.
        targets: the partition of each row as int32; null for those that may go anywhere.
        keyless: chooses the partition of rows without one that stand among others: to keep their places beside them,
            they have to have one before the rows are sorted.
    """
    if targets.null_count == len(targets):
        return Routed([Piece(None, columns, columns.nbytes)], pa.array(range(columns.num_rows), pa.int64()))
    if targets.null_count:
        targets = pc.fill_null(targets, pa.scalar(keyless(), targets.type))
    numbers: npt.NDArray[np.int32] = targets.to_numpy()
    # Stable sorts of 16-bit numbers go by digits, in linear time; numpy's calls cost less than Arrow's kernels do here.
    counts = np.bincount(numbers)
    order = np.argsort(numbers.astype(np.int16) if len(counts) <= INT16_MAX else numbers, kind="stable")
    indices: pa.Array[Any] = pa.array(order, pa.int64())
    taken = columns.take(indices)
    found = np.flatnonzero(counts).tolist()
    bounds = [0, *np.cumsum(counts[found]).tolist()]
    slices = [taken.slice(begin, end - begin) for begin, end in pairwise(bounds)]
    return Routed(list(map(Piece, found, slices, _sizes(taken, slices, bounds))), indices)


def _sizes(columns: pa.RecordBatch, slices: list[pa.RecordBatch], bounds: list[int]) -> list[int]:
    """Return about what `nbytes` says of each slice: bits for nulls are left out.

    Args:
        columns: not a slice themselves.
        slices: which lie side by side.
        bounds: where the first begins, and where each ends.
    """
    sizes = [0] * len(slices)
    for column in columns.columns:
        if column.type != _BINARY:
            return [each.nbytes for each in slices]  # walks the columns, at 6 µs a slice
        ends = memoryview(column.buffers()[1]).cast("i")  # type: ignore[arg-type]  # a buffer, as the type says
        for number, (begin, end) in enumerate(pairwise(bounds)):
            sizes[number] += ends[end] - ends[begin] + 4 * (end - begin + 1)
    return sizes
