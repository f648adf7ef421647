from __future__ import annotations

import pytest

from tidelog_broker.core.placement import placement
from tidelog_broker.core.placement.placement import NodeEntry, NoPersistenceError, Role, partition_key, rank
from tidelog_broker.core.placement.planning import (
    ReplicationSettings,
    current_replication_settings,
    first_epoch,
    first_epochs,
    handover_plan,
    has_live_quorum,
    ingestion_owner_plan,
    lacks_copies,
    lacks_owner,
    move_plan,
    preferred_owner_plan,
    rank_of,
    replacement_plan,
    replication_settings,
    takeover_plan,
)
from tidelog_broker.core.replication.ports import Plan
from tidelog_proto import broker_pb2 as pb

KEY = (b"t" * 16, 0)
NODES = [NodeEntry(name) for name in "abcde"]
ORDER = rank(partition_key(*KEY), NODES)
THREE = ReplicationSettings(3, 0, pb.NEVER)
ALL = frozenset("abcde")


def epoch(*placement: str, owner: str = "", quorum: int = 2) -> pb.EpochDescriptor:
    return pb.EpochDescriptor(owner=owner or placement[0], placement=placement, ack_quorum=quorum, flush=pb.NEVER)


def test_takeover_by_a_storing_node_makes_it_the_owner() -> None:
    last = ORDER[2]
    plan = takeover_plan(last, KEY, epoch(*ORDER[:3]), THREE, NODES, alive=ALL)
    assert plan == Plan(last, tuple(ORDER[:3]), 2, pb.NEVER)


def test_takeover_by_another_node_names_the_first_live_owner() -> None:
    """The node is drained: placement passes it over."""
    first = ORDER[0]
    plan = takeover_plan(first, KEY, epoch(*ORDER[:3]), THREE, NODES, alive=ALL - {first, ORDER[1]})
    assert plan.owner == ORDER[2]
    assert plan.placement == tuple(ORDER[2:5])


def test_spare_replaces_a_dead_node_which_stays_without_a_spare() -> None:
    dead = ORDER[0]
    assert dead not in takeover_plan(ORDER[1], KEY, epoch(*ORDER[:3]), THREE, NODES, alive=ALL - {dead}).placement
    three = [node for node in NODES if node.node_id in ORDER[:3]]
    plan = takeover_plan(ORDER[1], KEY, epoch(*ORDER[:3]), THREE, three, alive=ALL - {dead})
    assert plan == Plan(ORDER[1], (*ORDER[1:3], dead), 2, pb.NEVER)


def test_number_of_copies_follows_registered_nodes() -> None:
    two = NODES[:2]
    both = epoch("a", "b")
    assert takeover_plan("a", KEY, both, THREE, two, alive={"a"}) == Plan("a", ("a", "b"), 2, pb.NEVER)
    assert takeover_plan("a", KEY, both, ReplicationSettings(2, 1, pb.NEVER), two, alive={"a"}).ack_quorum == 1
    assert takeover_plan("a", KEY, epoch("a", quorum=1), THREE, two, alive={"a", "b"}).placement == ("a", "b")


def test_dead_nodes_without_a_copy_do_not_block_a_takeover() -> None:
    """Four nodes are registered and five copies wanted, which would need three live nodes. Two of three copies live."""
    four, wishes = [node for node in NODES if node.node_id in ORDER[:4]], ReplicationSettings(5, 0, pb.ALWAYS)
    active = epoch(*ORDER[:3])
    for me in ORDER[:2]:
        plan = takeover_plan(me, KEY, active, wishes, four, alive=frozenset(ORDER[:2]))
        assert plan == Plan(me, tuple(ORDER[:3]), 2, pb.ALWAYS), "as many as before, and no quorum is smaller"
    assert takeover_plan("a", KEY, epoch("a", quorum=1), THREE, NODES[:2], alive={"a"}) == Plan(
        "a", ("a",), 1, pb.NEVER
    )
    stranger = takeover_plan(ORDER[3], KEY, active, wishes, four, alive=frozenset(ORDER[1:3]))
    assert stranger == Plan(ORDER[1], tuple(ORDER[:3]), 2, pb.ALWAYS)
    whole = tuple(ORDER[:4])
    assert takeover_plan(ORDER[0], KEY, active, wishes, four, alive=frozenset(ORDER[:3])).placement == whole
    assert takeover_plan(ORDER[0], KEY, active, wishes, four, alive=frozenset(ORDER[:1])).placement == whole


