"""A cluster of three replicas of one partition in which everything that happens next is a choice.

There is no time and no chance: a message may arrive next, a write may be done next, a node may crash, start, begin a
takeover, a client may publish. The explorer tries these choices in every order, within bounds on how often each kind
of trouble may come. The same core and the same checks as in the simulated world, on a log in memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tests.simulation.payload import make_batch
from tests.simulation.small_log import SmallLog
from tests.simulation.truth import Truth

from tidelog_broker.core.replication import effects as fx
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.ports import Batch, Plan
from tidelog_broker.core.replication.replica import Replica
from tidelog_broker.core.replication.replica_state import Doubt, syncs_appends
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import unpack_header

KEY: PartitionKey = (b"explored topic!!", 0)
NODES = ("a", "b", "c")
QUORUM = 2
PATIENCE_MS = 1000


@dataclass(slots=True)
class Bounds:
    """How often each kind of trouble may still come."""

    publishes: int = 2
    takeovers: int = 2
    roll_overs: int = 0
    deletions: int = 0
    crashes: int = 1
    repeats: int = 0
    """Messages that arrive once more."""
    cuts: int = 0
    """Connections that break and lose their messages in flight; only if messages keep their order."""
    ticks: int = 0
    """Times that a node runs its expired timers: sends again, gives up."""
    losses: int = 0
    """Times that one node loses records of the open epoch: those not synced, or all of them if appends are synced."""


class Choice(NamedTuple):
    """Something that may happen next, and to which node: no other one is touched by it."""

    kind: str
    what: str
    node: str
    do: Callable[[], None]

    @property
    def pace(self) -> str:
        """Source of events with one speed: a kind of event at one node, the messages of one link."""
        return f"{self.kind} {self.what.partition(' ')[0]}"


class Flying(NamedTuple):
    """A message on its way."""

    sender: str
    to: str
    kind: type[fx.PeerMessage]
    raw: bytes
    batches: tuple[bytes, ...]
    incarnation: int
    """Of the sender."""


@dataclass(slots=True)
class Node:
    """A node: the content of its disk, and its process while it runs."""

    node_id: str
    boots: int = 0
    log: SmallLog = field(default_factory=SmallLog)
    decisions: list[bytes] = field(default_factory=list)
    fences: dict[int, pb.FenceEntry] = field(default_factory=dict)
    replica: Replica | None = None
    queue: deque[fx.Write | fx.RebuildProducers] = field(default_factory=deque)
    known: dict[str, int] = field(default_factory=dict)
    """Incarnations of other nodes."""
    synced: int = 0
    """The end of the first epoch's records that a power cut does not take, if its appends are not synced."""
    doubt: Doubt = ""
    """Why the copy of the open epoch may lack records, as the disk has it."""


