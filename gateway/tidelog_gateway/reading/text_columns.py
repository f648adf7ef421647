"""Vectorized conversion of columns of bytes to text, base64 and JSON strings, without a Python object per record.

All functions take columns of at most `SLICE_BYTES`, or of a single larger record.
"""

from __future__ import annotations

import binascii
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.limits import KIB

SLICE_BYTES: Final = 128 * KIB
"""Maximum payload of a slice, which is encoded at once, in about 2 to 8 ms."""
SLICE_RECORDS: Final = 2_000

_SHORT_ESCAPES: Final = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
_ESCAPES: Final = {
    ord("\\"): "\\\\",
    ord('"'): '\\"',
    **{code: _SHORT_ESCAPES.get(code, f"\\u{code:04x}") for code in range(32)},
}
"""Character -> its escape in a JSON string; in the order of replacement: the backslash is first."""


def lengths_of(column: Any) -> Any:
    """Return the length of each row in bytes as a numpy array; 0 for null."""
    lengths: Any = pc.binary_length(column)
    return lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def bytes_of(column: Any) -> Any:
    """Return the concatenated bytes of all rows of a column of bytes or text as a numpy array."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return np.empty(0, np.uint8)
    ends = np.frombuffer(offsets, np.int32)
    return np.frombuffer(data, np.uint8)[ends[column.offset] : ends[column.offset + len(column)]]


def text_of(column: Any) -> Any:
    """Return a column of bytes as text; None if a row is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def is_not_utf8(column: Any) -> Any:
    """Return for each row whether it has bytes that are not UTF-8, as a numpy array."""
    # Three bytes between rows, so that a truncated sequence at the end of a row is detected there.
    apart = pc.binary_join_element_wise(pc.fill_null(column, b""), b"\0\0\0", b"")
    data = bytes_of(apart)
    bad = np.zeros(len(apart), bool)
    if not len(data):
        return bad
    if len(column) == 1:
        return np.array([text_of(column) is None])
    follows = (data & 0xC0) == 0x80
    of_three, of_four = (data & 0xF0) == 0xE0, (data >= 0xF0) & (data <= 0xF4)
    expected = np.zeros(len(data), bool)
    expected[1:] = ((data >= 0xC2) & (data <= 0xDF) | of_three | of_four)[:-1]
    expected[2:] |= (of_three | of_four)[:-2]
    expected[3:] |= of_four[:-3]
    wrong = (expected != follows) | (data == 0xC0) | (data == 0xC1) | (data > 0xF4)
    first, second = data[:-1], data[1:]
    # Overlong encodings, surrogates, and code points above U+10FFFF.
    wrong[1:] |= (first == 0xE0) & (second < 0xA0) | (first == 0xED) & (second > 0x9F)
    wrong[1:] |= (first == 0xF0) & (second < 0x90) | (first == 0xF4) & (second > 0x8F)
    ends = np.cumsum(lengths_of(apart))
    bad[np.searchsorted(ends, np.flatnonzero(wrong), side="right")] = True
    return bad


def base64_of(column: Any) -> Any:
    """Return each row in base64 with padding, as text; null stays null."""
    data, lengths = bytes_of(pc.fill_null(column, b"")), lengths_of(column)
    if len(column) == 1 and column.is_valid()[0].as_py():
        whole = binascii.b2a_base64(data, newline=False)
        return _strings(np.array([0, len(whole)]), whole)
    groups = -(-lengths // 3)
    # Each row is padded to whole groups of three bytes, so that all rows are encoded at once.
    shifts = np.cumsum(3 * groups) - 3 * groups - (np.cumsum(lengths) - lengths)
    padded = np.zeros(3 * int(groups.sum()), np.uint8)
    padded[np.arange(len(data)) + np.repeat(shifts, lengths)] = data
    encoded = np.frombuffer(bytearray(binascii.b2a_base64(padded.tobytes(), newline=False)), np.uint8)
    ends = np.cumsum(4 * groups)
    missing = 3 * groups - lengths
    encoded[ends[missing >= 1] - 1] = ord("=")
    encoded[ends[missing == 2] - 2] = ord("=")
    texts = _strings(np.concatenate(([0], ends)), encoded.data)
    return pc.if_else(pc.is_valid(column), texts, pa.scalar(None, pa.string())) if column.null_count else texts


def _strings(offsets: Any, data: Any) -> Any:
    buffers: Any = pa.py_buffer(offsets.astype(np.int32).data), pa.py_buffer(data)
    return pa.StringArray.from_buffers(len(offsets) - 1, *buffers)


def escaped(texts: Any) -> Any:
    """Return each row as the inside of a JSON string, with the escapes that orjson writes; null stays null."""
    data = bytes_of(texts).tobytes()
    for code, escape in _ESCAPES.items():
        if code in data:
            texts = pc.replace_substring(texts, chr(code), escape)
    return texts


def joined(*parts: Any) -> Any:
    """Return the parts of each row joined; a part is a column of text or a text. A row with a null is null."""
    return pc.binary_join_element_wise(*parts, "")


def quoted(texts: Any) -> Any:
    """Return each row as a JSON string; null as `null`."""
    return pc.fill_null(joined('"', escaped(texts), '"'), "null")
