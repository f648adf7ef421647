"""`/v1/api-keys` and `/v1/rules`: who may show what, and who may do what, changed by a caller who may do that.

All of it is asked on behalf of the caller, never by the gateway's own right: so where the gateway asks nobody who he
is, it is refused, whatever its own key may do. A key's secret is in the answer that makes it, once, and in no log.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from tidelog.security import AccessRule, KeyInfo, Operation, Resource, Security
from tidelog_gateway.context import GatewayDep, json_response
from tidelog_gateway.cursors import CursorQuery, cursor_of, name_in
from tidelog_gateway.json_route import JsonRoute
from tidelog_gateway.problems import Problem
from tidelog_proto.limits import GROUP_NAME_BYTES_MAX, PRINCIPAL_CHARS_MAX, TIMESTAMP_MS_MAX

router = APIRouter(prefix="/v1", tags=["access"], route_class=JsonRoute)

ROLES_MAX: Final = 64
_NOTE_CHARS_MAX: Final = 200
_OPERATIONS_MAX: Final = 16
_NOT_KEPT: Final = {"Cache-Control": "no-store"}

_Principal = Annotated[str, Field(min_length=1, max_length=PRINCIPAL_CHARS_MAX)]
_Id = Annotated[str, Path(min_length=1, max_length=64, pattern="^[A-Za-z0-9]+$")]


async def _security_of(gateway: GatewayDep) -> Security:
    """Return what asks on behalf of the caller.

    Raises:
        Problem: 403, he has not been asked who he is.
    """
    if gateway.caller is None:
        detail = (
            "this gateway does not authenticate callers (auth = none), so it does not manage keys, rules and quotas: "
            "use the tidelog command, or a gateway with auth = callers"
        )
        raise Problem(403, "forbidden", detail)
    return gateway.client.security


SecurityDep = Annotated[Security, Depends(_security_of)]


class KeyCreate(BaseModel):
    """A new API key."""

    model_config = ConfigDict(extra="forbid", strict=True)

    principal: Annotated[_Principal, Field(description="Who will show it.")]
    roles: Annotated[list[_Principal], Field(max_length=ROLES_MAX, description="Roles of the principal.")] = []
    expires_ms: Annotated[
        int | None, Field(ge=1, le=TIMESTAMP_MS_MAX, description="When it ends, in ms since 1970; null: never.")
    ] = None
    note: Annotated[str, Field(max_length=_NOTE_CHARS_MAX, description="What it is for.")] = ""


class KeyView(BaseModel):
    """An API key, without its secret."""

    key_id: str
    principal: str
    roles: list[str]
    created_ms: int
    expires_ms: int | None
    note: str


class NewKeyView(KeyView):
    """A key that was made."""

    api_key: Annotated[str, Field(description="The key itself: it is told this once, and kept nowhere.")]


class KeyPage(BaseModel):
    """A page of keys."""

    api_keys: list[KeyView]
    next_cursor: Annotated[str | None, Field(description="Pass it as `cursor` for the next page; null at the end.")]


class RuleCreate(BaseModel):
    """A rule: it allows, or denies, a principal some operations on a resource."""

    model_config = ConfigDict(extra="forbid", strict=True)

    principal: Annotated[_Principal, Field(description='A name, "role:NAME", or "*" for everybody.')]
    operations: Annotated[list[Operation], Field(min_length=1, max_length=_OPERATIONS_MAX)]
    resource: Resource
    name: Annotated[
        str, Field(max_length=GROUP_NAME_BYTES_MAX, description="Of the topic or group; none of the cluster.")
    ] = ""
    prefix: Annotated[bool, Field(description="`name` is the beginning of the names that are meant.")] = False
    deny: Annotated[bool, Field(description="What is denied is denied, whatever else is allowed.")] = False


class RuleView(RuleCreate):
    """A rule that stands."""

    rule_id: str


class RulePage(BaseModel):
    """A page of rules."""

    rules: list[RuleView]
    next_cursor: Annotated[str | None, Field(description="Pass it as `cursor` for the next page; null at the end.")]


@router.post("/api-keys", status_code=201, response_model=NewKeyView, summary="Create an API key")
async def create_key(security: SecurityDep, body: KeyCreate) -> Response:
    """Make a key and return it: this answer alone has its secret, and is not to be kept by caches."""
    expires_us = None if body.expires_ms is None else body.expires_ms * 1000
    made = await security.create_key(body.principal, roles=body.roles, expires_us=expires_us, note=body.note)
    return json_response(_key_view(made.info) | {"api_key": made.api_key}, 201, _NOT_KEPT)


@router.get("/api-keys", response_model=KeyPage, summary="List API keys")
async def list_keys(security: SecurityDep, cursor: CursorQuery = None) -> Response:
    """List keys by their ids, without their secrets, a page at a time."""
    keys, last = await security.key_page(after="" if cursor is None else name_in(cursor))
    page = {"api_keys": [_key_view(key) for key in keys], "next_cursor": cursor_of(last) if last else None}
    return json_response(page, headers=_NOT_KEPT)


@router.delete("/api-keys/{key_id}", status_code=204, summary="Revoke an API key")
async def revoke_key(security: SecurityDep, key_id: _Id) -> Response:
    """Let a key be none any more: what has been opened with it ends within seconds. It may be repeated."""
    await security.revoke_key(key_id)
    return Response(status_code=204)


@router.post("/rules", status_code=201, response_model=RuleView, summary="Grant or deny")
async def grant(security: SecurityDep, body: RuleCreate) -> Response:
    """Add a rule; it holds on all nodes within a second."""
    asked = AccessRule(
        body.principal, tuple(body.operations), body.resource, body.name, prefix=body.prefix, deny=body.deny
    )
    return json_response(_rule_view(await security.grant(asked)), 201)


@router.get("/rules", response_model=RulePage, summary="List rules")
async def list_rules(security: SecurityDep, cursor: CursorQuery = None) -> Response:
    """List rules by their ids, a page at a time."""
    rules, last = await security.rule_page(after="" if cursor is None else name_in(cursor))
    page = {"rules": [_rule_view(rule) for rule in rules], "next_cursor": cursor_of(last) if last else None}
    return json_response(page, headers=_NOT_KEPT)


@router.delete("/rules/{rule_id}", status_code=204, summary="Remove a rule")
async def revoke_rule(security: SecurityDep, rule_id: _Id) -> Response:
    """Remove a rule; it may be repeated. 422 where there was none, or nobody would be left who may change rules."""
    await security.revoke(rule_id)
    return Response(status_code=204)


def _key_view(key: KeyInfo) -> dict[str, Any]:
    return {
        "key_id": key.key_id,
        "principal": key.principal,
        "roles": list(key.roles),
        "created_ms": key.created_us // 1000,
        "expires_ms": None if key.expires_us is None else key.expires_us // 1000,
        "note": key.note,
    }


def _rule_view(rule: AccessRule) -> dict[str, Any]:
    return {
        "rule_id": rule.rule_id,
        "principal": rule.principal,
        "operations": list(rule.operations),
        "resource": rule.resource,
        "name": rule.name,
        "prefix": rule.prefix,
        "deny": rule.deny,
    }
