"""`/v1/quotas`: the limits of callers, and their usage.

Quotas are read and changed with the caller's permissions, as `access_rules` does with keys and rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from tidelog.security.quotas import FIELDS, Quota
from tidelog_gateway.administration.access_rules import SecurityDep
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import json_response
from tidelog_gateway.problems import invalid
from tidelog_gateway.requests.parameters import ANY_TEXT
from tidelog_proto.limits import PRINCIPAL_CHARS_MAX

router = APIRouter(prefix="/v1", tags=["access"], route_class=JsonRoute)

LIMIT_MAX: Final = 2**63 - 1
_UNLIMITED: Final = "unlimited"
_PREFIX_CHARS: Final = 16
"""Maximum length of the prefix of a name, `role:` or `address:`."""

Subject = Annotated[
    str,
    Path(
        min_length=1,
        max_length=PRINCIPAL_CHARS_MAX + _PREFIX_CHARS,
        description="A principal, role:NAME, * for each principal, address:CIDR, or default; percent-encoded.",
    ),
]


def _limit(value: Any, handler: Callable[[Any], Any]) -> Any:
    """Report a single fault for an invalid limit; pydantic would report one for each type that a limit may have."""
    try:
        return handler(value)
    except ValidationError as error:
        text = 'must be a whole number from 0 to {most}, "unlimited" or null'
        raise PydanticCustomError("limit", text, {"most": LIMIT_MAX}) from error


_Limit = Annotated[
    Annotated[int, Field(ge=0, le=LIMIT_MAX)] | Literal["unlimited"] | None,
    WrapValidator(_limit),
    Field(description="null: this quota sets no limit; unlimited: no limit, overriding broader quotas."),
]


class QuotaBody(BaseModel):
    """The limits of a quota; an absent limit is not set."""

    model_config = ConfigDict(extra="forbid", strict=True)

    produce_bytes: _Limit = None
    consume_bytes: _Limit = None
    requests: _Limit = None
    connections: _Limit = None
    in_flight_bytes: _Limit = None
    topics: _Limit = None
    partitions: _Limit = None
    groups: _Limit = None


class QuotaView(QuotaBody):
    """A quota. Rates are per second and node, connections and bytes in flight per node."""

    subject: str


class QuotasView(BaseModel):
    """All quotas."""

    quotas: list[QuotaView]


class UsageView(BaseModel):
    """The usage of one node by a caller that has a quota."""

    node: str
    caller: Annotated[str, Field(description="A principal, or address:CIDR.")]
    connections: int
    waiting: Annotated[int, Field(description="Number of connections whose requests are throttled now.")]
    in_flight_bytes: int
    throttled_s: Annotated[float, Field(description="Total time for which the caller's requests were throttled.")]
    produce_debt_s: Annotated[float, Field(description="Time until the caller may write again.")]
    consume_debt_s: Annotated[float, Field(description="Time until the caller may read again.")]


class UsagesView(BaseModel):
    """The usage of each node that answers, by callers that have quotas."""

    usages: list[UsageView]


@router.get("/quotas", response_model=QuotasView, summary="List quotas")
async def list_quotas(security: SecurityDep) -> Response:
    """Return all quotas, in the order of their subjects. Needs `cluster` on the cluster."""
    quotas = await security.quotas()
    return json_response({"quotas": [_view(subject, quotas[subject]) for subject in sorted(quotas)]})


@router.get("/quotas:usage", response_model=UsagesView, summary="Use of quotas")
async def quota_usage(security: SecurityDep) -> Response:
    """List the usage of each node by callers with quotas, at most 1,000 callers per node.

    Needs `cluster` on the cluster.
    """
    return json_response({"usages": [asdict(usage) for usage in await security.quota_usage()]})


@router.put(f"/quotas/{{subject:{ANY_TEXT}}}", response_model=QuotaView, summary="Set a quota")
async def set_quota(security: SecurityDep, subject: Subject, body: QuotaBody) -> Response:
    """Replace the quota of a subject; all nodes apply it within a second. Needs `cluster` on the cluster."""
    limits = {name: math.inf if limit == _UNLIMITED else limit for name, limit in body.model_dump().items()}
    if all(limit is None for limit in limits.values()):
        raise invalid([{"pointer": "", "detail": f"the body sets no limit; set at least one of {', '.join(FIELDS)}"}])
    quota = Quota(**limits)
    await security.set_quota(subject, quota)
    return json_response(_view(subject, quota))


@router.delete(f"/quotas/{{subject:{ANY_TEXT}}}", status_code=204, summary="Remove a quota")
async def remove_quota(security: SecurityDep, subject: Subject) -> Response:
    """Remove a quota; requests that it throttles continue. 422 if the subject has no quota.

    Needs `cluster` on the cluster.
    """
    await security.remove_quota(subject)
    return Response(status_code=204)


def _view(subject: str, quota: Quota) -> dict[str, Any]:
    limits = {name: getattr(quota, name) for name in FIELDS}
    document = {name: _UNLIMITED if limit == math.inf else limit for name, limit in limits.items()}
    return {"subject": subject} | document
