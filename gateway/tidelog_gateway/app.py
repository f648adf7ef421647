"""The application: `create_app(settings)` assembles routes, limits, error handlers and the client."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from tidelog.client import Client
from tidelog.client_options import ClientOptions
from tidelog.cluster.callers import Identified
from tidelog.cluster.contexts import Context
from tidelog.errors import TidelogError
from tidelog_gateway import offsets
from tidelog_gateway.administration import (
    access_rules,
    cluster,
    groups,
    health,
    quotas,
    record_deletion,
    rule_test,
    topics,
)
from tidelog_gateway.auth.authenticated_caller import AuthenticatedCaller
from tidelog_gateway.auth.credentials import CallerCredentials, UserPassword, credentials_kind
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.callers.caller_cache import CallerCache, problem_for
from tidelog_gateway.coalescing.producers import ProducerLimit, Producers
from tidelog_gateway.context import Gateway, gateway_of
from tidelog_gateway.description import docs_page
from tidelog_gateway.description.openapi import PROBLEM_ANSWER, install_schema
from tidelog_gateway.fast_paths.arrow_fast_path import arrow_fast_path
from tidelog_gateway.fast_paths.commit_fast_path import commit_fast_path
from tidelog_gateway.fast_paths.fetch_fast_path import fetch_fast_path
from tidelog_gateway.fast_paths.publish_fast_path import publish_fast_path
from tidelog_gateway.flow.access_log import AccessLogMiddleware
from tidelog_gateway.flow.request_pipeline import RequestPipeline
from tidelog_gateway.history.sampler import Sampler
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.problems import Problem, from_error, internal, invalid, validation_errors
from tidelog_gateway.publishing import route as publish_route
from tidelog_gateway.reading import key_route, partition_route, topic_route
from tidelog_gateway.reading.response import PLACE_HEADERS
from tidelog_gateway.requests.request_ids import REQUEST_ID_HEADER, request_id_of
from tidelog_gateway.requests.unsupported import refuse_unknown_parameters, refuse_unsupported
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.sse import route as stream_route
from tidelog_gateway.ui import files as ui_files
from tidelog_gateway.websocket import route as websocket_route
from tidelog_gateway.worker_channel.peers import Peers
from tidelog_proto.errors import ProtocolError
from tidelog_proto.flow.fair_scheduler import Turns
from tidelog_proto.version import VERSION

ROUTERS: Final = (
    topics.router,
    publish_route.router,
    partition_route.router,
    topic_route.router,
    stream_route.router,
    key_route.router,
    record_deletion.router,
    offsets.router,
    groups.router,
    access_rules.router,
    rule_test.router,
    quotas.router,
    cluster.router,
    health.router,
    docs_page.router,
    ui_files.router,
)
ANY_HEADER: Final = (health.router, docs_page.router, ui_files.router)
"""Routers whose requests may have headers that the gateway does not implement; see `requests.unsupported`."""
CLIENT_ID: Final = "tidelog-gateway"
QUORUM_TIMEOUT_S: Final = 3.0
"""How long a request waits for a quorum before 503: longer than a failover takes."""

UNREACHABLE_TIMEOUT_S: Final = 1.0
"""How long a request waits before 503 when no node accepts connections."""

IDLE_POLL_US: Final = 0
"""0: the client does not busy-poll for the answers of nodes, so the event loop meanwhile reads further requests, whose
records join the next batch."""

CLOSE_S: Final = 1.0
"""Minimum time, when the process stops, to deliver the pending records of requests that did not finish; also the
timeout of closing the shared client."""

UNCOUNTED_SHARE: Final = 8
"""An eighth of the response budget is reserved for memory that is not counted: overhead of the allocator, and answers
of nodes that exceed the requested size."""

_CORS: Final[dict[str, Any]] = {
    "allow_methods": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
    "allow_headers": [
        *("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", "Request-Timeout-Ms"),
        *("traceparent", "tracestate"),
    ],
    "allow_credentials": False,
    "expose_headers": [REQUEST_ID_HEADER, "Retry-After", "WWW-Authenticate", *PLACE_HEADERS],
    "max_age": 600,
}
"""CORS options for pages of `allowed_origins`. The gateway uses no cookies."""

OpenClient = Callable[[GatewaySettings], AbstractAsyncContextManager[Client]]


@asynccontextmanager
async def open_client(settings: GatewaySettings, context: Context | None = None) -> AsyncIterator[Client]:
    """Open the client that all routes share, with the credentials of a context, by default those of the environment."""
    options: ClientOptions = {
        "client_id": CLIENT_ID,
        "request_timeout_s": settings.request_timeout_s,
        "quorum_timeout_s": QUORUM_TIMEOUT_S,
        "unreachable_timeout_s": UNREACHABLE_TIMEOUT_S,
        "idle_poll_us": IDLE_POLL_US,
    }
    async with Client(settings.bootstrap, **(options if context is None else context.with_options(options))) as client:
        yield client
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await client.close()  # After a timeout the pending records are dropped.


def callers_of(own: Gateway, producer_limit: ProducerLimit) -> CallerCache:
    """Return the cache of a gateway's callers; the clients of the callers share the connections of its own client."""

    def open_client(caller: AuthenticatedCaller) -> Client:
        return Client(own.settings.bootstrap, client_id=CLIENT_ID, router=own.client.security.for_caller(caller))

    async def identify(shown: CallerCredentials) -> Identified:
        if isinstance(shown, UserPassword):
            return await own.client.security.identify(shown.proof)
        # A node answers for a token only after it has fetched the issuer's keys, which may take long. A failure is
        # therefore not retried here: the caller gets 503, and may send the request again.
        return await own.client.security.identify(shown, again=credentials_kind(shown) != "token")

    async def revision() -> bytes:
        return await own.client.security.revision()

    return CallerCache(own, producer_limit, identify=identify, revision=revision, open_client=open_client)


