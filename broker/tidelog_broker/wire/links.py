"""Outgoing connections from this node to each other node, with reconnection.

A link has one direction: the connection from A to B carries A's one-way messages, A's requests and B's answers; B's own
messages use the connection from B to A. Rejected: one connection for both directions. It saves a socket per pair but
needs a rule for simultaneous connects, and messages on the discarded connection are lost.

A broken link is connected again after 20 ms, then with exponential backoff up to one second and random jitter, so that
nodes do not reconnect in step. The backoff is reset only after a link that lasted for a second. A *refused* connection
is reported separately: the machine answers, so the process has ended. After any other failure (no route, no answer, a
reset) the state of the other node is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from tidelog_broker.base.metrics import NodeMetrics
from tidelog_broker.base.node_tls import NodeTls
from tidelog_broker.core.peer_auth import Identity
from tidelog_broker.core.replication.outbox import LinkMessage
from tidelog_broker.wire.handshake_incarnations import HandshakeIncarnations
from tidelog_broker.wire.link import Link, OneWay, RemovedError, unreachable
from tidelog_broker.wire.sockets import tune
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame
from tidelog_proto.wire.name_resolution import connected_socket, over_socket

log = logging.getLogger(__name__)

Address = tuple[str, int]

FIRST_WAIT_S: Final = 0.02
LONGEST_WAIT_S: Final = 1.0
ATTEMPT_TIMEOUT_S: Final = 3.0
"""Limit of connecting and the handshake together."""
FINISH_TIMEOUT_S: Final = 1.0
_FINAL: Final = frozenset({pb.FORBIDDEN, pb.UNAUTHENTICATED})


class LinkEvents(Protocol):
    """Receives changes of the links. Called on the event loop; must not raise."""

    def established(self, node_id: str, incarnation: int) -> None:
        """A link is connected, and the node at the other end has proven this incarnation."""

    def lost(self, node_id: str) -> None:
        """An established link was lost."""

    def refused(self, node_id: str) -> None:
        """Nothing listens at the node's address. Reported at each attempt."""

    def removed(self, why: str) -> None:
        """A proven node of this cluster reports that this node was removed. Reported at each attempt."""


class _Peer:
    """One other node: its address, the current link and the task that maintains it."""

    __slots__ = ("absent", "address", "link", "problem", "task", "turned_away")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.link: Link | None = None
        self.problem: str | None = None
        self.turned_away = False
        self.absent = False
        self.task: asyncio.Task[None] | None = None


