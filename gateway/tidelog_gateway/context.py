"""What every route needs: one object per application, and how a route gets it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import orjson
from fastapi import Depends, Path
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from tidelog.client import Client
from tidelog_gateway.limits import Budget
from tidelog_gateway.metrics import Metrics
from tidelog_gateway.problems import Problem
from tidelog_gateway.producers import Producers
from tidelog_gateway.settings import GatewaySettings
from tidelog_proto.limits import PARTITIONS_MAX
from tidelog_proto.names import check_group_name, check_topic_name


@dataclass(slots=True)
class Gateway:
    """The parts of one running application.

    Attributes:
        open_websockets: accepted and not closed yet.
        stopping: set when the process begins to stop; whoever waits for records stops waiting.
    """

    settings: GatewaySettings
    client: Client
    producers: Producers
    metrics: Metrics
    budget: Budget
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    open_websockets: int = 0


def gateway_of(connection: HTTPConnection) -> Gateway:
    """Return the application's `Gateway`, which exists from the start of its lifespan."""
    gateway = connection.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


def checked_topic(topic: Annotated[str, Path(description="The topic's name.")]) -> str:
    """Refuse names that no topic of a user can have, before a node is asked.

    Raises:
        ProtocolError: INVALID_TOPIC.
    """
    check_topic_name(topic)
    return topic


def checked_group(group: Annotated[str, Path(description="The group's name.")]) -> str:
    """Refuse names that no group can have.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    check_group_name(group)
    return group


GatewayDep = Annotated[Gateway, Depends(gateway_of)]
TopicPath = Annotated[str, Depends(checked_topic)]
GroupPath = Annotated[str, Depends(checked_group)]
PartitionPath = Annotated[int, Path(ge=0, lt=PARTITIONS_MAX, description="The partition's number.")]


def media_type_of(request: Request) -> str:
    """Return the body's media type in lower case, without parameters; empty when none is given.

    Raises:
        Problem: 415, the body is compressed: decoding it would take memory that no limit has counted, and storing it as
            it is would store something else than was meant.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise Problem(
            415,
            "unsupported_content_encoding",
            f"a body with Content-Encoding {encoding!r} is not decoded here; send it as it is",
            headers={"Accept-Encoding": "identity"},
        )
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def require_json(request: Request) -> None:
    """Refuse bodies that do not say they are JSON.

    Raises:
        Problem: 415.
    """
    if media_type_of(request) != "application/json":
        raise unsupported_media_type(media_type_of(request), "application/json")


def unsupported_media_type(given: str, *accepted: str) -> Problem:
    """Return the 415 that names what would do."""
    return Problem(
        415,
        "unsupported_media_type",
        f"{given or 'a body without Content-Type'} is not understood here; send {' or '.join(accepted)}",
        headers={"Accept-Post": ", ".join(accepted)},
    )


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return plain values as JSON, past the framework's own slower way."""
    return Response(orjson.dumps(content), status, headers=headers, media_type="application/json")


def now_us() -> int:
    """Return the wall clock in us since 1970."""
    return time.time_ns() // 1000
