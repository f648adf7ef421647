"""Calls at a steady rate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


async def at_rate(rate: float, count: int, call: Callable[[], Awaitable[object]]) -> None:
    """Await `call` `count` times, `rate` times a second; calls that are late follow each other without a pause."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for at in range(count):
        await asyncio.sleep(max(0.0, begin + at / rate - loop.time()))
        await call()
