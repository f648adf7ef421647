from __future__ import annotations

import asyncio

import httpx
import pytest
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog.errors import NodeUnreachableError
from tidelog.model import Node
from tidelog_proto.flow.fair_scheduler import Turns


async def test_livez_does_not_depend_on_the_log(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.fault = NodeUnreachableError("nobody there")
    assert (await api.get("/livez")).json() == {"status": "alive"}


async def test_readyz_needs_a_node(api: httpx.AsyncClient, log: FakeLog) -> None:
    assert (await api.get("/readyz")).json() == {"status": "ready", "nodes": 1}
    log.fault = NodeUnreachableError("nobody there")
    response = await api.get("/readyz")
    problem(response, 503, "not_ready")
    assert "nobody there" in response.json()["detail"]
    assert response.headers["retry-after"]


async def test_without_a_quorum_readyz_is_degraded(api: httpx.AsyncClient, log: FakeLog) -> None:
    """Committed records can be read, so a load balancer must not remove every gateway."""
    log.nodes = (
        Node("node-1", "127.0.0.1", 7400, no_quorum=7),
        Node("node-2", "127.0.0.1", 7401, no_quorum=4),
        Node("node-3", "127.0.0.1", 7402, alive=False),
    )
    response = await api.get("/readyz")
    assert response.status_code == 200
    assert response.json() == {"status": "degraded", "nodes": 3, "no_quorum": 7, "nodes_away": ["node-3"]}


async def test_pages_of_metrics_are_made_in_turns(api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page takes milliseconds, so no turn of the event loop makes several."""
    turns, next_slice = list[object](), Turns.next_slice

    async def counted(self: Turns, reader: object, caller: object = None, cost_s: float = 0.0) -> None:
        turns.append(caller)
        await next_slice(self, reader, caller, cost_s)

    monkeypatch.setattr(Turns, "next_slice", counted)
    pages = await asyncio.gather(*(api.get("/metrics") for _ in range(4)))
    assert [page.status_code for page in pages] == [200] * 4
    assert turns == ["127.0.0.1"] * 4
