"""Finds the feed of a subscription: one for each topic and filter of a caller.

A feed is founded by a subscription that has reached the end of its topic, for those that read history are each
somewhere else. Where the newest feed cannot serve a subscription although that has reached the end, as the feed itself
is behind, the subscription founds another one; the followers of the older one stay with it while they last.

Each caller has feeds of its own, read with its own permissions and at the expense of its own quotas.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.client import Client
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed.ring import Follower
from tidelog_gateway.feed.shared_feed import SharedFeed
from tidelog_gateway.metrics import Metrics
from tidelog_gateway.resume_tokens import Scope
from tidelog_gateway.settings import GatewaySettings


class Feeds:
    """The feeds of one caller.

    Args:
        client: the caller's.
        settings, outgoing: see `SharedFeed`.
        metrics: count open feeds, and what they deliver.
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
        """Whether a subscription with these positions could follow a feed."""
        feed = self._newest.get(scope)
        return feed is not None and feed.ring.reaches(positions)

    def has(self, scope: Scope) -> bool:
        """Whether there is a feed."""
        return scope in self._newest

    def attach(self, scope: Scope, follower: Follower, *, found: bool) -> SharedFeed | None:
        """Return the feed that a follower was attached to.

        Args:
            scope: what the subscription reads.
            follower: its positions are those of the subscription.
            found: whether a feed is to be founded where none can serve it.
        """
        feed = self._newest.get(scope)
        if feed is not None and feed.attach(follower):
            return feed
        if not found:
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
