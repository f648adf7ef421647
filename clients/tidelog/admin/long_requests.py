"""Waits for answers that may take an hour, while probes show whether the node is alive.

A node that is stopped or partitioned from the client is as silent as one that works on the request. Therefore the
client sends probes after a quiet period, which a working node answers immediately; if several remain unanswered, the
node counts as dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.errors import ConnectionLostError

T = TypeVar("T")

PROBE_AFTER_S: Final = 5.0
"""Time without received data on a connection after which its node is probed."""

SILENT_S_MAX: Final = 20.0
"""Time without received data on a connection after which its node counts as dead."""


async def wait_with_probes(
    router: Router, topic: str, partition: int, connection: Connection, answer: Awaitable[T], *, what: str
) -> T:
    """Wait for the answer of a partition's owner and return it; probe the owner while nothing arrives.

    Args:
        answer: the awaited answer; cancelled if the node is silent.
        what: the operation, for the message: "is compacting".

    Raises:
        ConnectionLostError: the node was silent for `SILENT_S_MAX`; the outcome is unknown.
        TidelogError: raised by `answer`.
    """
    waiting = asyncio.ensure_future(answer)
    began_s = asyncio.get_running_loop().time()
    try:
        while not (await asyncio.wait([waiting], timeout=PROBE_AFTER_S))[0]:
            quiet_s = min(connection.quiet_s, asyncio.get_running_loop().time() - began_s)
            if quiet_s >= SILENT_S_MAX:
                host, port = connection.address
                raise ConnectionLostError(
                    f"node {host}:{port} {what} {topic!r}/{partition} and has been silent for {quiet_s:.0f} s; the "
                    "outcome is unknown: check the node, then repeat the request"
                )
            if quiet_s >= PROBE_AFTER_S:
                router.probe(topic, partition, connection)
        return waiting.result()
    finally:
        waiting.cancel()
