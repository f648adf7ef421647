from __future__ import annotations

import httpx
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog.errors import NodeUnreachableError
from tidelog.model import ClusterStatus, Node, Partition, Topic


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


async def test_without_a_quorum_it_is_ready_and_says_what_is_missing(api: httpx.AsyncClient, log: FakeLog) -> None:
    """What is committed can be read: a load balancer must not take every gateway out."""
    nodes = (Node("node-1", "127.0.0.1", 7400), Node("node-2", "127.0.0.1", 7401, alive=False))
    states = ["no quorum"] * 30 + ["active"]
    partitions = tuple(Partition(number, "node-1", 0, (), 0, 0, 0, state) for number, state in enumerate(states))
    log.status = ClusterStatus(bytes(16), nodes, (Topic("t", bytes(16), partitions),))
    response = await api.get("/readyz")
    assert response.status_code == 200
    said = response.json()
    assert said.pop("no_quorum_partitions") == [f"t/{number}" for number in range(20)]
    assert said == {"status": "degraded", "nodes": 2, "no_quorum": 30, "nodes_away": ["node-2"]}