class Links:
    """The outgoing connections to all other nodes. `update_peers` starts them, `close` ends them.

    Args:
        queue_bytes: limit of the bytes that are waiting to be sent to one node.
        incarnations: the known incarnations of all nodes; None disables the comparison.
    """

    def __init__(
        self,
        identity: Identity,
        *,
        events: LinkEvents,
        queue_bytes: int,
        metrics: NodeMetrics,
        tls: NodeTls,
        incarnations: HandshakeIncarnations | None,
    ) -> None:
        self._identity = identity
        self._incarnations = incarnations
        self._tls = tls
        self._events = events
        self._queue_bytes = queue_bytes
        self._metrics = metrics
        self._peers: dict[str, _Peer] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def connected(self) -> frozenset[str]:
        """The nodes that have an established link."""
        return frozenset(node_id for node_id, peer in self._peers.items() if peer.link is not None)

    def problem(self, node_id: str) -> str | None:
        """Return why there is no link to a node, for an operator; None if it is connected or unknown."""
        peer = self._peers.get(node_id)
        return None if peer is None else peer.problem

    def is_absent(self, node_id: str) -> bool:
        """Return whether the last connection attempt was refused because nothing listens at the node's address."""
        peer = self._peers.get(node_id)
        return peer is not None and peer.absent

    def refusals(self) -> dict[Address, str]:
        """Return the reasons of nodes that permanently reject this one, by address; a retry does not help."""
        return {peer.address: peer.problem or "" for peer in self._peers.values() if peer.turned_away}

    def update_peers(self, addresses: Mapping[str, Address]) -> None:
        """Keep links to exactly these nodes; an entry for this node itself is ignored."""
        targets = {node_id: address for node_id, address in addresses.items() if node_id != self._identity.node_id}
        for node_id, peer in list(self._peers.items()):
            if targets.get(node_id) != peer.address:
                del self._peers[node_id]
                self._end(node_id, peer)
        if self._closed:
            return
        for node_id, address in targets.items():
            if node_id not in self._peers:
                peer = self._peers[node_id] = _Peer(address)
                peer.task = asyncio.get_running_loop().create_task(self._keep(node_id, peer), name=f"link to {node_id}")

    def send(self, to: Sequence[str], message: LinkMessage, batches: Sequence[memoryview] = ()) -> None:
        """Send a one-way message with whole batches to nodes; it is dropped without an error where it cannot be sent.

        Messages of one partition that arrive, arrive in order. Sets the `length` of a message with batches. The caller
        must not change the message or the batches' bytes afterwards.
        """
        one_way = OneWay(message, batches)
        for node_id in to:
            peer = self._peers.get(node_id)
            if peer is None or peer.link is None:
                self._metrics.peer_dropped_out.tally(node_id).inc()
            else:
                peer.link.send(one_way)

    def request(
        self, node_id: str, envelope: pb.Envelope, attachment: Sequence[memoryview] = (), *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        """Write a request to a node now and return the future of its answer.

        Raises:
            ProtocolError: raised at once if nothing was sent (EPOCH_CHANGING without a link, OVERLOADED,
                FRAME_TOO_LARGE); set on the future: the error that the node answered, or TIMED_OUT, with an unknown
                outcome, if the link broke or no answer arrived in time.
        """
        peer = self._peers.get(node_id)
        if peer is None or peer.link is None:
            raise unreachable(node_id)
        return peer.link.request(envelope, attachment, timeout_s=timeout_s)

    async def running_incarnation(self, node_id: str, address: Address, *, timeout_s: float) -> int | None:
        """Return the incarnation of the node that currently answers at its address.

        0 if the node does not run there: the port is closed, or another node answers. None if that is unknown: no node
        answered in time, or there is no route.
        """
        link = Link(node_id, queue_bytes=self._queue_bytes, metrics=self._metrics)
        try:
            async with asyncio.timeout(timeout_s):
                await self._call(link, address)
                return await link.running_incarnation(self._identity, called=node_id, timeout_s=timeout_s)
        except ConnectionRefusedError:
            return 0
        except ProtocolError as error:
            return 0 if error.code in _FINAL else None
        except (OSError, UnicodeError, TimeoutError):
            return None
        finally:
            link.close("request answered")

    def reconnect(self, node_id: str) -> None:
        """Close the link to a node and open a new one, which may reach another incarnation of that node."""
        peer = self._peers.get(node_id)
        if peer is not None and peer.link is not None:
            peer.link.close("a later start of the node was reported")

    async def close(self) -> None:
        """Close all links; queued messages have a second to be sent."""
        self._closed = True
        links = [peer.link for peer in self._peers.values() if peer.link is not None]
        await asyncio.gather(*(link.finish(FINISH_TIMEOUT_S) for link in links))
        self.update_peers({})
        await asyncio.gather(*self._ending, return_exceptions=True)

    # ---------------------------------------------------------------------------------------------- internals

    def _end(self, node_id: str, peer: _Peer) -> None:
        assert peer.task is not None
        self._ending.add(peer.task)
        peer.task.add_done_callback(self._ending.discard)
        peer.task.cancel()
        if peer.link is not None:
            self._gone(node_id, peer, "the node's address has changed or the node was removed")

    def _gone(self, node_id: str, peer: _Peer, why: str) -> None:
        link, peer.link = peer.link, None
        if link is not None:
            link.close(why)
            self._events.lost(node_id)

    async def _keep(self, node_id: str, peer: _Peer) -> None:
        """Connect, wait until the link breaks, and reconnect."""
        loop = asyncio.get_running_loop()
        wait_s = FIRST_WAIT_S
        while True:
            try:
                link, incarnation = await self._connect(node_id, peer.address)
            except ConnectionRefusedError as error:
                peer.turned_away, peer.absent = False, True
                self._note(node_id, peer, f"{_name(peer.address)} refused the connection: {error}")
                self._events.refused(node_id)
            except (ProtocolError, OSError, UnicodeError, TimeoutError) as error:
                what = str(error) or f"no answer within {ATTEMPT_TIMEOUT_S:g} s"
                peer.turned_away = isinstance(error, ProtocolError) and error.code in _FINAL
                peer.absent = False
                self._note(node_id, peer, f"{_name(peer.address)}: {what}")
                if isinstance(error, RemovedError):
                    self._events.removed(error.message)
            else:
                since_s = loop.time()
                self._established(node_id, peer, link, incarnation)
                why = await link.lost
                self._gone(node_id, peer, why)
                self._note(node_id, peer, why)
                if loop.time() - since_s >= LONGEST_WAIT_S:
                    wait_s = FIRST_WAIT_S
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _established(self, node_id: str, peer: _Peer, link: Link, incarnation: int) -> None:
        peer.link = link
        peer.problem = None
        peer.turned_away = peer.absent = False
        self._metrics.peer_connects.tally(node_id).inc()
        log.info("connected to node %r at %s", node_id, _name(peer.address))
        self._events.established(node_id, incarnation)

    def _note(self, node_id: str, peer: _Peer, problem: str) -> None:
        """Log a problem once, however often the attempt is repeated."""
        if problem != peer.problem:
            peer.problem = problem
            log.warning("no link to node %r: %s", node_id, problem)

    async def _connect(self, node_id: str, address: Address) -> tuple[Link, int]:
        """Connect and authenticate.

        Raises:
            ConnectionRefusedError: nothing listens at any of the host's addresses.
            OSError, TimeoutError, UnicodeError, ProtocolError: any other failure.
        """
        link = Link(node_id, queue_bytes=self._queue_bytes, metrics=self._metrics)
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                await self._call(link, address)
                incarnation = await link.greet(
                    self._identity, called=node_id, timeout_s=ATTEMPT_TIMEOUT_S, incarnations=self._incarnations
                )
                return link, incarnation
        except BaseException as error:
            link.close(str(error))
            raise

    async def _call(self, link: Link, address: Address) -> None:
        """Connect a link, with TLS if nodes use it."""
        connected = await connected_socket(*address, prepare=tune)
        await self._tls.call(
            link,
            address[0],
            timeout_s=ATTEMPT_TIMEOUT_S,
            connect=lambda protocol: over_socket(protocol, connected),
        )


def _name(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
