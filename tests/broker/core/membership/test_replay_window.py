from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.membership.replay_window import WINDOW, ReplayWindows


@given(st.lists(st.integers(1, 3_000), max_size=200))
def test_every_number_is_accepted_once_and_old_ones_are_rejected(counters: list[int]) -> None:
    windows = ReplayWindows(4)
    taken: set[int] = set()
    for counter in counters:
        expected = counter not in taken and counter > max(taken, default=0) - WINDOW
        assert windows.accept("a", 1, counter) is expected
        if expected:
            taken.add(counter)


def test_edges_of_the_window() -> None:
    windows = ReplayWindows(4)
    assert windows.accept("a", 1, 10_000)
    assert windows.accept("a", 1, 10_000 - WINDOW + 1)
    assert not windows.accept("a", 1, 10_000 - WINDOW)
    assert windows.accept("a", 1, 2**64 - 1), "a leap takes no more memory than a step"
    assert not windows.accept("a", 1, 2**64 - 1)


def test_new_incarnation_starts_a_window_and_invalidates_the_old_one() -> None:
    windows = ReplayWindows(4)
    assert windows.accept("a", 2, 100)
    assert windows.accept("a", 3, 1)
    assert not windows.accept("a", 3, 1)
    assert not windows.accept("a", 2, 101)
    assert windows.incarnation("a") == 3
    assert windows.incarnation("b") == 0
    assert windows.accept("b", 1, 1), "senders do not share a window"


def test_number_of_windows_is_limited() -> None:
    windows = ReplayWindows(3)
    for sender in "abcde":
        assert windows.accept(sender, 1, 1)
    assert len(windows) == 3
    assert windows.incarnation("a") == 0
    assert windows.incarnation("e") == 1
