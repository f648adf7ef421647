"""Limits of open WebSockets and streams, in all and for each caller.

A caller may open as many as remain free: one caller gets half of all, two get a third each, and the same number remains
free for a new caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import Gauge

from tidelog_gateway.context import Gateway


def no_room(gateway: Gateway, known: Gateway) -> str:
    """Return the reason why a caller may not open another WebSocket or stream; "" if it may.

    Args:
        gateway: the `Gateway` of the application, which counts all WebSockets and streams.
        known: the `Gateway` of the caller.
    """
    most = gateway.settings.ws_connections_max
    free = most - gateway.open_websockets
    if free <= 0:
        return (
            f"{most} WebSockets and streams are open, the limit of this gateway (ws_connections_max); try again later"
        )
    if known.caller is None or gateway.websockets_of[known.caller.principal] < free:
        return ""
    return (
        "the remaining WebSockets and streams are reserved for other callers; close some of yours, or try again later"
    )


@contextlib.contextmanager
def counted(gateway: Gateway, known: Gateway, gauge: Gauge) -> Iterator[None]:
    """Count a WebSocket or a stream, in total and for its caller, while it is open."""
    principal = "" if known.caller is None else known.caller.principal
    gateway.open_websockets += 1
    gateway.websockets_of[principal] += 1
    gauge.inc()
    try:
        yield
    finally:
        gateway.open_websockets -= 1
        gateway.websockets_of[principal] -= 1
        if not gateway.websockets_of[principal]:
            del gateway.websockets_of[principal]
        gauge.dec()
