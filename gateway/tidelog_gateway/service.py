"""`/livez`, `/readyz`, `/metrics`: for whoever runs the gateway."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from tidelog.errors import TidelogError
from tidelog_gateway.context import GatewayDep, json_response
from tidelog_gateway.metrics import CONTENT_TYPE
from tidelog_gateway.problems import Problem

READY_TIMEOUT_S: Final = 2.0

router = APIRouter(tags=["service"])


@router.get("/livez", summary="Is the process alive?")
async def livez() -> Response:
    """Answer as long as the event loop turns."""
    return json_response({"status": "alive"})


@router.get("/readyz", summary="Can requests be served?")
async def readyz(gateway: GatewayDep) -> Response:
    """Answer 200 when a node answers and the gateway is not stopping, else 503."""
    if gateway.stopping.is_set():
        raise Problem(503, "shutting_down", "this gateway is stopping", retryable=True)
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            nodes = await gateway.client.nodes()
    except (TidelogError, TimeoutError) as error:
        text = str(error) or f"no answer within {READY_TIMEOUT_S:g} s"
        raise Problem(503, "not_ready", f"no node answers: {text}", retryable=True) from error
    return json_response({"status": "ready", "nodes": len(nodes)})


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(gateway: GatewayDep) -> Response:
    """Return the gateway's metrics in Prometheus' text format."""
    return Response(gateway.metrics.page(), media_type=CONTENT_TYPE)
