from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
from fastapi import FastAPI

from tidelog_gateway.server.direct_entry import TELEMETRY_SDK, direct_entry


@pytest.mark.parametrize(
    ("kind", "has_sdk", "is_passed_by"),
    [("http", False, True), ("http", True, False), ("lifespan", False, False), ("websocket", False, False)],
)
async def test_the_frameworks_entry_point_is_bypassed_without_telemetry(
    kind: str,
    has_sdk: bool,
    is_passed_by: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entered: list[str] = []
    scopes: list[dict[str, Any]] = []

    class Framework(FastAPI):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            entered.append("framework")
            await super().__call__(scope, receive, send)

    async def stack(scope: Any, receive: Any, send: Any) -> None:
        entered.append("stack")
        scopes.append(scope)

    async def nothing(*_: Any) -> Any:
        raise AssertionError

    app = Framework()
    app.middleware_stack = stack
    monkeypatch.delitem(sys.modules, TELEMETRY_SDK, raising=False)
    if has_sdk:
        monkeypatch.setitem(sys.modules, TELEMETRY_SDK, ModuleType(TELEMETRY_SDK))
    await direct_entry(app)({"type": kind, "method": "GET", "path": "/", "headers": []}, nothing, nothing)
    assert entered == (["stack"] if is_passed_by else ["framework", "stack"])
    assert scopes[0]["app"] is app
