from __future__ import annotations

import pytest

from tidelog_proto.process.epoch_units import wrong_unit

SECONDS = 1_795_964_400


@pytest.mark.parametrize(("expected", "factor"), [("milliseconds", 10**3), ("microseconds", 10**6)])
def test_times_in_other_units_are_named(expected: str, factor: int) -> None:
    for unit, other in (("seconds", 1), ("milliseconds", 10**3), ("microseconds", 10**6), ("nanoseconds", 10**9)):
        reason = wrong_unit(SECONDS * other, expected)
        if unit == expected:
            assert reason is None
        else:
            assert reason == (
                f"{SECONDS * other} is 2026-11-29T15:00:00Z in {unit}, but {expected} since 1970 are expected; "
                f"pass {SECONDS * factor}"
            )


@pytest.mark.parametrize("value", [-1, 0, 5, 99_999, 999_999_999, 5 * 10**9, 9 * 10**18])
def test_other_integers_are_accepted(value: int) -> None:
    assert wrong_unit(value, "milliseconds") is None
