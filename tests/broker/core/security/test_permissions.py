from __future__ import annotations

import itertools

import pytest

from tidelog_broker.core.security.permissions import OPERATIONS, Permissions, check_principal, check_rule
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

_ids = itertools.count()


def rule(
    principal: str,
    *operations: pb.Operation,
    name: str = "a",
    prefix: bool = False,
    deny: bool = False,
    resource: pb.Resource = pb.RES_TOPIC,
) -> pb.AccessRule:
    return pb.AccessRule(
        rule_id=f"r{next(_ids)}",
        principal=principal,
        operations=operations,
        resource=resource,
        name=name,
        prefix=prefix,
        deny=deny,
    )


def permissions(*rules: pb.AccessRule) -> Permissions:
    made = Permissions(["root"])
    for one in rules:
        made.put(one)
    return made


def may(
    held: Permissions, principal: str, operation: pb.Operation, name: str = "a", roles: frozenset[str] = frozenset()
) -> bool:
    return held.decide(principal, roles, operation, pb.RES_TOPIC, name).allowed


def test_operations_without_a_rule_are_denied_except_for_admins() -> None:
    held = permissions()
    assert not may(held, "ann", pb.OP_PRODUCE)
    assert may(held, "root", pb.OP_DELETE)


def test_rule_allows_its_operations_on_its_resource_to_its_principal() -> None:
    held = permissions(rule("ann", pb.OP_PRODUCE))
    assert may(held, "ann", pb.OP_PRODUCE)
    assert may(held, "ann", pb.OP_DESCRIBE), "write permission implies describe permission"
    assert not may(held, "ann", pb.OP_CONSUME)
    assert not may(held, "ann", pb.OP_PRODUCE, "ab")
    assert not may(held, "ben", pb.OP_PRODUCE)
    assert not held.decide("ann", (), pb.OP_DESCRIBE, pb.RES_GROUP, "a").allowed


def test_prefixes_roles_wildcards_and_all_operations_match() -> None:
    held = permissions(
        rule("role:etl", pb.OP_CONSUME, name="in-", prefix=True), rule("*", pb.OP_DESCRIBE, name="", prefix=True)
    )
    assert may(held, "ann", pb.OP_CONSUME, "in-1", frozenset({"etl"}))
    assert not may(held, "ann", pb.OP_CONSUME, "out", frozenset({"etl"}))
    assert not may(held, "etl", pb.OP_CONSUME, "in-1"), "a role does not act as a principal"
    assert may(held, "whoever", pb.OP_DESCRIBE, "x")
    held.put(rule("ben", pb.OP_ALL, name="b"))
    assert all(may(held, "ben", operation, "b") for operation in OPERATIONS[pb.RES_TOPIC])


def test_denying_rule_overrides_allowing_ones() -> None:
    held = permissions(rule("ann", pb.OP_ALL), rule("role:guest", pb.OP_PRODUCE, deny=True))
    assert may(held, "ann", pb.OP_PRODUCE)
    assert not may(held, "ann", pb.OP_PRODUCE, roles=frozenset({"guest"}))
    assert may(held, "ann", pb.OP_CONSUME, roles=frozenset({"guest"}))


def test_internal_topics_require_cluster_permission() -> None:
    held = permissions(
        rule("ann", pb.OP_ALL, name="", prefix=True),
        rule("ann", pb.OP_CONSUME, name="__audit"),
        rule("ben", pb.OP_CLUSTER, name="", resource=pb.RES_CLUSTER),
        rule("*", pb.OP_DESCRIBE, name="__", prefix=True, deny=True),
    )
    for operation in OPERATIONS[pb.RES_TOPIC]:
        assert may(held, "ann", operation, "orders")
        assert not may(held, "ann", operation, "__audit")
        assert may(held, "ben", operation, "__audit"), "a role member has the permission"


def test_dropped_rules_do_not_apply_and_a_copy_is_independent() -> None:
    one = rule("ann", pb.OP_PRODUCE)
    held = permissions(one)
    copied = held.copy()
    changes = held.changes
    held.drop(one.rule_id)
    held.drop("unknown")
    assert held.changes == changes + 1
    assert not may(held, "ann", pb.OP_PRODUCE)
    assert may(copied, "ann", pb.OP_PRODUCE)
    assert may(copied, "root", pb.OP_PRODUCE)


@pytest.mark.parametrize(
    "bad",
    [
        rule("ann"),
        rule("", pb.OP_PRODUCE),
        rule("role:", pb.OP_PRODUCE),
        rule("role:role:x", pb.OP_PRODUCE),
        rule("a\nb", pb.OP_PRODUCE),
        rule("x" * 256, pb.OP_PRODUCE),
        rule("ann", pb.OP_PRODUCE, name=""),
        rule("ann", pb.OP_PRODUCE, name="a\nb"),
        rule("ann", pb.OP_GROUP),
        rule("ann", pb.OP_PRODUCE, resource=pb.RES_GROUP),
        rule("ann", pb.OP_CLUSTER, resource=pb.RES_CLUSTER),
        rule("ann", pb.OP_PRODUCE, resource=pb.RESOURCE_UNSPECIFIED),
    ],
)
def test_invalid_rules_are_refused(bad: pb.AccessRule) -> None:
    with pytest.raises(ProtocolError) as refused:
        check_rule(bad)
    assert refused.value.code == pb.INVALID_REQUEST


@pytest.mark.parametrize(
    ("never", "why"),
    [
        (rule("ann", pb.OP_PRODUCE, name="a*b", deny=True), r"'topic:a\*b' would never match: .*write 'a\*'"),
        (rule("ann", pb.OP_PRODUCE, name="a*"), r"write 'a\*'"),
        (rule("ann", pb.OP_PRODUCE, name="a*b", prefix=True), r"'topic:a\*b\*' would never match"),
        (rule("ann", pb.OP_PRODUCE, name="__meta", deny=True), "require the permission `cluster`"),
        (rule("ann", pb.OP_PRODUCE, name="__", prefix=True, deny=True), "require the permission `cluster`"),
        (rule("ann", pb.OP_PRODUCE, name="a b", deny=True), "A-Z a-z 0-9"),
        (rule("ann", pb.OP_PRODUCE, name="a/", prefix=True, deny=True), "so none begins with this prefix"),
        (rule("ann", pb.OP_PRODUCE, name="x" * 201, prefix=True), "so none begins with this prefix"),
        (rule("ann", pb.OP_PRODUCE, name="x" * 201), "1 to 200 characters"),
        (rule("ann", pb.OP_PRODUCE, name=".."), "denotes a directory"),
        (rule("ann", pb.OP_GROUP, name="a*b", resource=pb.RES_GROUP, deny=True), r"'group:a\*b' would never match"),
        (rule("ann", pb.OP_GROUP, name="\u00e9" * 128, resource=pb.RES_GROUP), "at most 255 bytes"),
    ],
)
def test_rule_that_never_matches_is_refused_with_the_remedy(never: pb.AccessRule, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as refused:
        check_rule(never)
    assert refused.value.code == pb.INVALID_REQUEST


def test_valid_rules_are_accepted() -> None:
    check_rule(rule("*", pb.OP_ALL, name="", prefix=True))
    check_rule(rule("ann", pb.OP_CLUSTER, name="", resource=pb.RES_CLUSTER))
    check_rule(rule("ann", pb.OP_PRODUCE, name="_", prefix=True))
    check_rule(rule("ann", pb.OP_PRODUCE, name="..", prefix=True))
    check_rule(rule("ann", pb.OP_GROUP, name="a group / of mine", resource=pb.RES_GROUP))
    check_principal("ann@example.com")
