"""Run a command's work with a connected client, from the synchronous world of the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidelog import Client

_ResultT = TypeVar("_ResultT")


def with_client(bootstrap: str, work: Callable[[Client], Awaitable[_ResultT]]) -> _ResultT:
    """Connect, do `work`, close, and return its result.

    Args:
        bootstrap: the value of --bootstrap: addresses with commas between them.
        work: what to do; Ctrl-C cancels it, and it may still clean up.

    Raises:
        TidelogError: whatever the client raises.
    """

    async def run() -> _ResultT:
        async with Client(bootstrap, client_id="tidelog-cli") as client:
            # One try at each address: a person would rather hear now that nobody is there than wait for retries.
            await client.connect()
            return await work(client)

    return asyncio.run(run())
