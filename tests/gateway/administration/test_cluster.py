from __future__ import annotations

import httpx
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog
from tests.gateway.history.test_sampler import sampled
from tests.gateway.test_app import problem

from tidelog.errors import ForbiddenError
from tidelog.model import Node


async def test_the_answer_has_each_nodes_disk_and_state(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.nodes = (
        Node(
            "a",
            "h",
            7400,
            "z1",
            state="running",
            roles=("ingestion",),
            disk_free_bytes=5,
            ca_ends_us=2_000_000,
            level=3,
        ),
        Node("b", "h", 7402, alive=False, state="no answer"),
    )
    answer = (await api.get("/v1/cluster")).json()
    first, second = answer["nodes"]
    assert (answer["level"], first["level"], second["level"]) == (2, 3, None)
    assert (first["zone"], first["roles"], first["disk_free_bytes"]) == ("z1", ["ingestion"], 5)
    assert (first["ca_ends_ms"], first["certificate_ends_ms"]) == (2000, None)
    assert (second["alive"], second["state"]) == (False, "no answer")


async def test_a_gateway_without_authentication_names_no_principal(api: httpx.AsyncClient) -> None:
    told = (await api.get("/v1/me")).json()
    assert (told["auth"], told["principal"], told["ui"]) == ("none", None, "on")


async def test_history_has_one_value_for_each_time(open_api: OpenApi, log: FakeLog) -> None:
    log.logs = {"t": [[]]}
    async with open_api(ui_interval_s=600) as api:
        await sampled(api)
        whole = (await api.get("/v1/history")).json()
        count = len(whole["times_ms"])
        assert count == 1
        for name in ("records_per_s", "size_bytes", "requests_per_s", "published_per_s", "publish_p99_ms"):
            assert len(whole[name]) == count, name
        one = (await api.get("/v1/history", params={"topic": "t"})).json()
        assert len(one["records_per_s"]) == len(one["size_bytes"]) == count
        assert one["requests_per_s"] is None
        assert one["size_bytes"][-1] == 0
        log.fault = ForbiddenError("no")
        problem(await api.get("/v1/history"), 403, "forbidden")


async def test_history_of_an_unknown_topic_is_refused(api: httpx.AsyncClient) -> None:
    problem(await api.get("/v1/history", params={"topic": "none"}), 404, "unknown_topic")
    problem(await api.get("/v1/history", params={"topic": "__meta"}), 422, "invalid_topic")


async def test_a_node_is_drained_and_taken_back(api: httpx.AsyncClient) -> None:
    answer = await api.patch("/v1/cluster/nodes/node-1", json={"draining": True})
    assert answer.json() == {"node_id": "node-1", "draining": True, "partitions": 7}
    assert (await api.get("/v1/cluster")).json()["nodes"][0]["draining"] is True
    await api.patch("/v1/cluster/nodes/node-1", json={"draining": False})
    assert (await api.get("/v1/cluster")).json()["nodes"][0]["draining"] is False
    problem(await api.patch("/v1/cluster/nodes/none", json={"draining": True}), 422, "invalid_request")
    problem(await api.patch("/v1/cluster/nodes/node-1", json={"draining": "yes"}), 422, "invalid_request")
