"""Bytes of the key column for a key field of a typed topic, and back.

Text and bytes are the key as they are. An integer, date or timestamp is 8 bytes: the number as a signed 64-bit integer,
big-endian, with the sign bit flipped, so that the order of the bytes is the order of the numbers. The bytes of a number
do not depend on the width of its field: a key field may be widened without a change of its keys.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.canonical_columns import Int64s, byte_offsets
from tidelog_proto.errors import ProtocolError

KEY_NUMBER_BYTES: Final = 8
"""Size of a key that is an integer, date or timestamp."""
DATE_DAYS_MIN: Final = -719_162
"""The first day of the year 1, in days since 1970."""
DATE_DAYS_MAX: Final = 2_932_896
"""The last day of the year 9999, in days since 1970."""
STAMP_US_MIN: Final = -62_135_596_800_000_000
"""The first microsecond of the year 1, in µs since 1970."""
STAMP_US_MAX: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999, in µs since 1970."""

_SIGN: Final = np.uint64(1 << 63)
_NOT_ASCII: Final = 128


def number_range(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the smallest and the largest number of an integer, date or timestamp type; None for another type."""
    if pa.types.is_date32(kind):
        return DATE_DAYS_MIN, DATE_DAYS_MAX
    if pa.types.is_timestamp(kind):
        return STAMP_US_MIN, STAMP_US_MAX
    if pa.types.is_signed_integer(kind):
        return -(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1
    return None


def key_column(values: Any) -> pa.Array[Any]:
    """Return the key column for the values of a key field; null stays null.

    Args:
        values: text, bytes, integers, dates or timestamps.
    """
    if pa.types.is_binary(values.type):
        return values  # type: ignore[no-any-return]  # pyarrow's arrays are untyped here
    if pa.types.is_string(values.type):
        return values.view(pa.binary())  # type: ignore[no-any-return]  # pyarrow's arrays are untyped here
    count, nulls = len(values), values.null_count
    numbers = _numbers_of(values)
    raw: Any = (numbers.view(np.uint64) ^ _SIGN).astype(">u8")
    if not nulls:
        offsets: Any = np.arange(count + 1, dtype=np.int32) * np.int32(KEY_NUMBER_BYTES)
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(raw)], 0)
    valid: Any = values.is_valid().to_numpy(zero_copy_only=False)
    offsets = np.concatenate((np.zeros(1, np.int32), np.cumsum(valid * KEY_NUMBER_BYTES, dtype=np.int32)))
    bits: Any = np.packbits(valid, bitorder="little")
    buffers: list[pa.Buffer | None] = [pa.py_buffer(bits), pa.py_buffer(offsets), pa.py_buffer(raw[valid])]
    return pa.Array.from_buffers(pa.binary(), count, buffers, nulls)


def key_values(keys: Any, kind: pa.DataType) -> pa.Array[Any]:
    """Return the values of a key field of the type `kind` for a key column; null stays null.

    Raises:
        ProtocolError: CORRUPT_BATCH if a key is not UTF-8 or does not have 8 bytes, as its type requires, or its
            number is outside the type or outside the years 1 to 9999.
    """
    if pa.types.is_binary(kind):
        return keys  # type: ignore[no-any-return]  # pyarrow's arrays are untyped here
    if pa.types.is_string(kind):
        if is_ascii(keys):
            return keys.view(pa.string())  # type: ignore[no-any-return]  # pyarrow's arrays are untyped here
        try:
            return keys.cast(pa.string())  # type: ignore[no-any-return]  # pyarrow's arrays are untyped here
        except pa.ArrowInvalid as error:
            raise _corrupt(f"a key of type string is not UTF-8: {error}") from error
    numbers, missing = _numbers_in(keys)
    least, most = number_range(kind) or (0, -1)
    low, high = int(numbers.min(initial=most)), int(numbers.max(initial=least))
    if len(numbers) and (low < least or high > most):
        raise _corrupt(f"the keys of type {kind} have numbers from {low} to {high}; expected {least} to {most}")
    if pa.types.is_timestamp(kind):
        return pa.array(numbers, pa.int64(), mask=missing).view(kind)
    storage = pa.int32() if pa.types.is_date32(kind) else kind
    return pa.array(numbers.astype(storage.to_pandas_dtype()), storage, mask=missing).view(kind)


def is_ascii(column: Any) -> bool:
    """Return whether all data of a column of bytes or text are ASCII, and so UTF-8 wherever they are divided.

    Arrow needs 3 ns for the UTF-8 of each value; this reads the bytes once, at the speed of memory.
    """
    data = column.buffers()[2]
    return data is None or not data.size or int(np.frombuffer(data, np.uint8).max()) < _NOT_ASCII


def _numbers_of(values: Any) -> Int64s:
    """Return integers, dates or timestamps as 64-bit integers; the numbers of nulls are 0."""
    if pa.types.is_date32(values.type):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(values.type):
        values = values.view(pa.int64())
    if values.null_count:
        values = pc.fill_null(values, pa.scalar(0, values.type))
    return values.to_numpy(zero_copy_only=False).astype(np.int64)  # type: ignore[no-any-return]  # as above


def _numbers_in(keys: Any) -> tuple[Int64s, npt.NDArray[np.bool_] | None]:
    """Return the numbers of a key column, 0 for nulls, and which keys are null; None if no key is null.

    Raises:
        ProtocolError: CORRUPT_BATCH if a key does not have 8 bytes.
    """
    lengths: Any = pc.min_max(pc.binary_length(keys)).as_py()
    found = {lengths["min"], lengths["max"]} - {None}
    if found - {KEY_NUMBER_BYTES}:
        raise _corrupt(
            f"the keys of an integer, date or timestamp have {min(found)} to {max(found)} bytes; expected "
            f"{KEY_NUMBER_BYTES}"
        )
    missing = None
    if keys.null_count:
        missing = keys.is_null().to_numpy(zero_copy_only=False)
        keys = pc.fill_null(keys, pa.scalar((1 << 63).to_bytes(KEY_NUMBER_BYTES, "big"), pa.binary()))
    count = len(keys)
    if not count:
        return np.empty(0, np.int64), missing
    raw = np.frombuffer(keys.buffers()[2], ">u8", count, int(byte_offsets(keys)[0]))
    return (raw.astype(np.uint64) ^ _SIGN).view(np.int64), missing


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
