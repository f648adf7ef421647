"""Probes of quiet nodes: an idle subscription has no due answer, so its silence alone cannot reveal a dead node.

On a connection that has been quiet for `PROBE_S` the client sends a request. If its answer is overdue, the client
handles the node like any that does not answer (`owner_changes.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.subscriptions.subscription import Subscription

PROBE_S: Final = 3.0
"""How long the connection of a subscription may be quiet before the node is probed."""


class LivenessProbe:
    """Probes the nodes that serve one consumer if their connections are quiet, and detects unresponsive nodes."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._doubted_at: dict[Subscription, float] = {}
        """Loop time of the probe of each node whose pending answers may only be waiting for a quorum."""

    def probe(self, subscriptions: Mapping[Subscription, tuple[Connection, int]]) -> None:
        """Probe the nodes of quiet connections."""
        for subscription, (connection, _) in subscriptions.items():
            # A pending request serves as the probe. But a publish may be waiting for a quorum, so its delay does not
            # show that the node is dead; therefore a probe follows after `PROBE_S`.
            now = asyncio.get_running_loop().time()
            doubted_at = self._doubted_at.get(subscription)
            if doubted_at is not None and connection.quiet_s < now - doubted_at:
                del self._doubted_at[subscription]
                doubted_at = None
            doubted = doubted_at is None and connection.silent_s >= PROBE_S
            if subscription.positions and connection.quiet_s >= PROBE_S and (doubted or not connection.silent_s):
                self._router.probe(*next(iter(subscription.positions)), connection)
                if doubted:
                    self._doubted_at[subscription] = now

    def is_unresponsive(self, subscription: Subscription, connection: Connection) -> bool:
        """Return whether a node has sent nothing since it was probed because of its silence."""
        doubted_at = self._doubted_at.get(subscription)
        if doubted_at is None:
            return False
        since_s = asyncio.get_running_loop().time() - doubted_at
        return since_s >= PROBE_S and connection.quiet_s >= since_s

    def forget(self, subscription: Subscription) -> None:
        """Forget a subscription that has ended."""
        self._doubted_at.pop(subscription, None)
