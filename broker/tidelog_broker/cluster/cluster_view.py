"""The node's view of the other nodes: liveness, addresses and placement.

It combines two sources. The registry (`__meta`, and the bootstrap file before it) contains the nodes of the cluster;
gossip reports which of them are alive, with their incarnation and address. Both are hints: no promise and no decision
depends on their being right, see `core.replication.ports.ClusterHints`.

A node without a cluster is the only node in its view: every plan consists of this node, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from tidelog_broker.cluster.backfill_rate import BackfillRate
from tidelog_broker.core.membership.members import Members, MemberState
from tidelog_broker.core.placement.placement import NodeEntry
from tidelog_broker.core.placement.planning import (
    ReplicationSettings,
    current_replication_settings,
    first_epochs,
    handover_plan,
    has_live_quorum,
    ingestion_owner_plan,
    lacks_copies,
    lacks_owner,
    move_plan,
    nodes_without_engine,
    preferred_owner_plan,
    rank_of,
    replacement_plan,
    replication_settings,
    settings_plan,
    takeover_plan,
)
from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.replication.effects import PeerMessage, Sending
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.wire.links import Address, Links, unreachable
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.wire.frames import Frame

log = logging.getLogger(__name__)

_MEMBERSHIP: Final = {
    MemberState.ALIVE: "alive",
    MemberState.SUSPECT: "suspect",
    MemberState.DEAD: "dead",
    MemberState.LEFT: "left",
}


class Cluster:
    """Answers the replicas' questions about other nodes, and sends the replicas' messages.

    The core has it as `cluster_hints` (`ClusterHints`), drivers and partitions as `neighbours` (`Neighbours`). For a
    publish `send` passes on the owner's appends and the followers' acknowledgements.

    Args:
        nodes: the registered nodes; empty without a cluster.
        info: returns this node's address for clients.
        has_engine: returns whether this node has a storage engine; other nodes announce theirs.
        backfill_bytes_per_s: the rate of fetching sealed epochs; 0: unlimited.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        *,
        topics: TopicRegistry,
        nodes: NodeRegistry,
        info: Callable[[], pb.NodeInfo],
        has_engine: Callable[[str], bool] = lambda _: True,
        backfill_bytes_per_s: int = 0,
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._topics = topics
        self._registry = nodes
        self._info = info
        self._has_own_engine = has_engine
        self._backfill_rate = BackfillRate(backfill_bytes_per_s, lambda: 1000 * time.monotonic())
        self._random = random.Random()  # noqa: S311 - it spreads retries and protects nothing
        self._links: Links | None = None
        self.send: Sending = _discard_messages
        self._members = Members(1)
        self._available_at = (-1, -1, -1)
        self._available_then: frozenset[str] = frozenset()
        self._cut_off: frozenset[str] = frozenset()
        self._notes = 0
        """Version of `_cut_off` and `_leaving`, which neither gossip nor the registry contain."""
        self._leaving: dict[str, int] = {}
        """Nodes that have announced their stop, with the incarnation that is stopping."""

    def use_links(self, links: Links) -> None:
        """Send requests over these links from now on; replicas send nothing before `take_part`."""
        self._links = links

    def take_part(self) -> None:
        """Let replicas send to other nodes, which have stored this node's incarnation."""
        assert self._links is not None
        self.send = self._links.send

    def withdraw(self) -> None:
        """Stop replicas from sending: this node must not take part, and is about to stop."""
        self.send = _discard_messages

    def use_members(self, members: Members) -> None:
        """Use the live membership table of gossip."""
        self._members = members
        self._available_at = (-1, -1, -1)

    def set_unreachable(self, nodes: frozenset[str]) -> bool:
        """Record the nodes that are alive but unreachable; return whether they have changed."""
        if nodes == self._cut_off:
            return False
        self._cut_off = nodes
        self._notes += 1
        return True

    # --- hints for the replicas ------------------------------------------------------------------------

    def alive(self, node_id: str) -> bool:
        """Return whether a node seems to be alive: suspected nodes do, unreachable ones do not."""
        return node_id == self._node_id or (self._members.alive(node_id) and node_id not in self._cut_off)

    def incarnation(self, node_id: str) -> int:
        """Return the newest known incarnation of a node; 0 for an unknown node."""
        if node_id == self._node_id:
            return self._incarnation
        member, record = self._members.get(node_id), self._registry.get(node_id)
        return max(member.incarnation if member else 0, record.incarnation if record else 0)

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        """Return the plan of the epoch after `active` if this node takes over."""
        return takeover_plan(
            self._node_id, key, active, self._wishes(key, active), self._entries(), alive=self._available()
        )

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        """Return the number of living candidates that precede this node."""
        return rank_of(self._node_id, key, active, self._entries(), alive=self._available())

    def backfill_wait_ms(self, size_bytes: int) -> int:
        """Return how long to wait before a range of a sealed epoch is requested."""
        return self._backfill_rate.wait_ms(size_bytes)

    def random_ms(self, below_ms: int) -> int:
        """Return a random number, 0 <= n < below_ms."""
        return self._random.randrange(below_ms)

    # --- plans without a failure -----------------------------------------------------------------------

    def placement_plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan | None:
        """Return the epoch with the placement that a partition should have; None if it has that, or cannot move now."""
        plan = move_plan(key, active, self._wishes(key, active), self._entries(), alive=self._available())
        return plan if plan is not None and has_live_quorum(plan, alive=self.alive) else None

    def handover_plan(
        self, key: PartitionKey, active: pb.EpochDescriptor, *, lagging: Collection[str] = ()
    ) -> Plan | None:
        """Return the epoch that transfers a partition of this node to another of its replicas.

        None if no other replica can own it, or fewer than a quorum of its replicas are alive.
        """
        if sum(1 for node in active.placement if self.alive(node)) < active.ack_quorum:
            return None
        return handover_plan(self._node_id, key, active, self._entries(), alive=self._available(), lagging=lagging)

    def preferred_owner_plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan | None:
        """Return the epoch in which the preferred replica owns the partition.

        None if that replica owns it already, or no replica can own it.
        """
        return preferred_owner_plan(key, active, self._entries(), alive=self._available())

    def ingestion_owner_plan(
        self, key: PartitionKey, active: pb.EpochDescriptor, *, lagging: Collection[str] = ()
    ) -> Plan | None:
        """Return the epoch that replaces an owner without the ingestion role by a replica that has it.

        None if the owner has the role, or no replica with the role can take over now.
        """
        return ingestion_owner_plan(key, active, self._entries(), alive=self._available(), lagging=lagging)

    def settings_plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan | None:
        """Return the epoch with the flush and engine of the topic on the same nodes; None if `active` has them."""
        config = self._topics.config_of(key[0])
        return None if config is None else settings_plan(active, replication_settings(config))

    def settings_fault(self, key: PartitionKey, active: pb.EpochDescriptor) -> str:
        """Return why the owner must not begin the epoch of `settings_plan` now, with a remedy; empty if it may."""
        config = self._topics.config_of(key[0])
        if config is not None:
            wishes = replication_settings(config)
            if lacking := nodes_without_engine(active, wishes, self._has_engine):
                return (
                    f"engine {wishes.engine} is not installed on {', '.join(lacking)}; install its package there and "
                    "restart the node, or set another engine"
                )
        if active.owner not in self._available():
            return f"node {active.owner} is being drained or stopped; the next owner applies the settings"
        return ""

    @property
    def version(self) -> tuple[int, int, int]:
        """A value that changes with every change of membership, reachability, registration or announced stops."""
        return self._registry.version, self._members.version, self._notes

    def replacement_plan(
        self, key: PartitionKey, active: pb.EpochDescriptor, replica: str, *, avoid: Collection[str] = ()
    ) -> Plan | None:
        """Return the epoch in which a spare node outside `avoid` replaces a replica; None without a spare node."""
        alive = self._available().difference(avoid)
        return replacement_plan(key, active, self._wishes(key, active), self._entries(), alive=alive, without=replica)

    def lacks_copies(self, key: PartitionKey, active: pb.EpochDescriptor) -> bool:
        """Return whether a partition has fewer copies than possible, and live nodes could store all of them."""
        return lacks_copies(active, self._wishes(key, active), self._entries(), alive=self._available())

    def lacks_owner(self, active: pb.EpochDescriptor) -> bool:
        """Return whether no replica of a partition, dead or alive, has an owner's roles, and a live node has them."""
        return lacks_owner(active, self._entries(), alive=self._available())

    def first_epochs(self, topic_id: bytes, config: pb.TopicConfig, partitions: range) -> list[pb.EpochDescriptor]:
        """Return the first epochs of new partitions of a topic.

        Raises:
            NoPersistenceError: no registered node stores copies.
        """
        wishes, entries, alive = replication_settings(config), self._entries(), self._available()
        return first_epochs(topic_id, partitions, wishes, entries, alive=alive, incarnation=self.incarnation)

    # --- messages --------------------------------------------------------------------------------------

    def request(
        self, node_id: str, envelope: pb.Envelope, attachment: Sequence[memoryview] = (), *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        """Write a request to a node now and return the future of its answer; see `Links.request`.

        Raises:
            ProtocolError: EPOCH_CHANGING if the node is not reachable: nothing was sent.
        """
        if self._links is None:
            raise unreachable(node_id)
        return self._links.request(node_id, envelope, attachment, timeout_s=timeout_s)

    async def ask_others(self, envelope: pb.Envelope, *, timeout_s: float) -> list[pb.Envelope]:
        """Send a request to all linked nodes; return the answers that arrive in time."""

        async def ask(node_id: str) -> pb.Envelope | None:
            request = pb.Envelope()
            request.CopyFrom(envelope)
            try:
                return (await self.request(node_id, request, timeout_s=timeout_s)).envelope
            except ProtocolError:  # The node is slow or unreachable, or refuses the request.
                return None

        answers = await asyncio.gather(*map(ask, sorted(self.linked)))
        return [answer for answer in answers if answer is not None]

    async def is_running(self, node_id: str, incarnation: int, *, timeout_s: float) -> bool | None:
        """Ask a node's address whether the process of one incarnation is running; return None if that is unknown.

        The state is unknown if the address does not answer in time and gossip reports that incarnation as alive: the
        node may be slow, or unreachable from this node.
        """
        answering = await self._running_incarnation(node_id, timeout_s=timeout_s)
        if answering is not None:
            return answering == incarnation
        member = self._members.get(node_id)
        return None if member is not None and member.is_live and member.incarnation == incarnation else False

    async def _running_incarnation(self, node_id: str, *, timeout_s: float) -> int | None:
        """Return the incarnation that answers at a node's address; 0 if the node does not run there, None if unknown.

        Also 0 if this node has no links or does not know the address. See `Links.running_incarnation`.
        """
        address = self.address(node_id)
        if self._links is None or address is None:
            return 0
        return await self._links.running_incarnation(node_id, address, timeout_s=timeout_s)

    async def exchange_incarnations(
        self, node_id: str, incarnations: pb.Incarnations, *, timeout_s: float
    ) -> pb.IncarnationsReply | None:
        """Send known incarnations to a node; return the later ones that it knows, None if the request fails.

        A node of a build that does not exchange incarnations knows none.
        """
        try:
            answer = await self.request(node_id, pb.Envelope(incarnations=incarnations), timeout_s=timeout_s)
        except ProtocolError as error:
            log.debug("cannot exchange incarnations with node %r: %s", node_id, error.message)
            return pb.IncarnationsReply() if error.code == pb.UNKNOWN_KIND else None
        return answer.envelope.incarnations_reply

    async def leave(self, *, timeout_s: float) -> None:
        """Announce to all linked nodes that this node is about to stop; return after their answers or the timeout."""
        self.note_leaving(self._node_id, self._incarnation)
        record = pb.NodeRecord(node_id=self._node_id, incarnation=self._incarnation, draining=True)
        announce = pb.NodeAnnounce(node=record, ask=True)
        await self.ask_others(pb.Envelope(node_announce=announce), timeout_s=timeout_s)

    def note_leaving(self, node_id: str, incarnation: int) -> None:
        """Record that a node is about to stop: until its next start it gets no ownership, and copies only if needed."""
        if self._leaving.get(node_id) != incarnation:
            self._leaving[node_id] = incarnation
            self._notes += 1

    @property
    def linked(self) -> frozenset[str]:
        """The nodes that requests can be sent to now."""
        return self._links.connected if self._links is not None else frozenset()

    # --- nodes -----------------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether this node does not belong to a cluster."""
        return self._links is None

    def address(self, node_id: str) -> Address | None:
        """Return a node's address for clients and nodes; None if unknown."""
        if node_id == self._node_id:
            info = self._info()
            return info.host, info.port
        return self.addresses().get(node_id)

    def addresses(self) -> dict[str, Address]:
        """Return the addresses of the other nodes, from gossip or else from the registry."""
        found = {record.node_id: (record.host, record.port) for record in self._registry.live()}
        found |= {
            member.node_id: (member.host, member.port)
            for member in self._members.values()
            if member.is_live and not self._is_removed(member.node_id)
        }
        found.pop(self._node_id, None)
        return found

    def nodes(self) -> list[pb.NodeInfo]:
        """Return all nodes of the cluster, by id."""
        found = {self._node_id: self._info()}
        for node_id, (host, port) in self.addresses().items():
            member, record = self._members.get(node_id), self._registry.get(node_id)
            zone = member.zone if member else record.zone if record else ""
            found[node_id] = pb.NodeInfo(
                node_id=node_id,
                host=host,
                port=port,
                zone=zone,
                incarnation=self.incarnation(node_id),
                alive=self.alive(node_id),
            )
        return [found[node_id] for node_id in sorted(found)]

    def membership(self, node_id: str) -> str:
        """Return a node's state in gossip: alive, suspect, dead, left or unknown."""
        if node_id == self._node_id:
            return "alive"
        member = self._members.get(node_id)
        return "unknown" if member is None else _MEMBERSHIP[member.state]

    # --- internals -------------------------------------------------------------------------------------

    def _entries(self) -> Sequence[NodeEntry]:
        registered = [] if self.is_alone else self._registry.entries()
        return registered or [NodeEntry(self._node_id, incarnation=self._incarnation)]

    def _available(self) -> frozenset[str]:
        if self.is_alone:
            return frozenset({self._node_id})
        now_at = self.version
        if now_at != self._available_at:  # cached, because the takeover of each partition of a failed node needs it
            living = {self._node_id, *(member.node_id for member in self._members.live())}
            living = {node for node in living if self._leaving.get(node) != self.incarnation(node)} - self._cut_off
            self._available_then = self._registry.available(living) or frozenset({self._node_id})
            self._available_at = now_at
        return self._available_then

    def _is_removed(self, node_id: str) -> bool:
        record = self._registry.get(node_id)
        return record is not None and record.removed

    def _wishes(self, key: PartitionKey, active: pb.EpochDescriptor) -> ReplicationSettings:
        """Return the settings of the next epoch: the topic's, except for an engine that a node of `active` lacks."""
        config = self._topics.config_of(key[0])
        if config is None:
            return current_replication_settings(active)
        wishes = replication_settings(config)
        if nodes_without_engine(active, wishes, self._has_engine):
            return wishes._replace(flush=active.flush or pb.ALWAYS, engine=active.engine)
        return wishes

    def _has_engine(self, node_id: str, engine: str) -> bool:
        if node_id == self._node_id:
            return self._has_own_engine(engine)
        record = self._registry.get(node_id)
        return record is not None and engine in record.engines


def _discard_messages(to: Sequence[str], message: PeerMessage, batches: Sequence[memoryview]) -> None:
    """Discard messages, because this node has no cluster, or does not take part in it."""
