from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.typing import Subprotocol

from tidelog_demo.subscriber import SUBPROTOCOL, Counter, SubscriberError, subscribe


def _batch(partition: int, first: int, count: int, next_offset: int | None = None) -> dict[str, Any]:
    records = [{"offset": offset} for offset in range(first, first + count)]
    return {"partition": partition, "records": records, "next_offset": next_offset or first + count}


def test_contiguous_batches_are_counted_by_partition() -> None:
    counter = Counter()
    assert counter.receive(_batch(0, 0, 3)) == 3
    assert counter.receive(_batch(1, 0, 2)) == 2
    assert counter.receive(_batch(0, 3, 1)) == 1
    assert counter.records == 6


@pytest.mark.parametrize("second", [_batch(0, 4, 1), _batch(0, 2, 1), _batch(0, 3, 2, next_offset=6)])
def test_gaps_and_repeats_are_detected(second: dict[str, Any]) -> None:
    counter = Counter()
    counter.receive(_batch(0, 0, 3))
    with pytest.raises(SubscriberError, match="partition 0"):
        counter.receive(second)


@asynccontextmanager
async def _gateway(messages: list[dict[str, Any]], got: list[dict[str, Any]]) -> AsyncIterator[str]:
    async def talk(connection: ServerConnection) -> None:
        got.append(json.loads(await connection.recv()))
        for message in messages:
            await connection.send(json.dumps(message))
        got.extend([json.loads(text) async for text in connection])

    async with serve(talk, "127.0.0.1", 0, subprotocols=[Subprotocol(SUBPROTOCOL)]) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}/v1/ws"


async def test_a_subscriber_returns_credit_and_ends_after_the_last_record() -> None:
    got: list[dict[str, Any]] = []
    counts: list[int] = []
    ready = asyncio.Event()
    messages: list[dict[str, Any]] = [{"id": 1, "ok": {}}, {"batch": _batch(0, 0, 3)}, {"batch": _batch(2, 0, 2)}]
    async with _gateway(messages, got) as url:
        await subscribe(url, "flights", 5, counts.append, ready)
    assert ready.is_set()
    assert counts == [3, 2]
    assert got[0]["sub"]["topic"] == "flights"
    assert got[0]["sub"]["from"] == "earliest"
    assert [message["credit"]["records"] for message in got[1:]] == [3, 2]


async def test_more_records_than_published_are_an_error() -> None:
    async with _gateway([{"id": 1, "ok": {}}, {"batch": _batch(0, 0, 6)}], []) as url:
        with pytest.raises(SubscriberError, match="but 5 were published"):
            await subscribe(url, "flights", 5, lambda _: None, asyncio.Event())


async def test_an_error_message_ends_the_subscriber() -> None:
    ready = asyncio.Event()
    async with _gateway([{"id": 1, "error": {"code": "UNKNOWN_TOPIC"}}], []) as url:
        with pytest.raises(SubscriberError, match="UNKNOWN_TOPIC"):
            await subscribe(url, "nope", 5, lambda _: None, ready)
    assert not ready.is_set()
