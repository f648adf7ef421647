"""One request for each route and each message of a WebSocket, with the permissions that it needs: the access table.

Routes and messages come from the gateway's own lists; a test fails if one has no row here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.routing import Route
from tests.gateway.secured import WRONG

from tidelog_gateway.app import ROUTERS

Right = tuple[str, str, str]
"""Operation, kind of resource, and name."""

ALL = [
    (("all",), "cluster", ""),
    (("all",), "topic", "t"),
    (("all",), "topic", "made"),
    (("all",), "group", "g"),
    (("all",), "group", "gone"),
]
"""Rules that grant everything that the rows need."""


class Row(NamedTuple):
    """A request that succeeds with the listed permissions.

    Attributes:
        path: with fields from `Secured.ids` in braces.
        needs: permissions that are needed together.
        body: as JSON.
        granted: status of the answer with all permissions; None: success.
    """

    path: str
    needs: tuple[Right, ...] = ()
    body: Any = None
    granted: int | None = None

    @property
    def without(self) -> int:
        """Status of the answer without permissions."""
        return 403 if self.needs else 200


RECORDS = {"records": [{"value": "x"}]}
COMMIT = {"offsets": [{"topic": "t", "partition": 0, "next_offset": 0}]}
RESET = {"topic": "t", "to": "earliest"}
RULE = {"principal": "made", "operations": ["all"], "resource": "cluster"}
TEST = {"principal": "made", "operation": "consume", "resource": "topic", "name": "t"}
PARTITION = "/v1/topics/{topic}/partitions/{partition}"


def _on(resource: str, name: str, *operations: str) -> tuple[Right, ...]:
    return tuple((operation, resource, name) for operation in operations)


_KEYS = _on("cluster", "", "cluster")

ROWS = {
    ("POST", "/v1/topics"): Row("/v1/topics", _on("topic", "made", "create"), {"name": "made"}),
    ("GET", "/v1/topics"): Row("/v1/topics"),
    ("GET", "/v1/topics/{topic}"): Row("/v1/topics/t", _on("topic", "t", "describe")),
    ("PATCH", "/v1/topics/{topic}"): Row("/v1/topics/t", _on("topic", "t", "alter"), {"retention_ms": 1 << 40}),
    ("POST", "/v1/topics/{topic}/records"): Row("/v1/topics/t/records", _on("topic", "t", "produce"), RECORDS),
    ("GET", PARTITION + "/records"): Row("/v1/topics/t/partitions/0/records?offset=0", _on("topic", "t", "consume")),
    ("GET", "/v1/topics/{topic}/records"): Row("/v1/topics/t/records", _on("topic", "t", "consume")),
    ("GET", "/v1/topics/{topic}/stream"): Row("/v1/topics/t/stream", _on("topic", "t", "consume")),
    ("GET", "/v1/topics/{topic}/keys/{key:any_text}"): Row("/v1/topics/t/keys/k", _on("topic", "t", "consume")),
    ("GET", "/v1/topics/{topic}/offsets"): Row("/v1/topics/t/offsets", _on("topic", "t", "describe")),
    ("GET", PARTITION + "/offsets"): Row("/v1/topics/t/partitions/0/offsets", _on("topic", "t", "describe")),
    ("DELETE", PARTITION + "/records"): Row(
        "/v1/topics/t/partitions/0/records?before_offset=0", _on("topic", "t", "delete")
    ),
    ("GET", "/v1/cluster"): Row("/v1/cluster", _on("cluster", "", "describe")),
    ("GET", "/v1/history"): Row("/v1/history", _on("cluster", "", "describe")),
    # a single node cannot be drained
    ("PATCH", "/v1/cluster/nodes/{node}"): Row(
        "/v1/cluster/nodes/node", _on("cluster", "", "cluster"), {"draining": False}, 403
    ),
    ("GET", "/v1/me"): Row("/v1/me"),
    ("GET", "/v1/groups"): Row("/v1/groups"),
    ("PUT", "/v1/groups/{group}/offsets"): Row(
        "/v1/groups/g/offsets", (*_on("group", "g", "group"), *_on("topic", "t", "describe")), COMMIT
    ),
    ("GET", "/v1/groups/{group}/offsets"): Row("/v1/groups/g/offsets", _on("group", "g", "describe")),
    ("GET", "/v1/groups/{group}"): Row("/v1/groups/g", _on("group", "g", "describe")),
    ("GET", "/v1/groups/{group}/lag"): Row(
        "/v1/groups/g/lag?topic=t", (*_on("group", "g", "describe"), *_on("topic", "t", "describe"))
    ),
    ("POST", "/v1/groups/{group}/offsets:reset"): Row(
        "/v1/groups/g/offsets:reset", (*_on("group", "g", "group"), *_on("topic", "t", "describe")), RESET
    ),
    ("DELETE", "/v1/groups/{group}"): Row("/v1/groups/gone", _on("group", "gone", "delete")),
    ("DELETE", "/v1/topics/{topic}"): Row("/v1/topics/made", _on("topic", "made", "delete")),
    ("POST", "/v1/api-keys"): Row("/v1/api-keys", _KEYS, {"principal": "made"}),
    ("GET", "/v1/api-keys"): Row("/v1/api-keys", _KEYS),
    ("DELETE", "/v1/api-keys/{key_id}"): Row("/v1/api-keys/{key}", _KEYS),
    ("POST", "/v1/rules"): Row("/v1/rules", _KEYS, RULE),
    ("GET", "/v1/rules"): Row("/v1/rules", _KEYS),
    ("DELETE", "/v1/rules/{rule_id}"): Row("/v1/rules/{rule}", _KEYS),
    ("POST", "/v1/rules:test"): Row("/v1/rules:test", _KEYS, TEST),
    ("GET", "/v1/quotas"): Row("/v1/quotas", _KEYS),
    ("GET", "/v1/quotas:usage"): Row("/v1/quotas:usage", _KEYS),
    ("PUT", "/v1/quotas/{subject:any_text}"): Row("/v1/quotas/role:made", _KEYS, {"groups": 7}),
    ("DELETE", "/v1/quotas/{subject:any_text}"): Row("/v1/quotas/role:made", _KEYS),
}
"""In an order in which each succeeds. Requests without needs list only what the caller may see."""


def routes() -> set[tuple[str, str]]:
    """Return the method and path of every route of the application."""
    return {
        (method, route.path)
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, Route)
        for method in route.methods or ()
    }


SUB = {"sid": 1, "topic": "t", "group": "g", "from": "earliest", "credit": {"records": 10}}
MESSAGES: dict[str, Any] = {
    "auth": {"id": 1, "auth": {"token": WRONG}},
    "sub": {"id": 1, "sub": SUB},
    "credit": {"credit": {"sid": 1, "records": 1}},
    "commit": {"id": 1, "commit": {"sid": 1, "offsets": {"0": 0}}},
    "pub": {"id": 1, "pub": {"topic": "t", "records": [{"value": "x"}]}},
    "unsub": {"id": 1, "unsub": {"sid": 1}},
    "committed": {"id": 1, "committed": {"group": "g", "topic": "t"}},
}
"""In an order in which each succeeds."""

MESSAGE_NEEDS: dict[str, tuple[Right, ...]] = {
    "sub": (*_on("topic", "t", "consume"), *_on("group", "g", "describe")),
    "commit": _on("group", "g", "group"),
    "pub": _on("topic", "t", "produce"),
    "committed": (*_on("group", "g", "describe"), *_on("topic", "t", "describe")),
    "credit": (),
    "unsub": (),
    "auth": (),
}
"""Permissions that each message needs, in addition to those of its subscription."""
