"""Times since 1970 as integers: conversion, and detection of a wrong unit, such as seconds instead of milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from tidelog_proto.limits import TIMESTAMP_MS_MAX

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_PER_SECOND: Final = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
FIRST_S: Final = 1_000_000_000
"""September 2001, in seconds. Smaller numbers are accepted in every unit, because they are plausible times."""
_LAST_S: Final = 4_102_444_800
"""The year 2100."""
_END: Final = timedelta(milliseconds=TIMESTAMP_MS_MAX + 1)


def wrong_unit(value: int, expected: str, *, exact: str | None = None) -> str | None:
    """Return why an integer is probably a time in another unit, with the value to pass; None if it is plausible.

    A time in January or February 1970 is refused too, because the same number in another unit is a time since 2001.
    With `exact`, the reason also says how to pass a time in 1970.

    Args:
        value: a time since 1970.
        expected: the unit that the parameter takes: "milliseconds" or "microseconds".
        exact: the name of a form that has no unit, such as "the ISO 8601 text"; None if the parameter has none.
    """
    if value < FIRST_S or FIRST_S <= value // _PER_SECOND[expected] < _LAST_S:
        return None
    for unit, per_second in _PER_SECOND.items():
        if FIRST_S <= value // per_second < _LAST_S:
            moment = datetime.fromtimestamp(value // per_second, UTC)
            right = value * _PER_SECOND[expected] // per_second
            time = f"{moment:%Y-%m-%dT%H:%M:%SZ}"
            reason = f"{value} is {time} in {unit}, but {expected} since 1970 are expected; pass {right}"
            if exact is None or per_second > _PER_SECOND[expected]:
                return reason
            as_given = EPOCH + timedelta(microseconds=value * 10**6 // _PER_SECOND[expected])
            return f"{reason}, or {exact} {as_given:%Y-%m-%dT%H:%M:%S.%fZ} for that time in 1970"
    return None


def zoned_time(text: str) -> datetime | None:
    """Parse ISO 8601 text with a time zone, from 1970 to 9999 in UTC; None if it is something else."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.utcoffset() is None:
        return None
    # Not converted to UTC, because some valid times would exceed the year 9999.
    return moment if timedelta() <= moment - EPOCH < _END else None
