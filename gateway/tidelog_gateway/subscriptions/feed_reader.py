"""Reader of a shared feed for one subscription, which takes entries of the ring by itself while it is behind.

Each message spends credit. Entries are not split: if the credit does not cover the next entry, the subscription leaves
the feed and reads by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import orjson

from tidelog_gateway.context import Gateway
from tidelog_gateway.feed.ring import Follower, RingEntry
from tidelog_gateway.feed.shared_feed import SharedFeed
from tidelog_gateway.protocol.messages import INTEGER_MAX
from tidelog_gateway.protocol.resume_tokens import ResumeTokens, Scope
from tidelog_gateway.protocol.ws_protocol import BATCH_MEMBERS_BYTES, WsProtocol, batch_message, too_large
from tidelog_gateway.records.json_encoding import first_offset_in
from tidelog_gateway.subscriptions.lag import Lag
from tidelog_gateway.subscriptions.message_sender import MessageSender


class FeedReader:
    """Follows shared feeds for one subscription.

    Args:
        sid: id of an open subscription.
        surface: label of the sent records in metrics.
        lag: the subscription's lag policy, if it skips records.
    """

    def __init__(
        self,
        gateway: Gateway,
        protocol: WsProtocol,
        sid: int,
        scope: Scope,
        sender: MessageSender,
        *,
        surface: str,
        lag: Lag | None = None,
    ) -> None:
        self._lag = lag
        self._feeds = gateway.feeds
        self._protocol = protocol
        self._sid = sid
        self._scope = scope
        self._sender = sender
        self._records_out = gateway.metrics.records_out.tally(surface)
        self._subscription = protocol.subscriptions[sid]
        self._has_own_tokens = True
        self._feed: SharedFeed | None = None
        self._follower: Follower | None = None
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Check the credit again."""
        if self._feed is not None and self._follower is not None:
            self._feed.stir()
            if not self._follower.in_step:
                self._woken.set()

    def is_possible(self) -> bool:
        """Return whether a feed can serve the subscription at its positions."""
        return self._feeds.can_attach(self._scope, self._subscription.positions)

    def has_feed(self) -> bool:
        """Return whether a feed of the same scope exists."""
        return self._feeds.has(self._scope)

    async def run(self, *, create: bool) -> None:
        """Follow a feed while it can serve the subscription.

        Args:
            create: whether to create a feed if no feed can serve the subscription, which is at the end of its topic.
        """
        subscription = self._subscription
        encoder = self._sender.entry_encoder(self._sid)
        watch = None if self._lag is None else self
        follower = Follower(
            subscription.positions, subscription, self._sender.outlet, encoder, self._ring_woke, watch=watch
        )
        feed = self._feeds.attach(self._scope, follower, create=create)
        if feed is None:
            return
        self._feed, self._follower = feed, follower
        try:
            while not follower.lost:
                if self._lag is not None and (not follower.wants() or await self._lag.is_due()):
                    # Leave the feed: without credit of its followers it does not read, so the end of the topic may be
                    # beyond its position.
                    return
                entry = feed.ring.next_for(follower)
                self._take_positions(follower)
                if entry is None:
                    feed.stir()
                    await self._wait(follower)
                elif not subscription.accepts(entry.records, len(entry.data)):
                    raise too_large(subscription, entry.partition, first_offset_in(entry.data), len(entry.data))
                elif subscription.fits(entry.records, entry.payload_bytes):
                    size_bytes = len(entry.data) + subscription.token_chars + BATCH_MEMBERS_BYTES
                    await self._sender.send_made(size_bytes, partial(self._message_of, entry))
                    feed.ring.taken(follower, entry)
                elif follower.wants():
                    return  # Leave the feed, which sends whole entries: the credit covers only a part of this one.
                else:
                    await self._wait(follower)
        finally:
            self._feed = self._follower = None
            feed.leave(follower)
            self._take_positions(follower)
            self._make_tokens()

    async def _wait(self, follower: Follower) -> None:
        """Wait for an entry of the ring, or for credit."""
        self._woken.clear()
        if not follower.lost:
            await self._woken.wait()

    def _ring_woke(self) -> None:
        if self._follower is not None:
            self._take_positions(self._follower)
        self._woken.set()

    def _take_positions(self, follower: Follower) -> None:
        """Use the positions of the follower: its own, or those of the ring, which advance with each entry."""
        self._subscription.positions = follower.positions
        if follower.in_step:
            self._has_own_tokens = False

    def may_push(self) -> bool:
        """See `feed.ring.Watch`; False while the lag is unknown, so that the subscription checks it first."""
        return self._lag is None or not self._lag.is_unknown

    def pushed(self) -> None:
        """See `feed.ring.Watch`; a subscription without credit wakes up to check its lag."""
        if self._follower is not None and not self._follower.wants():
            self._woken.set()

    def _message_of(self, entry: RingEntry) -> Mapping[str, Any]:
        """Return the message of an entry, and advance the position to its end."""
        self._make_tokens()
        sid, size_bytes = self._sid, len(entry.data)
        self._subscription.spend(entry.records, entry.payload_bytes)
        self._protocol.passed(sid, entry.partition, next_offset=entry.next_offset)
        token = self._protocol.batch_token(sid, size_bytes=size_bytes)
        self._records_out.inc(entry.records)
        return batch_message(sid, entry.partition, orjson.Fragment(entry.data), entry.next_offset, token)

    def _make_tokens(self) -> None:
        """Create resume tokens from the current positions, which advanced with the ring."""
        if self._has_own_tokens:
            return
        self._has_own_tokens = True
        self._subscription.tokens = ResumeTokens(self._scope, self._subscription.positions)
        self._subscription.since_token_bytes = INTEGER_MAX  # The newest token is unknown, so the next message has one.
