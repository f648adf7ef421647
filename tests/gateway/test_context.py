from __future__ import annotations

import asyncio
import time

import pytest
from fastapi.routing import APIRoute

from tidelog_gateway.app import ROUTERS
from tidelog_gateway.context import (
    checked_group,
    checked_topic,
    json_response,
    now_us,
)
from tidelog_proto.errors import ProtocolError


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
