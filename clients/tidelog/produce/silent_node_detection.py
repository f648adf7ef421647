"""Detection of a node that falls silent while publishes to it are unanswered: see `liveness.py`.

Without it a publish to a stopped node would wait for its delivery timeout. One timer runs while any publish is
unanswered, and only where the client has a time for unreachable nodes: elsewhere nothing is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from tidelog.cluster.connection import Connection
from tidelog.cluster.liveness import PROBE_AFTER_S, PROBE_CHECK_INTERVAL_S
from tidelog.errors import ConnectionLostError

T = TypeVar("T")


class PublishWatch(Generic[T]):
    """What one producer has sent and has no answer to.

    Args:
        loop: the producer's.
        lost: called with what was sent to a node that is lost, and the error of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[T, ConnectionLostError], None]) -> None:
        self._loop = loop
        self._lost = lost
        self._unanswered: dict[Connection, dict[int, tuple[float, T]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, connection: Connection, what: T) -> None:
        """Note something that was sent."""
        if connection.liveness is None:
            return
        self._unanswered.setdefault(connection, {})[id(what)] = (self._loop.time(), what)
        if self._timer is None:
            self._timer = self._loop.call_later(PROBE_AFTER_S, self._look)

    def answered(self, connection: Connection, what: T) -> None:
        """Note that it has its answer, or that nobody waits for one any more."""
        of_node = self._unanswered.get(connection)
        if of_node is not None and of_node.pop(id(what), None) is not None and not of_node:
            del self._unanswered[connection]

    def close(self) -> None:
        """Watch nothing any more."""
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
                f"{connection.name} is silent: a publish has no answer, nor has a probe, so the records may be stored"
            )
            del self._unanswered[connection]
            for _, what in of_node.values():
                self._lost(what, error)
        if self._unanswered and self._timer is None:
            self._timer = self._loop.call_later(PROBE_CHECK_INTERVAL_S, self._look)
