"""Load tracking of a group, and when it causes a rebalance."""

from __future__ import annotations

import random
from math import inf, nan

import pytest

from tidelog_broker.core.groups.assignors import AssignmentInput, assign
from tidelog_broker.core.groups.load_watch import (
    CHECK_INTERVAL_S,
    OVERLOAD_FACTOR,
    RESET_S,
    SPARE_BYTES_S,
    WAIT_MAX_S,
    WAIT_MIN_S,
    LoadWatch,
)
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

T, U = b"t" * 16, b"u" * 16
MB = 1e6


def watch(*rates: float) -> LoadWatch:
    """Set the rates of the partitions of T, from 0 on."""
    known = LoadWatch()
    said = {(T, number): rate for number, rate in enumerate(rates)}
    known.note(said, said)
    return known


def question(known: LoadWatch, *held: set[int]) -> AssignmentInput:
    """Return the input with members 0, 1, ... that hold partitions of T and subscribe to it."""
    members = {str(at): frozenset([T]) for at in range(len(held))}
    has = {(T, number): str(at) for at, numbers in enumerate(held) for number in numbers}
    return AssignmentInput(members, sorted(has), has, known.rates)


def should_rebalance(known: LoadWatch, asked: AssignmentInput, now: float = 0.0) -> bool:
    """Call the two checks in the order of a group."""
    held = [{key for key, has in asked.has.items() if has == member} for member in asked.members]
    return known.is_unbalanced(held) and known.should_rebalance(asked, now)


def test_overloaded_member_causes_a_rebalance_with_few_moves() -> None:
    known = watch(MB, 1.0, MB, 1.0, MB, 1.0, MB, 1.0)
    asked = question(known, {0, 2, 4, 6}, {1, 3, 5, 7})
    assert should_rebalance(known, asked)
    new = assign(pb.BY_LOAD, asked)
    assert len(new["0"] & {(T, 0), (T, 2), (T, 4), (T, 6)}) == 2
    assert {(T, 1), (T, 3), (T, 5), (T, 7)} <= new["1"], "no partition moves without need"


@pytest.mark.parametrize(
    ("rates", "held"),
    [
        ([6 * MB, 5 * MB, MB, MB], ({0, 2}, {1, 3})),  # 7 and 6
        ([MB, 0.2 * MB, 0.8 * MB] * 2, ({0, 1}, {2}, {3, 4}, {5})),  # 1.2 and 0.8, twice, could all be 1
        ([MB, MB, MB], ({0, 1}, {2})),  # 2 and 1 are 1 and 2 after a move
        ([9 * MB, MB, MB], ({0}, {1, 2})),  # one partition, and it cannot be divided
        ([8 * MB, 0.001 * MB, 4 * MB], ({0, 1}, {2})),  # a trifle beside it is not what makes it busy
        ([SPARE_BYTES_S, SPARE_BYTES_S, 1.0, 1.0], ({0, 1}, {2, 3})),  # much more, of next to nothing
        ([0.0, 0.0], ({0, 1}, set[int]())),
    ],
)
def test_balanced_or_unbalanceable_loads_cause_no_rebalance(rates: list[float], held: tuple[set[int], ...]) -> None:
    known = watch(*rates)
    assert not should_rebalance(known, question(known, *held))


def test_unknown_rate_prevents_a_rebalance() -> None:
    known = watch(MB, MB, 1.0)
    asked = question(known, {0, 1}, {2, 3})
    assert not should_rebalance(known, asked)
    known.note({(T, 3): 0.0}, {(T, 3)})
    assert should_rebalance(known, asked)


def test_sole_subscriber_of_a_topic_keeps_it_while_others_are_balanced() -> None:
    known = LoadWatch()
    rates = {(U, 0): 200 * MB, (T, 0): 60 * MB, (T, 1): 60 * MB}
    known.note(rates, rates)
    has = {(U, 0): "busy", (T, 0): "a", (T, 1): "a"}
    members = {"busy": frozenset([U]), "a": frozenset([T]), "b": frozenset([T])}
    assert should_rebalance(known, AssignmentInput(members, sorted(has), has, rates))
    has = {(U, 0): "busy", (T, 0): "a", (T, 1): "b"}
    assert not should_rebalance(known, AssignmentInput(members, sorted(has), has, rates))


