"""Topic and partition quotas per creator, across restarts and nodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client
from tests.broker.stand import Stand, settled

from tidelog.errors import QuotaExceededError
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_broker.core.security.quota_rules import Quotas
from tidelog_broker.core.topics import TopicRegistry
from tidelog_broker.metadata.topic_quotas import TopicQuotas
from tidelog_broker.node.node import Node
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

RULE = AccessRule("role:maker", ("all",), "topic", "", prefix=True)


async def test_topics_and_partitions_count_for_their_creator(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        keys = [await admin.security.create_key(name, roles=["maker"]) for name in ("ann", "ben")]
        await admin.security.grant(RULE)
        await admin.security.set_quota("role:maker", Quota(topics=2))
        await admin.security.set_quota("*", Quota(partitions=5, topics=0))
        for number in range(3):
            await admin.create_topic(f"admin-{number}", partitions=4)
    node = await stand.restart()
    async with client(node.port, keys[0].api_key) as ann, client(node.port, keys[1].api_key) as ben:
        await ann.create_topic("a", partitions=3)
        with pytest.raises(QuotaExceededError, match="3 more would exceed its quota of 5"):
            await ann.create_topic("b", partitions=3)
        await ann.create_topic("b", partitions=2)
        with pytest.raises(QuotaExceededError, match="'ann' has created 2 topics"):
            await ann.create_topic("c")
        with pytest.raises(QuotaExceededError):
            await ben.alter_topic("a", partitions=4)
        await ben.alter_topic("a", retention_bytes=1 << 20)
        await ben.create_topic("c", partitions=5)
        await ann.delete_topic("b")
        await ann.create_topic("d", partitions=2)


async def test_owner_of_meta_enforces_topic_quotas(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    async with client(founded.ports["a"], ADMIN) as admin:
        key = await admin.security.create_key("ann", roles=["maker"])
        await admin.security.grant(RULE)
        await admin.security.set_quota("ann", Quota(topics=2))
        for node in founded.nodes.values():
            await settled(partial(_has_quota, node), "a node never received the quota")
    for number, port in enumerate(node.port for node in founded.nodes.values()):
        async with client(port, key.api_key) as ann:
            if number < 2:
                await ann.create_topic(f"t{number}")
            else:
                with pytest.raises(QuotaExceededError):
                    await ann.create_topic("t2")


def _has_quota(node: Node) -> bool:
    return node.broker.security.registry.quotas.of_subject("ann") is not None


def test_roles_apply_only_to_the_callers_own_topics() -> None:
    quotas, topics = Quotas(), TopicRegistry()
    quotas.put(pb.Quota(quota_id="1", subject="*", partitions=5))
    quotas.put(pb.Quota(quota_id="2", subject="role:big", partitions=100))
    checked = TopicQuotas(quotas, topics)
    ben = pb.Caller(principal="ben", roles=["big"])
    checked.check("ben", ben, topics=1, partitions=6)
    with pytest.raises(ProtocolError, match="'ann' has created") as refused:
        checked.check("ann", ben, topics=0, partitions=6)
    assert refused.value.code == pb.QUOTA_EXCEEDED
