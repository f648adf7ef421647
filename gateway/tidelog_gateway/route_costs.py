"""Event-loop time of the largest request of each route of a gateway, and its bound.

`tests/test_costs.py` fails for a route that is missing here. The costs of nodes are in `core.request_costs` of the
broker.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidelog_gateway.bodies.json_body import VALUES_MAX


class RouteCost(NamedTuple):
    """The cost of one route.

    Attributes:
        largest: the largest request that the limits allow, in words.
        largest_ms: time of the request `largest` on the event loop's thread, in milliseconds, rounded up.
        bound: the limits that are checked before the work starts.
        paced: whether the gateway works in short time slices, in the caller's turn, instead of processing each answer
            of a node at once.
    """

    largest: str
    largest_ms: int
    bound: str
    paced: bool = False


_QUERY: Final = RouteCost("a head of 64 KiB", 5, "the head's size")
_JSON: Final = f"{VALUES_MAX} JSON values, 100 members of an object, body_bytes_max"
_PARTITIONS: Final = "partitions of a topic: 100,000, requested from nodes 4,096 at a time"

HTTP_COSTS: Final[dict[str, RouteCost]] = {
    "POST /v1/topics/{topic}/records": RouteCost(
        "10,000 records in 8 MiB; of JSON lines, the same for each 8 MiB",
        200,
        f"the permission, records_per_request_max, {VALUES_MAX} JSON values of a record, decoded bytes of Arrow, "
        "headers of a request, faults of JSON lines, body_bytes_max",
        paced=True,
    ),
    "GET /v1/topics/{topic}/partitions/{partition}/records": RouteCost(
        "10,000 records in 8 MiB", 40, "records_per_request_max, fetch_bytes_max"
    ),
    "GET /v1/topics/{topic}/records": RouteCost(
        "10,000 records in 8 MiB, 4,096 partitions",
        400,
        "records_per_request_max, fetch_bytes_max, 256 fetches, 1 s; waits count towards ws_connections_max",
        paced=True,
    ),
    "GET /v1/topics/{topic}/stream": RouteCost(
        "1,000 records in 1 MB, a message", 20, "ws_batch_records_max, ws_batch_bytes_max, ws_connections_max"
    ),
    "DELETE /v1/topics/{topic}/partitions/{partition}/records": _QUERY,
    "POST /v1/topics": RouteCost("8 MiB", 20, _JSON, paced=True),
    "GET /v1/topics": RouteCost("a page of 1,000 topics", 20, "the limit of a page"),
    "GET /v1/topics/{topic}": RouteCost("4,096 partitions", 50, _PARTITIONS, paced=True),
    "PATCH /v1/topics/{topic}": RouteCost("8 MiB", 20, _JSON, paced=True),
    "DELETE /v1/topics/{topic}": _QUERY,
    "GET /v1/topics/{topic}/offsets": RouteCost("4,096 partitions", 150, _PARTITIONS, paced=True),
    "GET /v1/topics/{topic}/partitions/{partition}/offsets": _QUERY,
    "GET /v1/topics/{topic}/keys/{key:any_text}": RouteCost("a key of 4,096 characters", 10, "partitions of a topic"),
    "GET /v1/groups": RouteCost("a page of 1,000 groups", 20, "the limit of a page"),
    "GET /v1/groups/{group}": RouteCost("1,000 members", 20, "members of a group"),
    "DELETE /v1/groups/{group}": _QUERY,
    "GET /v1/groups/{group}/offsets": RouteCost("4,096 positions", 15, "positions of a group", paced=True),
    "PUT /v1/groups/{group}/offsets": RouteCost("4,096 positions", 50, f"4,096 positions, {_JSON}", paced=True),
    "GET /v1/groups/{group}/lag": RouteCost("4,096 partitions", 90, _PARTITIONS, paced=True),
    "POST /v1/groups/{group}/offsets:reset": RouteCost("16,384 partitions", 90, _JSON, paced=True),
    "POST /v1/api-keys": RouteCost("8 MiB", 20, _JSON, paced=True),
    "GET /v1/api-keys": RouteCost("a page of keys", 5, "the node's page"),
    "DELETE /v1/api-keys/{key_id}": _QUERY,
    "POST /v1/rules": RouteCost("8 MiB", 20, _JSON, paced=True),
    "GET /v1/rules": RouteCost("a page of rules", 5, "the node's page"),
    "DELETE /v1/rules/{rule_id}": _QUERY,
    "POST /v1/rules:test": RouteCost("8 MiB", 20, _JSON, paced=True),
    "GET /v1/quotas": RouteCost("1,000 quotas", 10, "quotas of a cluster"),
    "GET /v1/quotas:usage": RouteCost("1,000 callers", 10, "1,000 callers of a node"),
    "PUT /v1/quotas/{subject:any_text}": RouteCost("8 MiB", 20, _JSON, paced=True),
    "DELETE /v1/quotas/{subject:any_text}": _QUERY,
    "GET /v1/cluster": RouteCost("256 nodes", 10, "nodes of a cluster"),
    "PATCH /v1/cluster/nodes/{node}": RouteCost("8 MiB", 20, _JSON, paced=True),
    "GET /v1/me": _QUERY,
    "GET /v1/history": RouteCost("360 samples", 5, "samples in memory"),
    "GET /": _QUERY,
    "GET /ui": _QUERY,
    "GET /ui/": _QUERY,
    "GET /ui/{name}": _QUERY,
    "GET /livez": _QUERY,
    "GET /readyz": _QUERY,
    "GET /metrics": _QUERY,
    "GET /openapi.json": _QUERY,
    "GET /docs": _QUERY,
    "GET /docs/assets/{name}": _QUERY,
}
"""Method and path -> the cost."""

_MESSAGE: Final = f"ws_message_bytes_max, {VALUES_MAX} JSON values"

MESSAGE_COSTS: Final[dict[str, RouteCost]] = {
    "auth": RouteCost("18 KiB", 1, _MESSAGE),
    "sub": RouteCost("4,096 positions", 80, f"ws_subscriptions_max, {_MESSAGE}"),
    "credit": RouteCost("1,000 grants, a message for each", 120, _MESSAGE),
    "commit": RouteCost("4,096 positions", 45, _MESSAGE),
    "committed": RouteCost("4,096 partitions", 12, _MESSAGE),
    "pub": RouteCost("10,000 records in 1 MiB", 45, f"records_per_request_max, {_MESSAGE}", paced=True),
    "unsub": RouteCost("1 KiB", 1, _MESSAGE),
}
"""Kind of a WebSocket's message -> the cost."""
