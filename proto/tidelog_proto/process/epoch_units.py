"""Detection of times since 1970 in the wrong unit, such as seconds where milliseconds are expected."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_PER_SECOND: Final = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_FIRST_S: Final = 1_000_000_000
"""September 2001; earlier times are not taken for those of another unit."""
_LAST_S: Final = 4_102_444_800
"""The year 2100."""


def wrong_unit(value: int, expected: str) -> str | None:
    """Return why an integer is probably a time in another unit, with the value to pass; None if it is plausible.

    Args:
        value: a time since 1970.
        expected: the unit that the parameter takes: "milliseconds" or "microseconds".
    """
    if value < _FIRST_S or _FIRST_S <= value // _PER_SECOND[expected] < _LAST_S:
        return None
    for unit, per_second in _PER_SECOND.items():
        if _FIRST_S <= value // per_second < _LAST_S:
            moment = datetime.fromtimestamp(value // per_second, UTC)
            right = value * _PER_SECOND[expected] // per_second
            time = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
            return f"{value} is {time} in {unit}, but {expected} since 1970 are expected; pass {right}"
    return None
