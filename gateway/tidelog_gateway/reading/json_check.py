"""Vectorized check whether the rows of a column are JSON as defined by `tidelog_proto.text.json_text`.

The rows are joined to one JSON array. Each row is JSON exactly if the parser accepts the array and the array's elements
end where the rows end. If that fails, rows are checked one by one.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow.compute as pc

from tidelog_gateway.callers.turns import Pace
from tidelog_gateway.reading.text_columns import bytes_of, joined, lengths_of
from tidelog_gateway.requests.json_structure import COMMA, STRETCH_BYTES, marks
from tidelog_proto.limits import JSON_DEPTH_MAX, JSON_NUMBER_CHARS_MAX
from tidelog_proto.text.json_text import json_text

_WHOLE_PAIRS: Final = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?:[dD][89abAB]..\\u[dD][c-fC-F]..|(?![dD][89a-fA-F])....))*+", re.DOTALL
)
_PAIR_BYTES: Final = len(rb"\ud83d\ude00")
_DIGIT: Final = b"1"
_AS_DIGITS: Final = bytes(ord(_DIGIT) if byte in b"-+.0123456789eE" else ord(" ") for byte in range(256))
_LONG_RUN: Final = _DIGIT * (JSON_NUMBER_CHARS_MAX + 1)


async def first_not_json(texts: Any, pace: Pace) -> int | None:
    """Return the number of the first row that is not JSON, None if all are; null is accepted.

    Args:
        texts: a column of text of at most `SLICE_BYTES`, or a single row.
        pace: waits for the turn of the next slice.
    """
    rows = pc.fill_null(texts, "null")
    if not len(rows) or await _are_json(rows, pace):
        return None
    if len(rows) > 1:
        for number, text in enumerate(rows.to_pylist()):
            try:
                json_text(text)
            except ValueError:
                return number
    return 0


async def _are_json(rows: Any, pace: Pace) -> bool:
    text = b"[0,%b0]" % bytes_of(joined(rows, ",")).tobytes()
    ends = 2 + np.cumsum(lengths_of(rows) + 1)
    commas: list[Any] = []
    quotes: list[Any] = []
    for stretch, stretch_marks in enumerate(marks(text)):
        if stretch:
            await pace()
        if len(stretch_marks.depths) and stretch_marks.depths.max() > JSON_DEPTH_MAX + 1:
            return False
        quotes.append(stretch_marks.quotes)
        commas.append(stretch_marks.places[(stretch_marks.kinds == COMMA) & (stretch_marks.depths == 1)])
    if not np.array_equal(np.concatenate(commas), np.concatenate(([2], ends))):
        return False
    if b"\\u" in text and await _has_unpaired_surrogate(text, pace):
        return False
    if await _has_long_number(text, np.concatenate(quotes), pace):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


async def _has_unpaired_surrogate(text: bytes, pace: Pace) -> bool:
    """Return whether a text that is otherwise JSON has the escape of an unpaired surrogate."""
    text += b" " * _PAIR_BYTES  # Padding, so that the pattern can search for a low surrogate after the last escape.
    at = 0
    while len(text) - at >= _PAIR_BYTES:
        end = min(len(text), at + STRETCH_BYTES)
        match = _WHOLE_PAIRS.match(text, at, end)
        assert match is not None, "the pattern also matches a text without escapes"
        if end - match.end() >= _PAIR_BYTES:
            return True
        at = match.end()
        await pace()
    return False


async def _has_long_number(text: bytes, quotes: Any, pace: Pace) -> bool:
    """Return whether a number has too many characters; digits in strings are ignored."""
    for first in range(0, len(text), STRETCH_BYTES):
        if first:
            await pace()
        overlap = max(0, first - JSON_NUMBER_CHARS_MAX)  # A number may have begun in the previous stretch.
        runs = text[overlap : first + STRETCH_BYTES].translate(_AS_DIGITS)
        starts: list[int] = []
        at = runs.find(_LONG_RUN)
        while at >= 0:
            starts.append(overlap + at)
            at = runs.find(_LONG_RUN, runs.find(b" ", at))
        if starts and (np.searchsorted(quotes, starts) % 2 == 0).any():
            return True
    return False
