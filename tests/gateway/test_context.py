from __future__ import annotations

import asyncio
import time

import pytest
from fastapi.routing import APIRoute
from starlette.requests import Request

from tidelog_gateway.app import ROUTERS
from tidelog_gateway.context import (
    checked_group,
    checked_topic,
    json_response,
    media_type_of,
    now_us,
    require_json,
    unsupported_media_type,
)
from tidelog_gateway.problems import Problem
from tidelog_proto.errors import ProtocolError


def request(content_type: str | None) -> Request:
    headers = [] if content_type is None else [(b"content-type", content_type.encode())]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("header", "expected"),
    [(None, ""), ("", ""), ("Application/JSON ; charset=utf-8", "application/json"), ("text/plain", "text/plain")],
)
def test_media_types_are_parsed(header: str | None, expected: str) -> None:
    assert media_type_of(request(header)) == expected


def test_only_json_is_accepted_as_json() -> None:
    require_json(request("application/json"))
    for header in (None, "text/json", "application/json-seq"):
        with pytest.raises(Problem) as caught:
            require_json(request(header))
        assert caught.value.status == 415
    assert unsupported_media_type("", "a/b", "c/d").headers == {"Accept-Post": "a/b, c/d"}


async def test_names_are_validated() -> None:
    assert await checked_topic("flights") == "flights"
    assert await checked_group("any printable group") == "any printable group"
    for check, name in ((checked_topic, "__meta"), (checked_topic, ""), (checked_group, "\n")):
        with pytest.raises(ProtocolError):
            await check(name)


def test_responses_and_the_clock() -> None:
    response = json_response({"a": [1, None]}, 201, {"Location": "/x"})
    assert (response.status_code, response.body, response.headers["location"]) == (201, b'{"a":[1,null]}', "/x")
    assert abs(now_us() - time.time() * 1e6) < 60e6


def test_no_dependency_of_a_route_runs_in_a_thread() -> None:
    """The framework runs plain functions in a thread pool, which costs each request two switches of thread."""
    plain = set[str]()
    waiting = [route.dependant for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]
    while waiting:
        dependant = waiting.pop()
        waiting += dependant.dependencies
        assert dependant.call is not None
        if not asyncio.iscoroutinefunction(dependant.call):
            plain.add(dependant.call.__name__)
    assert not plain
