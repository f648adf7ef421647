from __future__ import annotations

import httpx
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog.errors import NodeUnreachableError


async def test_alive_whatever_the_log_does(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.fault = NodeUnreachableError("nobody there")
    assert (await api.get("/livez")).json() == {"status": "alive"}


async def test_ready_only_with_a_node(api: httpx.AsyncClient, log: FakeLog) -> None:
    assert (await api.get("/readyz")).json() == {"status": "ready", "nodes": 1}
    log.fault = NodeUnreachableError("nobody there")
    response = await api.get("/readyz")
    problem(response, 503, "not_ready")
    assert "nobody there" in response.json()["detail"]
    assert response.headers["retry-after"]
