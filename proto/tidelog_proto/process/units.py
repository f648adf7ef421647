"""Parsing of sizes and durations with units: `64MiB`, `1.5 GB`, `500ms`, `7d`.

Ambiguous units are refused: `1M` may mean 1,000,000 or 1,048,576. Plain numbers are bytes or milliseconds.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

SIZE_UNITS: Final = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
DURATION_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

_QUANTITY: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]{0,3})", re.ASCII)


def parse_size(text: str) -> int:
    """Return a size in bytes; plain numbers are bytes, `KiB` to `TiB` powers of 1024, `kB` to `TB` powers of 1000.

    Raises:
        ValueError: the text is not a size, or not a whole number of bytes; the message has examples.
    """
    return _parse(text, SIZE_UNITS, "a size like 1048576, 64MiB or 1.5GB", "bytes")


def parse_duration_ms(text: str) -> int:
    """Return a duration in milliseconds; plain numbers are milliseconds, the units are ms, s, m, h, d and w.

    Raises:
        ValueError: the text is not a duration, or not a whole number of milliseconds; the message has examples.
    """
    return _parse(text, DURATION_UNITS_MS, "a duration like 500ms, 30s, 12h or 7d", "milliseconds")


def _parse(text: str, units: dict[str, int], example: str, whole: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    unit = None if match is None else units.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not {example}")
    quantity = Decimal(match[1]) * unit
    if quantity != int(quantity):
        raise ValueError(f"{text!r} is {quantity.normalize():f} {whole}; give a whole number of {whole}")
    return int(quantity)
