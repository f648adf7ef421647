"""The structure of a JSON text: where the elements of a list end, and how many values there are, without parsing it.

A parser makes an object of each value, in one go that nothing interrupts: a million of `{}` took the gateway 41 s and
1.4 GB. So a large body is looked through first, `STRETCH_BYTES` at a time, for the marks that divide values: brackets,
braces and commas outside of strings. That is arithmetic on whole arrays, some 10 ns a byte at most, whatever the bytes
are. It does not find out whether the text is JSON; the parser does, of each piece that is cut out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

STRETCH_BYTES: Final = 128 * 1024

_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _COMMA = 1, 2, 3, 4, 5
_KINDS: Final = np.zeros(256, np.uint8)
for _bytes, _kind in ((b'"', _QUOTE), (b"\\", _BACKSLASH), (b"[{", _OPEN), (b"]}", _CLOSE), (b",", _COMMA)):
    for _byte in _bytes:
        _KINDS[_byte] = _kind
_STEPS: Final = np.array([0, 0, 0, 1, -1, 0], np.int64)


@dataclass(slots=True)
class Marks:
    """The marks of one stretch that lie outside of strings, in order.

    Attributes:
        places: where they are in the text.
        kinds: what they are: one of `OPEN`, `CLOSE` and `COMMA`.
        depths: how many brackets are open behind each, less those that were open where the text begins.
        quotes: where strings begin and end.
    """

    places: Any
    kinds: Any
    depths: Any
    quotes: Any


def marks(text: bytes, start: int = 0) -> Iterator[Marks]:
    """Yield the marks of a JSON text from `start` on, which lies outside of strings, a stretch at a time."""
    data = np.frombuffer(text, np.uint8)
    depth, in_string, is_escape = 0, 0, 0
    for at in range(start, len(data), STRETCH_BYTES):
        kinds = _KINDS[data[at : at + STRETCH_BYTES]]
        length = len(kinds)
        places = np.flatnonzero(kinds)
        kinds = kinds[places]
        quotes = kinds == _QUOTE
        if is_escape or (kinds == _BACKSLASH).any():
            escaped, is_escape = _escaped(places, kinds, length, is_escape)
            quotes &= ~escaped
        sums = np.cumsum(quotes)
        outside = ((sums + in_string) % 2 == 0) & (kinds >= _OPEN)
        if len(sums):
            in_string = (in_string + int(sums[-1])) % 2
        ends = places[quotes] + at
        places, kinds = places[outside] + at, kinds[outside]
        depths = depth + np.cumsum(_STEPS[kinds])
        if len(depths):
            depth = int(depths[-1])
        yield Marks(places, kinds, depths, ends)


def _escaped(places: Any, kinds: Any, length: int, is_escape: int) -> tuple[Any, int]:
    """Return which marks are behind an odd number of backslashes, and whether the next byte after the stretch is."""
    count = len(places)
    is_backslash = kinds == _BACKSLASH
    follows = np.empty(count, bool)
    follows[:1] = False
    follows[1:] = is_backslash[:-1] & (places[1:] == places[:-1] + 1)
    begins = np.where(follows, 0, np.arange(count))
    if count and places[0] == 0 and is_escape:
        begins[0] = -1  # the run began in the stretch before, at one backslash more or less
    first = np.maximum.accumulate(begins) if count else begins
    if count and begins[0] == -1:
        first[np.cumprod(np.concatenate(([True], follows[1:])).astype(np.int64)).astype(bool)] = -1
    runs = np.arange(count) - first  # backslashes in front of each mark
    ends_in_run = bool(count and is_backslash[-1] and places[-1] == length - 1)
    is_next = int((runs[-1] + 1) % 2) if ends_in_run else int(not length and is_escape)
    return runs % 2 == 1, is_next


OPEN: Final = _OPEN
CLOSE: Final = _CLOSE
COMMA: Final = _COMMA
