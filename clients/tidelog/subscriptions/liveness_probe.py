"""Which nodes of subscriptions are doubted: subscriptions wait for nothing in particular, so silence says nothing.

A connection that has been quiet for `PROBE_S` is asked a question; its silence is then noticed like any other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from tidelog.cluster.connection import Connection
from tidelog.cluster.routing import Router
from tidelog.subscriptions.subscription import Subscription

PROBE_S: Final = 3.0
"""How long the connection of a subscription may be quiet before the node is asked something."""


class LivenessProbe:
    """The doubts about the nodes of one consumer."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._doubted_at: dict[Subscription, float] = {}
        """When nodes were asked whether they only let something else wait."""

    def probe(self, subscriptions: Mapping[Subscription, tuple[Connection, int]]) -> None:
        """Ask the nodes of quiet connections something."""
        for subscription, (connection, _) in subscriptions.items():
            # A question that is under way is enough; its answer makes the connection not quiet. But what is under way
            # may be a publish that waits for a quorum, which says nothing of the node.
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
        """Whether a node has said nothing at all since it was asked because of its silence."""
        doubted_at = self._doubted_at.get(subscription)
        if doubted_at is None:
            return False
        since_s = asyncio.get_running_loop().time() - doubted_at
        return since_s >= PROBE_S and connection.quiet_s >= since_s

    def forget(self, subscription: Subscription) -> None:
        """A subscription has ended."""
        self._doubted_at.pop(subscription, None)
