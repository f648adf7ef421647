"""The features that records need, and the nodes that support them."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.security.registry import SecurityRegistry
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.metadata import features, levels
from tidelog_broker.metadata.features import FEATURES, FeatureGate, needed_by
from tidelog_broker.metadata.levels import LEVELS
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.topic_settings import TOPIC_SETTINGS

VARINT_90 = b"\xd0\x05\x07"
"""Field 90 with the value 7."""


class World:
    """The records of a cluster, and the gate of one of its nodes."""

    def __init__(self, own: frozenset[str] = FEATURES) -> None:
        self.topics, self.nodes, self.security = TopicRegistry(), NodeRegistry(), SecurityRegistry()
        self.gate = FeatureGate(own, topics=self.topics, nodes=self.nodes, security=self.security)
        self.gate.level.apply(pb.ClusterLevel(level=LEVELS[-1].number, revision=1))

    def node(self, node_id: str, *names: str, **changes: object) -> pb.NodeRecord:
        record = pb.NodeRecord(node_id=node_id, incarnation=1, revision=1, features=sorted(names))
        for name, value in changes.items():
            setattr(record, name, value)
        self.nodes.apply(record)
        return record


def topic(*, revision: int = 1, **config: Any) -> pb.TopicRecord:
    return pb.TopicRecord(name="t", topic_id=b"t" * 16, revision=revision, config=pb.TopicConfig(**config))


def test_each_setting_is_in_the_base_set_or_has_a_feature() -> None:
    assert {name for name, setting in TOPIC_SETTINGS.items() if not setting.feature} == {
        *("partitions", "flush", "flush_interval_ms", "retention_bytes", "segment_bytes", "replication_factor"),
        *("ack_quorum", "retention_ms", "cleanup", "compaction_lag_ms", "tombstone_retention_ms"),
        *("dirty_percent", "index_key", "index_tag", "hold"),
    }, "a new setting needs a feature: nodes of earlier releases ignore it"
    assert {setting.feature for setting in TOPIC_SETTINGS.values() if setting.feature} <= features.FEATURES, (
        "`since` of a setting is the release of a level in metadata/levels.py"
    )
    assert {field.name for field in pb.Quota.DESCRIPTOR.fields} == {*features.QUOTA_BASE, *features.QUOTA_FEATURES}
    kinds = {field.name for field in pb.SecurityRecord.DESCRIPTOR.oneofs_by_name["what"].fields}
    assert kinds == {*features.SECURITY_BASE, *features.SECURITY_FEATURES}
    assert set(pb.Operation.values()) - features.OPERATION_FEATURES.keys() == set(range(10))
    flush = TOPIC_SETTINGS["flush"].choice_features
    assert set(flush.values()) <= features.FEATURES
    assert set(pb.Flush.values()) - flush.keys() == set(range(4)), "a new value of a setting needs a feature"
    assert set(pb.Cleanup.values()) == set(range(4)), "a new value of a setting needs a feature"
    assert set(pb.Resource.values()) == set(range(4)), "a new kind of resource needs a feature"


@pytest.mark.parametrize("name", [name for name, setting in TOPIC_SETTINGS.items() if setting.feature])
def test_topic_needs_the_feature_of_each_setting(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    config: dict[str, Any] = {name: list(setting.choices.values())[-1] if setting.kind is str else 9}
    assert needed_by(topic(**config)) == {TOPIC_SETTINGS[name].feature}
    assert needed_by(topic(retention_ms=5, hold=1)) == frozenset()
    assert needed_by(topic(flush=pb.NEVER)) == frozenset()
    assert needed_by(topic(flush=pb.ASYNC)) == {"topic.async"}
    assert needed_by(topic(engine="segment")) == frozenset(), "topics of all releases name this engine"


def test_records_of_users_groups_quotas_and_impersonation_need_features() -> None:
    rule = pb.AccessRule(operations=[pb.OP_CONSUME])
    assert needed_by(pb.SecurityRecord(rule=rule)) == frozenset()
    rule.operations.append(pb.OP_IMPERSONATE)
    assert needed_by(pb.SecurityRecord(rule=rule)) == {levels.IMPERSONATE}
    assert needed_by(pb.SecurityRecord(user=pb.ScramUser(name="ada"))) == {levels.USERS}
    assert needed_by(pb.SecurityRecord(scram_secret=b"s")) == {levels.USERS}
    assert needed_by(pb.SecurityRecord(quota=pb.Quota(topics=1))) == frozenset()
    assert needed_by(pb.SecurityRecord(quota=pb.Quota(groups=0))) == {levels.GROUP_QUOTAS}
    assert needed_by(pb.SecurityRecord(api_key=pb.ApiKey(key_id="k"))) == frozenset()


def test_deletion_needs_no_feature_and_unknown_fields_need_one() -> None:
    gone = topic(deduplicate_s=5)
    gone.deleted = True
    assert needed_by(gone) == frozenset()
    later = topic()
    later.config.MergeFromString(VARINT_90)
    later.features.append("topic.later")
    assert needed_by(later) == {"field 90 of TopicConfig", "topic.later"}
    kind = pb.SecurityRecord.FromString(VARINT_90)
    assert needed_by(kind) == {"field 90 of SecurityRecord"}


def test_unsupported_setting_is_refused_with_the_nodes_name() -> None:
    world = World()
    world.node("a", *FEATURES)
    world.node("b", software="tidelog-node/0.0.9")
    with pytest.raises(ProtocolError) as refused:
        world.gate.admit(topic(deduplicate_s=5))
    assert refused.value.code == pb.INVALID_REQUEST
    for part in ("topic 't'", "topic.deduplicate", "'b' (tidelog-node/0.0.9)", "upgrade", "drain and remove"):
        assert part in refused.value.message
    world.gate.admit(topic(retention_ms=5))
    world.node("b", *FEATURES, revision=2)
    record = topic(deduplicate_s=5)
    world.gate.admit(record)
    assert [*record.features] == ["topic.deduplicate"]


def test_node_without_a_version_is_an_older_build_and_removed_nodes_do_not_count() -> None:
    world = World()
    world.node("b")
    with pytest.raises(ProtocolError, match="an older build without a version"):
        world.gate.check(topic(deduplicate_s=5))
    world.node("b", revision=2, draining=True)
    with pytest.raises(ProtocolError, match="'b'"):
        world.gate.check(topic(deduplicate_s=5))
    world.node("b", revision=3, removed=True)
    world.gate.check(topic(deduplicate_s=5))


def test_unregistered_founder_makes_a_feature_retriable() -> None:
    world = World()
    world.node("c", incarnation=0, revision=0)
    with pytest.raises(ProtocolError, match="founder 'c' has not announced") as refused:
        world.gate.check(topic(deduplicate_s=5))
    assert refused.value.code == pb.EPOCH_CHANGING
    assert refused.value.retriable
    world.node("c", *FEATURES)
    world.gate.check(topic(deduplicate_s=5))


def test_existing_features_are_not_checked_again() -> None:
    world = World()
    first = topic(deduplicate_s=5)
    world.gate.admit(first)
    world.topics.apply(first)
    world.node("b")
    other = pb.TopicRecord()
    other.CopyFrom(first)
    other.revision, other.config.retention_ms = 2, 7
    world.gate.admit(other)
    other.config.deduplicate_s = 0
    world.gate.admit(other)
    assert not other.features
    world.topics.apply(other)
    assert world.gate.in_use() == {}


def test_node_without_a_used_feature_is_not_registered() -> None:
    world = World()
    said = pb.NodeRecord(node_id="b", software="tidelog-node/0.0.9")
    assert world.gate.fault_of(said) == ""
    world.topics.apply(topic(deduplicate_s=5))
    fault = world.gate.fault_of(said)
    for part in ("'b' (tidelog-node/0.0.9)", "topic.deduplicate", "topic 't'", "start it with a newer build"):
        assert part in fault
    said.features.extend(sorted(FEATURES))
    assert world.gate.fault_of(said) == ""
    world.security.apply(pb.SecurityRecord(id="user/1", revision=1, user=pb.ScramUser(name="ada"), features=["later"]))
    assert "later, in use by security record 'user/1'" in world.gate.fault_of(said)


def test_node_stops_at_an_unsupported_record() -> None:
    old = World(frozenset())
    assert old.gate.fault_of_features([]) == ""
    assert "uses topic.deduplicate, which this build does not support" in old.gate.fault_of_features(
        ["topic.deduplicate"]
    )
    assert old.gate.fault_of_record(topic()) == ""
    assert "'t' needs topic.deduplicate" in old.gate.fault_of_record(topic(deduplicate_records=5))
    assert World().gate.fault_of_record(topic(deduplicate_records=5)) == ""
