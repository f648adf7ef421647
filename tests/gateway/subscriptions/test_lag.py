from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tidelog_gateway.subscriptions import lag
from tidelog_proto.batch.record_batch import columns_of

WAIT_S = 20
SKIP = {"on_lag": "skip", "max_lag_records": 10}
CLOSE = {"on_lag": "close", "max_lag_records": 10}


@pytest.fixture(autouse=True)
def checked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "CHECK_S", 0.05)


async def append(log: FakeLog, count: int, partition: int = 0) -> None:
    await log.append("t", partition, columns_of([b"v"] * count))


async def receive(socket: ClientConnection) -> dict[str, Any]:
    async with asyncio.timeout(WAIT_S):
        message: dict[str, Any] = json.loads(await socket.recv())
    return message


async def no_message(socket: ClientConnection) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await socket.recv()


async def give(socket: ClientConnection, records: int) -> None:
    await socket.send(json.dumps({"credit": {"sid": 7, "records": records}}))


@asynccontextmanager
async def subscribed(served: Served, credit: int, **more: Any) -> AsyncIterator[ClientConnection]:
    async with connect(served.ws, subprotocols=[Subprotocol("tidelog.v1.json")]) as socket:
        sub = {"sid": 7, "topic": "t", "credit": {"records": credit}, **more}
        await socket.send(json.dumps({"id": 1, "sub": sub}))
        assert "ok" in await receive(socket)
        yield socket


@pytest.mark.parametrize("more", [{}, {"group": "g"}, {"key": "k"}])
async def test_a_lagging_subscription_skips_to_the_end_when_it_has_credit(
    serve: Serve, log: FakeLog, more: dict[str, Any]
) -> None:
    log.logs["t"] = [[], []]
    async with serve() as served, subscribed(served, 5, **SKIP, **more) as socket:
        await append(log, 5)
        batch = (await receive(socket))["batch"]
        assert [record["offset"] for record in batch["records"]] == [0, 1, 2, 3, 4]
        await append(log, 100)
        await append(log, 10, partition=1)
        await no_message(socket)
        await give(socket, 100)
        gap = (await receive(socket))["gap"]
        token = gap.pop("resume_token")
        assert gap == {"sid": 7, "partition": 0, "from_offset": 5, "next_offset": 105}
        batch = (await receive(socket))["batch"]
        assert (batch["partition"], len(batch["records"])) == (1, 10), "10 records are not more than max_lag_records"
        await append(log, 1)
        assert [record["offset"] for record in (await receive(socket))["batch"]["records"]] == [105]
        async with subscribed(served, 50, resume_token=token, **more) as again:
            batches = [(await receive(again))["batch"] for _ in range(2)]
            assert {batch["partition"]: batch["records"][0]["offset"] for batch in batches} == {0: 105, 1: 0}


async def test_a_subscription_that_starts_with_too_much_lag_skips_at_once(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    await append(log, 11)
    async with serve() as served, subscribed(served, 50, **{"from": "earliest"}, **SKIP) as socket:
        gap = (await receive(socket))["gap"]
        assert (gap["from_offset"], gap["next_offset"]) == (0, 11)


async def test_a_subscription_at_the_end_skips_nothing_and_shares_the_feed(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, subscribed(served, 100_000, **SKIP) as one, subscribed(served, 100_000) as other:
        for at in range(20):
            await append(log, 10)
            for socket in (one, other):
                assert (await receive(socket))["batch"]["next_offset"] == 10 * (at + 1)


async def test_a_follower_that_runs_out_of_credit_skips_and_others_do_not(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, subscribed(served, 20, **SKIP) as slow, subscribed(served, 100_000) as fast:
        for at in range(10):
            await append(log, 10)
            assert (await receive(fast))["batch"]["next_offset"] == 10 * (at + 1)
        assert [(await receive(slow))["batch"]["next_offset"] for _ in range(2)] == [10, 20]
        await asyncio.sleep(2 * lag.CHECK_S)
        await give(slow, 100)
        gap = (await receive(slow))["gap"]
        assert (gap["from_offset"], gap["next_offset"]) == (20, 100)
        await append(log, 10)
        for socket in (slow, fast):
            assert (await receive(socket))["batch"]["next_offset"] == 110


async def test_a_subscription_that_lags_too_much_is_closed_with_its_position(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    async with serve() as served:
        async with subscribed(served, 5, **CLOSE) as socket:
            await append(log, 15)
            assert (await receive(socket))["batch"]["next_offset"] == 5
            await no_message(socket)
            await append(log, 1)
            end = (await receive(socket))["end"]
            error = end["error"]
            assert (end["sid"], error["code"], error["retryable"]) == (7, "lagging", True)
            assert (error["partition"], error["next_offset"], error["high_watermark"]) == (0, 5, 16)
            with pytest.raises(ConnectionClosed):
                await receive(socket)
            assert socket.close_code == 4408
            assert "max_lag_records" in str(socket.close_reason)
        async with subscribed(served, 50, resume_token=error["resume_token"]) as again:
            batches = [(await receive(again))["batch"] for _ in range(2)]
            offsets = [record["offset"] for batch in batches for record in batch["records"]]
            assert offsets == list(range(5, 16))


async def test_a_subscription_that_is_ended_is_not_watched(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, subscribed(served, 0, **CLOSE) as socket:
        await socket.send(json.dumps({"id": 2, "unsub": {"sid": 7}}))
        assert (await receive(socket))["ok"] == {"sid": 7}
        await append(log, 100)
        await no_message(socket)
        await socket.send(json.dumps({"id": 3, "unsub": {"sid": 7}}))
        assert (await receive(socket))["error"]["code"] == "unknown_subscription"


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"on_lag": "skip"}, "max_lag_records"),
        ({"max_lag_records": 5}, "on_lag"),
        ({"on_lag": "close", "max_lag_records": 0}, "greater than or equal to 1"),
        ({"on_lag": "drop", "max_lag_records": 1}, "'pause', 'skip' or 'close'"),
        ({"on_lag": "skip", "max_lag_records": 1, "group": "g", "member": True}, "cannot limit its lag"),
    ],
)
async def test_options_that_do_not_go_together_are_refused(
    serve: Serve, log: FakeLog, more: dict[str, Any], detail: str
) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, connect(served.ws, subprotocols=[Subprotocol("tidelog.v1.json")]) as socket:
        await socket.send(json.dumps({"id": 1, "sub": {"sid": 7, "topic": "t", "credit": {"records": 1}, **more}}))
        error = (await receive(socket))["error"]
        assert error["code"] == "invalid_request"
        assert detail in error["detail"]
