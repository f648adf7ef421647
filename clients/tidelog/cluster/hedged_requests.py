"""Hedged requests: ask the next node when one fails or is slow, and return the first success.

A stopped or partitioned node sends no error, so waiting for its time-out would determine the length of every failover.
Rejected: a short time-out per node, which a slow network would always exceed, whereas here the first attempt keeps
running; and asking all nodes at once, which multiplies the load. The scheme is that of RFC 8305.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from tidelog.errors import NodeUnreachableError, TidelogError

T = TypeVar("T")


async def race(attempts: Sequence[Callable[[], Awaitable[T]]], *, stagger_s: float) -> T:
    """Return the first success among `attempts` and cancel those that are still running.

    Args:
        attempts: started one by one, in order; each must be safe to repeat.
        stagger_s: how long an attempt may run before the next one starts as well.

    Raises:
        TidelogError: an attempt failed with an error that is not retriable, or all attempts failed.
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
    """Combine errors into one: an unknown outcome takes precedence, then an answer, then an unreachable node."""
    unknown = [error for error in failures if not error.definite]
    answered = [error for error in failures if not isinstance(error, NodeUnreachableError)]
    if unknown or answered:
        return [*unknown, *answered][0]
    return NodeUnreachableError(
        "; ".join(dict.fromkeys(map(str, failures))) or "this client knows no address of a node"
    )
