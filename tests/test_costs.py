"""Every kind of request and every route has a line in the table of costs, and the page shows the tables."""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.routing import Route
from tests.costs_table import PAGE, render

from tidelog_broker.core.request_costs import COSTS
from tidelog_broker.server.server import HANDLERS
from tidelog_gateway.app import ROUTERS, create_app
from tidelog_gateway.route_costs import HTTP_COSTS, MESSAGE_COSTS
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.websocket.messages import REQUESTS


def routes() -> set[str]:
    app = create_app(GatewaySettings())
    found = [*app.routes, *(route for router in ROUTERS for route in router.routes)]
    return {
        f"{method} {route.path}"
        for route in found
        if isinstance(route, Route | APIRoute)
        for method in (route.methods or set()) - {"HEAD"}
    }


def test_every_kind_that_is_dispatched_has_a_cost() -> None:
    assert set(COSTS) == set(HANDLERS)


def test_every_route_has_a_cost() -> None:
    assert set(HTTP_COSTS) == routes()


def test_every_kind_of_message_has_a_cost() -> None:
    assert set(MESSAGE_COSTS) == set(REQUESTS)


def test_the_page_shows_the_tables() -> None:
    assert PAGE.read_text() == render(), "run: python -m tests.costs_table"
