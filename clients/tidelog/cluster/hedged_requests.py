"""Asking several nodes for one thing: the next is asked when one fails, or takes long, and the first success counts.

A node that is stopped or cut off does not refuse, it says nothing; waiting for its time-out would make every failover
as long as that. Rejected: a short time-out for each node (a slow network would then never be fast enough; here the
first one goes on being waited for), and asking all at once (it multiplies the load of the good days). The idea is
that of RFC 8305.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidelog.errors import NodeUnreachableError, TidelogError

T = TypeVar("T")


async def race(attempts: Sequence[Callable[[], Awaitable[T]]], *, stagger_s: float) -> T:
    """Return the first success among `attempts`; those that are still running then are cancelled.

    Args:
        attempts: started one by one, in order; each must be one that does no harm when it is done twice.
        stagger_s: how long one may take before the next is started as well.

    Raises:
        TidelogError: an attempt failed in a way that no other node can mend, or all failed.
    """
    if len(attempts) == 1:
        return await attempts[0]()
    waiting = list(reversed(attempts))
    running: set[asyncio.Future[T]] = set()
    failures: list[TidelogError] = []
    try:
        while waiting or running:
            if waiting:
                running.add(asyncio.ensure_future(waiting.pop()()))
            done, _ = await asyncio.wait(
                running, timeout=stagger_s if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                running.discard(task)
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, TidelogError) or not error.retriable:
                    raise error
                failures.append(error)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    raise summary(failures)


def summary(failures: Sequence[TidelogError]) -> TidelogError:
    """Return one error for several: an unknown outcome wins over a known one, an answer over no connection."""
    unknown = [error for error in failures if not error.definite]
    answered = [error for error in failures if not isinstance(error, NodeUnreachableError)]
    if unknown or answered:
        return [*unknown, *answered][0]
    return NodeUnreachableError("; ".join(dict.fromkeys(map(str, failures))) or "there is no node to ask")
