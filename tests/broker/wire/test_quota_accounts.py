"""Accounts of principals and addresses: selection, limits and lifetime."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.wire.test_quota_account import FakeClient

from tidelog_broker.core.security.permissions import Permissions
from tidelog_broker.core.security.quota_rules import Limits, Quotas
from tidelog_broker.core.security.session import Session
from tidelog_broker.wire import quota_accounts as accounts_module
from tidelog_broker.wire.quota_accounts import Accounts
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


class World:
    """Accounts with a clock and quotas of the test's own."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.quotas = Quotas()
        self.accounts = Accounts(self.quotas, lambda: self.now_s)

    def bound(self, subject: str, **limits: Any) -> None:
        self.quotas.put(pb.Quota(quota_id=subject, subject=subject, **limits))
        self.accounts.refresh()

    def names(self) -> list[str]:
        return sorted(account.name for account in self.accounts)


def session(principal: str, *roles: str) -> Session:
    return Session(Permissions(), principal, frozenset(roles))


async def test_principal_has_one_account_over_all_addresses() -> None:
    world = World()
    here, there = FakeClient(), FakeClient()
    account = world.accounts.join(here, "10.0.0.1", session("ann"))
    assert world.accounts.join(there, "10.0.0.2", session("ann")) is account
    assert world.names() == ["address:10.0.0.1/32", "address:10.0.0.2/32", "ann"]
    world.bound("ann", requests=1)
    assert here.meter is there.meter is account
    for client in (here, there):
        world.accounts.leave(client)
    assert world.names() == []


async def test_address_has_the_account_without_authentication() -> None:
    world = World()
    world.bound("default", requests=1)
    nameless, named = FakeClient(), FakeClient()
    at = world.accounts.join(nameless, "10.0.0.1", None)
    world.accounts.join(named, "10.0.0.1", session("ann"))
    assert nameless.meter is at
    assert named.meter is not at, "an address counts no requests of those who have names"
    assert len(at.clients) == 2


async def test_connections_count_for_address_and_principal_or_for_neither() -> None:
    world = World()
    world.bound("ann", connections=1)
    world.bound("address:10.0.0.0/8", connections=2)
    first = FakeClient()
    world.accounts.join(first, "10.0.0.1", session("ann"))
    with pytest.raises(ProtocolError, match="'ann' has 1"):
        world.accounts.join(FakeClient(), "10.0.0.1", session("ann"))
    world.accounts.join(FakeClient(), "10.0.0.1", session("ben"))
    with pytest.raises(ProtocolError, match="address"):
        world.accounts.join(FakeClient(), "10.0.0.1", session("cleo"))
    assert world.names() == ["address:10.0.0.1/32", "ann", "ben"]
    world.accounts.leave(first)
    world.accounts.join(FakeClient(), "10.0.0.1", session("ann"))
    world.accounts.leave(FakeClient())  # that never joined
    world.bound("address:192.0.2.0/24", connections=0)
    world.bound("dora", connections=0)
    for host, name in (("192.0.2.1", "ann"), ("192.0.2.2", "eve"), ("10.0.0.2", "dora")):
        with pytest.raises(ProtocolError):
            world.accounts.join(FakeClient(), host, session(name))
    assert world.names() == ["address:10.0.0.1/32", "ann", "ben"], "a refused caller leaves no account"


async def test_debt_outlives_connections_within_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.bound("*", requests=1)
    for name in ("ann", "ben"):
        client = FakeClient()
        world.accounts.join(client, "10.0.0.1", session(name)).came(client, 0)
        world.accounts.leave(client)
    assert world.names() == ["ann", "ben"]
    world.now_s = 10.0
    client = FakeClient()
    world.accounts.join(client, "10.0.0.1", session("cleo"))
    world.accounts.leave(client)
    assert world.names() == []
    monkeypatch.setattr(accounts_module, "IDLE_MAX", 3)
    for number in range(20):
        client = FakeClient()
        world.accounts.join(client, "10.0.0.1", session(f"many {number}")).came(client, 0)
        world.accounts.leave(client)
    assert len(world.names()) == 3


async def test_roles_of_a_principals_connections_are_combined() -> None:
    world = World()
    world.bound("role:etl", requests=7)
    world.bound("default", requests=1)
    account = world.accounts.join(FakeClient(), "10.0.0.1", session("ann"))
    assert account.limits.requests == 1
    world.accounts.join(FakeClient(), "10.0.0.1", session("ann", "etl"))
    assert account.limits.requests == 7


async def test_callers_beyond_the_limit_share_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts_module, "COUNTED_MAX", 2)
    counted: list[str] = []
    quotas = Quotas()
    accounts = Accounts(quotas, lambda: 0.0, count=lambda name, _: counted.append(name))
    quotas.put(pb.Quota(quota_id="q", subject="*", requests=1))
    for name in ("ann", "ben", "cleo"):
        client = FakeClient()
        account = accounts.join(client, "10.0.0.1", session(name))
        for _ in range(3):
            account.came(client, 0)
        account.refresh(Limits())
    assert counted == ["ann", "ben", "(others)"]


async def test_stopping_node_lifts_all_limits() -> None:
    world = World()
    world.bound("*", requests=1)
    client = FakeClient()
    account = world.accounts.join(client, "10.0.0.1", session("ann"))
    for _ in range(3):
        account.came(client, 0)
    assert client.told == ["hold"]
    world.accounts.release()
    assert client.told[-1] == "read on"
    world.bound("*", requests=2)
    assert account.limits == Limits()
