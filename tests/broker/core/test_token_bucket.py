"""The token bucket, compared with a model that keeps the whole history, and edge cases of its clock."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.token_bucket import BURST_S, TokenBucket

RATES = st.integers(1, 1 << 40)
STEPS = st.lists(st.tuples(st.integers(-5_000, 5_000_000), st.integers(0, 1 << 44)), max_size=60)
"""Elapsed milliseconds, and tokens taken after them."""


@given(rate=RATES, steps=STEPS)
def test_results_match_exact_arithmetic(rate: int, steps: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(rate, 0.0)
    full = level = Fraction(rate) * Fraction(BURST_S)
    now = latest = Fraction(0)
    for passed_ms, tokens in steps:
        now += Fraction(passed_ms, 1000)
        level = min(level + max(now - latest, Fraction(0)) * rate, full)
        latest = max(latest, now)
        bucket.take(tokens, float(now))
        level -= tokens
        owed_s = float(max(-level, Fraction(0)) / rate)
        assert bucket.debt_s(float(now)) == pytest.approx(owed_s, rel=1e-6, abs=1e-3)


@given(rate=RATES, pieces=st.lists(st.integers(1, 1 << 36), min_size=1, max_size=40))
def test_caller_that_waits_for_its_debt_keeps_to_the_rate(rate: int, pieces: list[int]) -> None:
    bucket = TokenBucket(rate, 0.0)
    now_s = 0.0
    for piece in pieces:
        now_s += bucket.debt_s(now_s) * (1 + 1e-9)
        bucket.take(piece, now_s)
    passed = sum(pieces)
    assert passed <= rate * (now_s + BURST_S) * (1 + 1e-6) + max(pieces) + 1


@given(rate=RATES, tokens=st.integers(1, 1 << 44))
def test_request_larger_than_the_bucket_passes_and_is_repaid(rate: int, tokens: int) -> None:
    bucket = TokenBucket(rate, 0.0)
    bucket.take(tokens, 0.0)
    owed_s = bucket.debt_s(0.0)
    assert owed_s <= tokens / rate
    assert bucket.debt_s(owed_s * (1 + 1e-9) + 1e-6) == 0


def test_stopped_or_backward_clock_adds_nothing_and_a_jump_one_bucket() -> None:
    bucket = TokenBucket(10, 100.0)
    bucket.take(30, 100.0)
    assert bucket.debt_s(50.0) == bucket.debt_s(100.0) == 2.0
    assert bucket.debt_s(1e12) == 0
    assert bucket.is_full(1e12)
    bucket.take(20, 1e12)
    assert bucket.debt_s(1e12) == 1.0


def test_changed_rate_keeps_the_debt() -> None:
    bucket = TokenBucket(10, 0.0)
    bucket.take(110, 0.0)
    bucket.change_rate(100, 0.0)
    assert (bucket.debt_s(0.0), bucket.rate) == (1.0, 100)
    bucket.change_rate(1, 1.0)
    assert bucket.debt_s(1.0) == 0
    bucket.take(1, 3.0)
    assert (bucket.debt_s(3.0), bucket.is_full(3.0)) == (0, False)
    assert bucket.is_full(4.0)
