"""Balancing: every partition is assigned once to a subscriber, evenly, and with few moves."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.groups.rebalancing import Assignment, rebalance, subscribers_by_topic
from tidelog_broker.core.groups.steps import Steps, complete
from tidelog_broker.core.topics import PartitionKey

TOPICS = [bytes([number]) * 16 for number in range(4)]
ALL = frozenset(TOPICS)

Members = dict[str, frozenset[bytes]]


def keys(count: int, topics: int = 1) -> list[PartitionKey]:
    return [(number.to_bytes(16, "big"), index) for number in range(topics) for index in range(count // topics)]


def owners(assignment: Assignment) -> dict[PartitionKey, str]:
    """Return the member of each partition, and check that no partition has two."""
    found = {key: member for member, held in assignment.items() for key in held}
    assert len(found) == sum(map(len, assignment.values()))
    return found


def evened(members: Members, partitions: list[PartitionKey], has: dict[PartitionKey, str]) -> dict[PartitionKey, str]:
    return owners(rebalance(members, {key: (has.get(key), 1.0) for key in partitions}, gain_min=1.0))


wishes = st.lists(st.frozensets(st.sampled_from(TOPICS), max_size=4), max_size=7)
held = st.lists(st.sampled_from(["m0", "m1", "m2", "gone", ""]), min_size=40, max_size=40)


@given(wishes, st.lists(st.integers(0, 10), min_size=4, max_size=4), held)
def test_every_partition_is_assigned_once_to_a_subscriber(
    wanted: list[frozenset[bytes]], counts: list[int], had: list[str]
) -> None:
    members = {f"m{number}": topics for number, topics in enumerate(wanted)}
    partitions = [(topic, index) for topic, count in zip(TOPICS, counts, strict=True) for index in range(count)]
    has = {key: member for key, member in zip(partitions, had, strict=False) if member}
    given_to = evened(members, partitions, has)
    assert all(key[0] in members[member] for key, member in given_to.items())
    asked = frozenset().union(*wanted)
    assert given_to.keys() == {key for key in partitions if key[0] in asked}
    load = Counter(given_to.values())
    for key, member in given_to.items():  # moving a partition to another member would not reduce the imbalance
        assert all(load[member] - load[other] <= 1 for other, topics in members.items() if key[0] in topics)
    assert evened(members, partitions, given_to) == given_to, "a balanced assignment is unchanged"


@given(st.integers(1, 12), st.integers(0, 60), st.integers(1, 4))
def test_equal_subscriptions_are_balanced_with_minimal_moves(members: int, partitions: int, topics: int) -> None:
    everything = keys(partitions, topics)
    wanted = frozenset(topic for topic, _ in everything)
    names = [f"m{number}" for number in range(members + 1)]
    before = evened(dict.fromkeys(names[:-1], wanted), everything, {})
    counts = Counter(dict.fromkeys(names[:-1], 0)) + Counter(before.values())
    assert max(counts.values(), default=0) - min(counts[name] for name in names[:-1]) <= 1
    with_another = evened(dict.fromkeys(names, wanted), everything, before)
    moved = [key for key in everything if with_another[key] != before[key]]
    assert len(moved) == len(everything) // (members + 1)
    assert all(with_another[key] == names[-1] for key in moved), "only to the one that came"
    again = evened(dict.fromkeys(names[:-1], wanted), everything, with_another)
    assert all(again[key] == with_another[key] for key in everything if with_another[key] != names[-1])


@given(
    st.lists(st.floats(0.01, 1e6), max_size=30),
    st.integers(1, 5),
    st.lists(st.sampled_from(["m0", "m1", ""]), min_size=30, max_size=30),
)
def test_weights_differ_by_less_than_the_minimum_gain(weights: list[float], members: int, had: list[str]) -> None:
    names = [f"m{number}" for number in range(members)]
    partitions = {
        (TOPICS[0], at): (who or None, weight) for at, (weight, who) in enumerate(zip(weights, had, strict=False))
    }
    worth = max(0.1 * sum(weights) / members, 1e-9)
    given_to = owners(rebalance(dict.fromkeys(names, ALL), partitions, gain_min=worth))
    assert given_to.keys() == partitions.keys()
    load = {name: sum(partitions[key][1] for key, who in given_to.items() if who == name) for name in names}
    for key, who in given_to.items():
        weight = partitions[key][1]
        for other in names:
            difference = load[who] - load[other]
            assert difference <= worth * 1.001 or weight > difference / 2 * 0.999, "it would have brought them closer"


def test_new_member_gets_many_small_weights() -> None:
    """Each weight is small compared with the load of a member; their sum is not."""
    has: dict[PartitionKey, tuple[str | None, float]] = {key: (f"m{key[1] % 2}", 5.0) for key in keys(300)}
    given_to = owners(rebalance(dict.fromkeys(["m0", "m1", "m2"], frozenset({keys(1)[0][0]})), has, gain_min=50.0))
    assert min(Counter(given_to.values()).values()) >= 85


def test_subscribers_are_listed_by_topic() -> None:
    members = {"b": frozenset(TOPICS[:2]), "a": frozenset(TOPICS[:1]), "c": frozenset(TOPICS[:2])}
    found = complete(subscribers_by_topic(members, TOPICS[:3]))
    assert {topic: list(who) for topic, who in found.items()} == {
        TOPICS[0]: ["b", "a", "c"],
        TOPICS[1]: ["b", "c"],
        TOPICS[2]: [],
    }


def test_topics_are_looked_up_in_steps_by_their_cost() -> None:
    """A step looks at all wishes of a topic, and sorts the subscribers of topics that no earlier topic has."""
    topics = [key[0] for key in keys(100, 100)]
    wishes: Members = {f"m{number}": frozenset([number.to_bytes(16)]) for number in range(1_000, 5_000)}
    assert steps_of(subscribers_by_topic(wishes, topics)) > 90, "4,000 wishes of other topics"
    crowds = {f"m{number}": frozenset([topics[number % 10]]) for number in range(5_000)}
    assert steps_of(subscribers_by_topic(crowds, topics)) >= 10, "10 topics with 500 subscribers each"
    assert steps_of(subscribers_by_topic({"m": frozenset(topics)}, topics)) == 0, "little work"


def steps_of(steps: Steps[object]) -> int:
    return sum(1 for _ in steps)


@pytest.mark.parametrize("topics", [1, 200, 20_000])
def test_largest_group_is_balanced_within_the_time_limit(topics: int) -> None:
    partitions = keys(20_000, topics)
    wanted = frozenset(topic for topic, _ in partitions)
    names = [f"m{number}" for number in range(1000)]
    began_s = time.process_time()
    from_one = evened(dict.fromkeys(names, wanted), partitions, dict.fromkeys(partitions, names[0]))
    without_one = evened(dict.fromkeys(names[1:], wanted), partitions, from_one)
    assert time.process_time() - began_s < 2
    assert set(Counter(from_one.values()).values()) == {20}
    assert sum(from_one[key] != without_one[key] for key in partitions) == 20
