from __future__ import annotations

import pytest

from tidelog_proto.flow.byte_budget import SEARCH_INTERVAL_S, ByteBudget, SlowSenders, arrives_slowly


class FakeHolder:
    """A connection that holds bytes of a budget."""

    def __init__(self, budget: ByteBudget, held_bytes: int, *, is_slow: bool = True) -> None:
        self.held_bytes = held_bytes
        self.slow = is_slow
        self.was_cut = False
        self._budget = budget
        budget.take_anyway(held_bytes)

    def is_slow(self, now_s: float) -> bool:
        return self.slow and now_s > 0

    def cut(self) -> None:
        self.was_cut = True
        self._budget.give_back(self.held_bytes)
        self.held_bytes = 0


def cut(*holders: FakeHolder) -> list[bool]:
    return [each.was_cut for each in holders]


def test_holders_are_cut_largest_first_until_half_is_free() -> None:
    budget = ByteBudget(100)
    holders = small, large, larger = [FakeHolder(budget, size_bytes) for size_bytes in (20, 30, 50)]
    budget.close_largest(holders)
    assert cut(small, large, larger) == [False, False, True]
    budget.close_largest(holders)
    assert budget.used_bytes == 50, "half is free already"


def test_holders_are_cut_until_the_wanted_bytes_are_free() -> None:
    budget = ByteBudget(100)
    holders = small, large, larger = [FakeHolder(budget, size_bytes) for size_bytes in (10, 30, 60)]
    budget.close_largest(holders, budget.used_bytes - 61)
    assert cut(small, large, larger) == [False, True, True]
    budget.close_largest(holders, -1)
    assert (small.was_cut, budget.used_bytes) == (True, 0)


def test_bytes_that_are_released_later_count_as_free() -> None:
    budget = ByteBudget(100)

    class Late(FakeHolder):
        def cut(self) -> None:
            self.was_cut = True

    first, second = Late(budget, 60), Late(budget, 40)
    budget.close_largest([first, second])
    assert cut(first, second) == [True, False]


def test_only_slow_senders_are_cut_and_searches_have_a_least_interval() -> None:
    budget = ByteBudget(100)
    senders = SlowSenders(budget)
    slow, brisk, complete = (FakeHolder(budget, size, is_slow=size != 50) for size in (20, 50, 30))
    senders.receiving |= dict.fromkeys((slow, brisk, complete))
    del senders.receiving[complete]
    senders.make_room(0.0)
    assert cut(slow, brisk, complete) == [False] * 3, "none is slow yet"
    senders.make_room(SEARCH_INTERVAL_S / 2)
    assert not slow.was_cut, "it has just searched"
    senders.make_room(SEARCH_INTERVAL_S)
    assert cut(slow, brisk, complete) == [True, False, False]


def test_a_slow_sender_without_counted_bytes_is_not_cut() -> None:
    budget = ByteBudget(100)
    budget.take_anyway(90)
    senders = SlowSenders(budget)
    slow, empty = FakeHolder(budget, 10), FakeHolder(budget, 0)
    senders.receiving |= dict.fromkeys((slow, empty))
    senders.make_room(1.0)
    assert cut(slow, empty) == [True, False], "it would free nothing"


def test_a_request_arrives_slowly_if_its_rate_needs_more_than_the_limit() -> None:
    assert arrives_slowly(100, 0, 1.0)
    assert not arrives_slowly(300, 10, 1.0)
    assert arrives_slowly(301, 10, 1.0)


@pytest.mark.parametrize("size_bytes", [-1, 4])
def test_releasing_uncounted_bytes_fails(size_bytes: int) -> None:
    budget = ByteBudget(10)
    budget.take_anyway(3)
    with pytest.raises(AssertionError):
        budget.give_back(size_bytes)