def test_placement_is_kept_without_storing_nodes() -> None:
    deaf = [NodeEntry("a", roles=Role.INGESTION)]
    assert takeover_plan("a", KEY, epoch("a", "b"), THREE, deaf, alive={"a"}) == Plan("a", ("a", "b"), 2, pb.NEVER)
    assert move_plan(KEY, epoch("a", "b"), THREE, deaf, alive={"a"}) is None
    with pytest.raises(NoPersistenceError):
        first_epoch(KEY, THREE, deaf, alive={"a"}, incarnation=lambda _: 1)


def test_storing_only_node_leaves_ownership_to_others() -> None:
    nodes = [NodeEntry(name, roles=Role.PERSISTENCE if name == ORDER[0] else NODES[0].roles) for name in "abcde"]
    plan = takeover_plan(ORDER[0], KEY, epoch(*ORDER[:3]), THREE, nodes, alive=ALL)
    assert plan.owner == ORDER[1]


def test_rank_counts_live_candidates_and_others_rank_last() -> None:
    active = epoch(*ORDER[:3])
    assert [rank_of(name, KEY, active, NODES, alive=ALL) for name in ORDER[:3]] == [0, 1, 2]
    assert rank_of(ORDER[2], KEY, active, NODES, alive=ALL - {ORDER[0]}) == 1
    assert rank_of(ORDER[4], KEY, active, NODES, alive=ALL) == 3


def test_move_is_planned_only_for_differences() -> None:
    there = epoch(*ORDER[:3])
    assert move_plan(KEY, there, THREE, NODES, alive=ALL) is None
    elsewhere = epoch(*ORDER[1:4])
    assert move_plan(KEY, elsewhere, THREE, NODES, alive=ALL) == Plan(ORDER[0], tuple(ORDER[:3]), 2, pb.NEVER)
    assert move_plan(KEY, there, ReplicationSettings(3, 0, pb.ALWAYS), NODES, alive=ALL) == Plan(
        ORDER[0], tuple(ORDER[:3]), 2, pb.ALWAYS
    )


def test_first_epochs_are_spread_and_have_live_owners() -> None:
    made = [
        first_epoch((KEY[0], index), THREE, NODES, alive=ALL - {"a"}, incarnation=dict.fromkeys("abcde", 7).__getitem__)
        for index in range(40)
    ]
    assert {one.owner for one in made} == ALL - {"a"}
    assert all((one.owner_incarnation, one.ack_quorum, len(one.placement)) == (7, 2, 3) for one in made)
    assert all(one.owner in one.placement and one.epoch == one.start_offset == 0 for one in made)


def test_replication_settings_come_from_the_topic_or_the_active_epoch() -> None:
    config = pb.TopicConfig(replication_factor=3, ack_quorum=2, flush=pb.INTERVAL)
    assert replication_settings(config) == ReplicationSettings(3, 2, pb.INTERVAL)
    assert replication_settings(pb.TopicConfig()) == ReplicationSettings(1, 0, pb.ALWAYS)
    assert current_replication_settings(epoch("a", "b")) == ReplicationSettings(2, 2, pb.NEVER)


def test_stopping_node_hands_over_to_the_first_other_replica_without_moving_copies() -> None:
    first, second, third, spare, _ = ORDER
    active = epoch(third, first, second)
    plan = handover_plan(first, KEY, active, NODES, alive=ALL)
    assert plan == Plan(second, (third, first, second), 2, pb.NEVER)
    assert handover_plan(third, KEY, active, NODES, alive=ALL - {first}) == plan
    only_spare = handover_plan(first, KEY, active, NODES, alive={first, spare})
    assert only_spare is None


def test_lagging_replica_is_a_successor_only_as_a_last_resort() -> None:
    first, second, third = ORDER[:3]
    for behind, owner in (((), second), ((second,), third), ((second, third), second)):
        plan = handover_plan(first, KEY, epoch(first, second, third), NODES, alive=ALL, lagging=behind)
        assert plan is not None
        assert plan.owner == owner


