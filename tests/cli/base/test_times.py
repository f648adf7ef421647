from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from tidelog_cli.base.times import ago, moment_of, timestamp_us_of

NOW = datetime(2026, 3, 8, tzinfo=UTC)


def test_moments_without_a_zone_are_in_utc() -> None:
    assert moment_of("2013-01-01T05:00:00") == datetime(2013, 1, 1, 5, tzinfo=UTC)
    assert moment_of("2013-01-01T05:00:00+01:00") == datetime(2013, 1, 1, 4, tzinfo=UTC)


def test_a_duration_ago() -> None:
    assert ago("7d", NOW) == datetime(2026, 3, 1, tzinfo=UTC)
    assert ago("9000w", NOW) == datetime(1970, 1, 1, tzinfo=UTC), "the log has no earlier times"


@pytest.mark.parametrize("text", ["yesterday", "-7d", "999999999999999999w"])
def test_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|too long"):
        ago(text, NOW)


@pytest.mark.parametrize(
    ("stamp", "stamp_us"),
    [
        (1_500, 1_500_000),
        ("1970-01-02", 86_400_000_000),
        ("1970-01-01T00:00:00.000001Z", 1),
        (date(1970, 1, 2), 86_400_000_000),
        (datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001 - one without a zone is meant
        (253_402_300_799_999, 253_402_300_799_999_000),
    ],
)
def test_stamps(stamp: Any, stamp_us: int) -> None:
    assert timestamp_us_of(stamp) == stamp_us


@pytest.mark.parametrize("stamp", [-1, 253_402_300_800_000, 1.5, True, None, "noon", "1969-12-31", [1]])
def test_invalid_time_is_refused(stamp: Any) -> None:
    with pytest.raises(ValueError, match=r"time|1970|Invalid|iso"):
        timestamp_us_of(stamp)


@pytest.mark.parametrize(
    ("stamp", "remedy"),
    [
        (1_795_964_400, "in seconds.* pass 1795964400000, or the ISO 8601 text 1970-01-21T18:52:44.400000Z"),
        (1_795_964_400_000_000, "in microseconds.* pass 1795964400000$"),
    ],
)
def test_a_time_in_another_unit_than_milliseconds_is_refused(stamp: int, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        timestamp_us_of(stamp)
    assert timestamp_us_of(1_795_964_400_000) == 1_795_964_400_000_000
