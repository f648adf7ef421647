"""Finds the end of each row of a CSV body with array operations, and checks the quoting.

The grammar is RFC 4180 in UTF-8, applied strictly: a field is either quoted from its first to its last character or has
no quote, rows end in LF or CR LF, and a quote inside a quoted field is doubled. The quoting is checked before any field
is decoded, so an unclosed quote costs one pass over the bytes, and no field of the size of the body is decoded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import numpy as np

from tidelog_gateway.problems import Problem, invalid

STRETCH_BYTES: Final = 256 * 1024

_LF, _CR, _QUOTE, _COMMA = 10, 13, 34, 44
_END: Final = np.zeros(256, bool)
_END[[_LF, _CR, _COMMA]] = True
_CODES: Final = np.zeros(256, bool)
_CODES[[_LF, _CR, _QUOTE]] = True


async def row_ends(body: bytes, *, rows_max: int, pace: Callable[[], Awaitable[None]]) -> list[int]:
    """Return the position after each row, the header row included.

    Raises:
        Problem: 422, the quoting is wrong, or there are more than `rows_max` rows after the header; also those that
            `pace` raises.
    """
    data = np.frombuffer(body, np.uint8)
    ends: list[Any] = []
    count, in_quotes, opened_in = 0, 0, 0
    for start in range(0, len(data), STRETCH_BYTES):
        await pace()
        places = np.flatnonzero(_CODES[data[start : start + STRETCH_BYTES]]) + start
        codes = data[places]
        quotes = codes == _QUOTE
        open_after = (np.cumsum(quotes) + in_quotes) % 2
        breaks = places[(codes == _LF) & (open_after == 0)]
        row_of = partial(_row, count, breaks)
        _check_quotes(data, places[quotes], open_after[quotes] == 1, row_of)
        _check_returns(data, places[(codes == _CR) & (open_after == 0)], row_of)
        if quotes.any():
            in_quotes = int(open_after[-1])
            opened_in = row_of(int(places[quotes][-1]))
        ends.append(breaks + 1)
        count += len(breaks)
        if count > rows_max + 1:
            raise too_many_rows(rows_max)
    if in_quotes:
        raise row_fault(opened_in, "a quote is not closed; end the field with a quote, and double quotes inside it")
    positions: list[int] = np.concatenate(ends).tolist() if ends else []
    if body and (not positions or positions[-1] != len(body)):
        positions.append(len(body))  # the last row needs no line end
    if len(positions) > rows_max + 1:
        raise too_many_rows(rows_max)
    return positions


def row_fault(row: int, detail: str) -> Problem:
    """Return the 422 that names a row; the header row is 1."""
    return invalid([{"pointer": f"/{row}", "detail": f"row {row}: {detail}"}])


def too_many_rows(rows_max: int) -> Problem:
    """Return the 422 for a body of too many rows."""
    detail = f"the body has more than {rows_max} records; send fewer records per request"
    return invalid([{"pointer": "", "detail": detail}])


def _row(rows_before: int, breaks: Any, place: int) -> int:
    return rows_before + int(np.searchsorted(breaks, place)) + 1


def _check_quotes(data: Any, places: Any, opening: Any, row_of: Callable[[int], int]) -> None:
    """Refuse a quote in the middle of an unquoted field, and text after a closing quote."""
    first = places[opening]
    before = data[np.maximum(first - 1, 0)]
    is_first = (first == 0) | _END[before] | (before == _QUOTE)
    is_first |= (first == 3) & bytes(data[:3]).startswith(b"\xef\xbb\xbf")
    last = places[~opening]
    after = data[np.minimum(last + 1, len(data) - 1)]
    is_last = (last == len(data) - 1) | _END[after] | (after == _QUOTE)
    middle, trailed = first[~is_first], last[~is_last]
    if len(middle) and not (len(trailed) and trailed[0] < middle[0]):
        detail = "an unquoted field contains a quote; quote the whole field and double the quotes inside"
        raise row_fault(row_of(int(middle[0])), detail)
    if len(trailed):
        detail = "a closing quote is followed by text; double a quote that belongs to the field"
        raise row_fault(row_of(int(trailed[0])), detail)


def _check_returns(data: Any, places: Any, row_of: Callable[[int], int]) -> None:
    """Refuse a CR that is not followed by an LF."""
    after = data[np.minimum(places + 1, len(data) - 1)]
    wrong = (after != _LF) | (places == len(data) - 1)
    if wrong.any():
        row = row_of(int(places[wrong][0]))
        detail = "a carriage return is not followed by a line feed; quote the field, or end the row with CR LF"
        raise row_fault(row, detail)
