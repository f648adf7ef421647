"""Users in `__meta`: validation, and persistence across restarts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.stand import Stand

from tidelog_broker.core.security.registry import USER
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.auth.scram import ITERATIONS_MIN
from tidelog_proto.errors import ProtocolError


def asked(name: str = "ann", **other: Any) -> pb.ScramUser:
    fields: dict[str, Any] = {"name": name, "iterations": ITERATIONS_MIN, "salt": b"s" * 16}
    fields |= {"stored_key": b"k" * 32, "server_key": b"v" * 32} | other
    return pb.ScramUser(**fields)


async def changed(node: Node, **change: Any) -> pb.ScramUser:
    return (await node.broker.security_changes.change(pb.SecurityChange(**change))).user


@pytest.mark.parametrize(
    "user",
    [
        asked(""),
        asked("*"),
        asked("role:etl"),
        asked("a\nb"),
        asked("n" * 256),
        asked("a\u00adb"),
        asked("\u2168"),
        asked("ann "),
        asked("\u0430nn"),
        asked(roles=["\x1b[31m"]),
        asked(roles=map(str, range(65))),
        asked(iterations=4096),
        asked(iterations=2_000_000),
        asked(salt=b"s"),
        asked(stored_key=b""),
        asked(server_key=b"v" * 33),
    ],
)
async def test_invalid_user_is_refused(node: Node, user: pb.ScramUser) -> None:
    with pytest.raises(ProtocolError) as refused:
        await changed(node, create_user=user)
    assert refused.value.code == pb.INVALID_REQUEST
    with pytest.raises(ProtocolError, match=r"does not exist|name|verifier|roles"):
        await changed(node, set_password=user)


async def test_users_survive_a_restart_and_are_listed_without_verifiers(stand: Stand) -> None:
    node = await stand.start()
    made = await changed(node, create_user=asked(roles=["b", "a", "b"], created_us=1, user_id="mine"))
    assert (made.name, list(made.roles), made.user_id != "mine", made.created_us > 1) == ("ann", ["a", "b"], True, True)
    assert (made.salt, made.stored_key, made.server_key, made.iterations) == (b"", b"", b"", 0)
    newer = await changed(node, set_password=asked(stored_key=b"n" * 32, roles=["admin"]))
    assert list(newer.roles) == ["a", "b"]
    registry = node.broker.security.registry
    secret = registry.scram_secret()
    assert len(secret) == 32
    assert not registry.vouches_for(USER + made.user_id, "ann")
    assert registry.vouches_for(USER + newer.user_id, "ann")
    await changed(node, create_user=asked("ben"))
    await changed(node, delete_user="ben")
    for _ in range(2):
        node = await stand.restart()
        registry = node.broker.security.registry
        kept = registry.user("ann")
        assert kept is not None
        assert kept.stored_key == b"n" * 32
        assert registry.user("ben") is None
        assert registry.scram_secret() == secret
        await node.broker.meta_log.snapshot(await node.broker.meta_log.ready())


async def test_last_user_with_cluster_permission_cannot_be_deleted(node: Node) -> None:
    await changed(node, create_user=asked("boss"))
    rule = pb.AccessRule(principal="boss", operations=[pb.OP_CLUSTER], resource=pb.RES_CLUSTER)
    await changed(node, grant=rule)
    with pytest.raises(ProtocolError, match="would leave no API key and no user"):
        await changed(node, delete_user="boss")
    await changed(node, set_password=asked("boss"))


async def test_user_for_the_administrator_is_refused(node: Node) -> None:
    for change in ({"create_user": asked("admin")}, {"set_password": asked("admin")}):
        with pytest.raises(ProtocolError, match="'admin' is the administrator") as refused:
            await changed(node, **change)
        assert refused.value.code == pb.INVALID_REQUEST


async def test_user_with_an_old_name_can_change_the_password(node: Node) -> None:
    old = pb.SecurityRecord(id=USER + "old", revision=1, user=asked("ann ", user_id="old"))
    epoch = await node.broker.meta_log.ready_to_change()
    await node.broker.meta_log.write_security(old, epoch=epoch)
    await changed(node, set_password=asked("ann ", stored_key=b"n" * 32))
    kept = node.broker.security.registry.user("ann ")
    assert kept is not None
    assert kept.stored_key == b"n" * 32
