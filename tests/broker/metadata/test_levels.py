"""Feature levels: the table, the record of the cluster's level, and what the level allows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.security.registry import SecurityRegistry
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.metadata import levels
from tidelog_broker.metadata.features import FEATURES, FeatureGate
from tidelog_broker.metadata.levels import LEVELS, LevelState, features_up_to, supported_by
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.version import VERSION

NEWEST = LEVELS[-1].number


class World:
    """The records of a cluster at level 1, and the gate of one of its nodes."""

    def __init__(self) -> None:
        self.topics, self.nodes = TopicRegistry(), NodeRegistry()
        self.gate = FeatureGate(FEATURES, topics=self.topics, nodes=self.nodes, security=SecurityRegistry())

    def node(self, node_id: str, features: frozenset[str], *, revision: int = 1, software: str = "") -> None:
        record = pb.NodeRecord(node_id=node_id, incarnation=1, revision=revision, software=software)
        record.features.extend(sorted(features))
        self.nodes.apply(record)


def deduplicated(name: bytes = b"t") -> pb.TopicRecord:
    config = pb.TopicConfig(deduplicate_s=5)
    return pb.TopicRecord(name=name.decode(), topic_id=name * 16, revision=1, config=config)


def test_each_feature_belongs_to_one_level_and_levels_ascend() -> None:
    assert [level.number for level in LEVELS] == [*range(1, len(LEVELS) + 1)]
    assert sum(len(level.features) for level in LEVELS) == len(FEATURES)
    assert features_up_to(NEWEST) == FEATURES
    assert LEVELS[0].features == frozenset(), "a build from before features announces none"
    assert tuple(map(int, LEVELS[-1].since.split("."))) <= tuple(map(int, VERSION.partition(".dev")[0].split(".")))


def test_the_page_lists_the_features_of_each_level() -> None:
    listed: dict[tuple[int, str], set[str]] = {}
    level = (0, "")
    page = (Path(__file__).parents[3] / "docs" / "upgrading.md").read_text()
    for number, since, feature in re.findall(
        r"^\| (\d*) *\| ([\d.]*) *\|.*\| (?:`([a-z.]+)`|nothing) \|$", page, re.MULTILINE
    ):
        level = (int(number), since) if number else level
        listed.setdefault(level, set()).update({feature} - {""})
    assert listed == {(level.number, level.since): level.features for level in LEVELS}


def test_a_build_supports_the_highest_level_of_which_it_announces_every_feature() -> None:
    assert supported_by([]) == 1
    assert supported_by(FEATURES - {levels.LEVELS_KNOWN}) == 1
    assert supported_by([*FEATURES, "topic.later"]) == NEWEST


def test_the_highest_revision_of_the_level_holds() -> None:
    state = LevelState()
    assert state.number == 1
    second = state.raised_to(2)
    assert (second.revision, [*second.features]) == (1, sorted(features_up_to(2)))
    assert state.apply(second)
    assert not state.apply(pb.ClusterLevel(level=1, revision=1))
    assert state.number == 2


def test_a_feature_above_the_level_is_refused_with_the_command_that_raises_the_level() -> None:
    world = World()
    world.node("a", FEATURES)
    with pytest.raises(ProtocolError) as refused:
        world.gate.check(deduplicated())
    assert refused.value.code == pb.INVALID_REQUEST
    for part in ("topic 't'", "topic.deduplicate of feature level 2", "at level 1", "tidelog cluster finalize"):
        assert part in refused.value.message
    record = world.gate.finalized()
    assert record is not None
    world.gate.level.apply(record)
    world.gate.check(deduplicated())
    assert world.gate.finalized() is None


def test_a_feature_in_use_before_levels_can_be_used_again() -> None:
    world = World()
    world.topics.apply(deduplicated())
    world.gate.check(deduplicated(b"u"))
    user = pb.SecurityRecord(id="user/1", revision=1, user=pb.ScramUser(name="ada"))
    with pytest.raises(ProtocolError, match=r"security\.users of feature level 2"):
        world.gate.check(user)


def test_a_level_that_a_registered_node_does_not_support_is_not_finalised() -> None:
    world = World()
    world.node("a", FEATURES)
    world.node("b", FEATURES - {levels.LEVELS_KNOWN}, software="tidelog-node/0.1.0")
    with pytest.raises(ProtocolError) as refused:
        world.gate.finalized()
    for part in (f"feature level {NEWEST} needs cluster.level", "'b' (tidelog-node/0.1.0)", "upgrade that node"):
        assert part in refused.value.message
    world.node("b", FEATURES, revision=2)
    assert world.gate.finalized() is not None


def test_a_node_below_the_level_is_not_registered_and_stops() -> None:
    world = World()
    level = world.gate.finalized()
    assert level is not None
    world.gate.level.apply(level)
    fault = world.gate.fault_of(pb.NodeRecord(node_id="b", features=sorted(FEATURES - {levels.LEVELS_KNOWN})))
    assert "'b' (an older build without a version) does not support cluster.level, in use by feature" in fault
    assert world.gate.fault_of_level(level) == ""
    level.features.append("topic.later")
    level.level = 3
    assert "feature level 3, which needs topic.later, and this build does not" in world.gate.fault_of_level(level)
