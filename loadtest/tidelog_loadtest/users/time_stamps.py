"""Values that carry the time at which they were made, so that whoever receives one knows how long it was on its way."""

from __future__ import annotations

import time
from typing import Final

VALUE_CHARS: Final = 100
_TIME_DIGITS: Final = 20


def stamped() -> str:
    """Return a value of `VALUE_CHARS` characters that begins with the time now, in nanoseconds since 1970."""
    return str(time.time_ns()).zfill(_TIME_DIGITS).ljust(VALUE_CHARS, ".")


def age_ms(value: str) -> float:
    """Return how long ago a stamped value was made on this machine, in milliseconds.

    Raises:
        ValueError: the value does not begin with a time.
    """
    return (time.time_ns() - int(value[:_TIME_DIGITS])) / 1e6
