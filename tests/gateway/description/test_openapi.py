"""The API's description: its references resolve, and it has all constraints that are enforced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import OpenApi

UNBOUNDED = {"key", "value"}
"""Members of records, which have no limit of their own, only that of the body. Values may have any type."""


def nodes(value: Any, path: str = "#") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each object of a JSON document with its pointer."""
    if isinstance(value, dict):
        yield path, value
        for key, each in value.items():
            yield from nodes(each, f"{path}/{key}")
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from nodes(each, f"{path}/{at}")


def resolved(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


@pytest.fixture
async def description(open_api: OpenApi) -> dict[str, Any]:
    async with open_api(records_per_request_max=77, fetch_bytes_max=4096, fetch_wait_ms_max=99) as api:
        found: dict[str, Any] = (await api.get("/openapi.json")).json()
        return found


async def test_every_reference_resolves(description: dict[str, Any]) -> None:
    references = [node["$ref"] for _, node in nodes(description) if isinstance(node.get("$ref"), str)]
    assert "#/components/schemas/JsonRecord" in references
    for reference in references:
        assert reference.startswith("#/")
        assert resolved(description, reference)["type"] == "object"
    assert not [place for place, node in nodes(description) if "$defs" in node]


async def test_every_input_has_limits(description: dict[str, Any]) -> None:
    def unbounded(schema: dict[str, Any], place: str) -> Iterator[str]:
        if "$ref" in schema:
            schema = resolved(description, schema["$ref"])
        for at, each in enumerate(schema.get("anyOf", [])):
            yield from unbounded(each, f"{place}/{at}")
        for name, each in schema.get("properties", {}).items():
            if name not in UNBOUNDED:
                yield from unbounded(each, f"{place}/{name}")
        kind = schema.get("type")
        if kind == "array":
            if "maxItems" not in schema:
                yield place
            if not place.endswith("/headers"):
                yield from unbounded(schema["items"], f"{place}/items")
        if kind == "object" and schema.get("additionalProperties") is not False:
            yield place
        if kind == "integer" and not (
            {"minimum", "exclusiveMinimum"} & set(schema) and {"maximum", "exclusiveMaximum"} & set(schema)
        ):
            yield place
        if kind == "string" and not {"maxLength", "enum", "const"} & set(schema):
            yield place

    found: list[str] = []
    for path, item in description["paths"].items():
        for method, operation in item.items():
            for parameter in operation.get("parameters", []):
                found += unbounded(parameter["schema"], f"{method} {path} {parameter['name']}")
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body:
                found += unbounded(body["schema"], f"{method} {path}")
    assert not found


async def test_limits_are_those_of_the_settings_and_integers_are_not_floats(description: dict[str, Any]) -> None:
    fetch = description["paths"]["/v1/topics/{topic}/partitions/{partition}/records"]["get"]
    maxima = {
        parameter["name"]: parameter["schema"].get("anyOf", [parameter["schema"]])[0].get("maximum")
        for parameter in fetch["parameters"]
    }
    assert (maxima["max_records"], maxima["max_bytes"], maxima["wait_ms"]) == (77, 4096, 99)
    models = description["components"]["schemas"]
    assert models["JsonBody"]["properties"]["records"]["maxItems"] == 77
    assert models["JsonRecord"]["required"] == ["value"]
    assert models["JsonRecord"]["additionalProperties"] is False
    bounds = [node[key] for _, node in nodes(description) for key in ("minimum", "maximum") if key in node]
    assert bounds
    assert all(isinstance(bound, int) for bound in bounds if not isinstance(bound, dict))


async def test_the_schema_of_topics_matches_their_validation(
    description: dict[str, Any], api: httpx.AsyncClient
) -> None:
    (topic, *_) = description["paths"]["/v1/topics/{topic}"]["get"]["parameters"]
    pattern = topic["schema"]["pattern"]
    assert topic["schema"]["maxLength"] == 200
    assert description["components"]["schemas"]["TopicCreate"]["properties"]["name"]["pattern"] == pattern
    for name in ("__a", "a b", "ü"):
        assert (await api.get(f"/v1/topics/{name}")).json()["code"] == "invalid_topic"


async def test_each_status_of_an_operation_is_listed(description: dict[str, Any], open_api: OpenApi) -> None:
    publish = description["paths"]["/v1/topics/{topic}/records"]["post"]["responses"]
    found = [int(status) for status in publish]
    assert sorted(found) == [200, 207, 400, 403, 404, 406, 408, 409, 413, 415, 421, 422, 429, 503, 504]
    assert publish["429"]["headers"]["Retry-After"]["required"]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            assert "default" not in operation["responses"], (method, path)
            assert {"400", "503"} < set(operation["responses"]), (method, path)
    async with open_api(auth="callers") as api:
        paths = (await api.get("/openapi.json")).json()["paths"]
    assert "401" in paths["/v1/topics"]["get"]["responses"]
    assert "401" not in paths["/livez"]["get"]["responses"]


async def test_each_json_answer_has_a_model(description: dict[str, Any]) -> None:
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema")
                assert schema != {"type": "string"}, (method, path, status)
