"""The state that all routes share: one `Gateway` for each application and caller, and the dependencies of routes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import orjson
from fastapi import Depends, Path
from pydantic import WithJsonSchema
from starlette.requests import HTTPConnection
from starlette.responses import Response

from tidelog.client import Client
from tidelog.model import Fetched
from tidelog_gateway.auth.authenticated_caller import AuthenticatedCaller
from tidelog_gateway.budget.connection_slots import ConnectionSlots
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.coalescing.producers import Producers
from tidelog_gateway.coalescing.read_sizes import ReadSizes
from tidelog_gateway.coalescing.shared_reads import ReadPosition, SharedReads
from tidelog_gateway.feed.feeds import Feeds
from tidelog_gateway.feed.topic_ends import TopicEnds
from tidelog_gateway.history.sampler import Sampler
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.worker_channel.peers import Peers
from tidelog_proto.flow.fair_scheduler import Turns
from tidelog_proto.limits import GROUP_NAME_BYTES_MAX, PARTITIONS_MAX, TOPIC_NAME_CHARS_MAX
from tidelog_proto.names import check_group_name, check_topic_name

UNKNOWN_SHARE: Final = 4
"""Divisor of `ws_connections_max` that gives the number of additional slots for unauthenticated WebSockets."""


@dataclass(slots=True)
class Gateway:
    """The parts of a running application, for one caller: `client` and `producers` are the caller's.

    Attributes:
        caller: the authenticated caller; None without authentication and on open paths, with the gateway's own client.
        may_impersonate: asks a node whether the gateway may act for callers; None before the application has started.
        open_websockets: in the application's `Gateway`, number of open WebSockets, streams and waiting topic reads of
            all callers, except WebSockets that have not authenticated yet; `websockets_of` has the number of each
            principal.
        unauthenticated_websockets: slots of WebSockets that have not authenticated yet.
        feeds: shared reads of the caller's subscriptions.
        topic_ends: high watermarks of the topics of the caller's subscriptions.
        reads: shared reads of the caller's requests.
        read_sizes: estimates of the bytes that the caller's next reads need.
        sampler: samples the metrics that `/ui` shows; None if `ui` is off.
        peers: the other workers; None if this process is the whole gateway.
        turns: fair scheduling of the long work of all callers on the event loop.
        stopping: set when the process begins to stop, which ends all waits for records.
        stop_until: in the application's `Gateway`, deadline of the stop, on the clock of `time.monotonic`.
    """

    settings: GatewaySettings
    client: Client
    producers: Producers
    metrics: Metrics
    budget: RequestBudget
    outgoing: ResponseBudget
    caller: AuthenticatedCaller | None = None
    may_impersonate: Callable[[], Awaitable[bool]] | None = None
    sampler: Sampler | None = None
    peers: Peers | None = None
    turns: Turns = field(default_factory=Turns)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    stop_until: float = 0.0
    open_websockets: int = 0
    websockets_of: Counter[str] = field(default_factory=Counter)
    unauthenticated_websockets: ConnectionSlots = field(init=False)
    feeds: Feeds = field(init=False)
    topic_ends: TopicEnds = field(init=False)
    reads: SharedReads = field(init=False)
    read_sizes: ReadSizes = field(default_factory=ReadSizes)

    def __post_init__(self) -> None:
        self.feeds = Feeds(self.client, self.settings, self.outgoing, self.metrics)
        self.topic_ends = TopicEnds(self.client)
        self.reads = SharedReads(self._read)
        self.unauthenticated_websockets = ConnectionSlots(max(1, self.settings.ws_connections_max // UNKNOWN_SHARE), 0)

    async def _read(self, place: ReadPosition) -> Fetched:
        return await self.client.fetch(*place[:3], max_bytes=place.max_bytes)

    def stop(self) -> None:
        """Begin to stop; idempotent."""
        if not self.stopping.is_set():
            self.stopping.set()
            self.turns.stop()
            self.stop_until = time.monotonic() + self.settings.stop_timeout_s


def gateway_of(connection: HTTPConnection) -> Gateway:
    """Return the `Gateway` of the request's caller; without an authenticated caller, that of the application."""
    gateway = connection.scope.get("state", {}).get("gateway") or connection.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


_TOPIC_SCHEMA: Final[dict[str, Any]] = {
    "pattern": "^(?!__)[A-Za-z0-9._-]+$",
    "minLength": 1,
    "maxLength": TOPIC_NAME_CHARS_MAX,
}
"""The schema of names that `check_topic_name` accepts, for the API's description."""
_GROUP_SCHEMA: Final[dict[str, Any]] = {"minLength": 1, "maxLength": GROUP_NAME_BYTES_MAX}

TopicName = Annotated[str, WithJsonSchema({"type": "string", **_TOPIC_SCHEMA})]
"""A topic's name in a body or query; check it with `check_topic_name`."""


async def gateway_dependency(connection: HTTPConnection) -> Gateway:
    """Dependency of routes: `gateway_of`. A coroutine, because the framework runs plain functions in a thread."""
    return gateway_of(connection)


async def checked_topic(
    topic: Annotated[str, Path(description="The topic's name.", json_schema_extra=_TOPIC_SCHEMA)],
) -> str:
    """Dependency of routes: refuse invalid names of topics before a node is asked.

    Raises:
        ProtocolError: INVALID_TOPIC.
    """
    check_topic_name(topic)
    return topic


async def checked_group(
    group: Annotated[str, Path(description="The group's name.", json_schema_extra=_GROUP_SCHEMA)],
) -> str:
    """Dependency of routes: refuse invalid names of groups.

    Raises:
        ProtocolError: INVALID_REQUEST.
    """
    check_group_name(group)
    return group


GatewayDep = Annotated[Gateway, Depends(gateway_dependency)]
TopicPath = Annotated[str, Depends(checked_topic)]
GroupPath = Annotated[str, Depends(checked_group)]
PartitionPath = Annotated[int, Path(ge=0, lt=PARTITIONS_MAX, description="The partition's number.")]


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Encode plain values as JSON, faster than the framework does."""
    return Response(orjson.dumps(content), status, headers=headers, media_type="application/json")


def now_us() -> int:
    """Return the wall clock, in us since 1970."""
    return time.time_ns() // 1000
