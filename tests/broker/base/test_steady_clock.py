"""The steady clock: a jumped wall clock is ignored until it is stable, and skipped time is not an age."""

from __future__ import annotations

import pytest

from tidelog_broker.base.steady_clock import GAPS_MAX, SteadyClock

BEGAN_US = 1_000_000_000_000
S = 1_000_000
SETTLE_S = 1000
TOLERANCE_S = 10
YEAR_S = 365 * 86_400


class Clocks:
    """A machine's two clocks, which a test moves, and the clock on top of them."""

    def __init__(self) -> None:
        self.wall_us = BEGAN_US
        self.steady_us = 77 * S
        self.clock = self.started()

    def started(self) -> SteadyClock:
        """Return the clock of a process that starts now."""
        return SteadyClock(
            SETTLE_S,
            tolerance_us=TOLERANCE_S * S,
            wall_ns=lambda: self.wall_us * 1000,
            steady_ns=lambda: self.steady_us * 1000,
        )

    def run(self, seconds: int) -> None:
        self.wall_us += seconds * S
        self.steady_us += seconds * S

    def jump(self, seconds: int) -> None:
        self.wall_us += seconds * S

    def settle(self) -> None:
        """Look at the wall clock, wait for the settling time, and look again."""
        self.clock.now_us()
        self.run(SETTLE_S)
        self.clock.now_us()

    @property
    def told_s(self) -> float:
        """Time since the start."""
        return (self.clock.now_us() - BEGAN_US) / S

    def before_s(self, age_s: int, newest_at_start_us: int = BEGAN_US) -> float:
        return (self.clock.stamped_before_us(age_s * S, newest_at_start_us) - BEGAN_US) / S


def test_wall_clock_is_used_through_small_corrections() -> None:
    clocks = Clocks()
    for jump_s in (0, TOLERANCE_S, -TOLERANCE_S, TOLERANCE_S, TOLERANCE_S):
        clocks.run(5)
        clocks.jump(jump_s)
        assert clocks.clock.now_us() == clocks.wall_us
        assert not clocks.clock.is_held


@pytest.mark.parametrize("jump_s", [YEAR_S, TOLERANCE_S + 1, -TOLERANCE_S - 1, -YEAR_S])
def test_jumped_wall_clock_is_ignored_until_stable(jump_s: int) -> None:
    clocks = Clocks()
    clocks.run(5)
    clocks.jump(jump_s)
    assert clocks.told_s == 5
    assert clocks.clock.is_held
    clocks.run(SETTLE_S - 1)
    assert clocks.told_s == 5 + SETTLE_S - 1
    clocks.run(1)
    assert clocks.clock.now_us() == clocks.wall_us, "the settling time has passed"
    assert not clocks.clock.is_held


def test_corrected_jump_has_no_effect() -> None:
    clocks = Clocks()
    clocks.jump(YEAR_S)
    assert clocks.told_s == 0
    clocks.run(SETTLE_S - 1)
    clocks.jump(-YEAR_S)
    assert clocks.told_s == SETTLE_S - 1
    assert not clocks.clock.is_held
    clocks.jump(YEAR_S)
    assert clocks.told_s == SETTLE_S - 1
    clocks.run(1)
    assert clocks.told_s == SETTLE_S, "a new jump needs the same settling time as the first"
    assert clocks.before_s(100) == SETTLE_S - 100


def test_second_jump_restarts_the_settle_time() -> None:
    clocks = Clocks()
    clocks.jump(YEAR_S)
    assert clocks.told_s == 0
    clocks.run(SETTLE_S - 1)
    clocks.jump(YEAR_S)
    assert clocks.told_s == SETTLE_S - 1
    clocks.run(SETTLE_S - 1)
    assert clocks.told_s == 2 * (SETTLE_S - 1)
    clocks.run(1)
    assert clocks.clock.now_us() == clocks.wall_us


def test_skipped_time_does_not_count_as_age() -> None:
    clocks = Clocks()
    clocks.run(50)
    clocks.jump(YEAR_S)
    clocks.settle()
    at_s = 50 + SETTLE_S
    assert clocks.told_s == at_s + YEAR_S
    assert clocks.before_s(100) == at_s - 100, "timestamps from before the jump do not age by the jump"
    clocks.run(60)
    assert clocks.before_s(60) == at_s + YEAR_S, "timestamps from after the jump have their real age"
    assert clocks.before_s(61) == at_s - 1


def test_clock_set_back_deletes_nothing_earlier() -> None:
    clocks = Clocks()
    clocks.jump(-YEAR_S)
    clocks.settle()
    assert clocks.told_s == SETTLE_S - YEAR_S
    assert clocks.before_s(100) == SETTLE_S - YEAR_S - 100


def test_merged_jumps_keep_their_total() -> None:
    clocks = Clocks()
    for _ in range(GAPS_MAX + 3):
        clocks.jump(YEAR_S)
        clocks.settle()
    lived_s = (GAPS_MAX + 3) * SETTLE_S
    assert clocks.told_s == lived_s + (GAPS_MAX + 3) * YEAR_S
    assert clocks.before_s(lived_s) <= 0, "a timestamp of the start is not older than the node's uptime"
    assert clocks.before_s(lived_s + 1) < 0


def test_downtime_counts_as_age_only_after_the_settle_time() -> None:
    clocks = Clocks()
    newest_us = clocks.wall_us
    clocks.run(YEAR_S)
    clocks.clock = clocks.started()
    assert clocks.clock.began_us == clocks.clock.now_us() == clocks.wall_us, "for stamps it is believed"
    clocks.run(SETTLE_S - 1)
    assert clocks.before_s(SETTLE_S + 9, newest_us) == -10
    assert clocks.before_s(SETTLE_S - 1, newest_us) == YEAR_S
    clocks.run(1)
    assert clocks.before_s(SETTLE_S + 10, newest_us) == YEAR_S - 10
