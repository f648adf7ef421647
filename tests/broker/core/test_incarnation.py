from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.incarnation import (
    BOOT_COUNTER_MAX,
    NONCE_BITS,
    boot_counter,
    is_foreign,
    make_incarnation,
)

counters = st.integers(1, BOOT_COUNTER_MAX)
nonces = st.integers(0, (1 << NONCE_BITS) - 1)


@given(counters, nonces, counters, nonces)
def test_later_start_compares_higher_with_any_nonce(counter: int, nonce: int, other: int, dice: int) -> None:
    one, two = make_incarnation(counter, nonce), make_incarnation(other, dice)
    assert 0 < one < 2**64
    assert boot_counter(one) == counter
    if counter != other:
        assert (one < two) == (counter < other)


def test_earlier_start_is_not_foreign_but_a_copy_is() -> None:
    own = make_incarnation(5, 77)
    assert not is_foreign(own, own)
    assert not is_foreign(own, make_incarnation(4, (1 << NONCE_BITS) - 1))
    assert is_foreign(own, make_incarnation(5, 76)), "two processes on copies of one directory"
    assert is_foreign(own, make_incarnation(6, 0)), "this one was restored from an old image"


@pytest.mark.parametrize(("counter", "nonce"), [(0, 0), (BOOT_COUNTER_MAX + 1, 0), (1, 1 << NONCE_BITS), (1, -1)])
def test_out_of_range_values_are_rejected(counter: int, nonce: int) -> None:
    with pytest.raises(AssertionError):
        make_incarnation(counter, nonce)
