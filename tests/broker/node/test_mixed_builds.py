"""Nodes of different builds in one cluster: a node with fewer features simulates an older build."""

from __future__ import annotations

import pytest
from tests.broker.founded import Founded
from tests.broker.peer import Peer
from tests.broker.stand import Stand
from tests.broker.typed import FIRST

from tidelog_broker.broker import Broker
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.metadata.features import FEATURES, FeatureGate
from tidelog_broker.metadata.levels import LEVELS
from tidelog_broker.node.directory_admission import IdentityError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ITERATIONS
from tidelog_proto.batch.content_hash import CONTENT_KEY_BYTES
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.schema_messages import message_of_schema

OLD = FEATURES - {"topic.deduplicate"}
DEDUPLICATED = pb.TopicConfig(deduplicate_s=3600, replication_factor=3)


async def found_mixed(founded: Founded, **features: frozenset[str]) -> Peer:
    founded.features.update(features)
    await founded.found()
    await founded.settled()
    return await founded.peer("a")


@pytest.fixture(autouse=True)
def level_without_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found clusters at a level that allows each feature and needs none: records alone decide which nodes take part."""
    level = pb.ClusterLevel(level=LEVELS[-1].number, revision=1)
    monkeypatch.setattr(FeatureGate, "founding_level", lambda _: level)


def forget_features(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Have nodes judge as builds do that have no features; no node that has all of them ever finds a fault."""
    for name in names:
        monkeypatch.setattr(FeatureGate, name, lambda *_: "")


async def test_setting_unsupported_by_a_node_is_refused_until_its_upgrade(founded: Founded) -> None:
    peer = await found_mixed(founded, c=OLD)
    plain = await peer.create("plain", replication_factor=3)
    for refused in (
        await peer.refused(topic_create=pb.TopicCreate(name="t", config=DEDUPLICATED)),
        await peer.refused(topic_alter=pb.TopicAlter(name="plain", deduplicate_records=9)),
    ):
        assert refused.code == pb.INVALID_REQUEST
        assert "topic.deduplicate, which node 'c' (tidelog-node/" in refused.message
    assert founded.nodes["a"].broker.topics.config_of(plain.topic_id) == plain.config
    owner = founded.nodes[founded.owner(META_KEY, "a")].broker
    with pytest.raises(ProtocolError, match=r"topic.deduplicate, which node 'c'"):
        await owner.controller.create_topic(pb.TopicCreate(name="t", config=DEDUPLICATED))
    with pytest.raises(ProtocolError, match=r"topic.deduplicate, which node 'c'"):
        await owner.controller.alter_topic(pb.TopicAlter(name="plain", deduplicate_records=9))

    await founded.stop("c")
    refused = await peer.refused(topic_create=pb.TopicCreate(name="t", config=DEDUPLICATED))
    assert "'c'" in refused.message, "a node that is down is still registered, and may come back"
    del founded.features["c"]
    await founded.start("c")
    await founded.settled()
    topic = await peer.create("t", deduplicate_s=3600, replication_factor=3)
    await founded.copies((topic.topic_id, 0))
    stored = [(await founded.publish(peer, topic.topic_id, b"same")).duplicates for _ in range(8)]
    assert stored == [0, *[1] * 7], "of eight equal records one is stored, on a node that knows the setting"


async def test_removed_node_does_not_block_a_feature(founded: Founded) -> None:
    peer = await found_mixed(founded)
    founded.features["d"] = OLD
    await founded.join("d")
    await founded.settled()
    assert "'d'" in (await peer.refused(topic_create=pb.TopicCreate(name="t", config=DEDUPLICATED))).message
    await peer.ask(cluster_change=pb.ClusterChange(drain="d"))
    await founded.remove(peer, "d")
    await peer.create("t", deduplicate_s=3600)


async def test_receiving_node_checks_features_for_an_older_owner_of_meta(founded: Founded) -> None:
    peer = await found_mixed(founded, b=OLD, c=OLD)
    for node in founded.nodes.values():
        node.broker.features.admit = lambda record: None  # type: ignore[method-assign]
    refused = await peer.refused(topic_create=pb.TopicCreate(name="t", config=DEDUPLICATED))
    assert "topic.deduplicate, which node 'b'" in refused.message
    assert not founded.nodes["a"].broker.topics.exists("t")
    await peer.create("t", replication_factor=3)
    refused = await peer.refused(topic_alter=pb.TopicAlter(name="t", deduplicate_s=5))
    assert "topic.deduplicate, which node 'b'" in refused.message


