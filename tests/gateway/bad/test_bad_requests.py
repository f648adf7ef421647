"""Bad requests over raw sockets to a real gateway: each gets the documented answer in time, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.gateway.bad.case import COMPACTED, TOPIC, Case, head
from tests.gateway.bad.fields import BODIES, FIELDS
from tests.gateway.bad.framing import FRAMINGS, HEADS
from tests.gateway.bad.parameters import PARAMETERS

CASES: dict[str, Case] = HEADS | FRAMINGS | BODIES | FIELDS | PARAMETERS
ANSWER_S = 2.0
LIVE = head("GET /livez")


@pytest.fixture(scope="module")
def description(gateway_address: str) -> dict[str, Any]:
    with httpx.Client(base_url=f"http://{gateway_address}", timeout=30) as http:
        for name, changes in ((TOPIC, {"partitions": 2}), (COMPACTED, {"cleanup": "compact"})):
            assert http.post("/v1/topics", json={"name": name} | changes).status_code in {201, 409}
        found: dict[str, Any] = http.get("/openapi.json").json()
        return found


@pytest.fixture
async def streams(gateway_address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = gateway_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield reader, writer
    writer.transport.abort()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Return status, fields in lower case, and body of the next answer, without 100 (Continue)."""
    raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    status = int(raw.split(" ", 2)[1])
    if status == 100:
        return await answer_of(reader)
    pairs = (line.partition(": ") for line in raw.split("\r\n")[1:-2])
    fields = {name.lower(): value for name, _, value in pairs}
    return status, fields, await reader.readexactly(int(fields.get("content-length", "0")))


@pytest.mark.parametrize("name", CASES)
async def test_a_bad_request_is_answered(
    name: str, description: dict[str, Any], streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    case = CASES[name]
    reader, writer = streams
    began_s = time.monotonic()
    writer.write(case.data)
    async with asyncio.timeout(10 * ANSWER_S):
        status, fields, body = await answer_of(reader)
    took_s = time.monotonic() - began_s
    assert status == case.status, body
    assert took_s < ANSWER_S
    if case.operation is not None:
        method, path = case.operation
        assert str(status) in description["paths"][path][method]["responses"]
    if status >= 400:
        problem = json.loads(body)
        assert fields["content-type"] == "application/problem+json"
        assert problem["status"] == status
        assert problem["code"]
        assert problem["code"] == (case.code or problem["code"])
        assert problem["request_id"] == fields["x-request-id"]
        assert len(problem["detail"]) > 10
        text = json.dumps(problem, ensure_ascii=False)
        for part in case.says:
            assert part in text
    if "close" not in fields.get("connection", "") and status != 413:  # after a 413 the gateway still reads the body
        writer.write(LIVE)
        assert (await answer_of(reader))[0] == 200


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if len(case.data) < 30_000])
async def test_a_bad_request_after_a_good_one_is_answered_in_its_turn(
    name: str, description: dict[str, Any], streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    case = CASES[name]
    reader, writer = streams
    writer.write(LIVE + case.data)
    async with asyncio.timeout(10 * ANSWER_S):
        assert (await answer_of(reader))[0] == 200
        assert (await answer_of(reader))[0] == case.status


def test_refused_requests_store_nothing(description: dict[str, Any], gateway_address: str) -> None:
    with httpx.Client(base_url=f"http://{gateway_address}", timeout=30) as http:
        for topic in (TOPIC, COMPACTED):
            ends = http.get(f"/v1/topics/{topic}/offsets").json()["offsets"]
            assert not any(end["high_watermark"] for end in ends), description["info"]
        assert http.get("/v1/groups/bad/offsets").json()["offsets"] == []
        assert http.get("/v1/topics/never").status_code == 404


def test_there_are_enough_requests() -> None:
    assert len(CASES) >= 250
    assert len(CASES) == sum(map(len, (HEADS, FRAMINGS, BODIES, FIELDS, PARAMETERS)))
