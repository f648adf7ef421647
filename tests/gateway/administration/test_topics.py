from __future__ import annotations

import base64

import httpx
import pytest
from tests.gateway.fake_log import FakeLog
from tests.gateway.test_app import problem

from tidelog_proto.limits import PARTITIONS_MAX


async def test_a_topic_is_created_listed_altered_and_deleted(api: httpx.AsyncClient) -> None:
    created = await api.post("/v1/topics", json={"name": "flights", "partitions": 2, "flush": "never"})
    assert created.status_code == 201
    assert created.headers["location"] == "/v1/topics/flights"
    assert created.json()["partitions"] == 2
    problem(await api.post("/v1/topics", json={"name": "flights"}), 409, "topic_exists")
    described = (await api.get("/v1/topics/flights")).json()
    assert [each["partition"] for each in described["partition_states"]] == [0, 1]
    assert described["topic_id"] == "00" * 16
    altered = await api.patch("/v1/topics/flights", json={"partitions": 3})
    assert altered.json()["partitions"] == 3
    assert (await api.delete("/v1/topics/flights")).status_code == 204
    problem(await api.get("/v1/topics/flights"), 404, "unknown_topic")
    problem(await api.delete("/v1/topics/flights"), 404, "unknown_topic")


async def test_paging_lists_all_topics_and_survives_changes(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs = {f"t{index}": [[]] for index in range(5)}
    first = (await api.get("/v1/topics", params={"limit": 2})).json()
    assert [topic["name"] for topic in first["topics"]] == ["t0", "t1"]
    del log.logs["t1"]
    second = (await api.get("/v1/topics", params={"limit": 2, "cursor": first["next_cursor"]})).json()
    assert [topic["name"] for topic in second["topics"]] == ["t2", "t3"]
    last = (await api.get("/v1/topics", params={"limit": 2, "cursor": second["next_cursor"]})).json()
    assert [topic["name"] for topic in last["topics"]] == ["t4"]
    assert last["next_cursor"] is None
    exact = (await api.get("/v1/topics", params={"limit": 4})).json()
    assert exact["next_cursor"] is None


@pytest.mark.parametrize("cursor", ["!", "a", base64.b64encode(b"\xff\xfe").decode(), "x" * 500])
async def test_a_malformed_cursor_is_refused(api: httpx.AsyncClient, cursor: str) -> None:
    response = await api.get("/v1/topics", params={"cursor": cursor})
    problem(response, 422, "invalid_request")
    assert response.json()["errors"][0]["parameter"] == "cursor"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({}, "/name"),
        ({"name": 5}, "/name"),
        ({"name": "a", "partitions": 0}, "/partitions"),
        ({"name": "a", "partitions": PARTITIONS_MAX + 1}, "/partitions"),
        ({"name": "a", "partitions": "1"}, "/partitions"),
        ({"name": "a", "flush": "sometimes"}, "/flush"),
        ({"name": "a", "segment_bytes": 1}, "/segment_bytes"),
        ({"name": "a", "retention_bytes": -1}, "/retention_bytes"),
        ({"name": "a", "partitons": 1}, "/partitons"),
        ({"name": "a", "retention_ms": -1}, "/retention_ms"),
        ({"name": "a", "retention_ms": 2**60}, "/retention_ms"),
        ({"name": "a", "cleanup": "burn"}, "/cleanup"),
        ({"name": "a", "dirty_percent": 0}, "/dirty_percent"),
        ({"name": "a", "tombstone_retention_ms": 0}, "/tombstone_retention_ms"),
        ({"name": "a", "hold": "yes"}, "/hold"),
    ],
)
async def test_invalid_configurations_are_refused(
    api: httpx.AsyncClient, body: dict[str, object], pointer: str
) -> None:
    response = await api.post("/v1/topics", json=body)
    problem(response, 422, "invalid_request")
    assert [error["pointer"] for error in response.json()["errors"]] == [pointer]


async def test_an_empty_change_is_refused(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs["t"] = [[]]
    problem(await api.patch("/v1/topics/t", json={}), 422, "invalid_request")
    problem(await api.patch("/v1/topics/t", json={"name": "other"}), 422, "invalid_request")
    problem(await api.get("/v1/topics", params={"limit": 0}), 422, "invalid_request")
