"""Subscriptions that follow a shared feed, over real sockets: each is sent every record once and in order, whatever
credit it gives and however slowly it reads."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from random import Random
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tidelog_gateway.feed import shared_feed
from tidelog_gateway.subscriptions import delivery
from tidelog_proto.batch.record_batch import columns_of

PARTITIONS = 3
WAIT_S = 20


class Reader:
    """A client with one subscription: the received records, by partition, and its newest token."""

    def __init__(self, socket: ClientConnection, sid: int) -> None:
        self.socket = socket
        self.sid = sid
        self.offsets: dict[int, list[int]] = {}
        self.positions: dict[int, int] = {}
        self.token = ""

    async def subscribe(self, **more: Any) -> None:
        sub = {"sid": self.sid, "topic": "t", "credit": {"records": 1_000_000}, **more}
        await self.socket.send(json.dumps({"id": 1, "sub": sub}))
        opened = (await self.receive())["ok"]
        self.positions = {int(number): offset for number, offset in opened["offsets"].items()}
        self.token = opened["resume_token"]

    async def receive(self) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_S):
            message: dict[str, Any] = json.loads(await self.socket.recv())
        return message

    async def take(self) -> dict[str, Any]:
        """Take a batch, which continues what came before."""
        message = await self.receive()
        batch: dict[str, Any] = message["batch"]
        assert batch["sid"] == self.sid
        number = batch["partition"]
        self.offsets.setdefault(number, []).extend(record["offset"] for record in batch["records"])
        self.positions[number] = batch["next_offset"]
        self.token = batch.get("resume_token", self.token)
        return batch

    async def until(self, ends: dict[int, int]) -> None:
        while any(self.positions.get(number, 0) < end for number, end in ends.items()):
            await self.take()

    async def credit(self, **more: int) -> None:
        await self.socket.send(json.dumps({"credit": {"sid": self.sid, **more}}))


class Journey:
    """The messages of one client over several connections, on each of which it gives credit and reads at random."""

    def __init__(self, log: FakeLog, random: Random) -> None:
        self._log = log
        self._random = random
        self._token = ""
        self._starts: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._offsets: dict[int, list[int]] = {}

    def is_done(self, *, is_over: bool) -> bool:
        return is_over and all(self._positions.get(number, 0) >= end for number, end in ends(self._log).items())

    async def leg(self, socket: ClientConnection, start: str, is_over: Callable[[], bool]) -> None:
        """Read over one connection, for a while."""
        random = self._random
        reader = Reader(socket, random.randint(1, 3))
        is_poor = random.random() < 0.5
        more = {"resume_token": self._token} if self._token else {"from": start}
        await reader.subscribe(credit={"records": 3 if is_poor else 10_000}, **more)
        self._starts = self._starts or dict(reader.positions)
        self._positions = dict(reader.positions)
        left = random.randint(5, 60)
        while (left > 0 or is_over()) and not self.is_done(is_over=is_over()):
            try:
                batch = await asyncio.wait_for(reader.take(), 0.5)
            except TimeoutError:
                left -= 5
                if is_poor:
                    await reader.credit(records=random.randint(1, 8))
                continue
            left -= 1
            self._token, self._positions = reader.token, dict(reader.positions)
            self._offsets.setdefault(batch["partition"], []).extend(each["offset"] for each in batch["records"])
            if is_poor and batch["records"]:
                await reader.credit(records=random.randint(0, 6))
            if random.random() < 0.05:
                await asyncio.sleep(0.05)

    def check(self) -> None:
        """See that each record was sent once and in order."""
        for number, end in ends(self._log).items():
            assert self._offsets.get(number, []) == list(range(self._starts.get(number, 0), end)), number


def opened(served: Served) -> connect:
    return connect(served.ws, subprotocols=[Subprotocol("tidelog.v1.json")], max_queue=None)


def opened_small(served: Served) -> connect:
    """Return a WebSocket for which little fits into the buffers of the client."""
    few: Any = {"max_queue": 1, "write_limit": 1024}
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", served.port))
    return connect(served.ws, sock=sock, subprotocols=[Subprotocol("tidelog.v1.json")], **few)


def ends(log: FakeLog) -> dict[int, int]:
    return {number: log.end("t", number) for number in range(len(log.logs["t"]))}


async def gauge(served: Served, name: str) -> float:
    async with httpx.AsyncClient(base_url=served.http) as client:
        page = (await client.get("/metrics")).text
    return float(next(line.split()[1] for line in page.splitlines() if line.startswith(f"{name} ")))


async def test_subscriptions_at_the_end_share_a_read_and_each_message(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    async with serve() as served, opened(served) as one, opened(served) as other:
        readers = [Reader(one, 1), Reader(other, 1), Reader(other, 2)]
        for reader in readers[:2]:
            await reader.subscribe()
        await other.send(json.dumps({"id": 2, "sub": {"sid": 2, "topic": "t", "credit": {"records": 100}}}))
        assert "ok" in await readers[1].receive()
        for at in range(5):
            await log.append("t", at % 2, columns_of([b"%d" % at]))
        assert await gauge(served, "tidelog_gateway_feeds") == 1
        await readers[0].until({0: 3, 1: 2})
        both = [(await readers[1].receive())["batch"] for _ in range(10)]
        for sid in (1, 2):
            mine = [(batch["partition"], batch["next_offset"]) for batch in both if batch["sid"] == sid]
            assert sorted(mine) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2)]
        assert log.reads == 5, "one read for all of them"
    assert readers[0].offsets == {0: [0, 1, 2], 1: [0, 1]}


async def test_the_token_of_a_shared_message_resumes(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    async with serve() as served:
        async with opened(served) as socket:
            reader = Reader(socket, 7)
            await reader.subscribe()
            await log.append("t", 1, columns_of([b"a", b"b"]))
            await reader.take()
        await log.append("t", 0, columns_of([b"c"]))
        async with opened(served) as socket:
            again = Reader(socket, 7)
            await again.subscribe(resume_token=reader.token)
            assert again.positions == {0: 0, 1: 2}
            await again.until(ends(log))
            assert again.offsets == {0: [0]}


async def test_positions_of_a_follower_bound_its_commits(serve: Serve, log: FakeLog) -> None:
    """A subscription with a group reads by itself, and one without a group cannot commit."""
    log.logs["t"] = [[]]
    async with serve() as served, opened(served) as socket, opened(served) as other:
        reader, follower = Reader(socket, 1), Reader(other, 1)
        await reader.subscribe(group="g")
        await follower.subscribe()
        await log.append("t", 0, columns_of([b"a", b"b"]))
        await reader.take()
        await follower.take()
        await socket.send(json.dumps({"id": 2, "commit": {"sid": 1, "offsets": {"0": 3}}}))
        assert (await reader.receive())["error"]["code"] == "invalid_request"
        await socket.send(json.dumps({"id": 3, "commit": {"sid": 1, "offsets": {"0": 2}}}))
        assert (await reader.receive())["ok"] == {"offsets": {"0": 2}}


async def test_credit_is_exact_for_followers(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, opened(served) as one, opened(served) as other:
        rich, poor = Reader(one, 1), Reader(other, 1)
        await rich.subscribe()
        await poor.subscribe(credit={"records": 2})
        for _ in range(3):
            await log.append("t", 0, columns_of([b"x"] * 3))
        await rich.until({0: 9})
        assert len((await poor.take())["records"]) == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(other.recv(), 0.3)
        await poor.credit(records=4)
        while poor.positions[0] < 6:
            await poor.take()
        assert poor.offsets == {0: list(range(6))}
        await poor.credit(records=100)
        await poor.until({0: 9})
        await log.append("t", 0, columns_of([b"x"]))
        await asyncio.gather(rich.until({0: 10}), poor.until({0: 10}))
        assert rich.offsets == poor.offsets == {0: list(range(10))}


async def test_an_ended_subscription_gets_no_more_messages(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, opened(served) as socket, opened(served) as other:
        reader, stays = Reader(socket, 1), Reader(other, 1)
        await reader.subscribe()
        await stays.subscribe()
        await log.append("t", 0, columns_of([b"x"]))
        await reader.take()
        await socket.send('{"id":2,"unsub":{"sid":1}}')
        assert (await reader.receive())["ok"] == {"sid": 1}
        await log.append("t", 0, columns_of([b"y"]))
        await stays.until({0: 2})
        await reader.subscribe(**{"from": "earliest"})
        await reader.until({0: 2})
        assert reader.offsets[0] == [0, 0, 1]


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_lost_repeated_or_reordered(
    serve: Serve, log: FakeLog, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that begin anywhere, give credit in crumbs, stop reading and come again, while records are published."""
    random = Random(seed)
    monkeypatch.setattr(shared_feed, "RING_BYTES", random.choice([1, 2_000, 100_000]))
    monkeypatch.setattr(delivery, "QUIET_AGAIN_S", 0.05)
    log.logs["t"] = [[] for _ in range(PARTITIONS)]
    is_over = False

    async def publish() -> None:
        for at in range(150):
            number = random.randrange(len(log.logs["t"]))
            await log.append("t", number, columns_of([b"x" * random.choice([1, 300])] * random.randint(1, 6)))
            if at == 70:
                log.logs["t"].append([])  # a partition more
            if random.random() < 0.7:
                await asyncio.sleep(random.choice([0, 0.001, 0.005, 0.03]))

    async def read(served: Served, random: Random) -> None:
        start = random.choice(["earliest", "latest"])
        journey = Journey(log, random)
        while not journey.is_done(is_over=is_over):
            async with opened(served) as socket:
                await journey.leg(socket, start, lambda: is_over)
        journey.check()

    async with serve(ws_batch_records_max=4) as served, asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(read(served, Random(random.random())))
        await publish()
        is_over = True


