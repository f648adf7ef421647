"""A caller without `produce` is refused before a large body is read, and the refusal is audited."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.gateway.secured import bearer, secured

from tidelog_gateway.bodies.content_type import TAKEN
from tidelog_gateway.publishing import route

LARGE = b'{"records":[' + b"{}," * 300_000 + b"{}]}"
HEAD = {"Content-Type": "application/json"}


async def test_a_caller_without_the_permission_is_refused_before_its_body_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(route, "records_in", None)
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t")
        key = await gate.key_of("reader", (("consume", "describe"), "topic", "t"))
        answer = await gate.http.post("/v1/topics/t/records", content=LARGE, headers=bearer(key) | HEAD)
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert any('"reader"' in line and "access_test" in line for line in caplog.messages), "the refusal is audited"


async def test_a_caller_with_the_permission_gets_the_error_of_the_limit(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t")
        key = await gate.key_of("writer", (("produce",), "topic", "t"))
        answer = await gate.http.post("/v1/topics/t/records", content=LARGE, headers=bearer(key) | HEAD)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/records"]


async def test_a_caller_without_the_permission_is_refused_before_any_body_is_read(tmp_path: Path) -> None:
    """The body is announced and never sent, so a route that waits for it would not answer."""
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t")
        reader_key = await gate.key_of("reader", (("consume", "describe"), "topic", "t"))
        writer_key = await gate.key_of("writer", (("produce",), "topic", "t"))
        port = gate.port
        for media_type in TAKEN:
            head = f"POST /v1/topics/t/records HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {media_type}\r\n"
            head += "Content-Length: 1000\r\nExpect: 100-continue\r\nAuthorization: Bearer "
            for key, status in ((reader_key, b"403"), (writer_key, b"100")):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"{head}{key}\r\n\r\n".encode())
                answer = await asyncio.wait_for(reader.readline(), 10)
                assert answer.split()[1] == status, (media_type, answer)
                writer.close()
