from __future__ import annotations

import pytest

from tidelog.base.backoff import Backoff


def test_steps_double_up_to_the_maximum() -> None:
    backoff = Backoff(first_s=1.0, longest_s=5.0, uniform=lambda: 1.0)
    assert [backoff.next_wait_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert backoff.wait_s == 5.0


@pytest.mark.parametrize(("drawn", "expected"), [(0.0, 0.5), (0.5, 0.75), (1.0, 1.0)])
def test_jitter_covers_the_upper_half(drawn: float, expected: float) -> None:
    assert Backoff(first_s=1.0, uniform=lambda: drawn).next_wait_s() == expected


def test_retry_after_hint_is_the_minimum() -> None:
    assert Backoff(first_s=0.001).next_wait_s(retry_after_ms=3000) == 3.0


def test_reset_restarts_the_steps() -> None:
    backoff = Backoff(first_s=1.0, uniform=lambda: 1.0)
    backoff.next_wait_s()
    backoff.next_wait_s()
    backoff.reset()
    assert (backoff.failures, backoff.wait_s, backoff.next_wait_s()) == (0, 0.0, 1.0)


def test_thousands_of_failures_do_not_overflow() -> None:
    backoff = Backoff(longest_s=2.0, uniform=lambda: 1.0)
    assert [backoff.next_wait_s() for _ in range(5000)][-1] == 2.0