async def test_users_and_group_quotas_are_refused_with_an_older_node(founded: Founded) -> None:
    peer = await found_mixed(founded, c=frozenset())
    owner = founded.nodes[founded.owner(META_KEY, "a")].broker
    quota = pb.Quota(subject="ada", topics=5)
    await peer.ask(security_change=pb.SecurityChange(set_quota=quota))
    quota.groups = 5
    rule = pb.AccessRule(principal="ada", operations=[pb.OP_IMPERSONATE], resource=pb.RES_CLUSTER)
    user = pb.ScramUser(name="ada", iterations=ITERATIONS, salt=b"s" * 16, stored_key=b"k" * 32, server_key=b"k" * 32)
    for change, feature in (
        (pb.SecurityChange(set_quota=quota), "quota.groups"),
        (pb.SecurityChange(grant=rule), "rule.impersonate"),
        (pb.SecurityChange(create_user=user), "security.users"),
    ):
        with pytest.raises(ProtocolError, match=f"{feature}, which node 'c'"):
            await owner.security_changes.change(change)
        owner.features.admit, admit = lambda record: None, owner.features.admit  # type: ignore[method-assign]
        assert f"{feature}, which node 'c'" in (await peer.refused(security_change=change)).message
        owner.features.admit = admit  # type: ignore[method-assign]


@pytest.mark.parametrize("knows", [True, False], ids=["of a build with features", "of one without"])
async def test_node_without_a_used_feature_cannot_join(
    founded: Founded, monkeypatch: pytest.MonkeyPatch, *, knows: bool
) -> None:
    peer = await found_mixed(founded)
    await peer.create("t", deduplicate_s=3600, replication_factor=3)
    founded.features["d"] = OLD
    if not knows:
        forget_features(monkeypatch, "fault_of_features", "fault_of_record")
    text = (
        "uses topic.deduplicate" if knows else r"'d' \(tidelog-node/.*\) does not support topic.deduplicate, in use by"
    )
    with pytest.raises(IdentityError, match=text):
        await founded.join("d")
    assert founded.nodes["a"].broker.nodes.get("d") is None


async def test_downgraded_node_does_not_start_with_an_unsupported_setting(
    founded: Founded,
) -> None:
    peer = await found_mixed(founded)
    topic = await peer.create("t", deduplicate_s=3600, replication_factor=3)
    await founded.copies((topic.topic_id, 0))
    await founded.until(
        lambda: founded.nodes["c"].broker.topics.config_of(topic.topic_id) is not None, "c never receives it"
    )
    await founded.stop("c")
    founded.features["c"] = OLD
    with pytest.raises((ProtocolError, IdentityError), match=r"topic.deduplicate, which this build does not support"):
        await founded.start("c")


async def test_downgraded_node_learns_used_features_before_it_serves(founded: Founded) -> None:
    peer = await found_mixed(founded)
    await founded.stop("c")
    await peer.create("t", deduplicate_s=3600, replication_factor=2)
    founded.features["c"] = OLD
    with pytest.raises(IdentityError, match=r"the cluster uses topic.deduplicate, which this build does not support"):
        await founded.start("c")


