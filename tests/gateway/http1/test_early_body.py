"""The body of a request with the head of the request before is received before the request begins."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.gateway.conftest import Serve, Served
from tests.gateway.fake_log import FakeLog
from tests.gateway.http1.test_body_receiver import BODY, LAST, ROOM_BYTES, VALUES, answer_of, answer_to, request, values

from tidelog_gateway.http1.early_body import EarlyBody
from tidelog_gateway.server import http_protocol

REQUEST = request()
HALF = REQUEST[: len(REQUEST) // 2]


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[EarlyBody]:
    """The bodies that were received early."""
    found: list[EarlyBody] = []

    class Noted(EarlyBody):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.append(self)

    monkeypatch.setattr(http_protocol, "EarlyBody", Noted)
    return found


@contextlib.asynccontextmanager
async def repeating(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection whose next body is received early if its request has the same head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    try:
        async with asyncio.timeout(20):
            for part in (REQUEST[:200], REQUEST[200:]):  # the route takes the body before it is complete
                writer.write(part)
                await asyncio.sleep(0.02)
            assert (await answer_of(reader)).startswith(b"HTTP/1.1 200 ")
            yield reader, writer
    finally:
        writer.close()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 3 * len(BODY)), max_size=6))
async def test_repeated_requests_are_answered_in_order(
    serve: Serve, log: FakeLog, early: list[EarlyBody], cuts: list[int]
) -> None:
    log.logs["t"] = [[]]
    data = REQUEST * 3 + LAST
    places = [0, 200, *sorted(min(200 + cut, len(data)) for cut in cuts), len(data)]
    async with serve() as served:
        answer = await answer_to(served, *(data[a:b] for a, b in pairwise(places)), pause_s=0.005)
    assert re.findall(rb"HTTP/1\.1 ([0-9]+)", answer) == [b"200"] * 4
    assert values(log) == VALUES * 3
    early.clear()


async def test_only_a_repeated_head_is_accepted_without_asking(
    serve: Serve, log: FakeLog, early: list[EarlyBody]
) -> None:
    log.logs["t"] = [[]]
    async with serve() as served, repeating(served) as (reader, writer):
        assert not early
        for data, count in ((REQUEST, 1), (request(fields=b"X-Other: 1\r\n"), 1), (REQUEST, 1), (REQUEST, 2)):
            writer.write(data)
            assert (await answer_of(reader)).startswith(b"HTTP/1.1 200 ")
            assert len(early) == count
    assert values(log) == VALUES * 5


async def test_a_body_that_contains_the_repeated_head_is_not_a_request(serve: Serve, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    head = REQUEST[: -len(BODY)]
    value = head * 400
    raw = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
    async with serve() as served, repeating(served) as (reader, writer):
        writer.write(raw + b"Content-Length: %d\r\n\r\n" % len(value))
        await asyncio.sleep(0.05)
        writer.write(value)
        assert (await answer_of(reader)).startswith(b"HTTP/1.1 200 ")
    assert values(log) == [*VALUES, value]


async def test_an_incomplete_body_is_408_and_returns_its_reservation(
    serve: Serve, log: FakeLog, early: list[EarlyBody]
) -> None:
    log.logs["t"] = [[]]
    async with serve(body_timeout_s=0.2, body_bytes_max=ROOM_BYTES, in_flight_bytes_max=ROOM_BYTES) as served:
        for number in range(3):
            async with repeating(served) as (reader, writer):
                writer.write(HALF)
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"\r\nconnection: close\r\n" in answer.lower()
            assert len(early) == number + 1
    assert values(log) == VALUES * 3


async def test_a_body_of_a_client_that_disconnects_is_not_published(
    serve: Serve, log: FakeLog, early: list[EarlyBody]
) -> None:
    log.logs["t"] = [[]]
    async with serve(body_bytes_max=ROOM_BYTES, in_flight_bytes_max=ROOM_BYTES) as served:
        for _ in range(3):
            async with repeating(served) as (_, writer):
                writer.write(HALF)
                await asyncio.sleep(0.05)
                writer.transport.abort()
                await asyncio.sleep(0.05)
    assert len(early) == 3
    assert values(log) == VALUES * 3


async def test_without_room_in_the_budget_the_request_is_refused_as_any_other(
    serve: Serve, log: FakeLog, early: list[EarlyBody]
) -> None:
    log.logs["t"] = [[]]
    async with (
        serve(body_bytes_max=ROOM_BYTES, in_flight_bytes_max=ROOM_BYTES) as served,
        repeating(served) as (_, first),
        repeating(served) as (reader, second),
    ):
        first.write(HALF)
        await asyncio.sleep(0.05)
        second.write(REQUEST)
        assert (await answer_of(reader)).startswith(b"HTTP/1.1 429 ")
        first.write(REQUEST[len(HALF) :])
        await asyncio.sleep(0.05)
    assert len(early) == 1
    assert values(log) == VALUES * 3


async def test_a_new_connection_replaces_one_that_waits_for_its_body(
    serve: Serve, log: FakeLog, early: list[EarlyBody]
) -> None:
    log.logs["t"] = [[]]
    async with serve(connections_max=1, address_connections_max=0) as served, repeating(served) as (reader, writer):
        writer.write(HALF)
        await asyncio.sleep(0.05)
        assert (await answer_to(served, LAST)).startswith(b"HTTP/1.1 200 ")
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
    assert len(early) == 1
    assert values(log) == VALUES


async def test_a_stop_ends_an_incomplete_body(serve: Serve, log: FakeLog, early: list[EarlyBody]) -> None:
    log.logs["t"] = [[]]
    async with serve(stop_timeout_s=2) as served, repeating(served) as (reader, writer):
        writer.write(HALF)
        await asyncio.sleep(0.05)
        await served.stop()
        answer = await reader.read()
    assert len(early) == 1
    assert answer.startswith(b"HTTP/1.1 503 ") or not answer
    assert values(log) == VALUES


@pytest.mark.parametrize(
    "fields",
    [
        b"Request-Timeout-Ms: 5000\r\n",
        b"Expect: 100-continue\r\n",
        b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n",
    ],
)
async def test_heads_whose_admission_depends_on_more_are_admitted_each_time(
    serve: Serve, log: FakeLog, early: list[EarlyBody], fields: bytes
) -> None:
    log.logs["t"] = [[]]
    data = request(fields=fields)
    async with serve() as served, asyncio.timeout(20):
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for _ in range(3):
            writer.write(data[:400])
            await asyncio.sleep(0.02)
            writer.write(data[400:])
            while (answer := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 "):
                pass
            assert answer.startswith(b"HTTP/1.1 200 ")
            await reader.readexactly(int(re.findall(rb"content-length: ([0-9]+)", answer.lower())[0]))
        writer.close()
    assert not early
    assert values(log) == VALUES * 3
