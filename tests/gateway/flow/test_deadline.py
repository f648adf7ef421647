"""`Request-Timeout-Ms`: the answer in time has the results so far."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from tests.gateway.conftest import OpenApi, Serve
from tests.gateway.fake_log import FakeLog

from tidelog_gateway.flow.deadline import Deadline

BODY = {"records": [{"value": "a"}]}
PUBLISH = "/v1/topics/t/records"
FETCH = "/v1/topics/t/partitions/0/records"
SOON = {"Request-Timeout-Ms": "100"}


async def test_a_publish_that_waits_ends_with_an_unknown_outcome(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    log.enqueued.clear()
    async with open_api() as client:
        began_s = time.monotonic()
        answer = await client.post(PUBLISH, json=BODY, headers=SOON)
        assert time.monotonic() - began_s < 5
        assert (answer.status_code, answer.json()["code"]) == (504, "deadline_exceeded")
        assert answer.json()["retryable"] is False
        assert len(answer.headers["x-request-id"]) == 16
        log.enqueued.set()
        assert (await client.post(PUBLISH, json=BODY, headers=SOON)).status_code == 200


async def test_a_fetch_that_waits_ends_with_a_retryable_answer(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with open_api() as client:
        answer = await client.get(FETCH, params={"offset": 0, "wait_ms": 20_000}, headers=SOON)
        assert (answer.status_code, answer.json()["code"]) == (503, "deadline_exceeded")
        assert answer.headers["retry-after"]
        page = (await client.get("/metrics")).text
    assert 'status="503"' in page


async def test_a_request_in_time_is_answered_normally(open_api: OpenApi, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with open_api() as client:
        for method, path, body in (("POST", PUBLISH, BODY), ("GET", FETCH, None), ("GET", "/v1/topics", None)):
            answer = await client.request(method, path, json=body, headers={"Request-Timeout-Ms": "20000"})
            assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("method", "path", "has_key", "advice"),
    [
        ("POST", PUBLISH, False, "use an Idempotency-Key"),
        ("POST", PUBLISH, True, "send it again"),
        ("DELETE", "/v1/topics/t", False, "send it again"),
        ("POST", "/v1/topics", False, "look whether it was executed"),
    ],
)
def test_the_advice_after_an_expired_time_fits_the_route(method: str, path: str, has_key: bool, advice: str) -> None:
    deadline = Deadline(100)
    deadline.handed_on = True
    assert advice in deadline.problem(method, path, has_key=has_key).detail


async def test_a_late_body_was_not_accepted(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with serve() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/topics/t/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Request-Timeout-Ms: 200\r\nContent-Length: 100\r\n\r\n{"
        )
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        writer.close()
    assert log.appends == 0


@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "1s", "600001", "9" * 100, "٣"])
async def test_an_invalid_time_limit_is_refused(open_api: OpenApi, log: FakeLog, value: str) -> None:
    log.logs["t"] = [[]]
    async with open_api() as client:
        headers = [(b"Request-Timeout-Ms", value.encode())]
        answer = await client.post(PUBLISH, json=BODY, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request_timeout")
        twice = await client.get("/v1/topics", headers=[("Request-Timeout-Ms", "5"), ("Request-Timeout-Ms", "5")])
        assert twice.status_code == 400
    assert log.appends == 0


async def test_a_stream_that_has_begun_is_not_interrupted(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    async with (
        serve(stream_heartbeat_s=0.2) as served,
        httpx.AsyncClient(base_url=served.http, timeout=10) as client,
        client.stream("GET", "/v1/topics/t/stream", headers={"Request-Timeout-Ms": "1000"}) as answer,
    ):
        assert answer.status_code == 200
        began_s = time.monotonic()
        async for _ in answer.aiter_raw():
            if time.monotonic() - began_s > 1.5:
                break
        assert time.monotonic() - began_s > 1.5
