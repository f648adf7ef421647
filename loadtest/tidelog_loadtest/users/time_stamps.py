"""Values that start with their creation time, so that a receiver can compute the latency."""

from __future__ import annotations

import time
from typing import Final

VALUE_CHARS: Final = 100
_TIME_DIGITS: Final = 20


def stamped() -> str:
    """Return a value of `VALUE_CHARS` characters that starts with the current time, in nanoseconds since 1970."""
    return str(time.time_ns()).zfill(_TIME_DIGITS).ljust(VALUE_CHARS, ".")


def age_ms(value: str) -> float:
    """Return the age of a value created on this machine, in milliseconds.

    Raises:
        ValueError: the value does not start with a time.
    """
    return (time.time_ns() - int(value[:_TIME_DIGITS])) / 1e6
