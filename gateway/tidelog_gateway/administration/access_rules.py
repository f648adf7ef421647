"""`/v1/api-keys` and `/v1/rules`: API keys and access rules, with the caller's permissions.

Nodes are asked on behalf of the caller, never with the gateway's own key. A gateway without authentication therefore
refuses these routes, even if its own key has the permission. A key's secret is only in the answer to its creation, and
never logged.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tidelog.security import AccessRule, KeyInfo, Operation, Resource, Security
from tidelog_gateway.bodies.json_route import JsonRoute
from tidelog_gateway.context import GatewayDep, json_response
from tidelog_gateway.json_answers import view_maker
from tidelog_gateway.problems import Problem
from tidelog_gateway.requests.cursors import CursorQuery, cursor_of, name_in
from tidelog_proto.limits import GROUP_NAME_BYTES_MAX, PRINCIPAL_CHARS_MAX, TIMESTAMP_MS_MAX

router = APIRouter(prefix="/v1", tags=["access"], route_class=JsonRoute)

ROLES_MAX: Final = 64
_NOTE_CHARS_MAX: Final = 200
_OPERATIONS_MAX: Final = 16
_NOT_KEPT: Final = {"Cache-Control": "no-store"}

_Principal = Annotated[str, Field(min_length=1, max_length=PRINCIPAL_CHARS_MAX)]
_Id = Annotated[str, Path(min_length=1, max_length=64, pattern="^[A-Za-z0-9]+$")]


async def _security_of(gateway: GatewayDep) -> Security:
    """Return the administration of keys, rules and quotas with the caller's own permissions.

    Raises:
        Problem: 403, the gateway does not authenticate callers.
    """
    if gateway.caller is None:
        detail = (
            "this gateway does not authenticate callers (auth = none), so it does not manage keys, rules and quotas; "
            "use the tidelog command, or a gateway with auth = callers"
        )
        raise Problem(403, "forbidden", detail)
    return gateway.client.security


SecurityDep = Annotated[Security, Depends(_security_of)]


class KeyCreate(BaseModel):
    """A new API key."""

    model_config = ConfigDict(extra="forbid", strict=True)

    principal: Annotated[_Principal, Field(description="The principal that the key authenticates.")]
    roles: Annotated[list[_Principal], Field(max_length=ROLES_MAX, description="Roles of the principal.")] = []
    expires_ms: Annotated[
        int | None, Field(ge=1, le=TIMESTAMP_MS_MAX, description="Expiry, in ms since 1970; null: never.")
    ] = None
    note: Annotated[
        str, Field(max_length=_NOTE_CHARS_MAX, description="A description of the key, such as its purpose.")
    ] = ""


class KeyView(BaseModel):
    """An API key, without its secret."""

    key_id: str
    principal: str
    roles: list[str]
    created_ms: int
    expires_ms: int | None
    note: str


_view_of_key = view_maker(KeyView, KeyInfo)


class NewKeyView(KeyView):
    """A new key, with its secret."""

    api_key: Annotated[str, Field(description="The key with its secret, which is returned only here.")]


class KeyPage(BaseModel):
    """A page of keys."""

    api_keys: list[KeyView]
    next_cursor: Annotated[
        str | None, Field(description="Value of the parameter `cursor` for the next page; null on the last page.")
    ]


class RuleCreate(BaseModel):
    """A new access rule, which allows or denies a principal some operations on a resource."""

    model_config = ConfigDict(extra="forbid", strict=True)

    principal: Annotated[_Principal, Field(description='A name, "role:NAME", or "*" for all principals.')]
    operations: Annotated[list[Operation], Field(min_length=1, max_length=_OPERATIONS_MAX)]
    resource: Resource
    name: Annotated[
        str, Field(max_length=GROUP_NAME_BYTES_MAX, description="Name of the topic or group; empty for the cluster.")
    ] = ""
    prefix: Annotated[bool, Field(description="Whether `name` is a prefix of the names of topics or groups.")] = False
    deny: Annotated[
        bool, Field(description="Whether the rule denies the operations; a denial overrides rules that allow them.")
    ] = False


class RuleView(RuleCreate):
    """A stored access rule, with its id."""

    rule_id: str


_view_of_rule = view_maker(RuleView, AccessRule)


class RulePage(BaseModel):
    """A page of rules."""

    rules: list[RuleView]
    next_cursor: Annotated[
        str | None, Field(description="Value of the parameter `cursor` for the next page; null on the last page.")
    ]


@router.post("/api-keys", status_code=201, response_model=NewKeyView, summary="Create an API key")
async def create_key(security: SecurityDep, body: KeyCreate) -> Response:
    """Create a key and return it: only this answer has its secret, and caches must not store it."""
    expires_us = None if body.expires_ms is None else body.expires_ms * 1000
    new_key = await security.create_key(body.principal, roles=body.roles, expires_us=expires_us, note=body.note)
    return json_response(_view_of_key(new_key.info) | {"api_key": new_key.api_key}, 201, _NOT_KEPT)


@router.get("/api-keys", response_model=KeyPage, summary="List API keys")
async def list_keys(security: SecurityDep, cursor: CursorQuery = None) -> Response:
    """Return a page of the API keys, in the order of their ids, without their secrets."""
    keys, last = await security.key_page(after="" if cursor is None else name_in(cursor))
    page = {"api_keys": [_view_of_key(key) for key in keys], "next_cursor": cursor_of(last) if last else None}
    return json_response(page, headers=_NOT_KEPT)


@router.delete("/api-keys/{key_id}", status_code=204, summary="Revoke an API key")
async def revoke_key(security: SecurityDep, key_id: _Id) -> Response:
    """Revoke a key; idempotent. Connections and tickets that it authenticated end within seconds."""
    await security.revoke_key(key_id)
    return Response(status_code=204)


@router.post("/rules", status_code=201, response_model=RuleView, summary="Grant or deny")
async def grant(security: SecurityDep, body: RuleCreate) -> Response:
    """Add a rule; all nodes apply it within a second."""
    rule = AccessRule(
        body.principal, tuple(body.operations), body.resource, body.name, prefix=body.prefix, deny=body.deny
    )
    return json_response(_view_of_rule(await security.grant(rule)), 201)


@router.get("/rules", response_model=RulePage, summary="List rules")
async def list_rules(security: SecurityDep, cursor: CursorQuery = None) -> Response:
    """Return a page of the access rules, in the order of their ids."""
    rules, last = await security.rule_page(after="" if cursor is None else name_in(cursor))
    page = {"rules": [_view_of_rule(rule) for rule in rules], "next_cursor": cursor_of(last) if last else None}
    return json_response(page, headers=_NOT_KEPT)


@router.delete("/rules/{rule_id}", status_code=204, summary="Remove a rule")
async def revoke_rule(security: SecurityDep, rule_id: _Id) -> Response:
    """Remove a rule. 422 if it does not exist, or if no principal could change rules without it."""
    await security.revoke(rule_id)
    return Response(status_code=204)
