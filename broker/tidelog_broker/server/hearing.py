"""Waiting a moment for what is committed elsewhere to be known here, too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from tidelog_broker.metadata.meta_freshness import REFRESH_TIMEOUT_S

HEAR_AGAIN_S: Final = 0.01


async def heard(condition: Callable[[], bool]) -> None:
    """Wait, but not for long, until a condition holds: whoever asked this node for a change asks it again next."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(REFRESH_TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - `__meta` is followed elsewhere, and this is rare
                await asyncio.sleep(HEAR_AGAIN_S)
