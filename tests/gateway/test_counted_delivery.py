"""How many functions run for a batch from the node's socket to the WebSockets of a feed's followers.

The code of this path is cold when a batch arrives, so each function costs more than a microsecond, which is a tenth of
writing to a socket. The numbers are bounds: one that is lowered stays low, and one that is passed wants a reason.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from types import FrameType
from typing import Any, Final, cast

from tidelog import Client
from tidelog_gateway.budget.connection_output import ConnectionOutput
from tidelog_gateway.budget.request_budget import RequestBudget
from tidelog_gateway.budget.response_budget import ResponseBudget
from tidelog_gateway.feed.feeds import Feeds
from tidelog_gateway.feed.ring import Follower
from tidelog_gateway.metrics.gateway_metrics import Metrics
from tidelog_gateway.protocol.resume_tokens import Scope
from tidelog_gateway.protocol.ws_protocol import Subscription
from tidelog_gateway.settings import GatewaySettings
from tidelog_gateway.subscriptions.message_sender import FrameEncoder
from tidelog_proto.limits import MIB

BATCHES: Final = 30
CALLS_MAX: Final = 26
TRANSPORT_CALLS: Final = ("is_closing", "get_write_buffer_size", "write", "get_write_buffer_size")
"""All calls that a piece makes for each follower."""
PACKAGES: Final = ("/tidelog/", "/tidelog_proto/", "/tidelog_gateway/", "/prometheus_client/")
ROOT: Final = "Connection.buffer_updated"


class Counting:
    """Counts the calls within each call of `buffer_updated` that pushes a piece."""

    def __init__(self) -> None:
        self.runs: list[Counter[str]] = []
        self._calls: Counter[str] | None = None
        self._root: FrameType | None = None

    def begin(self) -> None:
        sys.setprofile(self._seen)

    def end(self) -> None:
        sys.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_qualname
        if event == "call":
            if self._calls is None and name == ROOT:
                self._root, self._calls = frame, Counter()
            if self._calls is None:
                return
            if any(package in frame.f_code.co_filename for package in PACKAGES):
                self._calls[name] += 1
            elif name.startswith("_Selector"):
                self._calls["transport"] += name.rpartition(".")[2] in TRANSPORT_CALLS
        elif event == "return" and frame is self._root and self._calls is not None:
            if "FanOut.push" in self._calls:
                self.runs.append(self._calls)
            self._root = self._calls = None

    def least(self) -> Counter[str]:
        """Return how often each function was called at least."""
        least = self.runs[0]
        for run in self.runs:
            least &= run
        return least


async def deliver(node_address: str, followers: int) -> Counter[str]:
    """Push batches to followers with real sockets, and return the least calls for one of them."""
    loop = asyncio.get_running_loop()
    outgoing = ResponseBudget(64 * MIB, 1 * MIB)
    peers: list[socket.socket] = []
    counting = Counting()
    async with Client(node_address) as reader, Client(node_address) as writer:
        topic = f"counted-{followers}"
        route = await writer.create_topic(topic, partitions=1, flush="never")
        feeds = Feeds(reader, GatewaySettings(), outgoing, Metrics(RequestBudget(1000), outgoing))
        attached = []
        for _ in range(followers):
            near, far = socket.socketpair()
            peers.append(far)
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            outlet = ConnectionOutput(outgoing, 30)
            outlet.connected(transport)
            outlet.direct_writes(allowed=True)
            credit = Subscription(1, topic, None, 1_000_000, None, message_bytes_max=1 * MIB)
            follower = Follower({0: 0}, credit, outlet, FrameEncoder(1), lambda: None)
            scope = Scope(topic, route.topic_id)
            feed = feeds.attach(scope, follower, create=True)
            assert feed is not None
            attached.append((feed, follower, transport))
        async with writer.producer(topic) as producer:
            await producer.send(b"first", partition=0)
            await asyncio.sleep(0.2)  # the feed's subscription works
            counting.begin()
            try:
                for at in range(BATCHES):
                    await producer.send(b"%d" % at, partition=0)
                    await asyncio.sleep(0.005)
            finally:
                counting.end()
        for feed, follower, transport in attached:
            feed.leave(follower)
            assert cast(Subscription, follower.credit).credit_records == 1_000_000 - BATCHES - 1
            transport.close()
    for peer in peers:
        peer.close()
    assert len(counting.runs) >= BATCHES // 2, "most batches were pushed within the call that received them"
    return counting.least()


async def test_a_batch_makes_no_more_calls_than_it_did(node_address: str) -> None:
    one, ten = await deliver(node_address, 1), await deliver(node_address, 10)
    per_follower = {name: (count - one[name]) / 9 for name, count in ten.items() if count != one[name]}
    assert per_follower == {"transport": len(TRANSPORT_CALLS)}
    calls = one.total() - one["transport"]
    print(calls, *one.items(), sep="\n")
    assert calls <= CALLS_MAX
    assert calls > CALLS_MAX * 3 // 4, "not all calls were counted, or the bound can be lowered"
