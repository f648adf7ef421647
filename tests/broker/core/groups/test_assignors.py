from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.groups.assignors import AssignmentInput, assign
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

T, U = b"t" * 16, b"u" * 16
BOTH = frozenset({T, U})
WAYS = [pb.STICKY, pb.RANGE, pb.ROUND_ROBIN, pb.BY_LOAD]


def of(topic_id: bytes, count: int) -> list[PartitionKey]:
    return [(topic_id, index) for index in range(count)]


def sizes(found: dict[str, set[PartitionKey]]) -> list[int]:
    return [len(keys) for keys in found.values()]


@pytest.mark.parametrize("way", [*WAYS, pb.ASSIGNOR_UNSPECIFIED, 77])
@given(
    wishes=st.lists(st.sampled_from([frozenset[bytes](), frozenset({T}), frozenset({U}), BOTH]), max_size=5),
    counts=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    loads=st.dictionaries(st.tuples(st.sampled_from([T, U]), st.integers(0, 9)), st.floats(0, 1e12)),
)
def test_every_assignor_is_deterministic_and_assigns_each_partition_once_to_a_subscriber(
    way: pb.Assignor,
    wishes: list[frozenset[bytes]],
    counts: tuple[int, int],
    loads: dict[PartitionKey, float],
) -> None:
    members = {f"m{number}": topics for number, topics in enumerate(wishes)}
    partitions = [*of(T, counts[0]), *of(U, counts[1])]
    question = AssignmentInput(members, partitions, dict.fromkeys(partitions[::2], "m0"), loads)
    found = assign(way, question)
    assert found == assign(way, question)
    assert found.keys() == members.keys()
    given_keys = sorted(key for keys in found.values() for key in keys)
    asked = frozenset().union(*wishes)
    assert given_keys == [key for key in partitions if key[0] in asked]
    assert all(key[0] in members[member] for member, keys in found.items() for key in keys)


def test_range_assigns_contiguous_and_co_partitioned_ranges() -> None:
    found = assign(pb.RANGE, AssignmentInput(dict.fromkeys(["a", "b"], BOTH), [*of(T, 5), *of(U, 5)]))
    assert sorted(found["a"]) == [*of(T, 2), *of(U, 2)]
    assert sorted(found["b"]) == [*of(T, 5)[2:], *of(U, 5)[2:]]


def test_round_robin_continues_after_a_skipped_member() -> None:
    members = {"a": frozenset({U}), "b": BOTH}
    found = assign(pb.ROUND_ROBIN, AssignmentInput(members, [*of(T, 2), *of(U, 2)]))
    assert found == {"a": {(U, 0)}, "b": {(T, 0), (T, 1), (U, 1)}}


def test_load_assignor_weighs_a_busy_partition_against_many_idle_ones() -> None:
    partitions = of(T, 5)
    loads = {(T, 0): 400.0, **{(T, index): 100.0 for index in range(1, 5)}}
    found = assign(pb.BY_LOAD, AssignmentInput(dict.fromkeys(["a", "b"], BOTH), partitions, {}, loads))
    assert found["a"] == {(T, 0)}
    assert len(found["b"]) == 4


def test_load_assignor_gives_a_new_member_its_share_of_many_small_partitions() -> None:
    partitions = of(T, 60)
    loads = dict.fromkeys(partitions, 1000.0)
    has = {key: "ab"[key[1] % 2] for key in partitions}
    found = assign(pb.BY_LOAD, AssignmentInput(dict.fromkeys(["a", "b", "c"], BOTH), partitions, has, loads))
    assert min(sizes(found)) >= 18


def test_load_assignor_distributes_idle_partitions() -> None:
    partitions = of(T, 20)
    loads = {key: 1000.0 if key[1] == 0 else 0.0 for key in partitions}
    found = assign(pb.BY_LOAD, AssignmentInput(dict.fromkeys(["a", "b", "c"], BOTH), partitions, {}, loads))
    without_the_busy_one = Counter(member for member, keys in found.items() for key in keys if key[1])
    assert sorted(without_the_busy_one.values())[-2:] in ([9, 10], [10, 9])


def test_load_assignor_ignores_small_differences() -> None:
    partitions = of(T, 4)
    has = {key: "ab"[key[1] % 2] for key in partitions}
    loads = {key: 1000.0 + key[1] for key in partitions}
    found = assign(pb.BY_LOAD, AssignmentInput(dict.fromkeys(["a", "b"], BOTH), partitions, has, loads))
    assert {key: member for member, keys in found.items() for key in keys} == has


@pytest.mark.parametrize("load", [0.0, 5e-324, 1e-200])
def test_load_assignor_balances_numbers_without_any_load(load: float) -> None:
    partitions = of(T, 9)
    question = AssignmentInput(dict.fromkeys(["a", "b", "c"], BOTH), partitions, {}, dict.fromkeys(partitions, load))
    assert sizes(assign(pb.BY_LOAD, question)) == [3, 3, 3]