def create_app(settings: GatewaySettings, *, opener: OpenClient = open_client, peers: Peers | None = None) -> FastAPI:
    """Return the ASGI application; its lifespan opens and closes the client.

    Args:
        settings: settings of this process; with several workers, the limits are this worker's share.
        peers: the other workers; None if this process is the whole gateway.
    """
    budget, turns = RequestBudget(settings.in_flight_bytes_max), Turns()
    counted_bytes = settings.out_bytes_max - settings.out_bytes_max // UNCOUNTED_SHARE
    outgoing = ResponseBudget(counted_bytes, settings.connection_out_bytes_max)
    metrics = Metrics(budget, outgoing, has_parent=peers is not None)
    if peers is not None:
        peers.registry = metrics.registry

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with opener(settings) as client:
            producer_limit = ProducerLimit(settings.producers_max)
            producers = Producers(client, producer_limit=producer_limit, delivery_timeout_s=settings.request_timeout_s)
            gateway = app.state.gateway = Gateway(
                settings, client, producers, metrics, budget, outgoing, peers=peers, turns=turns
            )

            async def may_impersonate() -> bool:
                return (await client.security.test("impersonate", "cluster")).allowed

            gateway.may_impersonate = may_impersonate
            callers = app.state.callers = callers_of(gateway, producer_limit)
            tasks = [asyncio.create_task(callers.follow(), name="renew tickets")]
            if settings.otel:
                from tidelog_gateway.flow.request_span import RequestSpans  # noqa: PLC0415 # it needs the extra `otel`

                pipeline.spans = RequestSpans(metrics.registry.collect)
            if settings.ui != "off":
                gateway.sampler = Sampler(client.topic_figures, metrics.registry, settings.ui_interval_s, peers)
                tasks.append(asyncio.create_task(gateway.sampler.run(), name="sample topics"))
            try:
                yield
            finally:
                gateway.stop()
                for task in tasks:
                    task.cancel()
                left_s = max(CLOSE_S, gateway.stop_until - time.monotonic())
                await asyncio.gather(producers.close(within_s=left_s), callers.close(within_s=left_s))
                if pipeline.spans is not None:
                    await asyncio.to_thread(pipeline.spans.close)

    app = _routed(lifespan)
    install_schema(app, settings)
    # Runs before the framework's own middlewares, which requests on a fast path do not need.
    pipeline = app.middleware_stack = RequestPipeline(
        app.build_middleware_stack(),
        settings=settings,
        budget=budget,
        outgoing=outgoing,
        metrics=metrics,
        fast_paths=(publish_fast_path, fetch_fast_path, commit_fast_path),
        column_fast_path=arrow_fast_path,
        cors=_CORS,
    )
    if settings.access_log:
        app.middleware_stack = AccessLogMiddleware(app.middleware_stack)
    app.state.outgoing = outgoing
    app.state.incoming = budget
    app.state.turns = turns
    return app


