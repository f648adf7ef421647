"""The registry of nodes, defined by their records."""

from __future__ import annotations

import itertools

import pytest

from tidelog_broker.core.incarnation import make_incarnation
from tidelog_broker.core.placement import registry as registry_module
from tidelog_broker.core.placement.placement import BOTH_ROLES, Role
from tidelog_broker.core.placement.registry import (
    NodeRegistry,
    check_node,
    identity_fault,
    roles_from,
    roles_to,
    wrapped,
)
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def record(node_id: str = "a", *, start: int = 1, revision: int = 0, removed: bool = False) -> pb.NodeRecord:
    return pb.NodeRecord(
        node_id=node_id,
        host="127.0.0.1",
        port=7400,
        gossip_host="127.0.0.1",
        gossip_port=7400,
        zone="east",
        weight=100,
        roles=[pb.INGESTION, pb.PERSISTENCE],
        incarnation=make_incarnation(start, 7),
        revision=revision,
        removed=removed,
    )


def founder(node_id: str) -> pb.NodeRecord:
    founding = record(node_id)
    founding.incarnation = 0
    return founding


def copied(node_id: str) -> pb.NodeRecord:
    copy = record(node_id)
    copy.incarnation = make_incarnation(1, 8)
    return copy


def cluster(*node_ids: str) -> NodeRegistry:
    registry = NodeRegistry()
    for node_id in node_ids:
        registry.apply(record(node_id, revision=1))
    return registry


def test_highest_revision_wins_in_any_order() -> None:
    revisions = [record(revision=1), record(revision=2, start=2), record(revision=3, start=3)]
    for order in itertools.permutations(revisions):
        registry = NodeRegistry()
        for one in order:
            registry.apply(one)
        assert [*registry.records()] == [revisions[2]]
        assert not registry.apply(revisions[2])


def test_removal_is_final_and_included_in_a_snapshot() -> None:
    registry = cluster("a", "b")
    leaving = registry.removed("a")
    assert (leaving.revision, leaving.removed) == (2, True)
    assert registry.apply(leaving)
    assert not registry.apply(record("a", revision=9))
    assert [one.node_id for one in registry.live()] == ["b"]
    assert [entry.node_id for entry in registry.entries()] == ["b"]
    assert len([*registry.records()]) == 2
    with pytest.raises(ProtocolError, match="node 'a' does not exist; registered nodes: b"):
        registry.drained("a", draining=True)
    with pytest.raises(ProtocolError, match="removed from the cluster"):
        registry.announced(record("a", start=2))


def test_last_storing_node_cannot_be_removed() -> None:
    registry = cluster("a")
    taking = record("b", revision=1)
    del taking.roles[1:]
    registry.apply(taking)
    with pytest.raises(ProtocolError, match="no other node has the role persistence"):
        registry.removed("a")
    assert registry.removed("b").removed


def test_applied_records_are_copied() -> None:
    registry, given = NodeRegistry(), record(revision=1)
    registry.apply(given)
    given.host = "elsewhere"
    existing = registry.get("a")
    assert existing is not None
    assert existing.host == "127.0.0.1"
    assert registry.get("b") is None


def test_node_announces_itself_once_per_start_and_after_changes() -> None:
    registry = NodeRegistry()
    registry.apply(founder("a"))
    said = record("a", revision=44)
    first = registry.announced(said)
    assert first is not None
    assert (first.revision, first.incarnation) == (1, said.incarnation)
    registry.apply(first)
    assert registry.announced(said) is None
    registry.apply(registry.drained("a", draining=True))
    assert registry.announced(said) is None, "a node's own report does not change its draining"
    moved = record("a", start=2)
    moved.host = "10.0.0.9"
    third = registry.announced(moved)
    assert third is not None
    assert (third.revision, third.host, third.draining) == (3, "10.0.0.9", True)


def test_founder_is_registered_even_without_changes_to_the_bootstrap_file() -> None:
    registry, said = NodeRegistry(), record("a")
    registry.apply(record("a"))
    written = registry.announced(said)
    assert written is not None
    assert written.revision == 1


def test_number_of_nodes_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_module, "NODES_MAX", 2)
    registry = cluster("a", "b")
    with pytest.raises(ProtocolError, match="2 nodes are registered"):
        registry.announced(record("c"))
    assert registry.announced(record("a", start=2)) is not None
    registry.apply(registry.removed("b"))
    assert registry.announced(record("c")) is not None


def test_draining_nodes_are_not_available() -> None:
    registry = cluster("a", "b", "c")
    registry.apply(registry.drained("b", draining=True))
    assert registry.available({"a", "b", "stranger"}) == {"a"}
    assert len(registry.entries()) == 3, "it is registered all the same"
    registry.apply(registry.drained("b", draining=False))
    assert registry.available({"a", "b", "stranger"}) == {"a", "b"}


def test_entries_contain_what_placement_needs() -> None:
    registry = NodeRegistry()
    storing = record(revision=1, start=4)
    storing.weight = 250
    del storing.roles[0]
    registry.apply(storing)
    (entry,) = registry.entries()
    assert entry == ("a", "east", 250, Role.PERSISTENCE, make_incarnation(4, 7), "127.0.0.1")


