"""Waiting for an answer that may take an hour, for as long as its node says anything at all.

A node that was stopped, or is behind a cut cable, looks as one that works. So a connection that has been quiet for a
while is asked something that a node answers at once; if nothing comes of several of these questions, nobody is there.
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
"""How long a connection may be quiet before its node is asked something."""

SILENT_S_MAX: Final = 20.0
"""How long nothing may come before the node counts as gone."""


async def wait_with_probes(
    router: Router, topic: str, partition: int, connection: Connection, answer: Awaitable[T], *, what: str
) -> T:
    """Return what an owner answers.

    Args:
        router: asks it in between.
        topic: what it owns a partition of.
        partition: 0-based.
        connection: to it.
        answer: what is waited for; it is cancelled if it is given up.
        what: the request, for the message: "compacts".

    Raises:
        ConnectionLostError: the node said nothing for `SILENT_S_MAX`; the outcome is unknown.
        TidelogError: what `answer` raises.
    """
    waiting = asyncio.ensure_future(answer)
    began_s = asyncio.get_running_loop().time()
    try:
        while not (await asyncio.wait([waiting], timeout=PROBE_AFTER_S))[0]:
            quiet_s = min(connection.quiet_s, asyncio.get_running_loop().time() - began_s)
            if quiet_s >= SILENT_S_MAX:
                host, port = connection.address
                raise ConnectionLostError(
                    f"{host}:{port} {what} {topic!r}/{partition} and has said nothing for {quiet_s:.0f} s; the outcome "
                    "is unknown"
                )
            if quiet_s >= PROBE_AFTER_S:
                router.probe(topic, partition, connection)
        return waiting.result()
    finally:
        waiting.cancel()