async def test_a_client_that_stops_reading_leaves_the_shared_path_and_returns_to_it(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[], []]
    async with serve() as served, opened(served) as one, opened_small(served) as other:
        fast, slow = Reader(one, 1), Reader(other, 1)
        await fast.subscribe()
        await slow.subscribe()
        await log.append("t", 0, columns_of([b"x"]))
        await asyncio.gather(fast.until({0: 1}), slow.until({0: 1}))
        for at in range(400):
            await log.append("t", at % 2, columns_of([b"x" * 30_000]))
            await fast.until(ends(log))
        assert slow.offsets == {0: [0]}, "it has not read meanwhile"
        reads = log.reads
        assert reads == 401, "one reader for both"
        await slow.until(ends(log))
        await log.append("t", 0, columns_of([b"y"]))
        await asyncio.gather(fast.until(ends(log)), slow.until(ends(log)))
        reads = log.reads
        for _ in range(5):
            await log.append("t", 1, columns_of([b"z"]))
            await asyncio.gather(fast.until(ends(log)), slow.until(ends(log)))
        assert log.reads == reads + 5, "one reader for both again"
        expected = {number: list(range(end)) for number, end in ends(log).items()}
        assert fast.offsets == slow.offsets == expected


async def test_a_slow_client_delays_no_other_and_is_closed(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve(ws_slow_timeout_s=1.0) as served, opened(served) as one:
        reader = Reader(one, 1)
        await reader.subscribe()
        quiet_reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=1 << 12)
        handshake = (
            "GET /v1/ws HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "sec-websocket-protocol: tidelog.v1.json\r\n\r\n"
        )
        writer.write(handshake.encode())
        await quiet_reader.readuntil(b"\r\n\r\n")
        sub = json.dumps({"id": 1, "sub": {"sid": 1, "topic": "t", "credit": {"records": 1_000_000}}}).encode()
        writer.write(b"\x81" + bytes([0x80 | len(sub)]) + bytes(4) + sub)
        await asyncio.sleep(0.2)
        for _ in range(300):
            await log.append("t", 0, columns_of([b"x" * 50_000]))
            await reader.take()
        assert reader.offsets == {0: list(range(300))}
        assert await gauge(served, "tidelog_gateway_out_bytes") < 8 << 20
        async with asyncio.timeout(WAIT_S):
            while await gauge(served, "tidelog_gateway_websockets") > 1:  # noqa: ASYNC110 - of another process, as it were
                await asyncio.sleep(0.1)
        writer.close()
