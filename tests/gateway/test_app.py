"""Properties of every route: problems for every error, an id for every answer, a complete description."""

from __future__ import annotations

import gzip
import json

import httpx
import pytest
from tests.gateway.conftest import OpenApi
from tests.gateway.fake_log import FakeLog

from tidelog.errors import ConnectionLostError, NodeUnreachableError, OverloadedError, TidelogError

MEMBERS = {"type", "title", "status", "detail", "code", "retryable", "request_id"}


def problem(response: httpx.Response, status: int, code: str) -> None:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert set(document) >= MEMBERS
    assert (document["status"], document["code"]) == (status, code)
    assert document["request_id"] == response.headers["x-request-id"] != ""


async def test_unknown_paths_and_wrong_methods_are_refused(api: httpx.AsyncClient) -> None:
    problem(await api.get("/nowhere"), 404, "not_found")
    response = await api.get("/v1/topics/")
    problem(response, 404, "not_found")
    assert response.json()["detail"] == "no route matches /v1/topics/; leave out the slash at the end"
    response = await api.put("/v1/topics/t", json={})
    problem(response, 405, "method_not_allowed")
    assert response.headers["allow"] == "DELETE, GET, HEAD, PATCH"
    assert response.json()["detail"] == "/v1/topics/t does not support PUT; it supports DELETE, GET, HEAD, PATCH"
    for path, allow in (
        ("/v1/topics", "GET, HEAD, POST"),
        ("/v1/topics/t/records", "GET, HEAD, POST"),
        ("/v1/groups/g/offsets", "GET, HEAD, PUT"),
        ("/docs", "GET, HEAD"),
        ("/openapi.json", "GET, HEAD"),
    ):
        response = await api.request("TRACE", path)
        problem(response, 405, "method_not_allowed")
        assert response.headers["allow"] == allow, path


async def test_text_of_a_client_in_a_message_is_printable(api: httpx.AsyncClient) -> None:
    answers = [
        await api.get("/v1/nothing/%E2%80%AEa%0Ab%1B"),
        await api.post("/v1/topics", headers={b"Origin": b"https://e\x9b31m\x85vil"}, json={}),
        await api.put("/v1/groups/g/offsets", json={"\u202eevil\x1b\n": 1}),
        await api.post("/v1/topics/t/records", json={"records": [{"value": "v", "\u202e": 1}]}),
        await api.get("/v1/topics/%E2%80%AEa"),
    ]
    assert [answer.status_code for answer in answers] == [404, 403, 422, 422, 422]
    for answer in answers:
        assert answer.json()["detail"].isprintable(), answer.text
        assert answer.text.isprintable(), answer.text
    assert answers[0].json()["detail"] == r"no route matches /v1/nothing/\u202ea\nb\x1b; GET /docs lists all routes"
    assert answers[2].json()["errors"][-1]["pointer"] == r"/\u202eevil\x1b\n"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NodeUnreachableError("no node"), 503, "node_unreachable"),
        (OverloadedError("busy", retry_after_ms=2500), 429, "overloaded"),
        (ConnectionLostError("lost"), 504, "connection_lost"),
    ],
)
async def test_errors_of_the_log_are_problems(
    api: httpx.AsyncClient, log: FakeLog, error: TidelogError, status: int, code: str
) -> None:
    log.fault = error
    for response in (
        await api.get("/v1/topics/t"),
        await api.post("/v1/topics/t/records", json={"records": [{"value": "a"}]}),
        await api.get("/v1/topics/t/partitions/0/records"),
    ):
        problem(response, status, code)
        assert response.json()["retryable"] is True
        assert ("retry-after" in response.headers) == (status in {429, 503})
    if status == 429:
        assert response.headers["retry-after"] == "3"


async def test_a_bug_is_a_problem(api: httpx.AsyncClient, log: FakeLog) -> None:
    log.logs["t"] = []

    def explode(value: bytes | None) -> None:
        raise RuntimeError(value)

    log.logs["t"] = [[]]
    log.refuse = explode
    response = await api.post("/v1/topics/t/records", json={"records": [{"value": "secret"}]})
    assert response.status_code == 500
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "internal"
    assert "secret" not in response.text


async def test_bodies_that_are_not_json_are_refused(api: httpx.AsyncClient) -> None:
    for method, path in (("POST", "/v1/topics"), ("PATCH", "/v1/topics/t"), ("PUT", "/v1/groups/g/offsets")):
        problem(
            await api.request(method, path, content="x", headers={"Content-Type": "text/plain"}),
            415,
            "unsupported_media_type",
        )
        problem(await api.request(method, path, content=b"{}"), 415, "unsupported_media_type")
        headers = {"Content-Type": "application/json"}
        for body in (b"{", b"[]", b"null", b"5", b'"x"', b"\xff", b"", b"[" * 100_000):
            problem(await api.request(method, path, content=body, headers=headers), 422, "invalid_request")


