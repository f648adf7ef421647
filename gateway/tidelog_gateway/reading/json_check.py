"""Which rows of a column are JSON, by the definition of `tidelog_proto.json_text`, checked for all rows at once.

The rows are joined to one array. It is JSON exactly if each row is: where the parser takes the whole, and its elements
end where the rows end. Only where that fails are rows looked at one by one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow.compute as pc

from tidelog_gateway.json_structure import COMMA, marks
from tidelog_gateway.reading.text_columns import bytes_of, joined, lengths_of
from tidelog_proto.json_text import has_half_pair, json_text
from tidelog_proto.limits import JSON_DEPTH_MAX, JSON_NUMBER_CHARS_MAX

Pace = Callable[[], Awaitable[None]]

_IN_NUMBER: Final = np.zeros(256, bool)
_IN_NUMBER[list(b"-+.0123456789eE")] = True
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


async def first_not_json(texts: Any, pace: Pace) -> int | None:
    """Return the first row that is not JSON, None where all are; null is not looked at.

    Args:
        texts: a column of text, of at most `PIECE_BYTES` or a single row.
        pace: waits for the turn of the next piece of work.
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
    for stretch, found in enumerate(marks(text)):
        if stretch:
            await pace()
        if len(found.depths) and found.depths.max() > JSON_DEPTH_MAX + 1:
            return False
        commas.append(found.places[(found.kinds == COMMA) & (found.depths == 1)])
    if not np.array_equal(np.concatenate(commas), np.concatenate(([2], ends))):
        return False
    if b"\\u" in text and has_half_pair(text.decode()):
        return False
    if _has_long_number(text) and _has_long_number(_STRING.sub(b'""', text)):
        return False
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def _has_long_number(text: bytes) -> bool:
    breaks = np.flatnonzero(~_IN_NUMBER[np.frombuffer(text, np.uint8)])
    return bool((np.diff(breaks) > JSON_NUMBER_CHARS_MAX + 1).any())
