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
    """Replace a refusal of the block by the refusal of `operation`, if the caller lacks the permission for `operation`.

    The block looks something up on the way to the operation, so its own refusal names a permission for that lookup
    instead of the permission that the caller needs.

    Raises:
        ForbiddenError: the caller may not perform the operation, or it may and the block was refused something else.
        TidelogError: as the block.
    """
    try:
        yield
    except ForbiddenError:
        await client.security.check(operation, resource, name)
        raise