def test_invalid_rates_and_partitions_not_held_are_ignored() -> None:
    known = watch(MB)
    held = {(T, 0)}
    for rate in (nan, inf, -inf, -1.0, 1e13):
        known.note({(T, 0): rate}, held)
    known.note({(T, 1): 5.0, (U, 0): 5.0}, held)
    assert known.rates == {(T, 0): MB}
    known.keep([])
    assert known.rates == {}


def test_assignment_is_checked_after_a_minimum_age_and_then_at_intervals() -> None:
    known = LoadWatch()
    assert not known.is_due(100.0, 1)
    assert not known.is_due(100.0 + WAIT_MIN_S - 0.1, 1)
    assert known.is_due(100.0 + WAIT_MIN_S, 1)
    assert not known.is_due(100.0 + WAIT_MIN_S + CHECK_INTERVAL_S - 0.1, 1)
    assert known.is_due(100.0 + WAIT_MIN_S + CHECK_INTERVAL_S, 1)
    assert not known.is_due(200.0, 2), "a changed membership restarts the wait"
    assert not known.is_due(200.0 + WAIT_MIN_S - 0.1, 2)


def test_each_rebalance_by_load_doubles_the_wait() -> None:
    known, now, generation = watch(MB, MB, 1.0, 1.0), 0.0, 1
    asked = question(known, {0, 1}, {2, 3})
    waits: list[float] = []

    def next_wait(now: float) -> float:
        assert not known.is_due(now, generation)
        began = now
        while not known.is_due(now, generation):
            now += 0.5
        assert known.should_rebalance(asked, now)
        return now - began

    for _ in range(8):
        waits.append(next_wait(now))
        now += waits[-1]
        generation += 1
    assert waits == [min(WAIT_MIN_S * 2**nth, WAIT_MAX_S) for nth in range(8)]
    now += RESET_S
    next_wait(now)
    generation += 1
    assert next_wait(now + WAIT_MAX_S) == 2 * WAIT_MIN_S, "a calm period resets the wait"


def test_search_for_a_better_target_backs_off_after_failures() -> None:
    known = watch(9 * MB, MB)
    asked = question(known, {0}, {1})
    now, looks = 0.0, list[float]()
    known.is_due(now, 1)
    while now < 1000.0:
        now += CHECK_INTERVAL_S
        if known.is_due(now, 1) and known.is_unbalanced([{(T, 0)}, {(T, 1)}]):
            looks.append(now)
            assert not known.should_rebalance(asked, now)
    assert looks == [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 620.0, 920.0]
    assert not known.is_due(now, 2)
    assert known.is_due(now + WAIT_MIN_S, 2), "nothing has been moved by that"


@pytest.mark.parametrize("seed", range(20))
def test_steady_rates_converge_within_the_limit(seed: int) -> None:
    """A group with steady rates converges, after which nothing moves."""
    random_ = random.Random(seed)
    rates = [random_.paretovariate(1.2) * 1e5 for _ in range(60)]
    known = watch(*rates)
    members = random_.randint(2, 6)
    has: dict[PartitionKey, str] = {(T, number): str(random_.randrange(members)) for number in range(60)}
    wishes = {str(at): frozenset([T]) for at in range(members)}
    for targets in range(3):  # noqa: B007
        asked = AssignmentInput(wishes, sorted(has), has, known.rates)
        if not should_rebalance(known, asked):
            break
        has = {key: member for member, keys in assign(pb.BY_LOAD, asked).items() for key in keys}
    else:
        raise AssertionError("the moves do not end")
    loads = [sum(rates[key[1]] for key, member in has.items() if member == each) for each in wishes]
    assert max(loads) < max(OVERLOAD_FACTOR * sum(rates) / members, max(rates) * 1.05), targets
