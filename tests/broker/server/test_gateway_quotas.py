"""Quotas of the callers on one gateway connection: a throttled caller does not delay the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.broker.keyed import ADMIN, client
from tests.broker.peer import Peer, batch
from tests.broker.server.test_access import greeted
from tests.broker.server.test_gateway_tickets import code_of, identify, keyed
from tests.broker.stand import Stand, settled

from tidelog import Client
from tidelog.security import AccessRule
from tidelog.security.quotas import Quota
from tidelog_broker.node.node import Node
from tidelog_broker.wire import quota_account as account_module
from tidelog_broker.wire import quota_accounts as accounts_module
from tidelog_proto import broker_pb2 as pb

KIB = 1024


@dataclass(slots=True)
class Shared:
    """A gateway's connection, tickets of its callers, and the key of one of them."""

    node: Node
    admin: Client
    peer: Peer
    ann: bytes
    ben: bytes
    key: str
    topic_id: bytes

    def publish(self, ticket: bytes, size_bytes: int = 1) -> int:
        data = batch(bytes(size_bytes))
        asked = pb.Publish(entries=[{"topic_id": self.topic_id, "length": len(data)}])
        return self.peer.post(data, publish=asked, on_behalf=ticket)

    def fetch(self, ticket: bytes, *, wait_ms: int = 0, offset: int = 0) -> int:
        entry = pb.FetchEntry(topic_id=self.topic_id, offset=offset)
        asked = pb.Fetch(entries=[entry], wait_ms=wait_ms, min_bytes=1)
        return self.peer.post(fetch=asked, on_behalf=ticket)

    async def told(self, number: int) -> pb.Envelope:
        return (await self.peer.reply(number)).envelope

    async def quota(self, subject: str, **limits: int) -> None:
        await self.admin.security.set_quota(subject, Quota(**limits))
        await settled(partial(self._has, subject), "the node never heard of the quota")

    def _has(self, subject: str) -> bool:
        return self.node.broker.security.registry.quotas.of_subject(subject) is not None


@pytest.fixture
async def shared(stand: Stand, key_file: Path) -> AsyncIterator[Shared]:
    node = await stand.start(auth="required", admin_key_file=key_file, requests_in_flight=8)
    async with client(node.port, ADMIN) as admin:
        own, _, _ = await keyed(admin, "gate", AccessRule("gate", ("impersonate",), "cluster"))
        await admin.security.grant(AccessRule("*", ("produce", "consume", "describe"), "topic", "t"))
        keys = [(await keyed(admin, name))[0] for name in ("ann", "ben")]
        topic = await admin.create_topic("t", partitions=1)
        peer = await greeted(node.port, own)
        stand.peers.append(peer)
        tickets = [(await peer.ask(identify=identify(key))).envelope.identify_reply.ticket for key in keys]
        yield Shared(node, admin, peer, tickets[0], tickets[1], keys[0], topic.topic_id)


async def test_gateway_caller_beyond_its_produce_quota_is_refused_alone(shared: Shared) -> None:
    await shared.quota("ann", produce_bytes=8 * KIB)
    told = await shared.told(shared.publish(shared.ann, 400 * KIB))
    assert not told.publish_reply.results[0].HasField("error")
    assert told.caller_throttle_ms > 30_000
    assert told.throttle_ms == 0, "only the caller's debt is reported"
    early = await shared.told(shared.publish(shared.ann))
    assert (early.error.code, early.error.retry_after_ms > 30_000) == (pb.OVERLOADED, True)
    ben = await shared.told(shared.publish(shared.ben, 400 * KIB))
    assert not ben.publish_reply.results[0].HasField("error")
    assert ben.caller_throttle_ms == 0
    (used,) = [usage for usage in await shared.admin.security.quota_usage() if usage.caller == "ann"]
    assert used.connections == 0
    assert used.produce_debt_s > 30
    assert used.throttled_s > 30
    direct = await greeted(shared.node.port, shared.key)
    try:
        assert shared.node.broker.accounts.of("principal", "ann").waiting == 1, "her own connections owe the same"  # type: ignore[union-attr]  # exists
    finally:
        await direct.close()


