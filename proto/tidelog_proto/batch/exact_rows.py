"""Values of any field in a canonical memory layout, and their weights in derived batches.

Equal rows have equal bytes, whatever batches they came from (`canonical_columns.py` does that for other columns). There
are zeros under nulls, text and lists there are empty, and a bitmap exists only if there are nulls. Below a null struct,
and so in a tombstone, fields are not null and have zeros: then a required field has no nulls, and a tombstone adds no
bitmaps.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.batch.canonical_columns import Int64s, byte_offsets

Mask = npt.NDArray[np.bool_]
"""Whether something is true of each value."""

LENGTH_WEIGHT_BYTES: Final = 4
"""Weight of text, bytes or a list in addition to its contents: that of an offset."""


def exact_values(array: Any, below: Mask | None = None) -> pa.Array[Any]:
    """Return the canonical form of the values of a field, or of the column `value`.

    Args:
        array: the values.
        below: for each value whether nothing above it is null; None for all.
    """
    count, kind = len(array), array.type
    own = _valid(array) if array.null_count else None
    shown = _both(own, below)
    validity, nulls = None, 0
    if own is not None:
        valid = own if below is None else own | ~below
        nulls = count - int(np.count_nonzero(valid))
        validity = _buffer(np.packbits(valid, bitorder="little")) if nulls else None
    if pa.types.is_struct(kind):
        children = [exact_values(array.field(at), shown) for at in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, count, [validity], nulls, 0, children)
    if pa.types.is_list(kind):
        items = (array if shown is None else array.filter(pa.array(shown))).flatten()
        offsets = _buffer(_offsets(_list_lengths(array, shown)))
        return pa.Array.from_buffers(kind, count, [validity, offsets], nulls, 0, [exact_values(items)])
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        if shown is not None:
            empty: Any = pa.scalar(b"" if pa.types.is_binary(kind) else "", kind)
            array = pc.if_else(pa.array(shown), array, empty)
        bounds = byte_offsets(array)
        data = array.buffers()[2]
        data = pa.py_buffer(b"") if data is None else data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
        return pa.Array.from_buffers(kind, count, [validity, _buffer(bounds - bounds[0]), data], nulls)
    return pa.Array.from_buffers(kind, count, [validity, _buffer(_fixed(array, shown))], nulls)


def tight_rows(columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return typed columns whose lists reference no data outside the batch.

    Arrow's writer truncates most slices to their own data. If the lists of a slice have no items, the writer keeps the
    offsets of all text in the whole array.
    """
    at = columns.schema.get_field_index("value")
    value = columns.column(at)
    if not _has_loose_lists(value):
        return columns
    return columns.set_column(at, columns.schema.field(at), exact_values(value))


def _has_loose_lists(array: Any) -> bool:
    kind = array.type
    if pa.types.is_struct(kind):
        return any(_has_loose_lists(array.field(at)) for at in range(kind.num_fields))
    if not pa.types.is_list(kind) or not len(array.values):
        return False
    bounds = byte_offsets(array)
    items = array.values.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))
    return not len(items) or _has_loose_lists(items)


def row_weights(array: Any, below: Mask | None = None) -> Int64s:
    """Return the weight of each entry of the column `value`, or of a field: the size of its canonical form.

    A null weighs as much as the zeros under it, so that the weight of a batch bounds its size.

    Args:
        array, below: as in `exact_values`.
    """
    count, kind = len(array), array.type
    shown = _both(_valid(array) if array.null_count else None, below)
    if pa.types.is_struct(kind):
        weights = np.zeros(count, np.int64)
        for at in range(kind.num_fields):
            weights += row_weights(array.field(at), shown)
        return weights
    if pa.types.is_list(kind):
        items = (array if shown is None else array.filter(pa.array(shown))).flatten()
        sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(row_weights(items))))
        lengths = _list_lengths(array, shown)
        ends = np.cumsum(lengths)
        of_items: Int64s = sums[ends] - sums[ends - lengths]
        return of_items + LENGTH_WEIGHT_BYTES
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        lengths = np.diff(byte_offsets(array)).astype(np.int64) if count else np.zeros(0, np.int64)
        return (lengths if shown is None else np.where(shown, lengths, 0)) + LENGTH_WEIGHT_BYTES
    return np.full(count, -(-kind.bit_width // 8), np.int64)


def _fixed(array: Any, shown: Mask | None) -> npt.NDArray[Any]:
    """Return the data of a column of fixed-size values, with zeros where `shown` is False."""
    count, kind = len(array), array.type
    if pa.types.is_boolean(kind):
        bits = np.zeros(0, np.uint8) if not count else np.frombuffer(array.buffers()[1], np.uint8)
        values = np.unpackbits(bits, count=array.offset + count, bitorder="little")[array.offset :]
        return np.packbits(values if shown is None else values & shown, bitorder="little")
    width = kind.bit_width // 8
    data = np.zeros(0, np.uint8)
    if count:
        data = np.frombuffer(array.buffers()[1], np.uint8, count * width, array.offset * width)
    if shown is None:
        return data
    rows = data.reshape(count, width).copy()
    rows[~shown] = 0
    return rows


def _list_lengths(lists: Any, shown: Mask | None) -> Int64s:
    """Return the number of items of each list, 0 for null and where `shown` is False."""
    lengths: Any = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths if shown is None else np.where(shown, lengths, 0)


def _offsets(lengths: Int64s) -> npt.NDArray[np.int32]:
    return np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))


def _valid(array: Any) -> Mask:
    return array.is_valid().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]  # pyarrow is untyped here


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _buffer(numbers: npt.NDArray[Any]) -> pa.Buffer:
    contiguous: Any = np.ascontiguousarray(numbers)
    return pa.py_buffer(contiguous)