async def test_a_body_of_curl_without_a_type_is_refused_with_the_remedy(api: httpx.AsyncClient) -> None:
    response = await api.post(
        "/v1/topics", content=b"{}", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    problem(response, 415, "unsupported_media_type")
    assert response.json()["detail"].endswith("as in curl -H 'Content-Type: application/json'")


async def test_json_in_another_encoding_than_utf_8_is_refused(api: httpx.AsyncClient, log: FakeLog) -> None:
    """RFC 8259, 8.1. The framework's parser would accept UTF-16 and create the topic."""
    log.logs["t"] = [[]]
    record = {"records": [{"value": "a"}]}
    for method, path, content in (
        ("POST", "/v1/topics", {"name": "wide"}),
        ("PATCH", "/v1/topics/t", {"partitions": 2}),
        ("PUT", "/v1/groups/g/offsets", {"offsets": [{"topic": "t", "partition": 0, "next_offset": 0}]}),
        ("POST", "/v1/topics/t/records", record),
    ):
        text = json.dumps(content)
        headers = {"Content-Type": "application/json"}
        for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"):
            response = await api.request(method, path, content=text.encode(encoding), headers=headers)
            problem(response, 422, "invalid_request")
            told = {"Content-Type": f"application/json; charset={encoding}"}
            response = await api.request(method, path, content=text.encode(encoding), headers=told)
            problem(response, 415, "unsupported_media_type")
        for coding in ("gzip", "br", "gzip, identity"):
            told = headers | {"Content-Encoding": coding}
            response = await api.request(method, path, content=gzip.compress(text.encode()), headers=told)
            problem(response, 415, "unsupported_content_encoding")
        assert list(log.logs) == ["t"]
        assert len(log.logs["t"]) == 1
        assert not log.groups
        assert not log.logs["t"][0]
    for charset in ("utf-8", '"UTF-8"', "us-ascii"):
        told = {"Content-Type": f"application/json; x=y; charset={charset}"}
        response = await api.post("/v1/topics/t/records", content=json.dumps(record), headers=told)
        assert response.status_code == 200


async def test_invalid_names_are_refused_by_every_route(api: httpx.AsyncClient) -> None:
    for name in ("__meta", "a%20b", "x" * 201, "%00", ".."):
        if name != "..":  # the client normalises it
            problem(await api.get(f"/v1/topics/{name}"), 422, "invalid_topic")
        problem(await api.post("/v1/topics", json={"name": name}), 422, "invalid_topic")
    problem(await api.get("/v1/groups/%07/offsets"), 422, "invalid_request")


async def test_the_description_is_complete(api: httpx.AsyncClient) -> None:
    description = (await api.get("/openapi.json")).json()
    assert description["openapi"].startswith("3.1")
    assert "Problem" in description["components"]["schemas"]
    operations = [
        (method, path, operation) for path, item in description["paths"].items() for method, operation in item.items()
    ]
    assert {(method, path) for method, path, _ in operations} == {
        ("post", "/v1/topics"),
        ("get", "/v1/topics"),
        ("get", "/v1/cluster"),
        ("patch", "/v1/cluster/nodes/{node}"),
        ("get", "/v1/history"),
        ("get", "/v1/me"),
        ("get", "/v1/topics/{topic}"),
        ("patch", "/v1/topics/{topic}"),
        ("delete", "/v1/topics/{topic}"),
        ("post", "/v1/topics/{topic}/records"),
        ("get", "/v1/topics/{topic}/partitions/{partition}/records"),
        ("delete", "/v1/topics/{topic}/partitions/{partition}/records"),
        ("get", "/v1/topics/{topic}/records"),
        ("get", "/v1/topics/{topic}/stream"),
        ("get", "/v1/topics/{topic}/keys/{key}"),
        ("get", "/v1/topics/{topic}/offsets"),
        ("get", "/v1/topics/{topic}/partitions/{partition}/offsets"),
        ("get", "/v1/groups/{group}/offsets"),
        ("put", "/v1/groups/{group}/offsets"),
        ("get", "/v1/groups"),
        ("get", "/v1/groups/{group}"),
        ("delete", "/v1/groups/{group}"),
        ("get", "/v1/groups/{group}/lag"),
        ("post", "/v1/groups/{group}/offsets:reset"),
        ("post", "/v1/api-keys"),
        ("get", "/v1/api-keys"),
        ("delete", "/v1/api-keys/{key_id}"),
        ("post", "/v1/rules"),
        ("get", "/v1/rules"),
        ("delete", "/v1/rules/{rule_id}"),
        ("post", "/v1/rules:test"),
        ("get", "/v1/quotas"),
        ("get", "/v1/quotas:usage"),
        ("put", "/v1/quotas/{subject}"),
        ("delete", "/v1/quotas/{subject}"),
        ("get", "/livez"),
        ("get", "/readyz"),
        ("get", "/metrics"),
    }
    for method, path, operation in operations:
        problems = [answer for status, answer in operation["responses"].items() if int(status) >= 400]
        assert problems, (method, path)
        assert all("application/problem+json" in answer["content"] for answer in problems), "never the framework's own"
        assert operation["summary"], (method, path)


async def test_bodies_above_the_limit_are_refused_by_every_route(open_api: OpenApi) -> None:
    async with open_api(body_bytes_max=1024) as api:
        for path in ("/v1/topics", "/v1/topics/t/records", "/nowhere"):
            response = await api.post(path, content=b"x" * 1025, headers={"Content-Type": "application/json"})
            problem(response, 413, "body_too_large")