class Hints:
    """As `ClusterHints`: every owner seems dead, so that a takeover may begin whenever a choice allows it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def alive(self, node_id: str) -> bool:
        replica = self._node.replica
        return node_id == self._node.node_id or replica is None or node_id != replica.state.active.owner

    def incarnation(self, node_id: str) -> int:
        return self._node.known.get(node_id, 1)

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        return Plan(self._node.node_id, NODES, QUORUM)

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        return 0

    def backfill_wait_ms(self, size_bytes: int) -> int:
        return 0

    def random_ms(self, below_ms: int) -> int:
        return 0


class SmallWorld:
    """See the module."""

    def __init__(self, bounds: Bounds, *, flush: pb.Flush = pb.ALWAYS) -> None:
        """Begin with an epoch of node `a`; `flush` is the flush of that epoch, later ones have ALWAYS."""
        self.bounds = bounds
        self.now_ms = 0
        self.loser: str | None = None
        """The node that has lost records: no other one may, since that would be a quorum."""
        self.nodes = {node_id: Node(node_id) for node_id in NODES}
        self.genesis = pb.EpochDescriptor(
            owner="a", owner_incarnation=1, placement=NODES, ack_quorum=QUORUM, flush=flush
        )
        self.truth = Truth(self.genesis, lambda node_id: False)
        self.flying: list[Flying] = []
        self.trace: list[str] = []
        self.published = 0
        for node in self.nodes.values():
            self._start(node)

    # ------------------------------------------------------------------------------------------ choices

    def choices(self) -> list[Choice]:
        """Return everything that may happen next, always in the same order for the same state."""
        found: list[Choice] = []
        bounds = self.bounds
        for number, message in enumerate(self.flying):
            what = f"{message.sender}>{message.to} {message.kind.__name__}"
            found.append(Choice("deliver", what, message.to, partial(self.deliver, number, keep=False)))
            if bounds.repeats:
                found.append(Choice("repeat", what, message.to, partial(self.deliver, number, keep=True)))
        for node in self.nodes.values():
            found += self.choices_of(node)
        return found

    def choices_of(self, node: Node) -> list[Choice]:
        """Return the next possible events of a node besides messages."""
        name, bounds, replica = node.node_id, self.bounds, node.replica
        if replica is None:
            return [Choice("start", name, name, lambda: self._start(node))]
        found: list[Choice] = []
        if node.queue:
            found.append(Choice("write", f"{name} {type(node.queue[0]).__name__}", name, lambda: self._write(node)))
        if bounds.publishes and replica.can_append:
            found.append(Choice("publish", name, name, lambda: self._publish(node)))
        if (
            bounds.takeovers
            and replica.state.is_member
            and replica.state.owner is None
            and replica.candidate.phase == "idle"
        ):
            found.append(Choice("take over", name, name, lambda: self._take_over(node)))
        if bounds.roll_overs and replica.state.owner is not None:
            found.append(Choice("roll over", name, name, lambda: self._roll_over(node)))
        if bounds.deletions and replica.can_append and replica.state.high_watermark > replica.deletion.proposed:
            found.append(Choice("delete", name, name, lambda: self._delete(node)))
        if bounds.crashes:
            found.append(Choice("crash", name, name, lambda: self._crash(node)))
        if bounds.losses and self.loser in {None, name}:
            found.append(Choice("lose", name, name, lambda: self._lose(node)))
        if bounds.ticks and replica.deadline_ms is not None:
            found.append(Choice("tick", name, name, lambda: self._tick(node)))
        return found

    def choose(self, choice: Choice) -> None:
        """Let something happen."""
        self.trace.append(f"{choice.kind} {choice.what}")
        choice.do()

    def settle(self) -> None:
        """Let everything be written, and every message arrive, until nothing is under way."""
        while quiet := [choice for choice in self.choices() if choice.kind in {"write", "deliver"}]:
            self.choose(quiet[0])
        self.trace.clear()

    # ------------------------------------------------------------------------------------------ events

    def deliver(self, number: int, *, keep: bool) -> None:
        """Let a message arrive; `keep`: and once more later."""
        message = self.flying[number]
        if keep:
            self.bounds.repeats -= 1
        else:
            del self.flying[number]
        node = self.nodes[message.to]
        node.known[message.sender] = max(message.incarnation, node.known.get(message.sender, 0))
        if node.replica is not None:
            batches = [Batch(unpack_header(data), memoryview(data)) for data in message.batches]
            node.replica.receive(message.sender, message.kind.FromString(message.raw), batches, self.now_ms)
            self._pump(node)

    def _publish(self, node: Node) -> None:
        self.bounds.publishes -= 1
        self.published += 1
        header, data = make_batch(self.published << 4, 1, producer_id=0, base_sequence=0)
        assert node.replica is not None
        node.replica.accept_group([Batch(header, memoryview(data))], now_us=1, now_ms=self.now_ms)
        self._pump(node)

    def _take_over(self, node: Node) -> None:
        self.bounds.takeovers -= 1
        self.now_ms += PATIENCE_MS
        assert node.replica is not None
        node.replica.liveness_changed(self.now_ms)
        self._pump(node)

    def _roll_over(self, node: Node) -> None:
        self.bounds.roll_overs -= 1
        assert node.replica is not None
        owner = NODES[(NODES.index(node.node_id) + self.bounds.roll_overs) % len(NODES)]
        node.replica.roll_over(Plan(owner, NODES, QUORUM), self.now_ms)
        self._pump(node)

    def _delete(self, node: Node) -> None:
        self.bounds.deletions -= 1
        assert node.replica is not None
        node.replica.delete_below(node.replica.state.high_watermark, self.now_ms)
        self._pump(node)

    def _tick(self, node: Node) -> None:
        self.bounds.ticks -= 1
        assert node.replica is not None
        self.now_ms = max(self.now_ms, node.replica.deadline_ms or 0)
        node.replica.tick(self.now_ms)
        self._pump(node)

    def _crash(self, node: Node) -> None:
        self.bounds.crashes -= 1
        node.replica = None
        node.queue.clear()

    def _lose(self, node: Node) -> None:
        """Cut the power of a node whose appends are not synced, or take the open epoch's directory from it."""
        self.bounds.losses -= 1
        self.loser = node.node_id
        assert node.replica is not None
        active = node.replica.state.active
        node.replica = None
        node.queue.clear()
        is_short = not syncs_appends(active)
        kept = node.synced if is_short else 0
        stored = node.log.epochs.get(active.epoch, [])
        if is_short or stored:
            node.doubt = "short" if is_short else "damaged"
        if stored:
            node.log.epochs[active.epoch] = [one for one in stored if one.end.offset <= kept]
        ends = {epoch: node.log.epoch_end(epoch) for epoch in node.log.epochs}
        self.truth.reopened(node.node_id, {epoch: end[0] for epoch, end in ends.items() if end is not None})

    def _start(self, node: Node) -> None:
        node.boots += 1
        chain = EpochChain(self.genesis)
        for decision in node.decisions:
            chain.extend(decision)
        replica = Replica(
            KEY,
            node_id=node.node_id,
            incarnation=node.boots,
            chain=chain,
            fence=node.fences.get(chain.active.epoch),
            log=node.log,
            cluster_hints=Hints(node),
            now_ms=self.now_ms,
            doubt=node.doubt,
        )
        node.replica = replica
        self.truth.start_watermark(replica, replica.state.high_watermark)
        held = replica.state.fence.promised if replica.state.fence is not None else None
        self.truth.remembers(node.node_id, chain.active.epoch, held)
        self._pump(node)

    # ------------------------------------------------------------------------------------------ effects

    def _pump(self, node: Node) -> None:
        replica = node.replica
        assert replica is not None
        while effects := replica.take_effects():
            for effect in effects:
                if isinstance(effect, fx.Send):
                    self.truth.sent(node.node_id, effect.message)
                    self._send(node.node_id, effect)
                elif isinstance(effect, fx.Write | fx.RebuildProducers):
                    node.queue.append(effect)
                elif isinstance(effect, fx.ReadLog):
                    replica.read(effect, *node.log.read(effect), self.now_ms)
        if not replica.state.doubt:
            node.doubt = ""
        if self.truth.watermark_moved(replica, replica.state.high_watermark):
            self.truth.claim_committed(
                replica.state.active.epoch, replica.state.high_watermark, f"the watermark of {node.node_id}"
            )
        if replica.state.deleted_below or replica.state.active.epoch:
            self.truth.shows_from(replica.state.active.epoch, replica.state.deleted_below, node.node_id)
        if replica.state.owner is not None:
            self.truth.owned(replica.state.active.epoch, node.node_id, node.boots)
        self.truth.require(replica.state.halted is None, "halted", f"{node.node_id}: {replica.state.halted}")

    def _send(self, sender: str, effect: fx.Send) -> None:
        message = effect.message
        for to in effect.to:
            flying = Flying(
                sender,
                to,
                type(message),
                message.SerializeToString(deterministic=True),
                tuple(bytes(batch) for batch in effect.batches),
                self.nodes[sender].boots,
            )
            if flying not in self.flying:
                self.flying.append(flying)

    def _write(self, node: Node) -> None:
        effect, replica = node.queue.popleft(), node.replica
        assert replica is not None
        if isinstance(effect, fx.RebuildProducers):
            replica.producers_rebuilt(effect, node.log.producers(effect.epoch, effect.offset), 0, self.now_ms)
        else:
            self._perform(node, effect)
            replica.wrote(self.now_ms)
        self._pump(node)

    def _perform(self, node: Node, effect: fx.Write) -> None:
        if isinstance(effect, fx.WriteFences):
            self._write_fences(node, effect.entries)
        elif isinstance(effect, fx.WriteChain):
            for entry in effect.entries:
                node.decisions.append(entry.decision)
                self.truth.learned(entry.decision, node.node_id)
        else:
            node.log.perform(effect)
            end = node.log.epoch_end(effect.epoch)
            if isinstance(effect, fx.SyncLog) and end is not None and not syncs_appends(self.genesis):
                node.synced = end[0]
            self.truth.performed(node.node_id, effect, end)
            self.truth.require(not isinstance(effect, fx.SetAside), "I1", f"{node.node_id}: {effect}")

    def _write_fences(self, node: Node, entries: Sequence[pb.FenceEntry]) -> None:
        for entry in entries:
            if entry.dropped:
                node.fences.pop(entry.epoch, None)
            else:
                node.fences[entry.epoch] = entry
            self.truth.fenced(node.node_id, entry)