def _routed(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """Return the framework's application with all routes and error handlers."""
    app = FastAPI(
        title="Tidelog gateway",
        version=VERSION,
        summary="HTTP and WebSocket in front of a Tidelog cluster.",
        lifespan=lifespan,
        openapi_url=None,  # `docs_page` serves these routes
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=list(_all_routes().routes),
    )
    _install_errors(app)
    return app


@cache
def _all_routes() -> APIRouter:
    """Return a router with all routes; applications share it, because the framework analyses each route for 1 ms."""
    shared = APIRouter(responses=PROBLEM_ANSWER)
    for router in ROUTERS:
        refusal = refuse_unknown_parameters if router in ANY_HEADER else refuse_unsupported
        shared.include_router(router, dependencies=[Depends(refusal)])
    shared.include_router(websocket_route.router)
    return shared


def _install_errors(app: FastAPI) -> None:
    """Install handlers that turn each exception into a problem document."""

    @app.exception_handler(Problem)
    async def on_problem(request: Request, error: Problem) -> Response:
        return error.response(_request_id(request))

    @app.exception_handler(TidelogError)
    async def on_log_error(request: Request, error: TidelogError) -> Response:
        return (await problem_for(gateway_of(request), error)).response(_request_id(request))

    @app.exception_handler(ProtocolError)
    async def on_protocol_error(request: Request, error: ProtocolError) -> Response:
        return from_error(error).response(_request_id(request))

    @app.exception_handler(RequestValidationError)
    async def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return invalid(validation_errors(error.errors())).response(_request_id(request))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:
            # The framework's error for a body that its JSON parser refuses: invalid UTF-8, or nested too deeply.
            detail = "the body is not JSON in UTF-8, or is nested too deeply"
            return invalid([{"pointer": "", "detail": detail}]).response(_request_id(request))
        return _routing_problem(app, request, error).response(_request_id(request))

    @app.exception_handler(Exception)
    async def on_bug(request: Request, error: Exception) -> Response:  # noqa: ARG001 # the server logs the error with its traceback
        return internal().response(_request_id(request))


def _routing_problem(app: FastAPI, request: Request, error: HTTPException) -> Problem:
    """Return the problem for a path or method without a route; 500 for any other error of the framework."""
    path = request.scope["path"]
    if error.status_code == 404:
        remedy = "leave out the slash at the end" if path.endswith("/") else "GET /docs lists all routes"
        return Problem(404, "not_found", f"no route matches {path}; {remedy}")
    if error.status_code == 405:
        allowed = _methods_of(app, request)
        detail = f"{path} does not support {request.method}; it supports {allowed}"
        return Problem(405, "method_not_allowed", detail, headers={"Allow": allowed})
    return internal()


def _methods_of(app: FastAPI, request: Request) -> str:
    """Return the methods of all routes of a path; the framework's own 405 lists only those of the first route."""
    methods: set[str] = set()
    for route in (
        *app.routes,
        *(route for router in (*ROUTERS, websocket_route.router) for route in router.routes),
    ):
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    methods |= {"HEAD"} if "GET" in methods else set()
    return ", ".join(sorted(methods))


def _request_id(request: Request) -> str:
    return request_id_of(request.scope)
