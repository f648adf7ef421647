"""Floods by one caller over real sockets: the caller itself waits, and others do not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import httpx
import pytest
from tests.broker.issuer import Issuer, Publisher, as_answer
from tests.gateway.secured import Secured, bearer, secured

from tidelog.cluster import throttle
from tidelog.security.quotas import Quota
from tidelog_gateway.auth import verification_queue
from tidelog_gateway.callers import caller_cache
from tidelog_gateway.callers.caller_cache import CallerCache

KIB = 1024
_DIGITS = str.maketrans("0123456789", "abcdefghij")
WRITES = (("produce",), "topic", "t")
BODY = {"records": [{"value": "x" * (16 * KIB), "partition": 0}]}
SMALL = {"records": [{"value": "x", "partition": 0}]}


def allowed_s(bound_s: float, quiet_s: float) -> float:
    """Return a bound in seconds for a request during a flood, given its time without one on the same busy machine."""
    return max(bound_s, 20 * quiet_s)


async def slowest_described(http: httpx.AsyncClient, keys: Sequence[str], path: str) -> float:
    """Return the time of the slowest of some sequential requests, which all succeed."""
    slowest_s = 0.0
    for key in keys:
        asked_s = time.monotonic()
        assert (await http.get(path, headers=bearer(key))).status_code == 200
        slowest_s = max(slowest_s, time.monotonic() - asked_s)
    return slowest_s


async def publish(gate: Secured, key: str, body: object) -> httpx.Response:
    return await gate.http.post("/v1/topics/t/records", json=body, headers=bearer(key))


async def tried(gate: Secured, key: str, body: object) -> int:
    try:
        return (await publish(gate, key, body)).status_code
    except httpx.TransportError:  # refused, and the connection closed, before the whole body was sent
        return 429


async def flood(gate: Secured, key: str, sent: list[int]) -> None:
    while True:
        sent.append(await tried(gate, key, BODY))


async def test_a_flood_of_one_caller_delays_only_that_caller(tmp_path: Path) -> None:
    async with secured(tmp_path, request_timeout_s=5.0) as gate:
        await gate.admin.create_topic("t", partitions=1)
        ann, ben = await gate.key_of("ann", WRITES), await gate.key_of("ben", WRITES)
        await gate.admin.security.set_quota("ann", Quota(produce_bytes=64 * KIB))
        assert (await publish(gate, ben, SMALL)).status_code == 200
        began_s = time.monotonic()
        for _ in range(5):
            assert (await publish(gate, ben, SMALL)).status_code == 200
        quiet_s = (time.monotonic() - began_s) / 5
        sent: list[int] = []
        began_s = time.monotonic()
        floods = [asyncio.create_task(flood(gate, ann, sent)) for _ in range(8)]
        waits_s: list[float] = []
        try:
            while time.monotonic() - began_s < 4.0:
                asked_s = time.monotonic()
                assert (await publish(gate, ben, SMALL)).status_code == 200
                waits_s.append(time.monotonic() - asked_s)
            took_s = time.monotonic() - began_s
        finally:
            for task in floods:
                task.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
        taken_bytes = sent.count(200) * 16 * KIB
        assert taken_bytes <= 64 * KIB * (took_s + 1) + 8 * 16 * KIB, (
            "at most the rate, the burst and the first requests"
        )
        assert taken_bytes >= 64 * KIB * 2, "the throttled caller makes progress"
        assert set(sent) <= {200, 429, 503, 504}
        # The caller is in debt all the time; single publishes may be slow on a busy machine.
        assert median(waits_s) < allowed_s(0.5, quiet_s), "others do not wait for its debt"


async def test_waiting_requests_of_one_caller_leave_room_to_others(tmp_path: Path) -> None:
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


async def test_a_flood_of_wrong_keys_delays_no_other_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_cache, "FAILURE_DELAY_S", 0.2)
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t")
        known = await gate.key_of("ann", (("describe",), "topic", "t"))
        fresh = [await gate.key_of(f"new{number}", (("describe",), "topic", "t")) for number in range(5)]
        before = [await gate.key_of(f"old{number}", (("describe",), "topic", "t")) for number in range(5)]
        elsewhere = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
        codes: list[int] = []

        async def guess(number: int) -> None:
            for turn in range(4):
                wrong = f"tlk_{'abcdefgh'[turn]}{number:015}".translate(_DIGITS) + "_" + "w" * 43
                codes.append((await gate.http.get("/v1/topics/t", headers=bearer(wrong))).status_code)

        async with httpx.AsyncClient(base_url=str(gate.http.base_url), transport=elsewhere, timeout=30) as good:
            quiet_s = await slowest_described(good, before, "/v1/topics/t")
            began_s = time.monotonic()
            guesses = [asyncio.create_task(guess(number)) for number in range(90)]
            slowest_s = await slowest_described(good, [known, *fresh] * 3, "/v1/topics/t")
            await asyncio.gather(*guesses)
            took_s = time.monotonic() - began_s
        assert codes.count(401) <= 20 + 8 + took_s + 1, (
            "nodes verify only as many keys as the address may have failures"
        )
        assert set(codes) == {401, 429}
        assert slowest_s < allowed_s(3.0, quiet_s)
        callers: CallerCache = gate.app.state.callers
        assert len(callers) == 11, "failed credentials are not cached as callers"


@pytest.mark.parametrize("answer", [None, as_answer(b"", "500 Down")], ids=["hangs", "fails"])
async def test_tokens_with_unavailable_issuer_keys_delay_no_other_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    monkeypatch.setattr(verification_queue, "NODE_TIMEOUT_S", 2.0)
    monkeypatch.setattr(caller_cache, "VERIFICATION_TIMEOUT_S", 3.0)
    issuer = Issuer(*(f"x{number}" for number in range(128)))
    async with AsyncExitStack() as stack:
        publisher = await stack.enter_async_context(Publisher(answer))
        gate = await stack.enter_async_context(secured(tmp_path, node_settings=issuer.settings(publisher.url)))
        keys = [await gate.key_of(f"u{number}") for number in range(5)]
        before = [await gate.key_of(f"before{number}") for number in range(5)]
        assert (await gate.http.get("/v1/topics", headers=bearer(keys[0]))).status_code == 200
        quiet_s = await slowest_described(gate.http, before, "/v1/topics")
        strangers = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=str(gate.http.base_url),
                    transport=httpx.AsyncHTTPTransport(local_address=f"127.0.0.{1 + number}"),
                    timeout=30,
                )
            )
            for number in range(16)
        ]

        async def stranger(number: int) -> tuple[int, str | None, float]:
            began_s = time.monotonic()
            headers = bearer(issuer.token(key_id=f"x{number}"))
            answer = await strangers[number % 16].get("/v1/topics", headers=headers)
            return answer.status_code, answer.headers.get("Retry-After"), time.monotonic() - began_s

        flood = [asyncio.create_task(stranger(number)) for number in range(128)]
        await asyncio.sleep(0.5)
        slowest_s = await slowest_described(gate.http, keys, "/v1/topics")
        assert slowest_s < allowed_s(1.0, quiet_s), "verified callers and callers with a key do not wait for tokens"
        told = await asyncio.gather(*flood)
        assert {status for status, _, _ in told} == {503}
        assert all(after is not None for _, after, _ in told)
        assert max(took_s for _, _, took_s in told) < allowed_s(8.0, quiet_s), (
            "the gateway stops trying for the unverified caller"
        )


async def test_a_caller_throttled_for_too_long_gets_the_time_at_once(tmp_path: Path) -> None:
    async with secured(tmp_path, request_timeout_s=20.0) as gate:
        await gate.admin.create_topic("t", partitions=1)
        ann, ben = await gate.key_of("ann", WRITES), await gate.key_of("ben", WRITES)
        again = (await gate.admin.security.create_key("ann")).api_key
        await gate.admin.security.set_quota("ann", Quota(produce_bytes=8 * KIB))
        large = {"records": [{"value": "x" * (400 * KIB), "partition": 0}]}
        asked_s = time.monotonic()
        assert (await publish(gate, ann, SMALL)).status_code == 200
        quiet_s = time.monotonic() - asked_s
        assert (await publish(gate, ann, large)).status_code == 200
        many = {"records": [{"value": "x", "partition": 0}] * 100}  # sent as columns
        for key, body in (
            (ann, SMALL),
            (ann, many),
            (again, SMALL),
            (again, many),
        ):  # a client that knows of the debt, and one that does not
            began_s = time.monotonic()
            answer = await publish(gate, key, body)
            assert time.monotonic() - began_s < allowed_s(5.0, quiet_s), "the answer does not wait for the throttling"
            told = answer.json()
            assert (answer.status_code, told["code"], told["retryable"]) == (429, "overloaded", True)
            assert "the quota of 'ann' is used up" in told["detail"]
            assert 30 < int(answer.headers["Retry-After"]) <= 51
        assert (await publish(gate, ben, SMALL)).status_code == 200
        some = {"records": [{"value": "x" * (16 * KIB), "partition": 0}]}
        await gate.admin.security.set_quota("ben", Quota(produce_bytes=8 * KIB))
        for _ in range(4):
            assert (await publish(gate, ben, some)).status_code == 200, "a short debt is waited for"


async def test_a_throttled_caller_continues_soon_after_its_quota_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "CHECK_INTERVAL_S", 0.2)
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t", partitions=1)
        ann = await gate.key_of("ann", WRITES)
        again = (await gate.admin.security.create_key("ann")).api_key
        await gate.admin.security.set_quota("ann", Quota(produce_bytes=8 * KIB))
        large = {"records": [{"value": "x" * (400 * KIB), "partition": 0}]}
        assert (await publish(gate, ann, large)).status_code == 200
        for _ in range(3):
            for key in (ann, again):  # a client that knows of the quota, and one that learns of it by a refusal
                answer = await publish(gate, key, SMALL)
                assert answer.status_code == 429
                assert int(answer.headers["Retry-After"]) > 30
            await asyncio.sleep(0.3)
        await gate.admin.security.remove_quota("ann")
        for key in (ann, again):
            async with asyncio.timeout(10):
                while (await publish(gate, key, SMALL)).status_code != 200:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.05)
