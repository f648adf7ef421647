"""Resuming over a real server and a real client, on a log in memory: nothing is lost and nothing is repeated."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tidelog_gateway.protocol import ws_protocol
from tidelog_proto.batch.record_batch import columns_of

SUBPROTOCOL = Subprotocol("tidelog.v1.json")
SEEDS = 8
ROUNDS = 12


class Page:
    """A client that keeps what `docs/websocket.md` tells it to keep, and loses its connection at any message.

    Args:
        keeps_offsets: whether it keeps the positions of batches that came without a token.
    """

    def __init__(self, *, keeps_offsets: bool) -> None:
        self.seen: Counter[tuple[int, int]] = Counter()
        self.token: str | None = None
        self._keeps_offsets = keeps_offsets
        self._offsets: dict[str, int] = {}

    async def subscribe(self, socket: ClientConnection, **more: Any) -> None:
        sub = {"sid": 1, "topic": "t", "credit": {"records": 1000}, **more}
        if self.token is not None:
            sub |= {"resume_token": self.token, "resume": self._offsets}
        await socket.send(json.dumps({"id": 1, "sub": sub}))
        answer = await receive(socket)
        assert "ok" in answer, answer
        self._keep(answer["ok"])

    async def take(self, socket: ClientConnection) -> None:
        batch = (await receive(socket))["batch"]
        self.seen.update((batch["partition"], record["offset"]) for record in batch["records"])
        self._keep(batch)

    def _keep(self, message: dict[str, Any]) -> None:
        if "resume_token" in message:
            self.token, self._offsets = message["resume_token"], {}
        elif self._keeps_offsets:
            self._offsets[str(message["partition"])] = message["next_offset"]


def opened(served: Served) -> connect:
    return connect(served.ws, subprotocols=[SUBPROTOCOL], max_queue=None)


async def receive(socket: ClientConnection) -> Any:
    async with asyncio.timeout(30):
        return json.loads(await socket.recv())


async def publish(log: FakeLog, random: Random, published: set[tuple[int, int]]) -> None:
    """Append a few batches to random partitions, and sometimes add a partition first."""
    if random.random() < 0.3:
        log.logs["t"].append([])
    for _ in range(random.randrange(4)):
        partition = random.randrange(len(log.logs["t"]))
        count = random.randrange(1, 6)
        base = await log.append("t", partition, columns_of([b"value"] * count))
        published.update((partition, base + at) for at in range(count))


async def visit(served: Served, log: FakeLog, page: Page, random: Random, published: set[tuple[int, int]]) -> None:
    """Connect, read some records while more are published, and lose the connection."""
    async with opened(served) as socket:
        await page.subscribe(socket)
        await publish(log, random, published)
        for _ in range(random.randrange(5)):
            if page.seen.keys() < published:
                await page.take(socket)
        if random.random() < 0.5:
            socket.transport.abort()


async def read_on(served: Served, page: Page, published: set[tuple[int, int]]) -> None:
    """Connect, and take all that is left."""
    async with opened(served) as socket:
        await page.subscribe(socket)
        while not published <= page.seen.keys():
            await page.take(socket)


async def run(serve: Serve, log: FakeLog, page: Page, seed: int) -> set[tuple[int, int]]:
    random = Random(seed)
    log.logs["t"] = [[] for _ in range(random.randrange(1, 4))]
    published: set[tuple[int, int]] = set()
    async with serve(ws_batch_records_max=3) as served:
        async with opened(served) as socket:
            await page.subscribe(socket)  # from the end of each partition
        for _ in range(ROUNDS):
            await publish(log, random, published)
            await visit(served, log, page, random, published)
        await read_on(served, page, published)
    return published


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_client_that_keeps_the_newest_token_sees_each_record_once(
    serve: Serve, log: FakeLog, seed: int
) -> None:
    page = Page(keeps_offsets=False)
    published = await run(serve, log, page, seed)
    assert page.seen == Counter(published)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_client_that_keeps_offsets_besides_a_rare_token_sees_each_record_once(
    serve: Serve, log: FakeLog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ws_protocol, "SHORT_TOKEN_CHARS", 0)
    page = Page(keeps_offsets=True)
    published = await run(serve, log, page, seed)
    assert page.seen == Counter(published)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_client_that_keeps_only_a_rare_token_loses_nothing(
    serve: Serve, log: FakeLog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ws_protocol, "SHORT_TOKEN_CHARS", 0)
    page = Page(keeps_offsets=False)
    published = await run(serve, log, page, seed)
    assert page.seen.keys() == published
    assert set(page.seen.values()) != {1}, "a batch without a token is read again"
