from __future__ import annotations

import httpx
import pytest

from tidelog_gateway.unsupported import takes


@pytest.fixture
async def topic(api: httpx.AsyncClient) -> str:
    assert (await api.post("/v1/topics", json={"name": "t", "partitions": 1})).status_code == 201
    return "/v1/topics/t"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("GET", "/partitions/0/records"), ("POST", "/records"), ("GET", "/offsets"), ("DELETE", "")],
)
async def test_an_unknown_query_parameter_is_refused(
    api: httpx.AsyncClient, topic: str, method: str, path: str
) -> None:
    body = {"records": [{"value": "x"}]} if method == "POST" else None
    refused = await api.request(method, f"{topic}{path}", params={"max_record": "1"}, json=body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["parameter"] == "max_record"
    assert "is unknown; " in refused.json()["errors"][0]["detail"]
    assert (await api.get(topic)).status_code == 200, "nothing was done"


async def test_a_query_parameter_that_is_given_twice_is_refused(api: httpx.AsyncClient, topic: str) -> None:
    refused = await api.get(f"{topic}/partitions/0/records?offset=0&offset=1")
    assert refused.status_code == 422
    assert refused.json()["errors"] == [{"parameter": "offset", "detail": "is given more than once"}]


async def test_an_answer_in_another_media_type_is_refused(api: httpx.AsyncClient, topic: str) -> None:
    refused = await api.get(topic, headers={"Accept": "application/xml"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    assert (await api.get(topic, headers={"Accept": "text/html, */*;q=0.1"})).status_code == 200


async def test_health_takes_any_request(api: httpx.AsyncClient) -> None:
    headers = {"Accept": "text/plain", "Idempotency-Key": "x"}
    assert (await api.get("/livez", params={"cache": "no"}, headers=headers)).status_code == 200
    assert (await api.get("/metrics", params={"name[]": "x"}, headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("accept", "is_taken"),
    [
        ("*/*", True),
        ("application/*", True),
        ("application/json; charset=utf-8", True),
        ("APPLICATION/JSON", True),
        ("text/html, application/xml;q=0.9, */*;q=0.8", True),
        ("text/html", False),
        ("application/octet-stream", False),
        ("application/json;q=0, */*", False),
        ("*/*;q=0.0", False),
        ("application/json, */*;q=0", True),
        ("", False),
    ],
)
def test_which_headers_take_json(accept: str, is_taken: bool) -> None:
    assert takes(accept) is is_taken