async def test_gateway_caller_beyond_its_request_quota_is_refused_alone(shared: Shared) -> None:
    await shared.quota("ann", requests=1)
    codes = [code_of(await shared.peer.reply(shared.fetch(shared.ann))) for _ in range(4)]
    assert codes[0] == 0
    assert codes[-1] == pb.OVERLOADED
    assert [code_of(await shared.peer.reply(shared.fetch(shared.ben))) for _ in range(4)] == [0] * 4


async def test_gateway_caller_beyond_its_consume_quota_waits_alone(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(account_module, "READ_WAIT_S", 1.0)
    await shared.told(shared.publish(shared.ben, 100 * KIB))
    await shared.quota("ann", consume_bytes=4 * KIB)
    first = (await shared.told(shared.fetch(shared.ann))).fetch_reply
    assert first.results[0].length > 0
    waiting = shared.fetch(shared.ann)
    for _ in range(3):
        assert (await shared.told(shared.fetch(shared.ben))).fetch_reply.results[0].length > 0
    assert not shared.peer.answered(waiting)
    assert (await shared.told(waiting)).fetch_reply.results[0].length == 0


async def test_subscription_is_limited_by_its_callers_quota(shared: Shared) -> None:
    await shared.quota("ann", consume_bytes=4 * KIB)
    for number, ticket in ((1, shared.ann), (2, shared.ben)):
        asked = pb.Subscribe(
            subscription_id=number,
            credit_records=1000,
            credit_bytes=64 << 20,
            entries=[pb.SubscribeEntry(topic_id=shared.topic_id)],
        )
        assert code_of(await shared.peer.ask(subscribe=asked, on_behalf=ticket)) == 0
    for _ in range(3):
        await shared.told(shared.publish(shared.ben, 40 * KIB))
    got = {1: 0, 2: 0}
    async with asyncio.timeout(20):
        while got[2] < 3:
            event = (await shared.peer.event()).envelope.message_event
            got[event.subscription_id] += event.record_count
    assert got[1] == 1, "a batch passes, and is owed for"
    used = {usage.caller: usage for usage in await shared.admin.security.quota_usage()}
    assert (used["ann"].waiting, used["ann"].consume_debt_s > 5) == (1, True)


async def test_gateway_quota_limits_all_its_callers(shared: Shared) -> None:
    await shared.quota("gate", produce_bytes=8 * KIB)
    told = await shared.told(shared.publish(shared.ben, 400 * KIB))
    assert told.throttle_ms > 30_000
    assert told.caller_throttle_ms == 0


async def test_large_waiting_requests_leave_room_for_other_callers(shared: Shared) -> None:
    end = (await shared.told(shared.publish(shared.ben))).publish_reply.results[0].base_offset + 1
    waiting = [shared.fetch(shared.ann, wait_ms=20_000, offset=end) for _ in range(7)]
    ben = shared.fetch(shared.ben, wait_ms=20_000, offset=end)
    codes = [code_of(await shared.peer.reply(number)) for number in waiting[4:]]
    assert codes == [pb.OVERLOADED] * 3, "of eight requests one caller has four at most"
    assert not any(map(shared.peer.answered, [*waiting[:4], ben]))
    await shared.told(shared.publish(shared.ben))
    for number in (*waiting[:4], ben):
        assert (await shared.told(number)).fetch_reply.results[0].length > 0


async def test_unused_gateway_callers_are_forgotten(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_module, "SHARED_MAX", 1)
    accounts = shared.node.broker.accounts
    for ticket in (shared.ann, shared.ben):
        await shared.told(shared.fetch(ticket))
    assert accounts.of("principal", "ann") is None
    assert accounts.of("principal", "ben") is not None
    await shared.quota("ann", produce_bytes=8 * KIB)
    for ticket in (shared.ann, shared.ben):
        await shared.told(shared.publish(ticket, 100 * KIB))
    kept = accounts.of("principal", "ann")
    assert kept is not None, "it owes something"
    assert kept.owes
