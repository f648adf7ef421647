from __future__ import annotations

import pytest

from tidelog_broker.core.security import registry as registry_module
from tidelog_broker.core.security.registry import KEY, QUOTA, RULE, SecurityRegistry, to_meta_record
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def key(key_id: str = "k", revision: int = 1, *, deleted: bool = False) -> pb.SecurityRecord:
    what = pb.ApiKey(key_id=key_id, principal="ann")
    return pb.SecurityRecord(id=KEY + key_id, revision=revision, deleted=deleted, api_key=what)


def rule(rule_id: str = "r", revision: int = 1, *, deleted: bool = False) -> pb.SecurityRecord:
    what = pb.AccessRule(rule_id=rule_id, principal="ann", operations=[pb.OP_PRODUCE], resource=pb.RES_TOPIC, name="a")
    return pb.SecurityRecord(id=RULE + rule_id, revision=revision, deleted=deleted, rule=what)


def test_highest_revision_wins_and_a_deletion_is_final() -> None:
    registry = SecurityRegistry()
    assert registry.apply(key(revision=2, deleted=True))
    assert not registry.apply(key(revision=1))
    assert registry.key("k") is None
    assert not registry.vouches_for(KEY + "k", "ann")
    assert list(registry.records()) == [], "a snapshot leaves deletions out"
    assert registry.next_of(KEY + "k").revision == 3


def test_key_authenticates_its_principal_until_it_is_revoked() -> None:
    registry = SecurityRegistry()
    registry.apply(key())
    assert registry.vouches_for(KEY + "k", "ann")
    assert not registry.vouches_for(KEY + "k", "ben")
    assert [found.key_id for found in registry.api_keys()] == ["k"]
    changes = registry.changes
    registry.apply(key(revision=2, deleted=True))
    assert registry.changes > changes
    assert not registry.vouches_for(KEY + "k", "ann")


def test_rules_are_added_and_removed() -> None:
    registry = SecurityRegistry()
    registry.apply(rule())
    assert registry.permissions.decide("ann", (), pb.OP_PRODUCE, pb.RES_TOPIC, "a").allowed
    registry.apply(rule(revision=2, deleted=True))
    assert not registry.permissions.decide("ann", (), pb.OP_PRODUCE, pb.RES_TOPIC, "a").allowed


def test_quotas_are_added_and_removed_without_invalidating_rules() -> None:
    registry = SecurityRegistry()
    changes = registry.changes
    quota = pb.Quota(quota_id="q", subject="ann", topics=3)
    registry.apply(pb.SecurityRecord(id=QUOTA + "q", revision=1, quota=quota))
    assert registry.quotas.of_principal("ann").topics == 3
    registry.apply(pb.SecurityRecord(id=QUOTA + "q", revision=2, deleted=True))
    assert registry.quotas.of_principal("ann").topics is None
    assert registry.changes == changes


def test_records_are_paged_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = SecurityRegistry()
    for number in range(5):
        registry.apply(rule(f"r{number}"))
    registry.apply(key())
    page, more = registry.page(RULE, "", 3)
    assert ([one.id for one in page], more) == ([RULE + "r0", RULE + "r1", RULE + "r2"], True)
    page, more = registry.page(RULE, page[-1].id, 3)
    assert ([one.id for one in page], more) == ([RULE + "r3", RULE + "r4"], False)
    monkeypatch.setattr(registry_module, "RULES_MAX", 5)
    with pytest.raises(ProtocolError, match="has the maximum of 5 rule records"):
        registry.check_limit(RULE)
    registry.check_limit(KEY)


def test_security_record_is_distinguished_from_topics_and_nodes() -> None:
    value = to_meta_record(key()).SerializeToString()
    assert pb.MetaRecord.FromString(value).WhichOneof("what") == "security"
    topic = pb.TopicRecord(name="t", topic_id=bytes(16), revision=1).SerializeToString()
    assert pb.MetaRecord.FromString(topic).WhichOneof("what") is None
