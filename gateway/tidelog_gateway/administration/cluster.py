"""`/v1/cluster`, `/v1/me`, `/v1/history`: state and draining of nodes, the caller, metrics of the last hour."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tidelog.model import Node
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import GatewayDep, TopicName, json_response
from tidelog_gateway.history.history import History
from tidelog_gateway.json_answers import view_maker
from tidelog_proto.limits import NODE_ID_BYTES_MAX
from tidelog_proto.names import check_topic_name
from tidelog_proto.version import VERSION

router = APIRouter(prefix="/v1", tags=["cluster"], route_class=JsonRoute)


class NodeView(BaseModel):
    """A node: its own report, or what another node knows about it if the node itself does not answer."""

    node_id: str
    host: str
    port: int
    zone: str
    alive: bool
    state: Annotated[str, Field(description="running, disk_full, stopping, failed, or no answer.")]
    membership: Annotated[str, Field(description="State according to gossip: alive, suspect, dead, left or unknown.")]
    draining: bool
    roles: list[str]
    software: str
    uptime_ms: int
    connections: int
    in_flight_bytes: int
    data_bytes: int
    disk_free_bytes: int
    no_quorum: Annotated[int, Field(description="Number of partitions with a copy on this node that lack a quorum.")]
    certificate_ends_ms: int | None
    ca_ends_ms: int | None
    level: Annotated[int | None, Field(description="Highest feature level that its build supports; null if unknown.")]


_view_of_node = view_maker(NodeView, Node)


class ClusterView(BaseModel):
    """The nodes of the cluster, and its feature level."""

    nodes: list[NodeView]
    level: Annotated[
        int | None,
        Field(description="Feature level of the cluster, which `tidelog cluster finalize` raises; null if unknown."),
    ]


class NodeChange(BaseModel):
    """A change of a node."""

    model_config = ConfigDict(extra="forbid", strict=True)

    draining: Annotated[
        bool,
        Field(
            description="true: move the node's copies and ownership away; false: allow copies and ownership on it "
            "again."
        ),
    ]


class DrainingView(BaseModel):
    """The draining state of a node. Copies move after the answer."""

    node_id: str
    draining: bool
    partitions: Annotated[int, Field(description="Number of partitions that the node stores now.")]


class MeView(BaseModel):
    """The caller, and the gateway's settings that the web page `/ui` needs."""

    auth: Annotated[Literal["none", "callers"], Field(description="none: the gateway authenticates no callers.")]
    principal: Annotated[str | None, Field(description="null: the gateway authenticates no callers.")]
    ui: Literal["on", "read_only", "off"]
    version: str


class HistoryView(BaseModel):
    """Metrics of the last hour. Each list has one value per time in `times_ms`; null where the value is unknown."""

    times_ms: list[int]
    records_per_s: list[float | None]
    size_bytes: Annotated[list[int | None], Field(description="Bytes of one copy of each partition.")]
    requests_per_s: Annotated[
        list[float | None] | None, Field(description="HTTP requests to this gateway; null for a topic.")
    ]
    published_per_s: Annotated[
        list[float | None] | None, Field(description="Records published through this gateway; null for a topic.")
    ]
    delivered_per_s: Annotated[
        list[float | None] | None, Field(description="Records delivered by this gateway; null for a topic.")
    ]
    publish_p50_ms: Annotated[
        list[float | None] | None,
        Field(description="Median duration of HTTP publishes of this gateway, rounded up to a histogram bound."),
    ]
    publish_p99_ms: Annotated[
        list[float | None] | None,
        Field(
            description="99th percentile of the duration of HTTP publishes of this gateway, rounded up to a histogram "
            "bound."
        ),
    ]
    fault: Annotated[
        str | None, Field(description="The reason why there are no newer samples; null if sampling works.")
    ]


@router.get("/cluster", response_model=ClusterView, summary="The nodes")
async def cluster(gateway: GatewayDep) -> Response:
    """Return the nodes, their disks and states. Needs `describe` on the cluster."""
    status = await gateway.client.cluster_status(topics=False)
    return json_response({"nodes": [_view_of_node(node) for node in status.nodes], "level": status.level})


@router.patch("/cluster/nodes/{node}", response_model=DrainingView, summary="Drain a node")
async def change_node(
    gateway: GatewayDep,
    node: Annotated[str, Path(min_length=1, max_length=NODE_ID_BYTES_MAX, description="The node's id.")],
    body: NodeChange,
) -> Response:
    """Begin or end draining a node. Needs `cluster` on the cluster."""
    stored = await gateway.client.drain_node(node, draining=body.draining)
    return json_response({"node_id": node, "draining": body.draining, "partitions": stored})


@router.get("/me", response_model=MeView, summary="The caller")
async def me(gateway: GatewayDep) -> Response:
    """Return the caller's principal, and the settings of this gateway that the web page `/ui` needs."""
    settings = gateway.settings
    principal = None if gateway.caller is None else gateway.caller.principal
    return json_response({"auth": settings.auth, "principal": principal, "ui": settings.ui, "version": VERSION})


@router.get("/history", response_model=HistoryView, summary="Figures of the last hour")
async def history(
    gateway: GatewayDep,
    topic: Annotated[
        TopicName | None, Query(description="Return the history of this topic; without it that of the cluster.")
    ] = None,
) -> Response:
    """Return the metrics that this gateway has sampled. Needs `describe` on the topic, or on the cluster."""
    sampler = gateway.sampler
    if topic is not None:
        check_topic_name(topic)
        # The history is in this gateway's memory, so a request to a node checks that the caller may describe the topic.
        await gateway.client.list_offsets(topic, "latest", [0])
    else:
        await gateway.client.nodes()
    kept = History() if sampler is None else sampler.history
    fault = (
        "this gateway takes no samples, because ui = off in its settings; set ui = on"
        if sampler is None
        else sampler.fault
    )
    shown = _of_cluster(kept) if topic is None else _of_topic(kept, topic)
    return json_response({"times_ms": kept.times_ms, **shown, "fault": fault})


def _of_topic(kept: History, topic: str) -> dict[str, Any]:
    rates, sizes = kept.topic_points(topic)
    none = dict.fromkeys(("requests_per_s", "published_per_s", "delivered_per_s", "publish_p50_ms", "publish_p99_ms"))
    return {"records_per_s": [rate and rate.records_per_s for rate in rates], "size_bytes": sizes, **none}


def _of_cluster(kept: History) -> dict[str, Any]:
    rates, sizes = kept.total_points()
    points = kept.gateway_points()
    return {
        "records_per_s": rates,
        "size_bytes": sizes,
        "requests_per_s": [point and point.requests_per_s for point in points],
        "published_per_s": [point and point.published_per_s for point in points],
        "delivered_per_s": [point and point.delivered_per_s for point in points],
        "publish_p50_ms": [point and point.publish_p50_ms for point in points],
        "publish_p99_ms": [point and point.publish_p99_ms for point in points],
    }
