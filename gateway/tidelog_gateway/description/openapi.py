"""The API's OpenAPI description: the framework's, completed with models, limits and problems.

The framework does not see models that are validated elsewhere, limits that are settings, and checks with their own
error codes. They are added here, so that the description has all constraints that are enforced.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tidelog_gateway.auth.authentication import OPEN_PATHS
from tidelog_gateway.description.problem_statuses import statuses_of
from tidelog_gateway.problems import MEDIA_TYPE, TITLES
from tidelog_gateway.records.json_decoding import body_adapter
from tidelog_gateway.settings import GatewaySettings

_READS: Final = ("/v1/topics/{topic}/partitions/{partition}/records", "/v1/topics/{topic}/records")

_PROBLEM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "RFC 9457. Some problems have further members: errors, log_start_offset, high_watermark, "
    "limit_bytes.",
    "required": ["type", "title", "status", "detail", "code", "retryable", "request_id"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "retryable": {"type": "boolean"},
        "request_id": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "object"}},
        "log_start_offset": {"type": "integer"},
        "high_watermark": {"type": "integer"},
        "limit_bytes": {"type": "integer"},
    },
}
_PROBLEM_CONTENT: Final = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
_EVENT: Final = {
    "type": "object",
    "description": "One event, with some of these fields.",
    "properties": {
        "id": {"type": "string"},
        "event": {"type": "string"},
        "data": {"type": "string"},
        "retry": {"type": "integer"},
    },
}
_RETRY_AFTER: Final = {
    "Retry-After": {"description": "Seconds to wait.", "required": True, "schema": {"type": "integer", "minimum": 1}}
}
PROBLEM_ANSWER: Final[dict[int | str, dict[str, Any]]] = {"default": {"description": "A problem."}}
"""Prevents the framework's own description of a 422; `_add_problems` replaces this entry by the actual problems."""


def install_schema(app: FastAPI, settings: GatewaySettings) -> None:
    """Make the application serve the complete description."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, summary=app.summary, routes=app.routes, tags=app.openapi_tags
            )
            app.openapi_schema = _completed(schema, settings)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # the framework documents this way to extend the schema


def _completed(schema: dict[str, Any], settings: GatewaySettings) -> dict[str, Any]:
    models = schema.setdefault("components", {}).setdefault("schemas", {})
    body = body_adapter().json_schema(ref_template="#/components/schemas/{model}")
    models.update(body.pop("$defs"))
    body["properties"]["records"]["maxItems"] = settings.records_per_request_max
    models["JsonBody"] = body
    models["Problem"] = _PROBLEM_SCHEMA
    limits = {
        "max_records": settings.records_per_request_max,
        "max_bytes": settings.fetch_bytes_max,
        "wait_ms": settings.fetch_wait_ms_max,
    }
    for parameter in (each for path in _READS for each in schema["paths"][path]["get"]["parameters"]):
        if parameter["name"] in limits:
            numbers = parameter["schema"].get("anyOf", [parameter["schema"]])[0]
            numbers["maximum"] = limits[parameter["name"]]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            _add_problems(path, method, operation, has_auth=settings.auth == "callers")
    if settings.auth == "callers":
        _add_security(schema)
    whole: dict[str, Any] = _with_whole_numbers(schema)
    return whole


def _add_problems(path: str, method: str, operation: dict[str, Any], *, has_auth: bool) -> None:
    """Add a description of each problem status of an operation, and the schema of events to a stream."""
    responses = operation["responses"]
    responses.pop("default", None)
    for described in responses.values():
        if "text/event-stream" in described.get("content", {}):
            described["content"]["text/event-stream"]["schema"] = _EVENT
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    for status in statuses_of(path, method, names, has_body="requestBody" in operation, has_auth=has_auth):
        answer: dict[str, Any] = {"description": TITLES[status] + ".", "content": _PROBLEM_CONTENT}
        if status in {429, 503}:
            answer["headers"] = _RETRY_AFTER
        responses.setdefault(str(status), answer)


def _add_security(schema: dict[str, Any]) -> None:
    """Add the security schemes to all paths except the open ones."""
    schema["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": "An API key: tlk_ID_SECRET, or a token."},
        "basic": {"type": "http", "scheme": "basic", "description": "A user and the password."},
    }
    schema["security"] = [{"bearer": []}, {"basic": []}]
    for path, operations in schema["paths"].items():
        if path in OPEN_PATHS:
            for operation in operations.values():
                operation["security"] = []


def _with_whole_numbers(value: Any) -> Any:
    """Return a copy with integers for floats such as `4096.0`, to which the framework converts each bound."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
