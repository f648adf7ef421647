"""A caller without `produce` is refused before a large body is read, and the refusal is audited."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.gateway.secured import bearer, secured

from tidelog_gateway.bodies import route

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
    assert any('"reader"' in line and "access_test" in line for line in caplog.messages), "it is audited"


async def test_a_caller_with_the_permission_gets_the_error_of_the_limit(tmp_path: Path) -> None:
    async with secured(tmp_path) as gate:
        await gate.admin.create_topic("t")
        key = await gate.key_of("writer", (("produce",), "topic", "t"))
        answer = await gate.http.post("/v1/topics/t/records", content=LARGE, headers=bearer(key) | HEAD)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == ["/records"]
