"""The request budget, and load shedding of slow senders."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from tests.gateway.conftest import Serve
from tests.gateway.server.test_websocket_protocol import CLOSE, opened, received

from tidelog_gateway.budget import request_budget
from tidelog_gateway.budget.request_budget import BodyReservation, CallerUsage, RequestBudget
from tidelog_gateway.budget.shedding_bounds import PROGRESS_BYTES
from tidelog_proto.flow import byte_budget
from tidelog_proto.limits import MIB

STALL_TIMEOUT_S = 0.05


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_budget, "STALL_TIMEOUT_S", STALL_TIMEOUT_S)
    monkeypatch.setattr(byte_budget, "SEARCH_INTERVAL_S", 0.0)


def test_a_full_budget_reserves_nothing() -> None:
    budget = RequestBudget(10)
    assert budget.take(10)
    assert not budget.take(1)
    budget.give_back(4)
    assert budget.take(4)
    with pytest.raises(AssertionError):
        budget.give_back(11)


def arrival(budget: RequestBudget, name: str, gone: list[str]) -> BodyReservation:
    return BodyReservation(budget, lambda: gone.append(name))


def test_load_shedding_closes_silent_senders_the_largest_first() -> None:
    gone = list[str]()
    budget = RequestBudget(100)
    small, large, whole = (arrival(budget, name, gone) for name in ("small", "large", "whole"))
    assert small.hold(20)
    assert large.hold(50)
    assert whole.hold(30)
    whole.complete()
    assert not budget.take(10), "load shedding waits for the grace period"
    time.sleep(2 * STALL_TIMEOUT_S)
    assert budget.take(10)
    assert (gone, budget.used_bytes) == (["large"], 60)
    large.end()
    whole.end()
    small.end()
    assert budget.used_bytes == 10


def test_active_senders_are_not_closed() -> None:
    gone = list[str]()
    budget = RequestBudget(10 * MIB)
    brisk, idle = arrival(budget, "brisk", gone), arrival(budget, "idle", gone)
    assert brisk.hold(5 * MIB)
    assert idle.hold(5 * MIB)
    time.sleep(2 * STALL_TIMEOUT_S)
    brisk.received(4 * PROGRESS_BYTES)
    assert budget.take(1)
    assert gone == ["idle"]


def test_few_bytes_are_not_progress() -> None:
    gone = list[str]()
    budget = RequestBudget(10 * PROGRESS_BYTES)
    trickle = arrival(budget, "trickle", gone)
    assert trickle.hold(10 * PROGRESS_BYTES)
    trickle.received(PROGRESS_BYTES - 2)
    time.sleep(2 * STALL_TIMEOUT_S)
    trickle.received(PROGRESS_BYTES - 1)
    assert budget.take(1)
    assert gone == ["trickle"], "its rate since its start is high, but it has stopped"


def test_a_sender_that_sheds_itself_keeps_nothing() -> None:
    """A body in chunks reserves more with each, and may be the slow one itself."""
    gone = list[str]()
    budget = RequestBudget(100)
    assert budget.take(40)
    slow = arrival(budget, "slow", gone)
    assert slow.hold(60)
    time.sleep(2 * STALL_TIMEOUT_S)
    assert not slow.hold(70)
    assert (gone, slow.held_bytes, budget.used_bytes) == (["slow"], 0, 40)
    slow.end()
    assert budget.used_bytes == 40, "the other reservations were returned"


def _result(task: asyncio.Task[tuple[int, bytes]]) -> tuple[int, bytes]:
    return task.result()


async def test_bodies_that_never_arrive_do_not_block_others(serve: Serve) -> None:
    async with serve(in_flight_bytes_max=8 * MIB, body_bytes_max=8 * MIB) as served:
        head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(head + b"Content-Length: %d\r\n\r\n{" % (8 * MIB))
        await writer.drain()
        await asyncio.sleep(2 * STALL_TIMEOUT_S)
        async with httpx.AsyncClient(base_url=served.http) as http, asyncio.timeout(10):
            body = {"records": [{"value": "polite"}]}
            while (await http.post("/v1/topics/t/records", json=body)).status_code == 429:
                pass
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
        writer.close()


async def test_messages_that_never_end_are_counted_and_do_not_block_others(serve: Serve) -> None:
    part = b"\x81\xff" + (MIB - 16).to_bytes(8, "big") + bytes(4) + b" " * 200_000
    async with serve(in_flight_bytes_max=MIB, body_bytes_max=MIB) as served:
        begun = [await opened(served) for _ in range(5)]
        for _, writer in begun:
            writer.write(part)
            await writer.drain()
        await asyncio.sleep(2 * STALL_TIMEOUT_S)
        reader, writer = await opened(served)
        async with asyncio.timeout(10):
            writer.write(b"\x81\xff" + (300_000).to_bytes(8, "big") + bytes(4) + b" " * 300_000)
            assert b"invalid_request" in (await received(reader))[1], "an invalid message is answered"
            closing = [asyncio.ensure_future(received(reader)) for reader, _ in begun]
            done, pending = await asyncio.wait(closing, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        assert {(opcode, int.from_bytes(data[:2], "big")) for opcode, data in map(_result, done)} == {(CLOSE, 1013)}
        for _, one in [*begun, (reader, writer)]:
            one.close()


async def test_without_room_a_message_closes_its_websocket(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_budget, "STALL_TIMEOUT_S", 60.0)
    part = b"\x81\xff" + (MIB - 16).to_bytes(8, "big") + bytes(4) + b" " * 700_000
    async with serve(in_flight_bytes_max=MIB, body_bytes_max=MIB) as served:
        _, first = await opened(served)
        first.write(part)
        await first.drain()
        async with httpx.AsyncClient(base_url=served.http) as http, asyncio.timeout(10):
            while "tidelog_gateway_in_flight_bytes 0" in (await http.get("/metrics")).text:
                pass
        reader, second = await opened(served)
        second.write(part)
        opcode, data = await received(reader)
        assert (opcode, int.from_bytes(data[:2], "big")) == (CLOSE, 1013)
        first.close()
        second.close()


def test_one_caller_may_reserve_half_and_leaves_the_rest_to_others() -> None:
    gone = list[str]()
    budget = RequestBudget(100)
    ann, ben = CallerUsage(), CallerUsage()
    held = [BodyReservation(budget, gone.clear, ann) for _ in range(10)]
    assert [one.hold(10) for one in held] == [True] * 5 + [False] * 5
    other = BodyReservation(budget, gone.clear, ben)
    assert other.hold(40)
    assert other.hold(50), "a single body may reserve all that is free"
    assert not held[5].hold(10)
    for one in (*held, other):
        one.end()
    assert (ann.held_bytes, ben.held_bytes, budget.used_bytes) == (0, 0, 0)
