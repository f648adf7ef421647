"""`POST /v1/rules:test`: whether a principal may do an operation, and which rule decides."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tidelog.security import Resource
from tidelog_gateway.administration.access_rules import ROLES_MAX, SecurityDep
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import json_response
from tidelog_proto.limits import GROUP_NAME_BYTES_MAX, PRINCIPAL_CHARS_MAX

router = APIRouter(prefix="/v1", tags=["access"], route_class=JsonRoute)

TestedOperation = Literal[
    "produce", "consume", "create", "alter", "delete", "describe", "group", "cluster", "impersonate"
]
_PRINCIPAL_MAX: Final = PRINCIPAL_CHARS_MAX


class RuleTest(BaseModel):
    """An operation of a principal on a resource."""

    model_config = ConfigDict(extra="forbid", strict=True)

    operation: TestedOperation
    resource: Resource
    name: Annotated[
        str, Field(max_length=GROUP_NAME_BYTES_MAX, description="Name of the topic or group; empty for the cluster.")
    ] = ""
    principal: Annotated[
        str,
        Field(
            max_length=_PRINCIPAL_MAX,
            description="The principal to test; empty for the caller. Testing another principal needs `cluster` on "
            "the cluster.",
        ),
    ] = ""
    roles: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=_PRINCIPAL_MAX)]],
        Field(max_length=ROLES_MAX, description="Roles of `principal`; not used if the caller is tested."),
    ] = []


class VerdictView(BaseModel):
    """Whether the operation is allowed, and the reason."""

    allowed: bool
    because: Annotated[str, Field(description="The rule that decides, with its id, or the reason why no rule decides.")]


@router.post("/rules:test", response_model=VerdictView, summary="Test whether rules allow an operation")
async def test_rules(security: SecurityDep, body: RuleTest) -> Response:
    """Return whether a principal may do an operation now, and the reason. Changes nothing."""
    verdict = await security.test(
        body.operation, body.resource, body.name, principal=body.principal, roles=tuple(body.roles)
    )
    return json_response({"allowed": verdict.allowed, "because": verdict.because})