def test_roles_round_trip() -> None:
    for roles in (Role.INGESTION, Role.PERSISTENCE, BOTH_ROLES):
        assert roles_from(roles_to(roles)) == roles
    assert roles_from([pb.PERSISTENCE, 99]) == Role.PERSISTENCE


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node_id", ""),
        ("node_id", "x" * 201),
        ("host", "a\nb"),
        ("gossip_host", ""),
        ("zone", ""),
        ("port", 0),
        ("gossip_port", 65536),
        ("weight", 0),
        ("weight", 10_001),
        ("incarnation", 0),
    ],
)
def test_invalid_fields_are_refused(field: str, value: object) -> None:
    check_node(record())
    bad = record()
    setattr(bad, field, value)
    with pytest.raises(ProtocolError, match=field) as caught:
        NodeRegistry().announced(bad)
    assert caught.value.code == pb.INVALID_REQUEST


@pytest.mark.parametrize("roles", [[], [99], [pb.PERSISTENCE, pb.INGESTION], [pb.PERSISTENCE, pb.PERSISTENCE]])
def test_invalid_roles_are_refused(roles: list[pb.NodeRole]) -> None:
    bad = record()
    del bad.roles[:]
    bad.roles.extend(roles)
    with pytest.raises(ProtocolError, match="roles"):
        check_node(bad)


OWN, OTHER = b"o" * 16, b"x" * 16


def test_wiped_and_copied_disks_are_detected() -> None:
    known = record(start=5, revision=6)
    first, next_start = make_incarnation(1, 9), make_incarnation(6, 9)
    assert identity_fault("a", first, OWN, is_new=True, known=None) == ""
    assert identity_fault("a", first, OWN, is_new=True, known=founder("a")) == "", "a founder that starts late"
    assert identity_fault("a", next_start, OWN, is_new=False, known=known) == ""
    assert identity_fault("a", known.incarnation, OWN, is_new=False, known=known) == ""
    assert "--replace" in identity_fault("a", first, OWN, is_new=True, known=known)
    assert "--replace" in identity_fault("a", next_start, OWN, is_new=True, known=known), (
        "started often enough to be later"
    )
    assert "old copy" in identity_fault("a", first, OWN, is_new=False, known=known)
    assert "another process" in identity_fault("a", make_incarnation(5, 8), OWN, is_new=False, known=known)
    gone = record(start=5, revision=7, removed=True)
    assert "removed" in identity_fault("a", next_start, OWN, is_new=False, known=gone)


def test_directory_id_takes_precedence_over_the_incarnation() -> None:
    known = record(start=5, revision=6)
    known.directory_id = OWN
    later, same = make_incarnation(6, 9), known.incarnation
    assert identity_fault("a", later, OWN, is_new=False, known=known) == ""
    assert identity_fault("a", later, OWN, is_new=True, known=known) == "", "it was registered and died before it knew"
    assert "old copy" in identity_fault("a", make_incarnation(4, 9), OWN, is_new=False, known=known)
    assert "is new, but node 'a' is registered" in identity_fault("a", later, OTHER, is_new=True, known=known)
    assert "is new, but node 'a' is registered" in identity_fault("a", same, OTHER, is_new=True, known=known)
    assert "is not the one with which node 'a' is registered" in identity_fault(
        "a", later, OTHER, is_new=False, known=known
    )
    assert "is not the one with which node 'a' is registered" in identity_fault(
        "a", later, b"", is_new=False, known=known
    )


def test_record_without_a_directory_id_gets_one_and_keeps_it() -> None:
    registry, said = NodeRegistry(), record("a", start=2)
    registry.apply(record("a", start=1, revision=3))
    said.directory_id = OWN
    written = registry.announced(said)
    assert written is not None
    assert (written.revision, written.directory_id) == (4, OWN)
    registry.apply(written)
    registry.apply(registry.drained("a", draining=True))
    assert registry.announced(said) is None
    said.directory_id = OTHER
    with pytest.raises(ProtocolError, match="is not the one with which node 'a' is registered") as caught:
        registry.announced(said)
    assert caught.value.code == pb.FORBIDDEN
    said.directory_id = OWN[:-1]
    with pytest.raises(ProtocolError, match="16 bytes") as caught:
        registry.announced(said)
    assert caught.value.code == pb.INVALID_REQUEST
    with pytest.raises(ProtocolError) as caught:
        cluster("b").announced(copied("b"))
    assert caught.value.code == pb.FORBIDDEN


def test_node_records_are_distinguished_from_topic_records() -> None:
    one = record(revision=3)
    assert pb.MetaRecord.FromString(wrapped(one).SerializeToString()).node == one
    topic = pb.TopicRecord(name="t", topic_id=bytes(16), config=pb.TopicConfig(partitions=3), revision=8, deleted=True)
    topic.first_epochs.add(epoch=0, placement=["a"])
    assert not pb.MetaRecord.FromString(topic.SerializeToString()).HasField("node")
    taken = {field.number for field in pb.TopicRecord.DESCRIPTOR.fields}
    assert taken.isdisjoint(field.number for field in pb.MetaRecord.DESCRIPTOR.fields)


def test_announced_engines_are_bounded() -> None:
    announced = record()
    announced.engines.extend(f"engine-{number}" for number in range(registry_module.ENGINES_MAX))
    check_node(announced)
    announced.engines.append("one-more")
    with pytest.raises(ProtocolError, match="may announce at most 64 engines, got 65"):
        check_node(announced)
    del announced.engines[:]
    announced.engines.append("e" * (registry_module.ENGINE_CHARS_MAX + 1))
    with pytest.raises(ProtocolError, match="an engine of node"):
        check_node(announced)
