"""Waiting until a change that another node has committed is applied on this node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from tidelog_broker.metadata.meta_freshness import REFRESH_TIMEOUT_S

HEAR_AGAIN_S: Final = 0.01


async def wait_until_applied(condition: Callable[[], bool]) -> None:
    """Wait for a condition, so that the caller's next request sees its change; at most for `REFRESH_TIMEOUT_S`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFRESH_TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - `__meta` is followed elsewhere, and this is rare
                await asyncio.sleep(HEAR_AGAIN_S)
