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
    """If the block is refused, raise the refusal of `operation` if the caller lacks that permission.

    The block looks something up for the operation, so its own refusal would name a permission that the caller did not
    need to know about.

    Raises:
        ForbiddenError: the caller may not perform the operation, or it may and the block was refused something else.
        TidelogError: as the block.
    """
    try:
        yield
    except ForbiddenError:
        await client.security.check(operation, resource, name)
        raise
