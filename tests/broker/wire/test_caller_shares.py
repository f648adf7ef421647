"""In-flight limits of the callers on one gateway connection."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from tidelog_broker.core.security.quota_rules import Limits
from tidelog_broker.wire.caller_shares import CallerShares, begin_work
from tidelog_broker.wire.quota_account import WORK_US_MAX, Account
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError


@dataclass(eq=False)
class Asked:
    size_bytes: int = 0
    account: Account | None = None
    work_us: int = 0


class World:
    """A connection that may have 8 requests and 800 bytes in flight, and its callers."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.shares = CallerShares(requests_max=8, bytes_max=800)
        self.taken: list[Asked] = []

    def account(self, name: str, *, in_flight_bytes: float = math.inf, **limits: int) -> Account:
        return Account(name, lambda: Limits(**limits), lambda: self.now_s, in_flight_bytes=in_flight_bytes)

    def take(self, account: Account, size_bytes: int = 0) -> None:
        asked = Asked(size_bytes)
        in_flight = [*self.taken, asked]
        self.shares.take(asked, account, requests=len(in_flight), size_bytes=sum(each.size_bytes for each in in_flight))
        self.taken.append(asked)

    def take_all(self, account: Account, size_bytes: int = 0) -> int:
        for count in range(100):
            try:
                self.take(account, size_bytes)
            except ProtocolError as error:
                if error.code == pb.OVERLOADED and error.retry_after_ms:
                    return count
                raise
        raise AssertionError("nothing is bounded")

    def give_back(self) -> None:
        for asked in self.taken:
            self.shares.give_back(asked)
            self.shares.give_back(asked)  # once is enough
        self.taken.clear()


async def test_work_of_a_caller_is_limited_until_its_requests_are_answered() -> None:
    world = World()
    ann = world.account("ann")
    world.take(ann)
    begin_work(ann, WORK_US_MAX)
    world.taken[0].work_us = WORK_US_MAX
    with pytest.raises(ProtocolError) as caught:
        begin_work(ann, 1)
    assert caught.value.code == pb.OVERLOADED
    world.give_back()
    begin_work(ann, 1)
    assert ann.work_us == 1


async def test_caller_shares_leave_room_for_the_next_caller() -> None:
    world = World()
    ann, ben, cleo = map(world.account, ("ann", "ben", "cleo"))
    assert world.take_all(ann) == 4
    assert world.take_all(ben) == 2
    assert world.take_all(cleo) >= 1
    assert (ann.users, ben.users) == (4, 2)
    world.give_back()
    assert (ann.users, ben.users, cleo.users, len(world.shares)) == (0, 0, 0, 0)


async def test_bytes_are_shared_and_a_single_request_is_admitted() -> None:
    world = World()
    ann, ben = map(world.account, ("ann", "ben"))
    assert world.take_all(ann, 100) == 4
    assert ann.in_flight_bytes == 400
    world.take(ben, 380)
    with pytest.raises(ProtocolError):
        world.take(ben, 1)
    world.take(ben)
    world.give_back()
    assert (ann.in_flight_bytes, ben.in_flight_bytes) == (0, 0)


async def test_callers_bytes_in_flight_are_limited_over_all_connections() -> None:
    world = World()
    ann = world.account("ann", in_flight_bytes=150)
    world.take(ann, 200)
    with pytest.raises(ProtocolError, match=r"unanswered requests of .ann. have reached a limit"):
        world.take(ann, 1)
    world.take(ann)
    world.give_back()
    world.take(ann, 100)
    world.take(ann, 50)


async def test_early_request_is_refused_with_a_retry_time_and_not_charged() -> None:
    world = World()
    told: list[float] = []
    ann = Account("ann", lambda: Limits(produce_bytes=100), lambda: world.now_s, count=told.append)
    world.take(ann, 300)
    for _ in range(3):
        with pytest.raises(ProtocolError, match=r"'ann' is used up for 2.0 s") as refused:
            world.take(ann, 50)
        assert refused.value.retry_after_ms == 2000
    assert told == [2.0], "it has waited once"
    world.take(ann)  # it brings no records
    world.now_s = 2.0
    world.take(ann, 50)


async def test_gateway_connection_is_limited_only_by_its_quota() -> None:
    world = World()
    gate = world.account("gate", in_flight_bytes=150)
    gate.share()
    assert gate.in_flight_bytes_max == math.inf
    gate.refresh(Limits(in_flight_bytes=70))
    gate.share()
    assert gate.in_flight_bytes_max == 70
