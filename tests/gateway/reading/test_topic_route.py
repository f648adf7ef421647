"""The formats of a response over a whole topic, and waiting for records."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import orjson
import pyarrow as pa
import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog
from tests.gateway.reading.topics import EVERYTHING, PATH, fill, places
from tests.gateway.test_app import problem

from tidelog_gateway.requests.content_negotiation import ARROW, CSV, NDJSON
from tidelog_proto.batch.record_batch import columns_of


@pytest.fixture(autouse=True)
async def filled(log: FakeLog) -> None:
    await fill(log)


async def test_other_forms_have_headers(api: httpx.AsyncClient) -> None:
    seen: list[tuple[int, int]] = []
    cursor: dict[str, str] = {}
    for accept in (NDJSON, ARROW, CSV, NDJSON):
        response = await api.get(PATH, params={"max_records": 3, **cursor}, headers={"Accept": accept})
        assert response.headers["vary"] == "Accept"
        if accept == ARROW:
            table = pa.ipc.open_stream(response.content).read_all()
            rows: list[Any] = table.to_pylist()
            seen += [(row["partition"], row["offset"]) for row in rows]
        elif accept == NDJSON:
            lines = [orjson.loads(line) for line in response.content.splitlines()]
            seen += [(line["partition"], line["offset"]) for line in lines]
        else:
            seen += [tuple(map(int, line.split(",")[:2])) for line in response.text.splitlines()[1:]]  # type: ignore[misc]
        caught_up = response.headers["tidelog-caught-up"]
        assert caught_up == ("true" if len(seen) == len(EVERYTHING) else "false")
        cursor = {"cursor": response.headers["tidelog-next-cursor"]}
    assert sorted(seen) == EVERYTHING


async def test_waiting_for_a_record_in_any_partition(api: httpx.AsyncClient, log: FakeLog) -> None:
    cursor = (await api.get(PATH)).json()["next_cursor"]
    waiting = asyncio.create_task(api.get(PATH, params={"cursor": cursor, "wait_ms": 30_000}))
    while not log.consumers:  # noqa: ASYNC110 # the log of tests has no event for it
        await asyncio.sleep(0.01)
    await log.append("t", 1, columns_of([b"late"]))
    document = (await waiting).json()
    assert (places(document), document["caught_up"]) == ([(1, 0)], True)


async def test_a_wait_ends(api: httpx.AsyncClient) -> None:
    began_s = time.monotonic()
    document = (await api.get(PATH, params={"from": "latest", "wait_ms": 300})).json()
    assert 0.3 <= time.monotonic() - began_s < 3
    assert (document["records"], document["caught_up"]) == ([], True)
    filtered = await api.get(PATH, params={"key": "none", "wait_ms": 100})
    assert (filtered.json()["records"], filtered.json()["caught_up"]) == ([], True)


async def test_waits_are_bounded(open_api: OpenApi) -> None:
    async with open_api(ws_connections_max=1) as api:
        first = asyncio.create_task(api.get(PATH, params={"from": "latest", "wait_ms": 1_000}))
        await asyncio.sleep(0.2)
        second = await api.get(PATH, params={"from": "latest", "wait_ms": 1_000})
        problem(second, 429, "too_many_streams")
        assert (await first).status_code == 200
        assert (await api.get(PATH, params={"from": "latest", "wait_ms": 10})).status_code == 200
