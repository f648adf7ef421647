"""Every kind of request and every route has a line in the table of costs, and the page shows the tables."""

from __future__ import annotations

from fastapi.routing import APIRoute
from starlette.routing import Route
from tests.abuse.gateway_requests import HTTP
from tests.abuse.known_costs import NODES_ONLY, message_kind, route_of
from tests.abuse.node_requests import LARGEST
from tests.abuse.ws_requests import MESSAGES
from tests.costs_table import PAGE, render

from tidelog_broker.core.request_costs import COSTS, LONG_SLICES, SLICE_US_MAX
from tidelog_broker.server.server import HANDLERS
from tidelog_broker.server.server import NODES_ONLY as REFUSED_FROM_CLIENTS
from tidelog_gateway.app import ROUTERS, create_app
from tidelog_gateway.protocol.messages import REQUESTS
from tidelog_gateway.route_costs import HTTP_COSTS, MESSAGE_COSTS
from tidelog_gateway.settings import GatewaySettings


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


def test_every_kind_is_measured() -> None:
    """Except those that clients may not send, of which the page says so."""
    measured = {name.partition(":")[0] for name in LARGEST}
    assert set(COSTS) - measured == NODES_ONLY
    assert NODES_ONLY < REFUSED_FROM_CLIENTS


def test_every_route_is_measured() -> None:
    assert set(HTTP_COSTS) == {route_of(name) for name in HTTP}


def test_every_kind_of_message_is_measured() -> None:
    assert set(MESSAGE_COSTS) == {message_kind(name) for name in MESSAGES}


def test_no_more_is_done_in_one_go_than_the_page_says() -> None:
    too_long = {kind for kind, cost in COSTS.items() if cost.uninterrupted_us(cost.largest_us) > SLICE_US_MAX}
    assert too_long <= set(LONG_SLICES) <= set(COSTS)