def test_replacement_plan_changes_one_replica_only() -> None:
    first, second, third, fourth, last = ORDER
    active = epoch(third, first, last, owner=third)
    plan = replacement_plan(KEY, active, THREE, NODES, alive=ALL, without=first)
    assert plan == Plan(third, (third, second, last), 2, pb.NEVER), "placement would want others, too"
    assert replacement_plan(KEY, active, THREE, NODES, alive=ALL - {second}, without=first) == Plan(
        third, (third, fourth, last), 2, pb.NEVER
    )
    assert replacement_plan(KEY, active, THREE, NODES, alive=ALL - {second, fourth}, without=first) is None
    more_than_wanted = replacement_plan(
        KEY, epoch(*ORDER[:3]), ReplicationSettings(2, 0, pb.NEVER), NODES, alive=ALL, without=third
    )
    assert more_than_wanted == Plan(first, (first, second, fourth), 2, pb.NEVER)
    deaf = [NodeEntry(node, roles=Role.INGESTION) for node in "abcde"]
    assert replacement_plan(KEY, active, THREE, deaf, alive=ALL, without=first) is None


def test_copies_are_lacking_when_live_nodes_could_store_all_of_them() -> None:
    assert lacks_copies(epoch("a"), THREE, NODES, alive={"a", "b", "c"})
    assert not lacks_copies(epoch("a"), THREE, NODES, alive={"a", "b"}), "two would be worse than one"
    assert not lacks_copies(epoch("a", "b", "c"), THREE, NODES, alive=ALL)
    deaf = [NodeEntry("c", roles=Role.INGESTION)]
    assert not lacks_copies(epoch("a", "b"), THREE, [*NODES[:2], *deaf], alive=ALL)


def test_small_cluster_stores_as_many_copies_as_nodes_except_two() -> None:
    five = ReplicationSettings(5, 0, pb.NEVER)
    for registered, lacks in ((1, False), (2, False), (3, True), (4, True), (5, True)):
        assert lacks_copies(epoch("a"), five, NODES[:registered], alive=ALL) is lacks
    assert not lacks_copies(epoch("a", "b", "c"), five, NODES[:3], alive=ALL)
    assert not lacks_copies(epoch("a"), five, NODES[:4], alive={"a", "b", "c"}), "one of them is away"
    assert lacks_copies(epoch("a"), ReplicationSettings(2, 0, pb.NEVER), NODES[:2], alive=ALL), "two were asked for"


def test_first_ranked_replica_is_the_preferred_owner() -> None:
    first, second, third, *_ = ORDER
    away = epoch(first, second, third, owner=third)
    assert preferred_owner_plan(KEY, away, NODES, alive=ALL) == Plan(first, (first, second, third), 2, pb.NEVER)
    assert preferred_owner_plan(KEY, away, NODES, alive=ALL - {first}) == Plan(
        second, (first, second, third), 2, pb.NEVER
    )
    assert preferred_owner_plan(KEY, away, NODES, alive={third}) is None
    assert preferred_owner_plan(KEY, epoch(first, second), NODES, alive=ALL) is None
    assert preferred_owner_plan(KEY, away, NODES, alive=frozenset()) is None


def stores_only(*names: str) -> list[NodeEntry]:
    return [node._replace(roles=Role.PERSISTENCE) if node.node_id in names else node for node in NODES]


def test_storing_only_owner_hands_over_to_the_first_capable_replica_that_keeps_up() -> None:
    first, second, third, *_ = ORDER
    nodes, active = stores_only(first), epoch(*ORDER[:3], owner=first)
    assert ingestion_owner_plan(KEY, active, nodes, alive=ALL) == Plan(second, (first, second, third), 2, pb.NEVER)
    behind = ingestion_owner_plan(KEY, active, nodes, alive=ALL, lagging={second})
    assert behind is not None
    assert behind.owner == third
    assert ingestion_owner_plan(KEY, active, nodes, alive=ALL, lagging={second, third}) is None
    assert ingestion_owner_plan(KEY, active, nodes, alive=ALL - {second, third}) is None
    assert ingestion_owner_plan(KEY, active, NODES, alive=ALL) is None
    assert ingestion_owner_plan(KEY, active, stores_only(first, second, third), alive=ALL) is None


