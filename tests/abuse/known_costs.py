"""The costs of the suite's requests according to the tables of costs."""

from __future__ import annotations

from functools import cache

from starlette.routing import Match, Route
from tests.abuse.gateway_requests import HTTP
from tests.abuse.ws_requests import MESSAGES

from tidelog_broker.core.request_costs import COSTS
from tidelog_gateway.app import ROUTERS, create_app
from tidelog_gateway.route_costs import HTTP_COSTS, MESSAGE_COSTS
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.wire.frames import FrameDecoder

NODES_ONLY: frozenset[str] = frozenset({"node_announce", "incarnations"})
"""Kinds that are refused from clients before their work: their cost is an estimate."""
UNKNOWN: frozenset[str] = frozenset(
    {"committed: a whole group", "group_heartbeat: joins of a group of 20,000 partitions"}
)
"""Requests that cost more than the table lists: the number of a group's positions or partitions is not in the request.

A page of a group's positions has at most 2,000 of them.
"""


def known_us(name: str, frames: bytes) -> int:
    """Return the listed cost of requests to a node, in microseconds; 0: not listed."""
    if name in UNKNOWN:
        return 0
    total_us = 0
    for frame in FrameDecoder().feed(frames):
        kind = frame.envelope.WhichOneof("kind") or ""
        if kind in COSTS:
            total_us += COSTS[kind].of(frame.envelope, len(frame.attachment))
    return total_us


def known_ms(name: str) -> int:
    """Return the listed cost of a request to a gateway, by its name, in milliseconds."""
    if name in MESSAGES:
        return MESSAGE_COSTS[message_kind(name)].largest_ms
    return HTTP_COSTS[route_of(name)].largest_ms


def message_kind(name: str) -> str:
    """Return the kind of a WebSocket's message."""
    return name.removeprefix("WebSocket ").partition(":")[0]


@cache
def route_of(name: str) -> str:
    """Return the route of a request, as the table has it."""
    method, target = HTTP[name].line.split(" ")
    scope = {"type": "http", "method": method, "path": target.partition("?")[0], "root_path": "", "headers": []}
    for route in _routes():
        if route.matches(scope)[0] is Match.FULL:
            return f"{method} {route.path}"
    raise LookupError(name)


@cache
def _routes() -> tuple[Route, ...]:
    app = create_app(GatewaySettings())
    found = [*app.routes, *(route for router in ROUTERS for route in router.routes)]
    return tuple(route for route in found if isinstance(route, Route))
