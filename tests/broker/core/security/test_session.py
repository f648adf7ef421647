from __future__ import annotations

import pytest

from tidelog_broker.core.security import session as session_module
from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.security.session import NotAllowedError, Session
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


def allowing(name: str) -> pb.AccessRule:
    return pb.AccessRule(rule_id=name, principal="ann", operations=[pb.OP_CONSUME], resource=pb.RES_TOPIC, name=name)


def test_session_evaluates_again_after_rules_change() -> None:
    permissions = Permissions()
    session = Session(permissions, "ann")
    assert not session.may(pb.OP_CONSUME, pb.RES_TOPIC, "a")
    permissions.put(allowing("a"))
    assert session.may(pb.OP_CONSUME, pb.RES_TOPIC, "a")
    assert session.may_see("a")
    permissions.drop("a")
    with pytest.raises(ProtocolError, match="'ann' has no permission: consume on the topic 'a'") as refused:
        session.check(pb.OP_CONSUME, pb.RES_TOPIC, "a")
    assert refused.value.code == pb.FORBIDDEN


def test_refusal_of_internal_topics_names_the_required_permission() -> None:
    permissions = Permissions()
    permissions.put(allowing("__audit"))
    with pytest.raises(ProtocolError, match=r"consume on the topic '__audit' \(.* require `cluster` on the cluster\)"):
        Session(permissions, "ann").check(pb.OP_CONSUME, pb.RES_TOPIC, "__audit")


def test_topic_name_is_hidden_from_callers_that_may_not_see_it() -> None:
    permissions = Permissions()
    permissions.put(allowing("seen"))
    session = Session(permissions, "ann")
    for name, shown in (("seen", "'seen'"), ("hidden", "with the id 0102"), ("__audit", "with the id 0102")):
        error = session.refusal(pb.OP_PRODUCE, pb.RES_TOPIC, name, by_id=b"\1\2")
        assert isinstance(error, NotAllowedError)
        assert error.message.startswith(f"'ann' has no permission: produce on the topic {shown};")
        assert error.resource == f"topic:{name}", "the audit log names it"


def test_denial_is_uncertain_until_all_rules_are_read() -> None:
    permissions = Permissions(["admin"])
    permissions.put(allowing("a"))
    permissions.all_read = False
    session = Session(permissions, "ann")
    session.check(pb.OP_CONSUME, pb.RES_TOPIC, "a")
    Session(permissions, "admin").check(pb.OP_CLUSTER, pb.RES_CLUSTER, "")
    for all_read, code in ((False, pb.EPOCH_CHANGING), (True, pb.FORBIDDEN)):
        permissions.all_read = all_read
        with pytest.raises(ProtocolError) as refused:
            session.check(pb.OP_CONSUME, pb.RES_TOPIC, "b")
        assert refused.value.code == code


def test_session_with_a_cleared_cache_decides_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "REMEMBERED_MAX", 10)
    permissions = Permissions()
    permissions.put(allowing("5"))
    session = Session(permissions, "ann")
    for number in range(100):
        assert session.may(pb.OP_CONSUME, pb.RES_TOPIC, str(number)) == (number == 5)


def test_caller_is_forwarded_and_a_session_expires() -> None:
    session = Session(Permissions(), "ann", frozenset({"b", "a"}), identity="key/1", expires_us=10)
    assert session.caller() == pb.Caller(principal="ann", roles=["a", "b"], identity="key/1", expires_us=10)
    assert not session.expired(9)
    assert session.expired(10)
    assert not Session(Permissions(), "ann").expired(10)


@pytest.mark.parametrize(
    ("operation", "resource", "name", "by_id", "command"),
    [
        (pb.OP_CONSUME, pb.RES_TOPIC, "temps", None, "ann consume topic:temps"),
        (pb.OP_GROUP, pb.RES_GROUP, "a b", None, "ann group 'group:a b'"),
        (pb.OP_DESCRIBE, pb.RES_CLUSTER, "", None, "ann describe cluster"),
        (pb.OP_CONSUME, pb.RES_TOPIC, "__audit", None, "ann cluster cluster"),
        (pb.OP_PRODUCE, pb.RES_TOPIC, "hidden", b"\1\2", "ann produce topic:NAME"),
    ],
)
def test_refusal_ends_with_the_complete_command(
    operation: pb.Operation, resource: pb.Resource, name: str, by_id: bytes | None, command: str
) -> None:
    error = Session(Permissions(), "ann").refusal(operation, resource, name, by_id=by_id)
    assert error.message.endswith(f"an administrator can grant it with: tidelog acl grant {command}")
