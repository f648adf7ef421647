"""The quota on groups per creator: over all coordinators, across failovers and deletions."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from tests.broker.founded import Founded
from tests.broker.keyed import ADMIN, client
from tests.broker.stand import Stand, settled

from tidelog import Client, Group
from tidelog.errors import QuotaExceededError, TidelogError
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_broker.node.node import Node
from tidelog_broker.server import group_quota

RULES = [AccessRule("role:reader", ("all",), kind, "", prefix=True) for kind in ("topic", "group")]


async def reader(admin: Client, name: str) -> str:
    return (await admin.security.create_key(name, roles=["reader"])).api_key


async def prepare(admin: Client, bound: int) -> None:
    for rule in RULES:
        await admin.security.grant(rule)
    await admin.security.set_quota("role:reader", Quota(groups=bound))
    await make_topic(admin)


async def make_topic(of: Client) -> None:
    await of.create_topic("t", partitions=1)
    async with of.producer("t") as producer:
        await producer.send(b"x")


async def join(of: Client, group: str) -> None:
    """Be a member for a moment, and commit nothing."""
    consumer = of.consumer("t", group=Group(group, commit="manual"))
    async with consumer:
        await consumer.poll(1, timeout_s=10)


async def commit(of: Client, group: str) -> None:
    async with of.consumer("t", group=group, partitions=[0]) as consumer:
        await consumer.poll(1, timeout_s=10)
        await consumer.commit()


async def test_group_quota_counts_groups_of_all_coordinators(founded: Founded, key_file: Path) -> None:
    founded.settings |= {"auth": "required", "admin_key_file": key_file}
    await founded.found()
    await founded.settled()
    async with client(founded.ports["a"], ADMIN) as admin:
        await prepare(admin, bound=3)
        key = await reader(admin, "ann")
        for node in founded.nodes.values():
            await settled(partial(_knows, node), "a node never heard of the quota")
        shards = founded.nodes["a"].broker.groups
        of_partition = {shards.key_of(name): name for name in (f"g{number}" for number in range(30))}
        first, second, third, *_ = of_partition.values()
        async with client(founded.ports["b"], key) as ann:
            await join(ann, first)
            await commit(ann, second)
            assert (await ann.groups.describe(second)).creator == "ann"
            await join(ann, third)
            for refused in (join, commit):
                with pytest.raises(QuotaExceededError, match=r"'ann' has created 3 groups and its quota is"):
                    await refused(ann, "one-more")
            await join(ann, third)
            await commit(ann, first)
        await flood(founded, await reader(admin, "ben"))
        mine = [group.name for group in await admin.groups.list() if group.creator == "ben"]
        assert 1 <= len(mine) <= 3, "of many at once, at all nodes, never more are made than may be"
        await founded.crash(founded.owner(shards.key_of(first), "a"))
        left = next(iter(founded.nodes))
        async with client(founded.ports[left], key) as ann:
            with pytest.raises(QuotaExceededError):
                await join(ann, "one-more")
            assert (await ann.groups.describe(first)).creator == "ann"
            await ann.groups.delete(first)
            await commit(ann, "one-more")
            with pytest.raises(QuotaExceededError):
                await commit(ann, first)


async def flood(founded: Founded, key: str) -> None:
    """Make many groups at once, by way of each node."""
    async with AsyncExitStack() as stack:
        ports = list(founded.ports.values())[:3]
        clients = [await stack.enter_async_context(client(port, key)) for port in ports]
        made = [commit(clients[number % 3], f"flood{number}") for number in range(15)]
        told = await asyncio.gather(*made, return_exceptions=True)
    assert all(error is None or isinstance(error, QuotaExceededError) for error in told), told


async def test_concurrent_group_creations_fill_the_quota_exactly(stand: Stand, key_file: Path) -> None:
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await prepare(admin, bound=3)
        key = await reader(admin, "ann")
        async with client(node.port, key) as ann:
            told = await asyncio.gather(*(commit(ann, f"g{number}") for number in range(8)), return_exceptions=True)
        refused = [error for error in told if error is not None]
        assert len(refused) == 5
        assert all(isinstance(error, QuotaExceededError) for error in refused), refused
        assert len(await admin.groups.list()) == 3
        await commit(admin, "the-administrators")
        async with client(node.port, await reader(admin, "ben")) as ben:
            await commit(ben, "another-ones")


async def test_groups_without_a_creator_count_for_no_quota(stand: Stand, key_file: Path) -> None:
    node = await stand.start()
    async with Client(f"127.0.0.1:{node.port}") as anybody:
        await make_topic(anybody)
        await commit(anybody, "committed")
        await join(anybody, "joined")
        assert [group.creator for group in await anybody.groups.list()] == [None, None]
    await stand.stop()
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await admin.delete_topic("t")
        await prepare(admin, bound=1)
        async with client(node.port, await reader(admin, "ann")) as ann:
            for name in ("joined", "hers", "joined"):
                await join(ann, name)
            with pytest.raises(QuotaExceededError):
                await join(ann, "one-more")
        assert {group.name: group.creator for group in await admin.groups.list()} == {"joined": None, "hers": "ann"}


async def test_uncountable_group_is_not_created(stand: Stand, key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_quota, "COUNT_TIMEOUT_S", 0.1)
    node = await stand.start(auth="required", admin_key_file=key_file)
    async with client(node.port, ADMIN) as admin:
        await prepare(admin, bound=1)
        key = await reader(admin, "ann")
        async with Client(f"127.0.0.1:{node.port}", api_key=key, request_timeout_s=3.0) as ann:
            async with node.broker.groups.claims.turn("ann"):
                with pytest.raises(TidelogError, match="cannot be counted now"):
                    await commit(ann, "g")
            assert await admin.groups.list() == []
            monkeypatch.undo()
            await commit(ann, "g")


def _knows(node: Node) -> bool:
    return node.broker.security.registry.quotas.of_subject("role:reader") is not None
