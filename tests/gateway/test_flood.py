"""One caller of a gateway floods it, over real sockets: he waits, and the others do not."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import httpx
from tests.gateway.secured import Secured, bearer, secured

from tidelog.quota import Quota

KIB = 1024
WRITES = (("produce",), "topic", "t")
BODY = {"records": [{"value": "x" * (16 * KIB), "partition": 0}]}
SMALL = {"records": [{"value": "x", "partition": 0}]}


async def publish(gate: Secured, key: str, body: object) -> httpx.Response:
    return await gate.http.post("/v1/topics/t/records", json=body, headers=bearer(key))


async def tried(gate: Secured, key: str, body: object) -> int:
    try:
        return (await publish(gate, key, body)).status_code
    except httpx.TransportError:  # it was refused, and the connection closed, before all of it was sent
        return 429


async def flood(gate: Secured, key: str, sent: list[int]) -> None:
    while True:
        sent.append(await tried(gate, key, BODY))


async def test_a_flood_of_one_caller_holds_up_that_one_alone(tmp_path: Path) -> None:
    async with secured(tmp_path, request_timeout_s=5.0) as gate:
        await gate.admin.create_topic("t", partitions=1)
        ann, ben = await gate.key_of("ann", WRITES), await gate.key_of("ben", WRITES)
        await gate.admin.security.set_quota("ann", Quota(produce_bytes=64 * KIB))
        assert (await publish(gate, ben, SMALL)).status_code == 200
        sent: list[int] = []
        began_s = time.monotonic()
        floods = [asyncio.create_task(flood(gate, ann, sent)) for _ in range(8)]
        slowest_s = 0.0
        try:
            while time.monotonic() - began_s < 4.0:
                asked_s = time.monotonic()
                assert (await publish(gate, ben, SMALL)).status_code == 200
                slowest_s = max(slowest_s, time.monotonic() - asked_s)
            took_s = time.monotonic() - began_s
        finally:
            for task in floods:
                task.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
        taken_bytes = sent.count(200) * 16 * KIB
        assert taken_bytes <= 64 * KIB * (took_s + 1) + 8 * 16 * KIB, (
            "no more than the rate, a bucket and what was early"
        )
        assert taken_bytes >= 64 * KIB * 2, "and it does get on"
        assert set(sent) <= {200, 429, 503, 504}
        assert slowest_s < 1.0, "others wait for none of its debt"


async def test_what_one_caller_has_waiting_leaves_the_others_room(tmp_path: Path) -> None:
    async with secured(tmp_path, in_flight_bytes_max=1024 * KIB, request_timeout_s=1.5) as gate:
        await gate.admin.create_topic("t", partitions=1)
        ann, ben = await gate.key_of("ann", WRITES), await gate.key_of("ben", WRITES)
        await gate.admin.security.set_quota("ann", Quota(produce_bytes=4 * KIB))
        body = {"records": [{"value": "x" * (150 * KIB), "partition": 0}]}
        assert (await publish(gate, ann, body)).status_code == 200
        floods = [asyncio.create_task(tried(gate, ann, body)) for _ in range(12)]
        done, _ = await asyncio.wait(floods, return_when=asyncio.FIRST_COMPLETED)
        for _ in range(5):
            assert (await publish(gate, ben, body)).status_code == 200
        assert {task.result() for task in done} == {429}
        codes = await asyncio.gather(*floods)
        assert codes.count(429) >= 8, "half of the budget is three such bodies"
        assert set(codes) <= {429, 503, 504}
