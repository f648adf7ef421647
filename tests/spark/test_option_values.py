from __future__ import annotations

import pytest

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.option_values import per_partition


def test_number_out_of_range_is_refused_with_the_range_and_an_example() -> None:
    with pytest.raises(OptionError) as refused:
        per_partition("startingOffsets", '{"flights":{"0":-3}}', '{"flights":{"0":42}}', lowest=-2)
    assert str(refused.value) == (
        "option 'startingOffsets': -3 for 'flights' partition 0 must be an integer from -2 to 9223372036854775; "
        'give {"flights":{"0":42}}.'
    )
