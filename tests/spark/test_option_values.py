from __future__ import annotations

import pytest

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.option_values import numbers_per_partition, timestamp_us


def test_number_out_of_range_is_refused_with_the_range_and_an_example() -> None:
    with pytest.raises(OptionError) as refused:
        numbers_per_partition("startingOffsets", '{"flights":{"0":-3}}', '{"flights":{"0":42}}', lowest=-2)
    assert str(refused.value) == (
        "option 'startingOffsets': -3 for 'flights' partition 0 must be an integer from -2 to 9223372036854775; "
        'give {"flights":{"0":42}}.'
    )


def test_milliseconds_become_microseconds() -> None:
    assert timestamp_us("startingTimestamp", "1700000000123") == 1_700_000_000_123_000
    assert timestamp_us("startingTimestamp", "0") == 0


_AS_GIVEN = {
    "seconds": ", or the ISO 8601 text 1970-01-20T16:13:20.000000Z for that time in 1970",
    "microseconds": "",
}


@pytest.mark.parametrize(("text", "unit"), [("1700000000", "seconds"), ("1700000000000000", "microseconds")])
def test_another_unit_is_named_with_the_value_to_pass(text: str, unit: str) -> None:
    assert timestamp_us("startingTimestamp", "1970-01-20T16:13:20Z") == 1_700_000_000_000
    with pytest.raises(
        OptionError, match=f"'startingTimestamp': {text} is .* in {unit}.*pass 1700000000000{_AS_GIVEN[unit]}.$"
    ):
        timestamp_us("startingTimestamp", text)
