"""The rate limit of fetching history."""

from __future__ import annotations

from tidelog_broker.cluster.backfill_rate import BackfillRate


class Clock:
    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms


def test_burst_of_one_second_is_followed_by_the_rate() -> None:
    pace = BackfillRate(1000, Clock())
    assert [pace.wait_ms(250) for _ in range(8)] == [0, 0, 0, 0, 0, 250, 500, 750]


def test_unused_rate_accumulates_up_to_a_second() -> None:
    clock = Clock()
    pace = BackfillRate(1000, clock)
    for _ in range(5):
        pace.wait_ms(250)
    clock.now_ms = 100
    assert pace.wait_ms(250) == 150
    clock.now_ms = 3_600_000
    assert [pace.wait_ms(500) for _ in range(4)] == [0, 0, 0, 500]


def test_unlimited_rate_has_no_wait() -> None:
    pace = BackfillRate(0, Clock())
    assert {pace.wait_ms(1 << 30) for _ in range(9)} == {0}
