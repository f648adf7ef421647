"""Quota accounting of one caller, with a test clock and fake connections."""

from __future__ import annotations

import asyncio
import math

import pytest
from tests.broker.stand import settled

from tidelog_broker.core.security.quota_rules import Limits
from tidelog_broker.wire.quota_account import Account
from tidelog_broker.wire.read_turns import ReadTurn
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class FakeClient:
    """A connection that records its notifications."""

    def __init__(self) -> None:
        self.account: Account | None = None
        self.meter: Account | None = None
        self.turn = ReadTurn()
        self.in_flight_bytes = 0
        self.work_us = 0
        self.is_open = True
        self.told: list[str] = []

    def hold(self) -> None:
        self.told.append("hold")

    def read_on(self) -> None:
        self.told.append("read on")

    def has_room_again(self) -> None:
        self.told.append("send on")

    def end_if_gone(self) -> None:
        self.told.append("are you there")


def take(client: FakeClient, size_bytes: int) -> None:
    """Do as a connection does with a request that comes."""
    account = client.account
    assert account is not None
    client.in_flight_bytes += size_bytes
    account.in_flight_bytes += size_bytes
    if account.in_flight_bytes >= account.in_flight_bytes_max:
        account.filled_up(client, size_bytes)


class World:
    """An account whose time and limits the test sets."""

    def __init__(self, **limits: int) -> None:
        self.now_s = 0.0
        self.limits = Limits(**limits)
        self.account = Account("ann", lambda: self.limits, lambda: self.now_s)

    def client(self) -> FakeClient:
        client = FakeClient()
        self.account.join(client, meters=True)
        return client


async def test_account_without_rate_quotas_has_no_meter() -> None:
    world = World(connections=5, topics=1)
    client = world.client()
    seen = [client.meter]
    for limits in (Limits(requests=1), Limits()):
        world.limits = limits
        world.account.refresh()
        seen.append(client.meter)
    assert seen == [None, world.account, None]


async def test_connections_of_a_caller_in_debt_wait_and_resume_in_order() -> None:
    world = World(produce_bytes=100)
    first, second = world.client(), world.client()
    world.account.came(first, 300)
    assert first.told == []
    assert world.account.throttle_ms("publish") == 2_000
    assert world.account.throttle_ms("metadata") == 0
    world.account.came(second, 100)
    world.account.came(first, 100)
    assert (first.told, second.told, world.account.waiting) == (["hold"], ["hold"], 2)
    world.account.came(first, 0)
    assert first.told == ["hold"], "requests without bytes are not part of that debt"
    late = world.client()
    assert late.told == ["hold"], "nor does one more connection pay it"
    world.now_s = 100.0
    await settled(lambda: late.told[-1] == "read on", "the connections were not resumed")
    assert all("read on" in client.told for client in (first, second))
    assert world.account.waiting == 0
    assert world.account.throttled_s >= 0


async def test_resumed_connection_with_a_new_debt_keeps_the_others_waiting() -> None:
    world = World(requests=10)
    account = world.account
    clients = [world.client() for _ in range(3)]
    for _ in range(30):
        account.came(clients[0], 0)
    for client in clients[1:]:
        account.came(client, 0)
    world.now_s = 2.5
    first = clients[0]
    await settled(lambda: first.told[-1] == "read on", "the first was not let through")
    for _ in range(100):
        account.came(first, 0)
    await asyncio.sleep(0.02)
    assert account.waiting == 3
    assert "read on" not in clients[2].told
    world.limits = Limits()
    account.refresh()
    assert account.waiting == 0
    assert clients[2].told[-1] == "read on"


async def test_bytes_in_flight_are_limited_and_released_with_their_connection() -> None:
    world = World(in_flight_bytes=100)
    account = world.account
    busy, other = world.client(), world.client()
    take(busy, 60)
    assert busy.told == []
    take(other, 60)
    assert other.told == ["hold"], "a request always passes, and then no more does"
    assert account.holds
    account.leave(busy)
    await settled(lambda: other.told[-1] == "read on", "the connection was not resumed although there was room")
    assert (account.in_flight_bytes, busy.account, account.holds) == (60, None, False)


async def test_node_limit_applies_without_a_quota_until_the_node_stops() -> None:
    account = Account("ann", Limits, lambda: 0.0, in_flight_bytes=100)
    client = FakeClient()
    account.join(client, meters=True)
    take(client, 200)
    assert client.told == [], "it has nothing else in flight"
    take(client, 1)
    assert (client.told, client.meter) == (["hold"], None)
    account.release()
    assert client.told == ["hold", "read on"]


async def test_changed_rate_keeps_the_debt_and_removed_rate_clears_it() -> None:
    world = World(consume_bytes=100)
    client = world.client()
    world.account.sent(300)
    assert world.account.throttle_ms("fetch") == 2_000
    assert not world.account.may_send(client)
    world.limits = Limits(consume_bytes=50)
    world.account.refresh()
    assert world.account.throttle_ms("message_event") == 4_000
    assert world.account.owes
    assert world.account.read_bytes_max(1_000) == 50
    world.limits = Limits(requests=1)
    world.account.refresh()
    assert world.account.may_send(client)
    await settled(lambda: client.told[-1:] == ["send on"], "it was never told to go on")


async def test_fetch_waits_for_its_turn_and_releases_it() -> None:
    world = World(consume_bytes=100)
    client = world.client()
    async with world.account.turn_to_read(client, math.inf) as may_read:
        assert may_read
        world.account.sent(200)
        waiting = asyncio.create_task(_read(world.account, client))
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    world.now_s = 10.0
    assert await waiting
    world.account.sent(1_000_000)
    gone = asyncio.create_task(_read(world.account, client))
    client.is_open = False
    assert not await gone
    assert not world.account.reading.locked()


async def _read(account: Account, client: FakeClient) -> bool:
    async with account.turn_to_read(client, math.inf) as may_read:
        return may_read


async def test_closed_connection_leaves_the_queue_and_is_detected_while_it_waits() -> None:
    world = World(produce_bytes=1)
    client = world.client()
    for _ in range(2):
        world.account.came(client, 1_000)
    await settled(lambda: "are you there" in client.told, "the connection was not checked")
    world.account.leave(client)
    assert world.account.waiting == 0


async def test_single_request_over_a_shared_connection_is_always_admitted() -> None:
    world = World(in_flight_bytes=100)
    assert not world.account.is_filled_by(101)
    world.account.in_flight_bytes = 40
    assert [world.account.is_filled_by(size) for size in (0, 60, 61)] == [False, False, True]


async def test_connection_beyond_the_quota_is_refused() -> None:
    world = World(connections=2)
    world.client()
    world.client()
    with pytest.raises(ProtocolError, match="its limit is 2") as refused:
        world.client()
    assert (refused.value.code, len(world.account.clients)) == (pb.QUOTA_EXCEEDED, 2)


async def test_concurrent_waits_for_one_debt_are_counted_once() -> None:
    world = World(requests=1)
    assert [world.account.came_through(0) for _ in range(2)] == [0.0, 0.0]
    assert [world.account.came_through(0) for _ in range(2)] == [1.0, 1.0]
    assert world.account.throttled_s == 1.0
    world.now_s = 0.5
    assert world.account.came_through(0) == 0.5
    assert world.account.throttled_s == 1.0
    world.account.came(world.client(), 0)
    assert world.account.came_through(0) == 1.5
    assert world.account.throttled_s == 2.0, "until 1 s it had been counted"
