from __future__ import annotations

import pytest
from tests.gateway.conftest import OpenApi

from tidelog_gateway.auth.origin_check import origin_allowed


@pytest.mark.parametrize(
    ("origin", "allowed", "expected"),
    [
        ("http://gateway:8080", [], True),
        ("https://gateway:8080", [], True),
        ("http://gateway", [], False),
        ("http://evil.example", [], False),
        ("http://gateway:8080.evil.example", [], False),
        ("null", [], False),
        ("", [], False),
        ("http://[", [], False),
        ("http://[::1", [], False),
        ("file://gateway:8080", [], False),
        ("https://app.example", ["https://app.example"], True),
        ("https://app.example.evil", ["https://app.example"], False),
        ("http://evil.example", ["*"], True),
    ],
)
def test_origins(origin: str, allowed: list[str], expected: bool) -> None:  # a table of cases
    assert origin_allowed(origin, host="gateway:8080", allowed=allowed) is expected


async def test_pages_of_other_hosts_cannot_change_anything(open_api: OpenApi) -> None:
    async with open_api(allowed_origins=["https://app.example"]) as api:
        for method, path in (
            ("POST", "/v1/topics"),
            ("DELETE", "/v1/topics/t"),
            ("PUT", "/v1/groups/g/topics/t/offsets"),
        ):
            for foreign in ("https://evil.example", "null", ""):
                answer = await api.request(method, path, json={"name": "t"}, headers={"Origin": foreign})
                assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
                assert "access-control-allow-origin" not in answer.headers
        assert (await api.get("/v1/topics/t")).status_code == 404, "the topic was not created"
        own = await api.post("/v1/topics", json={"name": "t"}, headers={"Origin": "http://gateway"})
        assert own.status_code == 201
        for two in ([("Origin", "http://gateway"), ("Origin", "https://evil.example")],):
            assert (await api.delete("/v1/topics/t", headers=two)).status_code == 403


async def test_pages_of_allowed_origins_read_answers_and_others_do_not(open_api: OpenApi) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}
    async with open_api(allowed_origins=["https://app.example"]) as api:
        ours, theirs = {"Origin": "https://app.example"}, {"Origin": "https://evil.example"}
        leave = await api.options("/v1/topics", headers=ours | asked)
        assert leave.status_code == 200
        assert leave.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in leave.headers, "credentials are never cookies"
        assert (await api.options("/v1/topics", headers=theirs | asked)).status_code == 400
        made = await api.post("/v1/topics", json={"name": "t"}, headers=ours)
        assert (made.status_code, made.headers["access-control-allow-origin"]) == (201, "https://app.example")
        assert "set-cookie" not in made.headers
        read = await api.get("/v1/topics", headers=theirs)
        assert (read.status_code, "access-control-allow-origin" in read.headers) == (200, False)
    async with open_api() as api:
        assert "access-control-allow-origin" not in (await api.options("/v1/topics", headers=ours | asked)).headers
