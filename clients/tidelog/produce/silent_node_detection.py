"""Detection of a node that stops answering while publishes to it are unanswered; see `liveness.py`.

Without this detection, records for a stopped node would wait for their delivery timeout. One timer runs while a publish
is unanswered, and only if the client has a timeout for unreachable nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tidelog.cluster.connection import Connection
from tidelog.cluster.liveness import PROBE_AFTER_S, PROBE_CHECK_INTERVAL_S
from tidelog.errors import ConnectionLostError

T = TypeVar("T")


class SilentNodeDetector(Generic[T]):
    """Watches the unanswered publishes of one producer.

    Args:
        lost: called with each publish to a lost node, and the error for its records.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[T, ConnectionLostError], None]) -> None:
        self._loop = loop
        self._lost = lost
        self._unanswered: dict[Connection, dict[int, tuple[float, T]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, connection: Connection, publish: T) -> None:
        """Watch a publish that was sent."""
        if connection.liveness is None:
            return
        self._unanswered.setdefault(connection, {})[id(publish)] = (self._loop.time(), publish)
        if self._timer is None:
            self._timer = self._loop.call_later(PROBE_AFTER_S, self._look)

    def answered(self, connection: Connection, publish: T) -> None:
        """Stop watching a publish that was answered or abandoned."""
        of_node = self._unanswered.get(connection)
        if of_node is not None and of_node.pop(id(publish), None) is not None and not of_node:
            del self._unanswered[connection]

    def close(self) -> None:
        """Stop watching all publishes."""
        self._unanswered.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        since = self._loop.time() - PROBE_AFTER_S
        for connection, of_node in list(self._unanswered.items()):
            first_at, _ = next(iter(of_node.values()))
            if first_at > since or connection.liveness is None or not connection.liveness.check():
                continue
            error = ConnectionLostError(
                f"{connection.name} answers neither a publish nor a probe; the records may be stored"
            )
            del self._unanswered[connection]
            for _, publish in of_node.values():
                self._lost(publish, error)
        if self._unanswered and self._timer is None:
            self._timer = self._loop.call_later(PROBE_CHECK_INTERVAL_S, self._look)