def test_partition_lacks_an_owner_if_no_replica_is_capable_and_another_node_is() -> None:
    first, second, third, *others = ORDER
    active = epoch(first, second, third)
    assert lacks_owner(active, stores_only(first, second, third), alive=ALL)
    assert not lacks_owner(active, stores_only(first, second), alive=ALL)
    assert not lacks_owner(active, stores_only(first, second), alive=ALL - {third}), "it may come back"
    assert not lacks_owner(active, stores_only(first, second, third), alive=ALL.difference(others))
    assert not lacks_owner(active, stores_only(*ORDER), alive=ALL)
    routing = [node._replace(roles=Role.INGESTION) for node in NODES if node.node_id in others]
    storing = [node for node in stores_only(first, second, third) if node.node_id not in others]
    assert not lacks_owner(active, [*storing, *routing], alive=ALL), "a node without storage cannot be owner"


def test_storing_only_node_takes_over_last_and_only_without_capable_nodes() -> None:
    first, second, third, *_ = ORDER
    nodes, active = stores_only(first, second), epoch(first, second, third, owner=third)
    assert [rank_of(name, KEY, active, nodes, alive=ALL) for name in (third, first, second)] == [0, 1, 2]
    storing = [node for node in nodes if node.node_id in active.placement]
    plan = takeover_plan(first, KEY, active, THREE, storing, alive={first, second})
    assert plan == Plan(first, (first, second, third), 2, pb.NEVER)


def test_storing_only_node_owns_a_first_epoch_if_no_other_is_alive() -> None:
    def made(alive: frozenset[str], copies: int) -> list[pb.EpochDescriptor]:
        nodes = stores_only("a", "b", "c", "d")
        keys = [(KEY[0], index) for index in range(40)]
        return [
            first_epoch(key, ReplicationSettings(copies, 0, pb.NEVER), nodes, alive=alive, incarnation=lambda _: 7)
            for key in keys
        ]

    for copies in (1, 2, 3):
        assert {one.owner for one in made(ALL, copies)} == {"e"}
        assert {one.owner for one in made(ALL - {"e"}, copies)} == {"a", "b", "c", "d"}


def test_first_epochs_of_a_topic_are_those_of_its_partitions_and_share_messages() -> None:
    for nodes, alive in ((NODES, ALL), (NODES, frozenset("ab")), (NODES[:1], ALL), (stores_only("a", "b"), ALL)):
        several = first_epochs(KEY[0], range(3, 403), THREE, nodes, alive=alive, incarnation=lambda _: 7)
        each = [
            first_epoch((KEY[0], index), THREE, nodes, alive=alive, incarnation=lambda _: 7) for index in range(3, 403)
        ]
        assert several == each
        assert len({id(one) for one in several}) == len({one.SerializeToString() for one in each})


def test_a_single_node_is_ranked_once_for_all_partitions_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[bytes] = []

    def score(key: bytes, _node: NodeEntry) -> float:
        ranked.append(key)
        return 0.0

    monkeypatch.setattr(placement, "score", score)
    first_epochs(KEY[0], range(1_000), THREE, NODES[:1], alive=ALL, incarnation=lambda _: 7)
    assert len(ranked) == 1
    ranked.clear()
    first_epochs(KEY[0], range(10), THREE, NODES, alive=ALL, incarnation=lambda _: 7)
    assert len(ranked) == 10 * len(NODES)


def test_planned_epoch_needs_a_quorum_to_write_and_to_seal() -> None:
    for copies, quorum, needed in ((1, 1, 1), (2, 2, 2), (3, 2, 2), (3, 1, 3), (3, 3, 3), (5, 3, 3)):
        plan = Plan("a", tuple("abcde"[:copies]), quorum, pb.NEVER)
        assert has_live_quorum(plan, alive=frozenset("abcde"[:needed]).__contains__)
        assert not has_live_quorum(plan, alive=frozenset("abcde"[: needed - 1]).__contains__)
