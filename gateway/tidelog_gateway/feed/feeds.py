"""Registry of the shared feeds of a caller: one feed for each topic and filter.

A subscription that has reached the end of its topic creates a feed. A subscription that reads history does not, because
other subscriptions are at other positions. If the newest feed lags and cannot serve a subscription that is at the end
of the topic, the subscription creates another feed; the older feed keeps its followers.

Feeds are not shared between callers, so each is read with its caller's permissions and quotas.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client import Client
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed.ring import Follower
from tidelog_gateway.feed.shared_feed import SharedFeed
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.protocol.resume_tokens import Scope
from tidelog_gateway.settings import GatewaySettings


class Feeds:
    """Finds or creates a shared feed for each subscription of one caller.

    Args:
        client: the caller's client.
        settings, outgoing: see `SharedFeed`.
        metrics: counts open feeds and delivered records.
    """

    def __init__(self, client: Client, settings: GatewaySettings, outgoing: ResponseBudget, metrics: Metrics) -> None:
        self._client = client
        self._settings = settings
        self._outgoing = outgoing
        self._metrics = metrics
        self._newest: dict[Scope, SharedFeed] = {}

    def __len__(self) -> int:
        return len(self._newest)

    def can_attach(self, scope: Scope, positions: Mapping[int, int]) -> bool:
        """Return whether the newest feed can serve a subscription with these positions."""
        feed = self._newest.get(scope)
        return feed is not None and feed.ring.reaches(positions)

    def has(self, scope: Scope) -> bool:
        """Return whether a feed of this scope exists."""
        return scope in self._newest

    def attach(self, scope: Scope, follower: Follower, *, create: bool) -> SharedFeed | None:
        """Attach a follower to a feed and return the feed; None if no feed can serve it.

        Args:
            scope: topic and filter of the subscription.
            follower: has the positions of the subscription.
            create: whether to create a feed if the newest one cannot serve the follower.
        """
        feed = self._newest.get(scope)
        if feed is not None and feed.attach(follower):
            return feed
        if not create:
            return None
        parts = (self._client, self._settings, self._outgoing, self._metrics)
        feed = SharedFeed(*parts, scope=scope, positions=follower.positions, ended=self._ended)
        if not feed.attach(follower):
            return None
        self._newest[scope] = feed
        self._metrics.feeds.inc()
        return feed

    def _ended(self, feed: SharedFeed) -> None:
        if self._newest.get(feed.scope) is feed:
            del self._newest[feed.scope]
        self._metrics.feeds.dec()
