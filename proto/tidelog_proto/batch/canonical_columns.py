"""Columns in a canonical memory layout: equal records have equal bytes, regardless of their origin.

Arrow leaves the memory layout of an array open: a slice keeps the buffers of its parent, a bitmap may exist without
nulls, there may be bytes under a null, and buffers may be longer than needed. Arrow's writer preserves some of these
differences. Here every buffer is built with exactly the required bytes: zero padding bits in bitmaps, no bytes under
nulls, offsets from 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.columns import HEADER_TYPE, HEADERS_TYPE, OFFSET_DELTA, TIMESTAMP_TYPE

Int64s = npt.NDArray[np.int64]


def exact_deltas(deltas: Int64s) -> pa.Array[Any]:
    """Return offset deltas from 0 to 2^32 - 1 as the column of a derived batch."""
    return _of_buffers(OFFSET_DELTA.type, len(deltas), [None, _buffer(deltas.astype(np.uint32))])


def exact_timestamps(stamps_us: Int64s) -> pa.Array[Any]:
    """Return timestamps (µs since 1970) as a column."""
    return _of_buffers(TIMESTAMP_TYPE, len(stamps_us), [None, _buffer(stamps_us.astype(np.int64))])


def exact_bytes(array: Any) -> pa.Array[Any]:
    """Return the canonical form of a column of bytes or text, which may contain nulls."""
    count, validity = len(array), None
    null_count = array.null_count
    if null_count:
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        validity = _buffer(np.packbits(valid, bitorder="little"))
        # `fill_null` copies only entries that are not null, so bytes under nulls are dropped.
        array = pc.fill_null(array, pa.scalar(b"" if pa.types.is_binary(array.type) else "", array.type))
    offsets = byte_offsets(array)
    _, _, data = array.buffers()
    data = pa.py_buffer(b"") if data is None else data.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
    return _of_buffers(array.type, count, [validity, _buffer(offsets - offsets[0]), data], null_count)


def exact_headers(lists: Any) -> pa.Array[Any]:
    """Return the canonical form of a column of header lists, of which none may be null and not all empty."""
    pairs = lists.flatten()
    ends = np.cumsum(pc.list_value_length(lists).to_numpy(), dtype=np.int32)
    children = [exact_bytes(pairs.field("key")), exact_bytes(pairs.field("value"))]
    structs = pa.Array.from_buffers(HEADER_TYPE, len(pairs), [None], 0, 0, children)
    offsets = _buffer(np.concatenate((np.zeros(1, np.int32), ends)))
    return pa.Array.from_buffers(HEADERS_TYPE, len(lists), [None, offsets], 0, 0, [structs])


def byte_offsets(array: Any) -> npt.NDArray[np.int32]:
    """Return the n + 1 offsets of a column of bytes or text."""
    count = len(array)
    buffer = array.buffers()[1]
    if not count or buffer is None:
        return np.zeros(1, np.int32)
    return np.frombuffer(buffer, np.int32, count + 1, array.offset * np.dtype(np.int32).itemsize)


def _buffer(numbers: npt.NDArray[Any]) -> pa.Buffer:
    contiguous: Any = np.ascontiguousarray(numbers)
    return pa.py_buffer(contiguous)


def _of_buffers(kind: pa.DataType, count: int, buffers: list[pa.Buffer | None], null_count: int = 0) -> pa.Array[Any]:
    return pa.Array.from_buffers(kind, count, buffers, null_count)
