from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.gateway.conftest import Serve

from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.flow.request_pipeline import RequestPipeline
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.settings import GatewaySettings


class Application:
    """Answers with the length of its body, after waiting for `go`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.entered = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        assert not message["more_body"], "the body is one message"
        self.bodies.append(message["body"])
        self.entered.set()
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Exchange:
    """One request with its body in chunks; a chunk of None never arrives, one of "gone" is a disconnect."""

    def __init__(self, *chunks: bytes | str | None, headers: dict[str, str] | None = None) -> None:
        self.chunks = list(chunks)
        self.headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.sent: list[Message] = []
        self.taken = 0

    async def run(self, app: RequestPipeline) -> Exchange:
        scope = {"type": "http", "method": "POST", "path": "/", "raw_path": b"/", "query_string": b""}
        await app(scope | {"headers": self.headers}, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        chunk = self.chunks[self.taken]
        self.taken += 1
        if chunk is None:
            await asyncio.Event().wait()
        if chunk == "gone":
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": self.taken < len(self.chunks)}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def problem(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.sent[1]["body"])
        return document

    def header(self, name: bytes) -> bytes | None:
        return dict(self.sent[0]["headers"]).get(name)


CHUNKED = {"transfer-encoding": "chunked"}


def limited(inner: Application, budget: RequestBudget | None = None, **settings: Any) -> RequestPipeline:
    checked = GatewaySettings(body_bytes_max=1024, **settings)
    budget, outgoing = budget or RequestBudget(1 << 20), ResponseBudget(8 << 20, 8 << 20)
    return RequestPipeline(inner, settings=checked, budget=budget, outgoing=outgoing, metrics=Metrics(budget, outgoing))


async def test_bodies_arrive_complete_and_answers_have_an_id() -> None:
    inner = Application()
    first = await Exchange(b"a" * 500, b"b" * 524, headers=CHUNKED).run(limited(inner))
    second = await Exchange(b"xy", headers={"content-length": "2"}).run(limited(inner))
    await Exchange().run(limited(inner))
    assert inner.bodies == [b"a" * 500 + b"b" * 524, b"xy", b""]
    ids = {first.header(b"x-request-id"), second.header(b"x-request-id")}
    assert len(ids) == 2
    assert None not in ids


async def test_an_announced_length_is_refused_before_a_byte_is_read() -> None:
    inner = Application()
    exchange = await Exchange(None, headers={"content-length": "1025"}).run(limited(inner))
    assert (exchange.status, exchange.taken, inner.bodies) == (413, 0, [])
    assert exchange.problem["code"] == "body_too_large"


async def test_a_chunked_body_is_refused_when_it_exceeds_the_limit() -> None:
    exchange = await Exchange(b"x" * 1000, b"x" * 25, b"x", headers=CHUNKED).run(limited(Application()))
    assert (exchange.status, exchange.taken) == (413, 2)


@pytest.mark.parametrize("length", ["-1", "x", "1.5", "", "²"])
async def test_a_length_that_is_not_a_number_is_refused(length: str) -> None:
    exchange = await Exchange(b"", headers={"content-length": length}).run(limited(Application()))
    assert exchange.status == 422


async def test_an_incomplete_body_is_408() -> None:
    exchange = await Exchange(b"x", None, headers=CHUNKED).run(limited(Application(), body_timeout_s=0.01))
    assert exchange.status == 408
    assert exchange.problem["code"] == "request_timeout"
    assert exchange.header(b"connection") == b"close"


async def test_a_client_that_disconnects_is_not_answered() -> None:
    inner = Application()
    exchange = await Exchange(b"x", "gone", headers=CHUNKED).run(limited(inner))
    assert exchange.sent == []
    assert inner.bodies == []


@pytest.mark.parametrize("headers", [CHUNKED, {"content-length": "600"}])
async def test_the_budget_is_shared_and_returned(headers: dict[str, str]) -> None:
    budget = RequestBudget(1000)
    inner = Application()
    app = limited(inner, budget)
    inner.go.clear()
    first = asyncio.create_task(Exchange(b"x" * 600, headers=headers).run(app))
    await inner.entered.wait()
    assert budget.used_bytes == 600
    refused = await Exchange(b"x" * 600, headers=headers).run(app)
    assert refused.status == 429
    assert refused.problem["retryable"] is True
    assert refused.header(b"retry-after") == b"1"
    assert budget.used_bytes == 600, "a refused request leaves nothing reserved"
    inner.go.set()
    assert (await first).status == 200
    assert budget.used_bytes == 0
    assert (await Exchange(b"x" * 600, headers=headers).run(app)).status == 200


async def test_the_budget_is_returned_after_failures() -> None:
    budget = RequestBudget(1000)
    await Exchange(b"x" * 600, None, headers=CHUNKED).run(limited(Application(), budget, body_timeout_s=0.01))
    await Exchange(b"x" * 600, "gone", headers=CHUNKED).run(limited(Application(), budget))

    class Broken(Application):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await Exchange(b"x" * 600, headers=CHUNKED).run(limited(Broken(), budget))
    assert budget.used_bytes == 0


async def read_response(reader: asyncio.StreamReader) -> str:
    async with asyncio.timeout(10):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(line for line in head.split("\r\n") if line.lower().startswith("content-length"))
        return head + (await reader.readexactly(int(length.split(":")[1]))).decode()


async def test_a_large_chunked_body_over_a_socket_is_answered_while_it_is_sent(serve: Serve) -> None:
    async with serve(body_bytes_max=1024) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"800\r\n" + b"x" * 2048 + b"\r\n")
        answer = await read_response(reader)
        assert answer.startswith("HTTP/1.1 413")
        assert '"code":"body_too_large"' in answer
        writer.write(b"0\r\n\r\nGET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await read_response(reader)).startswith("HTTP/1.1 200"), (
            "the rest was discarded, and the connection stays open"
        )
        writer.close()


async def test_a_slow_body_is_answered_and_the_connection_closed(serve: Serve) -> None:
    async with serve(body_timeout_s=0.1) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"POST /v1/topics HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
        assert (await read_response(reader)).startswith("HTTP/1.1 408")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
