"""Moments as people write them: ISO 8601, or as programs do: milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

from tidelog_proto.limits import TIMESTAMP_MS_MAX
from tidelog_proto.process.units import parse_duration_ms

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_UNITS_END: Final = frozenset("smhdw")


def moment_of(text: str) -> datetime:
    """Return the moment that ISO 8601 text names; without a time zone it is in UTC.

    Raises:
        ValueError: it names none.
    """
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_duration(text: str) -> bool:
    """Whether text ends as a duration like `7d` does; no time does."""
    return text[-1:] in _UNITS_END


def ago(text: str, now: datetime) -> datetime:
    """Return the moment that lies a duration like `7d` before `now`.

    Raises:
        ValueError: it is no duration, or longer than there is a past.
    """
    try:
        return max(now - timedelta(milliseconds=parse_duration_ms(text)), _EPOCH)
    except OverflowError as error:
        raise ValueError(f"{text!r} is too long") from error


def timestamp_us_of(stamp: Any) -> int:
    """Return a moment as µs since 1970.

    Args:
        stamp: ISO 8601 text, ms since 1970, or a date or moment.

    Raises:
        ValueError: it is none of these, or not between 1970 and 9999.
    """
    if isinstance(stamp, str):
        stamp = moment_of(stamp)
    if isinstance(stamp, datetime):
        moment = stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
        stamp_us = (moment - _EPOCH) // _US
    elif isinstance(stamp, date):
        stamp_us = (datetime(stamp.year, stamp.month, stamp.day, tzinfo=UTC) - _EPOCH) // _US
    elif isinstance(stamp, int) and not isinstance(stamp, bool):
        stamp_us = stamp * 1000
    else:
        raise ValueError(  # noqa: TRY004 - a fault of the input
            f"{stamp!r} is no time: give ISO 8601 text or whole milliseconds since 1970"
        )
    if not 0 <= stamp_us < (TIMESTAMP_MS_MAX + 1) * 1000:
        raise ValueError(f"{stamp!r} is not between the years 1970 and 9999; numbers are milliseconds since 1970")
    return stamp_us