async def test_downgraded_node_without_features_stops_at_its_announcement(
    founded: Founded, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = await found_mixed(founded)
    await peer.create("t", deduplicate_s=3600, replication_factor=3)
    await founded.stop("c")
    founded.features["c"] = frozenset()
    forget_features(monkeypatch, "fault_of_features", "fault_of_record")
    node = await founded.start("c")
    await founded.until(lambda: node.lifecycle.exit_code != 0, "the node continues")
    assert "node 'c'" in node.lifecycle.stop_reason
    assert "topic.deduplicate, in use by topic 't'" in node.lifecycle.stop_reason


async def test_single_node_does_not_start_with_an_unsupported_feature(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    await peer.create("t", deduplicate_s=3600)
    await stand.stop()
    stand.features = OLD
    with pytest.raises(ProtocolError, match=r"'t' needs topic.deduplicate, which this build does not support"):
        await stand.start()


async def test_record_of_an_unknown_kind_stops_the_node(stand: Stand) -> None:
    node = await stand.start()
    node.broker.meta_log.apply_value(b"\xa2\x04\x00")  # an empty message as field 68
    assert "field 68 of MetaRecord" in node.lifecycle.stop_reason
    assert not node.broker.topics.exists("")


async def test_unknown_setting_stops_the_node_before_it_serves_the_topic(stand: Stand) -> None:
    node = await stand.start()
    config = pb.TopicConfig.FromString(pb.TopicConfig(partitions=1).SerializeToString() + b"\xd0\x05\x07")
    record = pb.TopicRecord(name="t", topic_id=b"t" * 16, revision=1, config=config, features=["topic.later"])
    record.content_key = bytes(CONTENT_KEY_BYTES)
    node.broker.meta_log.apply_value(record.SerializeToString())
    await node.broker.meta_log.follow_changes()
    assert "'t' needs field 90 of TopicConfig, topic.later" in node.lifecycle.stop_reason
    assert node.broker.partitions.find((b"t" * 16, 0)) is None


async def test_other_stop_reason_is_not_reported_as_a_missing_feature(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    recover = Broker.recover

    async def recover_removed(self: Broker) -> None:
        self.lifecycle.give_up("the node was removed from the cluster")
        await recover(self)

    monkeypatch.setattr(Broker, "recover", recover_removed)
    node = await stand.start()
    assert node.lifecycle.stop_reason == "the node was removed from the cluster"


async def test_changes_with_unknown_fields_are_refused(stand: Stand) -> None:
    await stand.start()
    peer = await stand.peer()
    await peer.create("t")
    later = b"\xd0\x05\x07"
    alter = pb.TopicAlter.FromString(pb.TopicAlter(name="t").SerializeToString() + later)
    create = pb.TopicCreate(name="u", config=pb.TopicConfig.FromString(later))
    change = pb.SecurityChange(grant=pb.AccessRule.FromString(later))
    assert "field 90 of TopicAlter" in (await peer.refused(topic_alter=alter)).message
    assert "field 90 of TopicConfig" in (await peer.refused(topic_create=create)).message
    node = stand.node.broker.controller
    with pytest.raises(ProtocolError, match=r"field 90 of ClusterChange"):
        await node.change_node(pb.ClusterChange.FromString(later))
    assert "field 90 of AccessRule" in (await peer.refused(security_change=change)).message


async def test_typed_topic_is_refused_until_all_nodes_support_it(founded: Founded) -> None:
    peer = await found_mixed(founded, c=FEATURES - {"topic.typed"})
    request = pb.TopicCreate(name="t", schema=message_of_schema(FIRST))
    refused = await peer.refused(topic_create=request)
    assert (refused.code, "topic.typed, which node 'c'" in refused.message) == (pb.INVALID_REQUEST, True)
    owner = founded.nodes[founded.owner(META_KEY, "a")].broker
    with pytest.raises(ProtocolError, match=r"topic.typed, which node 'c'"):
        await owner.controller.create_topic(request)
    await founded.stop("c")
    del founded.features["c"]
    await founded.start("c")
    await founded.settled()
    assert (await peer.ask(topic_create=request)).envelope.HasField("topic_reply")
    founded.features["d"] = FEATURES - {"topic.typed"}
    with pytest.raises(IdentityError, match=r"uses topic\.typed"):
        await founded.join("d")


async def test_typed_topic_needs_a_finalized_level(founded: Founded, monkeypatch: pytest.MonkeyPatch) -> None:
    level = pb.ClusterLevel(level=2, revision=1)
    monkeypatch.setattr(FeatureGate, "founding_level", lambda _: level)
    await founded.found()
    await founded.settled()
    peer = await founded.peer("a")
    request = pb.TopicCreate(name="t", schema=message_of_schema(FIRST))
    refused = await peer.refused(topic_create=request)
    assert "needs topic.typed of feature level 3" in refused.message
    assert "run `tidelog cluster finalize`" in refused.message
    await peer.ask(cluster_change=pb.ClusterChange(finalize=True))
    assert (await peer.ask(topic_create=request)).envelope.HasField("topic_reply")
