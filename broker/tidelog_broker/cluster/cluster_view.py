"""The other nodes as the rest of this one sees them: who is alive, where they are, where copies should live.

Two sources are put together here. The registry (`__meta`, and the bootstrap file before it) says which nodes there
are; gossip says which of them are alive, as which incarnation, and where. Both are hints: no promise and no decision
depends on their being right, see `core.replication.ports.ClusterHints`.

A node that stands alone is its own only neighbour: every plan is this node, and there is nobody to send to.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from tidelog_broker.cluster.backfill_pace import BackfillPace
from tidelog_broker.core.membership.members import Members, MemberState
from tidelog_broker.core.placement.placement import NodeEntry
from tidelog_broker.core.placement.planning import (
    ReplicationSettings,
    current_replication_settings,
    first_epoch,
    handover_plan,
    has_live_quorum,
    ingestion_owner_plan,
    lacks_copies,
    lacks_owner,
    move_plan,
    preferred_owner_plan,
    rank_of,
    replacement_plan,
    replication_settings,
    takeover_plan,
)
from tidelog_broker.core.placement.registry import NodeRegistry
from tidelog_broker.core.replication.effects import PeerMessage, Sending
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey, TopicRegistry
from tidelog_broker.wire.link import unreachable
from tidelog_broker.wire.links import Address, Links
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
    """Answers the replicas' questions about their surroundings, and carries their messages.

    Args:
        node_id, incarnation: this node.
        topics: what is wanted of each topic.
        nodes: the registered nodes; empty for a node that stands alone.
        info: how clients reach this node.
        fill_bytes_per_s: how fast it fetches sealed epochs; 0: as fast as it goes.
    """

    def __init__(
        self,
        node_id: str,
        incarnation: int,
        *,
        topics: TopicRegistry,
        nodes: NodeRegistry,
        info: Callable[[], pb.NodeInfo],
        fill_bytes_per_s: int = 0,
    ) -> None:
        self._node_id = node_id
        self._incarnation = incarnation
        self._topics = topics
        self._registry = nodes
        self._info = info
        self._backfill_pace = BackfillPace(fill_bytes_per_s, lambda: 1000 * time.monotonic())
        self._random = random.Random()  # noqa: S311 - it spreads retries and protects nothing
        self._links: Links | None = None
        self.send: Sending = _send_to_nobody
        self._members = Members(1)
        self._available_at = (-1, -1, -1)
        self._available_then: frozenset[str] = frozenset()
        self._cut_off: frozenset[str] = frozenset()
        self._notes = 0
        """How often what is noted here beside gossip has changed: who is cut off, who leaves."""
        self._leaving: dict[str, int] = {}
        """Nodes that have said that they are about to stop, and in which life. Who is started again has another one."""

    def use_links(self, links: Links) -> None:
        """Send requests over these from now on; replicas send nothing before `take_part`."""
        self._links = links

    def take_part(self) -> None:
        """Let replicas send to other nodes: these have noted this node's life."""
        assert self._links is not None
        self.send = self._links.send

    def withdraw(self) -> None:
        """Let replicas send nothing more: this node must not take part, and is about to end."""
        self.send = _send_to_nobody

    def use_members(self, members: Members) -> None:
        """Believe gossip's table, which changes as things happen."""
        self._members = members
        self._available_at = (-1, -1, -1)

    def note_cut_off(self, nodes: frozenset[str]) -> bool:
        """Note who lives and cannot be spoken with; return whether that is news."""
        if nodes == self._cut_off:
            return False
        self._cut_off = nodes
        self._notes += 1
        return True

    # --- hints for the replicas ------------------------------------------------------------------------

    def alive(self, node_id: str) -> bool:
        """Whether a node seems to be alive; a suspected one does, one that nobody can speak with does not."""
        return node_id == self._node_id or (self._members.alive(node_id) and node_id not in self._cut_off)

    def incarnation(self, node_id: str) -> int:
        """Return the newest known boot incarnation of a node, 0 for an unknown one."""
        if node_id == self._node_id:
            return self._incarnation
        member, record = self._members.get(node_id), self._registry.get(node_id)
        return max(member.incarnation if member else 0, record.incarnation if record else 0)

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        """Return where the epoch after `active` should live if this node takes over."""
        return takeover_plan(
            self._node_id, key, active, self._wishes(key, active), self._entries(), alive=self._available()
        )

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        """Return how many living candidates stand before this node."""
        return rank_of(self._node_id, key, active, self._entries(), alive=self._available())

    def backfill_wait_ms(self, size_bytes: int) -> int:
        """Return how long to wait before so much of a sealed epoch is asked for."""
        return self._backfill_pace.wait_ms(size_bytes)

    def random_ms(self, below_ms: int) -> int:
        """Return a random number, 0 <= n < below_ms."""
        return self._random.randrange(below_ms)

    # --- plans that nobody's death has caused ----------------------------------------------------------

    def wanted(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan | None:
        """Return where placement wants a partition; None when it is there already, or cannot move now."""
        plan = move_plan(key, active, self._wishes(key, active), self._entries(), alive=self._available())
        return plan if plan is not None and has_live_quorum(plan, alive=self.alive) else None

    def heir(self, key: PartitionKey, active: pb.EpochDescriptor, *, behind: Collection[str] = ()) -> Plan | None:
        """Return the epoch that gives a partition of this node to another of its replicas; see `handover_plan`.

        None when none of them can own it, or too few are there to decide anything.
        """
        if sum(1 for node in active.placement if self.alive(node)) < active.ack_quorum:
            return None
        return handover_plan(self._node_id, key, active, self._entries(), alive=self._available(), behind=behind)

    def preferred(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan | None:
        """Return the epoch that the preferred one of a partition's replicas owns; None when that owns it already."""
        return preferred_owner_plan(key, active, self._entries(), alive=self._available())

    def relief(self, key: PartitionKey, active: pb.EpochDescriptor, *, behind: Collection[str] = ()) -> Plan | None:
        """Return the epoch by which a storing-only owner gives a partition up; see `ingestion_owner_plan`."""
        return ingestion_owner_plan(key, active, self._entries(), alive=self._available(), behind=behind)

    @property
    def version(self) -> tuple[int, int, int]:
        """What changes whenever a node is heard to come, to go, to leave, to be suspected, cut off or registered."""
        return self._registry.version, self._members.version, self._notes

    def without(
        self, key: PartitionKey, active: pb.EpochDescriptor, replica: str, *, avoid: Collection[str] = ()
    ) -> Plan | None:
        """Return the epoch in which a spare node, none of `avoid`, stands in a replica's place; None without one."""
        alive = self._available().difference(avoid)
        return replacement_plan(key, active, self._wishes(key, active), self._entries(), alive=alive, without=replica)

    def lacks_copies(self, key: PartitionKey, active: pb.EpochDescriptor) -> bool:
        """Whether a partition has fewer copies than its topic asks for, and there are nodes for all of them."""
        return lacks_copies(active, self._wishes(key, active), self._entries(), alive=self._available())

    def lacks_owner(self, active: pb.EpochDescriptor) -> bool:
        """Whether none of a partition's replicas may own it by its role, and there is a node that may."""
        return lacks_owner(active, self._entries(), alive=self._available())

    def first_epochs(self, topic_id: bytes, config: pb.TopicConfig, partitions: range) -> list[pb.EpochDescriptor]:
        """Return epoch 0 of some partitions of a new topic."""
        wishes, entries, alive = replication_settings(config), self._entries(), self._available()
        return [
            first_epoch((topic_id, index), wishes, entries, alive=alive, incarnation=self.incarnation)
            for index in partitions
        ]

    # --- messages --------------------------------------------------------------------------------------

    def request(
        self, node_id: str, envelope: pb.Envelope, attachment: Sequence[memoryview] = (), *, timeout_s: float
    ) -> asyncio.Future[Frame]:
        """Write a request to a node now and return the future of its answer; see `Links.request`.

        Raises:
            ProtocolError: EPOCH_CHANGING when the node cannot be reached: nothing was sent.
        """
        if self._links is None:
            raise unreachable(node_id)
        return self._links.request(node_id, envelope, attachment, timeout_s=timeout_s)

    async def ask_others(self, envelope: pb.Envelope, *, timeout_s: float) -> list[pb.Envelope]:
        """Ask all nodes that requests can be sent to; return the answers of those that gave one in time."""

        async def ask(node_id: str) -> pb.Envelope | None:
            asked = pb.Envelope()
            asked.CopyFrom(envelope)
            try:
                return (await self.request(node_id, asked, timeout_s=timeout_s)).envelope
            except ProtocolError:  # away, perhaps since a moment ago, or slow
                return None

        answers = await asyncio.gather(*map(ask, sorted(self.linked)))
        return [answer for answer in answers if answer is not None]

    async def is_running(self, node_id: str, incarnation: int, *, timeout_s: float) -> bool | None:
        """Return whether a start of a node runs now, as the node proves at its address; None when that is in doubt.

        It is in doubt when its address does not answer in time and gossip still has that start as alive: this node may
        be cut off from it, or it may be slow.
        """
        answering = await self._who_answers(node_id, timeout_s=timeout_s)
        if answering is not None:
            return answering == incarnation
        member = self._members.get(node_id)
        return None if member is not None and member.is_live and member.incarnation == incarnation else False

    async def _who_answers(self, node_id: str, *, timeout_s: float) -> int | None:
        """Return the incarnation of the node that answers at a node's address; see `Links.who_answers`."""
        address = self.address(node_id)
        if self._links is None or address is None:
            return 0
        return await self._links.who_answers(node_id, address, timeout_s=timeout_s)

    async def ask_lives(self, node_id: str, lives: pb.Lives, *, timeout_s: float) -> pb.LivesReply | None:
        """Send lives to a node; return the later ones that it knows, None without an answer in time.

        A node of a build without lives knows none.
        """
        try:
            answer = await self.request(node_id, pb.Envelope(lives=lives), timeout_s=timeout_s)
        except ProtocolError as error:
            log.debug("%s does not take the lives of nodes: %s", node_id, error.message)
            return pb.LivesReply() if error.code == pb.UNKNOWN_KIND else None
        return answer.envelope.lives_reply

    async def leave(self, *, timeout_s: float) -> None:
        """Tell the others that this node is about to stop; return when they have heard it, or cannot be waited for."""
        self.note_leaving(self._node_id, self._incarnation)
        record = pb.NodeRecord(node_id=self._node_id, incarnation=self._incarnation, draining=True)
        announce = pb.NodeAnnounce(node=record, ask=True)
        await self.ask_others(pb.Envelope(node_announce=announce), timeout_s=timeout_s)

    def note_leaving(self, node_id: str, incarnation: int) -> None:
        """A node stops soon: until it is started again it comes to own nothing, and gets copies only if it must."""
        if self._leaving.get(node_id) != incarnation:
            self._leaving[node_id] = incarnation
            self._notes += 1

    @property
    def linked(self) -> frozenset[str]:
        """The nodes that requests can be sent to now."""
        return self._links.connected if self._links is not None else frozenset()

    # --- who there is ----------------------------------------------------------------------------------

    @property
    def is_alone(self) -> bool:
        """Whether this node belongs to no cluster."""
        return self._links is None

    def address(self, node_id: str) -> Address | None:
        """Return where clients and nodes reach a node; None when that is not known."""
        if node_id == self._node_id:
            info = self._info()
            return info.host, info.port
        return self.addresses().get(node_id)

    def addresses(self) -> dict[str, Address]:
        """Return where the other nodes are: as they say themselves, or else as the registry has it."""
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
        """Return what gossip says of a node: alive, suspect, dead, left or unknown."""
        if node_id == self._node_id:
            return "alive"
        member = self._members.get(node_id)
        return "unknown" if member is None else _MEMBERSHIP[member.state]

    # --- inside ----------------------------------------------------------------------------------------

    def _entries(self) -> Sequence[NodeEntry]:
        registered = [] if self.is_alone else self._registry.entries()
        return registered or [NodeEntry(self._node_id, incarnation=self._incarnation)]

    def _available(self) -> frozenset[str]:
        if self.is_alone:
            return frozenset({self._node_id})
        now_at = self.version
        if now_at != self._available_at:  # asked for each partition of a node that died
            living = {self._node_id, *(member.node_id for member in self._members.live())}
            living = {node for node in living if self._leaving.get(node) != self.incarnation(node)} - self._cut_off
            self._available_then = self._registry.available(living) or frozenset({self._node_id})
            self._available_at = now_at
        return self._available_then

    def _is_removed(self, node_id: str) -> bool:
        record = self._registry.get(node_id)
        return record is not None and record.removed

    def _wishes(self, key: PartitionKey, active: pb.EpochDescriptor) -> ReplicationSettings:
        config = self._topics.config_of(key[0])
        return current_replication_settings(active) if config is None else replication_settings(config)


def _send_to_nobody(to: Sequence[str], message: PeerMessage, batches: Sequence[memoryview]) -> None:
    """Send of a node that stands alone, or has no links yet."""
