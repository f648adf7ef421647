"""Refusals that name the operation that the gateway's caller requested."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidelog import Client
from tidelog.errors import ForbiddenError
from tidelog.security.access_rules import Operation, Resource


@asynccontextmanager
async def requiring(
    client: Client, operation: Operation, name: str, resource: Resource = "topic"
) -> AsyncIterator[None]:
    """Report a missing permission for `operation` instead of a refusal inside the block.

    The block looks something up on the way to the operation, so its refusal names the permission for that lookup
    instead of the permission that the caller needs.

    Raises:
        ForbiddenError: the caller lacks the permission for `operation`; if the caller has it, the block's own refusal.
        TidelogError: the block or the permission check failed.
    """
    try:
        yield
    except ForbiddenError:
        await client.security.check(operation, resource, name)
        raise
