"""Placement: movement of copies when nodes join and leave, balance, and results that must never change."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog_broker.core.placement.placement import (
    BOTH_ROLES,
    WEIGHT_MAX,
    NodeEntry,
    NoPersistenceError,
    PlacedPartition,
    Placement,
    Role,
    candidates,
    majority,
    partition_key,
    place,
    rank,
    rebalance_plan,
    successor,
    takeover_rank,
)

VECTORS = json.loads((Path(__file__).parent / "placement_vectors.json").read_text())
TOPIC = bytes(range(16))


def entries(count: int, *, zones: int = 1, first: int = 0) -> list[NodeEntry]:
    return [NodeEntry(f"n{number}", zone=f"z{number % zones}") for number in range(first, first + count)]


def ids(nodes: Sequence[NodeEntry]) -> set[str]:
    return {node.node_id for node in nodes}


def copies_of(
    nodes: Sequence[NodeEntry], copies: int, *, partition: int = 0, alive: set[str] | None = None
) -> tuple[str, ...]:
    everyone = ids(nodes) if alive is None else alive
    return place(partition_key(TOPIC, partition), nodes, replication_factor=copies, alive=everyone).nodes


node_entries = st.builds(
    NodeEntry,
    node_id=st.text("abcdefgh0123", min_size=1, max_size=4),
    zone=st.sampled_from(["east", "west", "north"]),
    weight=st.integers(1, WEIGHT_MAX),
    roles=st.sampled_from([BOTH_ROLES, BOTH_ROLES, Role.PERSISTENCE, Role.INGESTION]),
    machine=st.sampled_from(["", "", "m1", "m2"]),
)
clusters = st.lists(node_entries, min_size=1, max_size=9, unique_by=lambda node: node.node_id).filter(
    lambda nodes: any(Role.PERSISTENCE in node.roles for node in nodes)
)
keys = st.builds(partition_key, st.binary(min_size=16, max_size=16), st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("vector", VECTORS)
def test_placements_never_change_between_versions(vector: dict[str, object]) -> None:
    """Nodes of different versions must agree; a change would move the data of every existing cluster."""
    nodes = [
        NodeEntry(str(node_id), str(zone), int(weight), Role(roles), machine=str(machine))
        for node_id, zone, weight, roles, machine in vector["nodes"]  # type: ignore[attr-defined]
    ]
    key = bytes.fromhex(str(vector["key"]))
    assert key == partition_key(bytes.fromhex(str(vector["topic_id"])), int(str(vector["partition"])))
    assert rank(key, nodes) == vector["rank"]
    alive = vector["alive"]
    assert isinstance(alive, list)
    placed = place(key, nodes, replication_factor=int(str(vector["replication_factor"])), alive=alive)
    assert [*placed.nodes] == vector["placement"]
    assert placed.ack_quorum == vector["ack_quorum"]
    assert successor(key, nodes, alive=alive, placement=placed.nodes) == vector["successor"]


@given(keys, clusters, st.integers(1, 6), st.randoms(), st.data())
def test_order_of_the_registry_does_not_matter(
    key: bytes, nodes: list[NodeEntry], copies: int, shuffler: random.Random, data: st.DataObject
) -> None:
    alive = data.draw(st.sets(st.sampled_from(sorted(ids(nodes)))))
    shuffled = list(nodes)
    shuffler.shuffle(shuffled)
    assert rank(key, nodes) == rank(key, shuffled)
    assert place(key, nodes, replication_factor=copies, alive=alive) == place(
        key, shuffled, replication_factor=copies, alive=alive
    )


@given(keys, clusters, st.integers(1, 6), st.data())
def test_placement_follows_registered_nodes_and_prefers_live_ones(
    key: bytes, nodes: list[NodeEntry], copies: int, data: st.DataObject
) -> None:
    alive = data.draw(st.sets(st.sampled_from(sorted(ids(nodes)))))
    placed = place(key, nodes, replication_factor=copies, alive=alive)
    storing = {node.node_id for node in nodes if Role.PERSISTENCE in node.roles}
    assert set(placed.nodes) <= storing
    assert len(placed.nodes) == len(set(placed.nodes)) == min(copies, len(storing))
    assert placed.ack_quorum == len(placed.nodes) // 2 + 1
    living = [node_id in alive for node_id in placed.nodes]
    assert living == sorted(living, reverse=True), "the dead only fill up"
    assert sum(living) == min(copies, len(storing & alive))


@given(keys, clusters, st.integers(1, 6))
def test_zones_and_machines_repeat_only_when_necessary(key: bytes, nodes: list[NodeEntry], copies: int) -> None:
    placed = place(key, nodes, replication_factor=copies, alive=ids(nodes)).nodes
    storing = {node.node_id: node for node in nodes if Role.PERSISTENCE in node.roles}
    zones = Counter(storing[node_id].zone for node_id in placed)
    left_out = [node for node_id, node in storing.items() if node_id not in placed]
    for node in left_out:
        assert all(count <= zones[node.zone] + 1 for count in zones.values()), (node, placed)
    every_zone = {node.zone for node in storing.values()}
    assert len(zones) == min(len(placed), len(every_zone))
    for node in left_out:
        # An additional machine without copies in a zone: then no other machine there has two copies.
        mine = node.machine or node.node_id
        if mine not in {storing[node_id].machine or node_id for node_id in placed}:
            in_zone = [storing[node_id].machine for node_id in placed if storing[node_id].zone == node.zone]
            named = Counter(machine for machine in in_zone if machine)
            assert all(count == 1 for count in named.values()), (node, placed)


def are_alike(nodes: Sequence[NodeEntry]) -> bool:
    """Whether all storing nodes may own partitions, or none, so that the rule for owners has no effect."""
    return len({Role.INGESTION in node.roles for node in nodes if Role.PERSISTENCE in node.roles}) <= 1


@given(keys, clusters, node_entries, st.integers(1, 6))
def test_new_node_takes_at_most_one_copy_and_moves_no_other(
    key: bytes, nodes: list[NodeEntry], joining: NodeEntry, copies: int
) -> None:
    others = [node for node in nodes if node.node_id != joining.node_id]
    if not any(Role.PERSISTENCE in node.roles for node in others):
        return
    grown = [*others, joining]
    before = set(place(key, others, replication_factor=copies, alive=ids(others)).nodes)
    after = set(place(key, grown, replication_factor=copies, alive=ids(grown)).nodes)
    one_zone = len({(node.zone, node.machine) for node in grown}) == 1
    if one_zone or are_alike(grown):
        assert after - before <= {joining.node_id}
        assert len(before - after) <= 1
    assert len(after - before) <= 2
    assert len(before - after) <= 2


@given(keys, clusters, st.integers(1, 6), st.data())
def test_removed_node_moves_only_its_own_copies(
    key: bytes, nodes: list[NodeEntry], copies: int, data: st.DataObject
) -> None:
    leaving = data.draw(st.sampled_from(nodes))
    rest = [node for node in nodes if node is not leaving]
    if not any(Role.PERSISTENCE in node.roles for node in rest):
        return
    before = place(key, nodes, replication_factor=copies, alive=ids(nodes))
    after = place(key, rest, replication_factor=copies, alive=ids(rest))
    if leaving.node_id not in before.nodes:
        assert len(set(after.nodes) - set(before.nodes)) <= 1
        if are_alike(nodes):
            assert after == before


@given(keys, clusters, st.integers(1, 6), st.data())
def test_placement_includes_a_live_node_that_may_own_if_possible(
    key: bytes, nodes: list[NodeEntry], copies: int, data: st.DataObject
) -> None:
    alive = data.draw(st.sets(st.sampled_from(sorted(ids(nodes)))))
    placed = place(key, nodes, replication_factor=copies, alive=alive).nodes
    able = {node.node_id for node in nodes if node.roles == BOTH_ROLES and node.node_id in alive}
    assert bool(able.intersection(placed)) == bool(able)
    owner = successor(key, nodes, alive=alive, placement=placed)
    assert owner in able or not able


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_storing_only_node_owns_nothing_beside_capable_nodes(copies: int) -> None:
    nodes = [
        NodeEntry("a", roles=Role.PERSISTENCE),
        NodeEntry("b"),
        NodeEntry("c"),
        NodeEntry("d", roles=Role.INGESTION),
    ]
    owned: Counter[str | None] = Counter()
    for number in range(300):
        placed = copies_of(nodes, copies, partition=number)
        owned[successor(partition_key(TOPIC, number), nodes, alive=set("abcd"), placement=placed)] += 1
    assert set(owned) == {"b", "c"}
    assert owned["b"] == pytest.approx(150, rel=0.2)


@given(keys, clusters, st.data())
def test_higher_weight_only_moves_its_node_forward(key: bytes, nodes: list[NodeEntry], data: st.DataObject) -> None:
    heavier = data.draw(st.sampled_from(nodes))
    changed = [node._replace(weight=WEIGHT_MAX) if node is heavier else node for node in nodes]
    before, after = rank(key, nodes), rank(key, changed)
    assert after.index(heavier.node_id) <= before.index(heavier.node_id)
    before.remove(heavier.node_id)
    after.remove(heavier.node_id)
    assert before == after


@pytest.mark.parametrize("copies", [1, 3])
def test_new_node_takes_its_share_and_moves_little_else(copies: int) -> None:
    partitions = 4000
    before = [set(copies_of(entries(9), copies, partition=number)) for number in range(partitions)]
    after = [set(copies_of(entries(10), copies, partition=number)) for number in range(partitions)]
    moved = sum(len(new - old) for old, new in zip(before, after, strict=True))
    assert moved == pytest.approx(partitions * copies / 10, rel=0.1)


def test_copies_and_ownership_are_balanced() -> None:
    nodes, partitions = entries(6, zones=3), 6000
    placed = [copies_of(nodes, 3, partition=number) for number in range(partitions)]
    stored = Counter(node_id for nodes_of in placed for node_id in nodes_of)
    owned = Counter(nodes_of[0] for nodes_of in placed)
    assert all(count == pytest.approx(3000, rel=0.08) for count in stored.values()), stored
    assert all(count == pytest.approx(1000, rel=0.12) for count in owned.values()), owned


def test_weights_determine_shares() -> None:
    weights = {"small": 50, "plain": 100, "large": 250}
    nodes = [NodeEntry(node_id, weight=weight) for node_id, weight in weights.items()]
    first = Counter(rank(partition_key(TOPIC, number), nodes)[0] for number in range(8000))
    for node_id, weight in weights.items():
        assert first[node_id] == pytest.approx(8000 * weight / 400, rel=0.08)


@pytest.mark.parametrize("hashed", [0, 2**64 - 1])
def test_extreme_hashes_have_scores(monkeypatch: pytest.MonkeyPatch, hashed: int) -> None:
    monkeypatch.setattr("mmh3.hash64", lambda *_, **__: (hashed, 0))
    assert rank(partition_key(TOPIC, 0), entries(3)) == ["n0", "n1", "n2"], "equal scores stand by name"


def test_topic_ack_quorum_applies_if_copies_allow_it() -> None:
    key, nodes = partition_key(TOPIC, 0), entries(3)
    quorums = [
        place(key, nodes, replication_factor=copies, alive=ids(nodes), ack_quorum=asked).ack_quorum
        for copies, asked in ((3, 0), (3, 1), (3, 3), (3, 4), (2, 3), (1, 3))
    ]
    assert quorums == [2, 1, 3, 2, 2, 1]
    assert [majority(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_placement_without_storing_nodes_is_an_error() -> None:
    nodes = [NodeEntry("a", roles=Role.INGESTION)]
    with pytest.raises(NoPersistenceError, match="persistence"):
        place(partition_key(TOPIC, 0), nodes, replication_factor=1, alive={"a"})


def test_successor_is_the_first_live_replica_with_ingestion() -> None:
    key, nodes = partition_key(TOPIC, 0), entries(5)
    placed = copies_of(nodes, 3)
    assert successor(key, nodes, alive=ids(nodes), placement=placed) == placed[0] == rank(key, nodes)[0]
    assert successor(key, nodes, alive=ids(nodes) - {placed[0]}, placement=placed) == placed[1]
    assert successor(key, nodes, alive=ids(nodes) - set(placed), placement=placed) is None
    storing_only = [node._replace(roles=Role.PERSISTENCE) if node.node_id == placed[0] else node for node in nodes]
    assert candidates(key, storing_only, alive=ids(nodes), placement=placed) == [placed[1], placed[2], placed[0]]
    nobody = [node._replace(roles=Role.PERSISTENCE) for node in nodes]
    assert successor(key, nobody, alive=ids(nodes), placement=placed) == placed[0]


def test_takeover_ranks_count_live_candidates() -> None:
    key, nodes = partition_key(TOPIC, 7), entries(5)
    placed = copies_of(nodes, 3, partition=7)
    ranks = [takeover_rank(node_id, key, nodes, alive=ids(nodes), placement=placed) for node_id in placed]
    assert ranks == [0, 1, 2]
    alive = ids(nodes) - {placed[0]}
    assert takeover_rank(placed[2], key, nodes, alive=alive, placement=placed) == 1
    assert takeover_rank(placed[1], key, nodes, alive=set(), placement=placed) == 0, "the node itself is alive"
    outside = next(iter(ids(nodes) - set(placed)))
    assert takeover_rank(outside, key, nodes, alive=ids(nodes), placement=placed) is None
    removed = [node for node in nodes if node.node_id != placed[1]]
    assert takeover_rank(placed[1], key, removed, alive=alive, placement=placed) is None


def state(number: int, owner: str, placed: Placement, **fields: int) -> PlacedPartition:
    return PlacedPartition(TOPIC, number, owner, placed.nodes, placed.ack_quorum, replication_factor=3, **fields)


def test_balanced_cluster_needs_no_moves_and_a_new_node_gets_its_share() -> None:
    nodes = entries(4)
    placed = {
        number: place(partition_key(TOPIC, number), nodes, replication_factor=3, alive=ids(nodes))
        for number in range(200)
    }
    states = [
        PlacedPartition(TOPIC, number, where.nodes[0], where.nodes[::-1], where.ack_quorum, replication_factor=3)
        for number, where in placed.items()
    ]
    assert rebalance_plan(states, nodes, alive=ids(nodes)) == [], "the order of a placement does not cause moves"
    grown = entries(5)
    plan = rebalance_plan(states, grown, alive=ids(grown))
    assert 80 <= len(plan) <= 160, "three in five of the partitions get a copy on the new node"
    assert all(move.new_copies == ("n4",) for move in plan)
    again = [PlacedPartition(TOPIC, move.partition, move.owner, *move.placement, replication_factor=3) for move in plan]
    assert rebalance_plan(again, grown, alive=ids(grown)) == [], "no further moves follow an executed plan"


def test_moves_without_copies_come_first_and_quorum_changes_are_planned() -> None:
    nodes = entries(4)
    everyone = ids(nodes)
    placed = [place(partition_key(TOPIC, number), nodes, replication_factor=3, alive=everyone) for number in range(4)]
    outside = next(iter(everyone - set(placed[0].nodes)))
    states = [
        state(0, placed[0].nodes[0], Placement((outside, *placed[0].nodes[:2]), 2)),
        state(1, placed[1].nodes[1], placed[1]),
        state(2, placed[2].nodes[0], placed[2], topic_ack_quorum=3),
        state(3, placed[3].nodes[0], placed[3]),
    ]
    plan = rebalance_plan(states, nodes, alive=everyone)
    assert [(move.partition, bool(move.new_copies)) for move in plan] == [(1, False), (2, False), (0, True)]
    assert plan[0].owner == placed[1].nodes[0]
    assert plan[1].placement.ack_quorum == 3
    assert plan[2].new_copies == placed[0].nodes[2:]


def test_partition_without_a_live_node_is_unchanged() -> None:
    nodes = entries(3)
    placed = place(partition_key(TOPIC, 0), nodes, replication_factor=3, alive=ids(nodes))
    assert rebalance_plan([state(0, "gone", placed)], nodes, alive=set()) == []
