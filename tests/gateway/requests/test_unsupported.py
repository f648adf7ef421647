from __future__ import annotations

import re

import httpx
import pytest
from starlette.routing import Route

from tidelog_gateway.app import ROUTERS, create_app
from tidelog_gateway.settings import GatewaySettings


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
    assert (await api.get(topic)).status_code == 200, "the topic was not deleted"


async def test_a_repeated_query_parameter_is_refused(api: httpx.AsyncClient, topic: str) -> None:
    refused = await api.get(f"{topic}/partitions/0/records?offset=0&offset=1")
    assert refused.status_code == 422
    assert refused.json()["errors"] == [{"parameter": "offset", "detail": "is given more than once; send it once"}]


async def test_an_answer_in_another_media_type_is_refused(api: httpx.AsyncClient, topic: str) -> None:
    refused = await api.get(topic, headers={"Accept": "application/xml"})
    assert (refused.status_code, refused.json()["code"]) == (406, "not_acceptable")
    assert (await api.get(topic, headers={"Accept": "text/html, */*;q=0.1"})).status_code == 200


async def test_health_accepts_any_header(api: httpx.AsyncClient) -> None:
    headers = {"Accept": "text/plain", "Idempotency-Key": "x"}
    assert (await api.get("/livez", headers=headers)).status_code == 200
    assert (await api.get("/metrics", headers=headers)).status_code == 200


def filled(path: str) -> str:
    """Return a path with a value for each parameter."""
    return re.sub(r"{(\w+)(?::\w+)?}", lambda found: {"partition": "0", "topic": "t"}.get(found[1], "x"), path)


ROUTES = sorted(
    {
        (method, route.path)
        for route in (*create_app(GatewaySettings()).routes, *(route for router in ROUTERS for route in router.routes))
        if isinstance(route, Route)
        for method in route.methods or ()
    }
)


STATIC = ("/", "/ui", "/ui/", "/ui/{name}", "/docs/assets/{name}")


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path in ROUTES if path not in STATIC])
async def test_every_route_refuses_an_unknown_query_parameter(
    api: httpx.AsyncClient, topic: str, method: str, path: str
) -> None:
    del topic
    body: dict[str, str] | None = {} if method in {"POST", "PUT", "PATCH"} else None
    refused = await api.request(method, filled(path), params={"nonsense": "1"}, json=body)
    assert refused.status_code == 422, refused.text
    errors = refused.json()["errors"]
    assert [error["parameter"] for error in errors if "is unknown" in error["detail"]] == ["nonsense"]


def test_there_are_many_routes() -> None:
    assert len(ROUTES) > 35


async def test_a_similar_parameter_is_suggested(api: httpx.AsyncClient, topic: str) -> None:
    refused = await api.get(f"{topic}/records?max_record=1")
    assert "did you mean max_records?" in refused.json()["detail"]


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path in ROUTES if method == "GET"])
async def test_head_is_get_without_the_body(api: httpx.AsyncClient, topic: str, method: str, path: str) -> None:
    del topic, method
    got, headed = None, await api.head(filled(path))
    assert headed.content == b""
    assert headed.status_code != 405
    if not path.endswith("/stream"):  # a stream does not end
        got = await api.get(filled(path))
        changing = {"x-request-id", "date", "content-length"}
        assert {**headed.headers} | dict.fromkeys(changing) == {**got.headers} | dict.fromkeys(changing)
        assert headed.status_code == got.status_code
        if path != "/metrics":
            assert headed.headers["content-length"] == got.headers["content-length"]


async def test_head_of_a_post_route_is_refused(api: httpx.AsyncClient) -> None:
    refused = await api.head("/v1/groups/g/offsets:reset")
    assert (refused.status_code, refused.headers["allow"], refused.content) == (405, "POST", b"")


@pytest.mark.parametrize("text", ["1_000", "+0", "0.0", "-0", " 1", "1 ", "1e3", "\u0661", "", "x"])
async def test_an_integer_in_another_form_than_decimal_digits_is_refused(
    api: httpx.AsyncClient, topic: str, text: str
) -> None:
    refused = await api.get(f"{topic}/partitions/0/records", params={"offset": text})
    assert (refused.status_code, refused.json()["errors"][0]["parameter"]) == (422, "offset"), refused.text
    assert "decimal digits" in refused.json()["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/v1/topics?limit=%2B1", "limit"),
        ("GET", "/v1/groups?limit=1.0", "limit"),
        ("GET", "/v1/topics/t/records?wait_ms=1_0", "wait_ms"),
        ("GET", "/v1/topics/t/keys/k?partition=0.0", "partition"),
        ("GET", "/v1/topics/t/partitions/0.0/records", "partition"),
        ("GET", "/v1/topics/t/partitions/+0/offsets", "partition"),
        ("DELETE", "/v1/topics/t/partitions/0/records?before_offset=1_0", "before_offset"),
    ],
)
async def test_every_route_accepts_only_decimal_digits_as_integers(
    api: httpx.AsyncClient, topic: str, method: str, path: str, name: str
) -> None:
    del topic
    refused = await api.request(method, path)
    assert (refused.status_code, [each["parameter"] for each in refused.json()["errors"]]) == (422, [name]), (
        refused.text
    )


async def test_a_negative_integer_is_refused_by_its_value(api: httpx.AsyncClient, topic: str) -> None:
    refused = await api.get(f"{topic}/partitions/0/records", params={"offset": -1})
    assert "greater than or equal to 0" in refused.json()["errors"][0]["detail"]
