"""Parsing of times: ISO 8601, milliseconds since 1970, and durations before now."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from tidelog_proto.limits import TIMESTAMP_MS_MAX
from tidelog_proto.process.epoch_units import EPOCH, wrong_unit
from tidelog_proto.process.units import parse_duration_ms

_US: Final = timedelta(microseconds=1)
_UNITS_END: Final = frozenset("smhdw")


def moment_of(text: str) -> datetime:
    """Return the time of ISO 8601 text; UTC if it has no time zone.

    Raises:
        ValueError: the text is not ISO 8601.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time in ISO 8601; give a time such as 2013-01-01T05:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_duration(text: str) -> bool:
    """Return whether text ends with a unit of durations, as `7d` does; ISO 8601 does not."""
    return text[-1:] in _UNITS_END


def ago(text: str, now: datetime) -> datetime:
    """Return the time that is a duration like `7d` before `now`, but not before 1970.

    Raises:
        ValueError: the text is not a duration, or the duration is too long.
    """
    try:
        return max(now - timedelta(milliseconds=parse_duration_ms(text)), EPOCH)
    except OverflowError as error:
        raise ValueError(f"the duration {text!r} is too long; give a shorter one, or a time in ISO 8601") from error


def timestamp_us_of(stamp: Any) -> int:
    """Return a time as µs since 1970.

    Args:
        stamp: ISO 8601 text, ms since 1970, or a date or datetime.

    Raises:
        ValueError: the value has another type or unit, such as seconds, or is not between 1970 and 9999.
    """
    if isinstance(stamp, str):
        stamp = moment_of(stamp)
    if isinstance(stamp, datetime):
        moment = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        stamp_us = (moment - EPOCH) // _US
    elif isinstance(stamp, date):
        stamp_us = (datetime(stamp.year, stamp.month, stamp.day, tzinfo=UTC) - EPOCH) // _US
    elif isinstance(stamp, int) and not isinstance(stamp, bool):
        if reason := wrong_unit(stamp, "milliseconds", exact="the ISO 8601 text"):
            raise ValueError(reason)
        stamp_us = stamp * 1000
    else:
        raise ValueError(  # noqa: TRY004 - a fault of the input
            f"{stamp!r} is not a time: give ISO 8601 text or whole milliseconds since 1970"
        )
    if not 0 <= stamp_us < (TIMESTAMP_MS_MAX + 1) * 1000:
        raise ValueError(f"{stamp!r} is not between the years 1970 and 9999; numbers are milliseconds since 1970")
    return stamp_us
