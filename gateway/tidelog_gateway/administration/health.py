"""`/livez`, `/readyz`, `/metrics`: health and metrics for operators."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidelog.errors import TidelogError
from tidelog_gateway.context import Gateway, GatewayDep, json_response
from tidelog_gateway.metrics.exposition import page_of
from tidelog_gateway.metrics.gateway_metrics import CONTENT_TYPE
from tidelog_gateway.problems import Problem

READY_TIMEOUT_S: Final = 2.0

router = APIRouter(tags=["service"])


@router.get("/livez", summary="Check whether the process is alive")
async def livez() -> Response:
    """Answer 200. A process that does not answer within some seconds is stuck, and should be restarted."""
    return json_response({"status": "alive"})


@router.get("/readyz", summary="Check whether requests can be served")
async def readyz(gateway: GatewayDep) -> Response:
    """Answer 200 when a node answers and the gateway is not stopping, else 503.

    While partitions lack a quorum, `status` is `degraded` and `no_quorum` counts them, but the answer is still 200:
    committed records can be read, and a load balancer that removed all gateways would make reads fail as well. `status`
    is also `degraded` while some workers are restarted; the others accept their connections.
    """
    if gateway.stopping.is_set():
        raise Problem(
            503, "shutting_down", "this gateway is stopping; send requests to another gateway", retryable=True
        )
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            nodes = await gateway.client.nodes()
            if gateway.settings.auth == "callers":
                await _check_may_ask(gateway)
    except (TidelogError, TimeoutError) as error:
        text = str(error) or f"no answer within {READY_TIMEOUT_S:g} s"
        raise Problem(
            503,
            "not_ready",
            f"the gateway's own request to the nodes failed: {text}; check that the nodes of `bootstrap` are running, "
            "and accept the gateway's own credentials",
            retryable=True,
        ) from error
    ready: dict[str, Any] = {"status": "ready", "nodes": len(nodes)}
    # Each node counts the partitions of which it has a copy, so the maximum is a lower bound.
    lost = max((node.no_quorum for node in nodes), default=0)
    if lost:
        ready |= {"status": "degraded", "no_quorum": lost}
    away = [node.node_id for node in nodes if not node.alive]
    if away:
        ready["nodes_away"] = away
    if gateway.peers is not None and gateway.peers.duties.serving < gateway.peers.workers:
        ready |= {"status": "degraded", "workers_away": gateway.peers.workers - gateway.peers.duties.serving}
    return json_response(ready)


async def _check_may_ask(gateway: Gateway) -> None:
    """Check that the gateway's own key has `impersonate`, without which nodes refuse all callers.

    Raises:
        Problem: 503 `not_ready`, the key lacks the permission.
    """
    verdict = await gateway.client.security.test("impersonate", "cluster")
    if not verdict.allowed:
        detail = (
            "the gateway's own key lacks `impersonate` on the cluster; grant it to the key's principal with: "
            "tidelog acl grant PRINCIPAL impersonate cluster"
        )
        raise Problem(503, "not_ready", detail, retryable=True)


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(request: Request, gateway: GatewayDep) -> Response:
    """Return the gateway's metrics in Prometheus' text format; with several workers, the metrics of all together."""
    # Encoding the metrics takes 5 ms. Several encodings in one iteration of the event loop would delay other requests,
    # so client addresses take turns.
    address = "" if request.client is None else request.client.host
    await gateway.turns.next_slice(request, address)
    page = gateway.metrics.page() if gateway.peers is None else page_of(await gateway.peers.merged())
    return Response(page, media_type=CONTENT_TYPE)
