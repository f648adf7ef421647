"""The structure of a JSON text, found without parsing it: the ends of a list's elements and the number of values.

A parser creates an object for each value without yielding: a million of `{}` would block the event loop for 41 s and
take 1.4 GB. A large body is therefore first scanned, `STRETCH_BYTES` at a time, for the marks that separate values:
brackets, braces and commas outside of strings. The scan uses array operations and takes at most some 10 ns a byte, for
any input. It does not validate the text; the parser validates each part of it.
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
    """The marks outside of strings in a stretch (`STRETCH_BYTES` of the text), in order.

    Attributes:
        places: positions in the text.
        kinds: `OPEN`, `CLOSE` or `COMMA`.
        depths: open brackets after each mark, relative to the position at which the scan began.
        quotes: positions at which strings begin and end.
    """

    places: Any
    kinds: Any
    depths: Any
    quotes: Any


def marks(text: bytes, start: int = 0) -> Iterator[Marks]:
    """Yield the marks of a JSON text from `start` on, which must be outside of strings, a stretch at a time."""
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
    """Return which marks follow an odd number of backslashes, and whether the first byte after the stretch does."""
    count = len(places)
    is_backslash = kinds == _BACKSLASH
    follows = np.empty(count, bool)
    follows[:1] = False
    follows[1:] = is_backslash[:-1] & (places[1:] == places[:-1] + 1)
    begins = np.where(follows, 0, np.arange(count))
    if count and places[0] == 0 and is_escape:
        begins[0] = -1  # The run of backslashes began in the previous stretch; only its parity is needed.
    first = np.maximum.accumulate(begins) if count else begins
    if count and begins[0] == -1:
        first[np.cumprod(np.concatenate(([True], follows[1:])).astype(np.int64)).astype(bool)] = -1
    runs = np.arange(count) - first  # the number of backslashes before each mark
    ends_in_run = bool(count and is_backslash[-1] and places[-1] == length - 1)
    is_next = int((runs[-1] + 1) % 2) if ends_in_run else int(not length and is_escape)
    return runs % 2 == 1, is_next


OPEN: Final = _OPEN
CLOSE: Final = _CLOSE
COMMA: Final = _COMMA
