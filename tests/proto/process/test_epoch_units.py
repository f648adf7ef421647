from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tidelog_proto.batch.columns import canonical
from tidelog_proto.process.epoch_units import wrong_unit, zoned_time

SECONDS = 1_795_964_400


@pytest.mark.parametrize(("expected", "factor"), [("milliseconds", 10**3), ("microseconds", 10**6)])
def test_times_in_other_units_are_named(expected: str, factor: int) -> None:
    for unit, other in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9)):
        reason = wrong_unit(SECONDS * other, expected, exact="the ISO 8601 text")
        if unit == expected:
            assert reason is None
        else:
            assert reason is not None
            assert reason.startswith(
                f"{SECONDS * other} is 2026-11-29T15:00:00Z in {unit}, but {expected} since 1970 are expected; "
                f"pass {SECONDS * factor}"
            )


@pytest.mark.parametrize(
    ("value", "expected", "alternative"),
    [
        (1_795_964_400, "milliseconds", "1970-01-21T18:52:44.400000Z"),
        (1_795_964_400_123, "microseconds", "1970-01-21T18:52:44.400123Z"),
        (1_795_964_400, "microseconds", "1970-01-01T00:29:55.964400Z"),
    ],
)
def test_the_time_as_given_is_offered_in_an_exact_form(value: int, expected: str, alternative: str) -> None:
    assert (wrong_unit(value, expected, exact="the ISO 8601 text") or "").endswith(
        f", or the ISO 8601 text {alternative} for that time in 1970"
    )


@pytest.mark.parametrize(("value", "expected"), [(SECONDS * 10**9, "milliseconds"), (SECONDS * 10**6, "milliseconds")])
def test_a_time_that_does_not_exist_as_given_has_no_alternative(value: int, expected: str) -> None:
    assert (wrong_unit(value, expected, exact="the ISO 8601 text") or "").endswith(f"pass {SECONDS * 1000}")


@pytest.mark.parametrize("value", [-1, 0, 5, 99_999, 999_999_999, 5 * 10**9, 9 * 10**18])
def test_other_integers_are_accepted(value: int) -> None:
    assert wrong_unit(value, "milliseconds", exact="the ISO 8601 text") is None


@pytest.mark.parametrize(
    ("value", "is_refused"),
    [
        (10**9 - 1, False),  # 2001 in seconds, 12 January 1970 in milliseconds
        (10**9, True),
        (4_102_444_799, True),  # 2100 in seconds, 17 February 1970 in milliseconds
        (4_102_444_800, False),
        (10**12 - 1, False),
        (10**12, False),  # 2001 in milliseconds
        (4_102_444_799_999, False),  # 2100 in milliseconds
        (4_102_444_800_000, False),
        (10**15 - 1, False),
        (10**15, True),  # 2001 in microseconds
        (10**18, True),  # 2001 in nanoseconds
    ],
)
def test_the_bounds_of_what_is_refused(value: int, is_refused: bool) -> None:
    assert (wrong_unit(value, "milliseconds") is not None) == is_refused


def test_the_value_to_pass_keeps_fractions_of_a_second() -> None:
    assert (wrong_unit(SECONDS * 10**6 + 123_456, "milliseconds") or "").endswith(f"pass {SECONDS * 1000 + 123}")
    assert (wrong_unit(SECONDS * 10**3 + 123, "microseconds") or "").endswith(f"pass {SECONDS * 10**6 + 123_000}")


def column_of(stamps: pa.Array[Any]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"a"] * len(stamps), pa.binary()), "timestamp": stamps})


@pytest.mark.parametrize("values", [[], [0, 5, 999_999_999], [0, SECONDS * 1000], [SECONDS * 1000] * 2])
def test_a_column_of_milliseconds_is_accepted(values: list[int]) -> None:
    stamps = canonical(column_of(pa.array(values, pa.int64())))["timestamp"]
    assert stamps.cast(pa.int64()).to_pylist() == [value * 1000 for value in values]


@pytest.mark.parametrize("wrong", [SECONDS, SECONDS * 10**6])
def test_one_value_of_a_column_in_another_unit_is_refused(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"column timestamp: {wrong} is 2026-11-29T15:00:00Z"):
        canonical(column_of(pa.array([SECONDS * 1000, wrong, 0])))


def test_seconds_as_milliseconds_are_accepted_as_timestamps() -> None:
    with pytest.raises(ValueError, match="pass 1795964400000, or a timestamp column with 1970-01-21T18:52:44"):
        canonical(column_of(pa.array([SECONDS])))
    stamps = canonical(column_of(pa.array([SECONDS]).cast(pa.timestamp("ms", "UTC"))))["timestamp"]
    assert stamps.cast(pa.int64()).to_pylist() == [SECONDS * 1000]


def test_zoned_times() -> None:
    assert zoned_time("1970-01-01T01:00:00+01:00") == datetime(1970, 1, 1, tzinfo=UTC)
    assert zoned_time("9999-12-31T23:59:59.999999Z") is not None
    for text in ("1970-01-01", "1970-01-01T00:00:00", "1969-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-00:01", "0"):
        assert zoned_time(text) is None
