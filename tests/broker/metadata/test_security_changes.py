"""Changes of identities and rules: refusals, and protection against a lockout."""

from __future__ import annotations

import pytest
from tests.broker.stand import Stand

from tidelog_broker.core.security.registry import KEY, QUOTA
from tidelog_broker.metadata.security_changes import SecurityChanges
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


async def made(node: Node, principal: str) -> str:
    reply = await changes(node).change(pb.SecurityChange(create_key=pb.ApiKey(principal=principal)))
    assert reply.api_key.startswith(f"tlk_{reply.key.key_id}_")
    assert not reply.key.salt
    assert not reply.key.secret_hash
    return reply.key.key_id


def changes(node: Node) -> SecurityChanges:
    return node.broker.security_changes


def managing(principal: str, *, deny: bool = False) -> pb.SecurityChange:
    rule = pb.AccessRule(principal=principal, operations=[pb.OP_CLUSTER], resource=pb.RES_CLUSTER, deny=deny)
    return pb.SecurityChange(grant=rule)


async def test_last_key_with_cluster_permission_cannot_be_revoked(stand: Stand) -> None:
    node = await stand.start()
    await made(node, "ann")  # without permissions, so no caller can be locked out yet
    boss = await made(node, "boss")
    rule = (await changes(node).change(managing("boss"))).rule.rule_id
    for change in (pb.SecurityChange(revoke_key=boss), pb.SecurityChange(revoke_rule=rule), managing("*", deny=True)):
        with pytest.raises(ProtocolError, match="would leave no API key"):
            await changes(node).change(change)
    await made(node, "chief")
    await changes(node).change(managing("chief"))
    await changes(node).change(pb.SecurityChange(revoke_key=boss))
    await changes(node).change(pb.SecurityChange(revoke_key=boss))  # asked again: the answer got lost


async def test_key_for_the_administrator_is_refused(stand: Stand) -> None:
    node = await stand.start(admin="root")
    with pytest.raises(
        ProtocolError, match="'root' is the administrator, whose keys are configured in admin_key_file"
    ) as refused:
        await made(node, "root")
    assert refused.value.code == pb.INVALID_REQUEST
    await made(node, "admin")  # a name like any other where the settings say so


async def test_deny_rule_for_the_administrator_is_refused(stand: Stand) -> None:
    node = await stand.start(admin="root")
    with pytest.raises(ProtocolError, match="would have no effect: it is the administrator"):
        await changes(node).change(managing("root", deny=True))
    await changes(node).change(managing("root"))


async def test_quota_of_an_old_name_can_be_removed(stand: Stand) -> None:
    node = await stand.start()
    old = pb.SecurityRecord(id=QUOTA + "old", revision=1, quota=pb.Quota(quota_id="old", subject="ann ", topics=1))
    epoch = await node.broker.meta_log.ready_to_change()
    await node.broker.meta_log.write_security(old, epoch=epoch)
    with pytest.raises(ProtocolError, match="ends with a space"):
        await changes(node).change(pb.SecurityChange(set_quota=pb.Quota(subject="ann ", topics=2)))
    await changes(node).change(pb.SecurityChange(remove_quota="ann "))
    assert node.broker.security.registry.quotas.of_subject("ann ") is None


async def test_keys_and_rules_survive_a_restart(stand: Stand) -> None:
    node = await stand.start()
    kept, gone = await made(node, "ann"), await made(node, "ann")
    await changes(node).change(pb.SecurityChange(revoke_key=gone))
    await changes(node).change(managing("ann"))
    for _ in range(2):
        node = await stand.restart()
        registry = node.broker.security.registry
        assert registry.key(kept) is not None
        assert registry.key(gone) is None
        assert registry.permissions.decide("ann", (), pb.OP_CLUSTER, pb.RES_CLUSTER, "").allowed
        ids = {
            record.security.id for record in node.broker.meta_log.current_records() if isinstance(record, pb.MetaRecord)
        }
        assert KEY + kept in ids, "a snapshot has what stands"
        assert KEY + gone not in ids
        await node.broker.meta_log.snapshot(await node.broker.meta_log.ready())


async def test_quota_changes_survive_a_restart(stand: Stand) -> None:
    node = await stand.start()
    for subject, topics in (("ann", 1), ("ann", 2), ("*", 3)):
        await changes(node).change(pb.SecurityChange(set_quota=pb.Quota(subject=subject, topics=topics)))
    await changes(node).change(pb.SecurityChange(remove_quota="*"))
    for _ in range(2):
        node = await stand.restart()
        quotas = node.broker.security.registry.quotas
        assert quotas.of_principal("ann").topics == 2
        assert quotas.of_principal("ben").topics is None
        await node.broker.meta_log.snapshot(await node.broker.meta_log.ready())
    await changes(node).change(pb.SecurityChange(set_quota=pb.Quota(subject="*", topics=4)))
    assert node.broker.security.registry.quotas.of_principal("ben").topics == 4


async def test_quota_does_not_apply_to_the_administrator(stand: Stand) -> None:
    node = await stand.start(admin="root")
    for subject in ("*", "default", "root"):
        locked_out = "the administrator" if subject == "root" else "every caller"
        with pytest.raises(ProtocolError, match=f"would lock {locked_out} out"):
            await changes(node).change(pb.SecurityChange(set_quota=pb.Quota(subject=subject, connections=0)))
    for subject in ("admin", "role:root"):
        await changes(node).change(pb.SecurityChange(set_quota=pb.Quota(subject=subject, connections=0)))
    assert node.broker.security.registry.quotas.of_principal("root", ["root"]).connections is None


@pytest.mark.parametrize(
    "change",
    [
        pb.SecurityChange(),
        pb.SecurityChange(revoke_key="none"),
        pb.SecurityChange(revoke_rule="none"),
        pb.SecurityChange(create_key=pb.ApiKey(principal="")),
        pb.SecurityChange(create_key=pb.ApiKey(principal="admin ")),
        pb.SecurityChange(create_key=pb.ApiKey(principal="\uff41dmin")),
        pb.SecurityChange(create_key=pb.ApiKey(principal="\u0430dmin")),
        pb.SecurityChange(create_key=pb.ApiKey(principal="a", roles=["etl "])),
        pb.SecurityChange(set_quota=pb.Quota(subject="role:etl ", topics=1)),
        pb.SecurityChange(create_key=pb.ApiKey(principal="a", roles=["\n"])),
        pb.SecurityChange(create_key=pb.ApiKey(principal="a", roles=map(str, range(65)))),
        pb.SecurityChange(create_key=pb.ApiKey(principal="a", expires_us=1)),
        pb.SecurityChange(create_key=pb.ApiKey(principal="a", note="x" * 201)),
        pb.SecurityChange(grant=pb.AccessRule(principal="a")),
        pb.SecurityChange(set_quota=pb.Quota(subject="a")),
        pb.SecurityChange(set_quota=pb.Quota(subject="", topics=1)),
        pb.SecurityChange(remove_quota="none"),
    ],
)
async def test_invalid_values_are_refused(node: Node, change: pb.SecurityChange) -> None:
    with pytest.raises(ProtocolError) as refused:
        await changes(node).change(change)
    assert refused.value.code == pb.INVALID_REQUEST
