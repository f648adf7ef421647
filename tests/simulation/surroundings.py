"""A node's view of the others: a failure detector that is late and sometimes wrong, and a simple rotation.

It replaces gossip and placement, whose own tests are elsewhere: here the view should be worse than theirs, because
nothing that is checked may depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.simulation.clock import Clock
from tests.simulation.scenario import Scenario

from tidelog_broker.core.replication.effects import Sending
from tidelog_broker.core.replication.ports import Plan
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

LOOK_US = 80_000


class Wishes(NamedTuple):
    """Settings of each of the topic's partitions, from the next epoch on."""

    copies: int
    ack_quorum: int
    flush: pb.Flush
    engine: str = ""


class Seen(NamedTuple):
    """The real state of a node, seen from another one: whether it answers or refuses, and its boot."""

    answers: bool
    refuses: bool
    incarnation: int


class Neighbours:
    """The beliefs of one process about all registered nodes, as the `Neighbours` of its replicas."""

    def __init__(
        self,
        node_id: str,
        clock: Clock,
        scenario: Scenario,
        *,
        registered: Callable[[], Sequence[str]],
        wishes: Callable[[], Wishes],
        send: Sending,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._scenario = scenario
        self._registered = registered
        self._wishes = wishes
        self.send = send
        self._suspects: set[str] = set()
        self._missed_since_us: dict[str, int] = {}
        self._wrong_until_us: dict[str, int] = {}
        self._incarnations: dict[str, int] = {}
        self.patience_us = 1000 * clock.random.randint(50, 400)

    @property
    def is_alone(self) -> bool:
        return False

    def look(self, see: Callable[[str], Seen], *, calm: bool) -> bool:
        """Look around; return whether a belief has changed. `calm`: without mistakes."""
        now_us = self._clock.now_us
        random = self._clock.random
        before = (len(self._suspects), dict(self._incarnations))
        changed = False
        for node_id in self._registered():
            if node_id == self._node_id:
                continue
            seen = see(node_id)
            if seen.answers:
                self._missed_since_us.pop(node_id, None)
                self._incarnations[node_id] = max(self._incarnations.get(node_id, 0), seen.incarnation)
            else:
                self._missed_since_us.setdefault(node_id, now_us)
            if not calm and random.random() < self._scenario.wrong_suspicions:
                self._wrong_until_us[node_id] = now_us + 1000 * random.randint(100, 1500)
            missed_us = now_us - self._missed_since_us.get(node_id, now_us)
            suspect = missed_us > self.patience_us or (seen.refuses and random.random() < 0.5)
            suspect = suspect or (not calm and self._wrong_until_us.get(node_id, 0) > now_us)
            if suspect != (node_id in self._suspects):
                changed = True
                (self._suspects.add if suspect else self._suspects.discard)(node_id)
        return changed or before[1] != self._incarnations

    def wake(self) -> None:
        """After a pause no node is suspected for messages missed during the pause."""
        self._missed_since_us.clear()

    # --------------------------------------------------------------------------------- driver_ports.Neighbours

    def alive(self, node_id: str) -> bool:
        return node_id not in self._suspects and node_id in self._registered()

    def incarnation(self, node_id: str) -> int:
        return self._incarnations.get(node_id, 0)

    def plan(self, key: PartitionKey, active: pb.EpochDescriptor) -> Plan:
        nodes = self.placement(key, active, keep=True)
        owner = self._node_id if self._node_id in nodes else nodes[0]
        return self.plan_of(owner, nodes)

    def plan_of(self, owner: str, nodes: tuple[str, ...]) -> Plan:
        """Return a plan with the quorum and the flush that are wanted now for these nodes."""
        wishes, count = self._wishes(), len(nodes)
        quorum = wishes.ack_quorum if count == wishes.copies else count // 2 + 1
        return Plan(owner, nodes, quorum, wishes.flush, engine=wishes.engine)

    def placement(self, key: PartitionKey, active: pb.EpochDescriptor, *, keep: bool) -> tuple[str, ...]:
        """Return nodes for the next epoch, the living first; `keep`: those that hold it already before others."""
        registered = list(self._registered())
        turn = key[1] % len(registered)
        rotation = registered[turn:] + registered[:turn]
        old = set(active.placement)
        ordered = sorted(rotation, key=lambda node: (not self.alive(node), keep and node not in old))
        return tuple(ordered[: min(self._wishes().copies, len(registered))])

    def rank(self, key: PartitionKey, active: pb.EpochDescriptor) -> int:
        before = list(active.placement)
        before = before[: before.index(self._node_id)] if self._node_id in before else before
        return sum(1 for node in before if node != active.owner and self.alive(node))

    def backfill_wait_ms(self, size_bytes: int) -> int:
        """One process in four is in no hurry."""
        patience_ms = self.patience_us // 1000
        return patience_ms // 10 if size_bytes and patience_ms % 4 == 0 else 0

    def random_ms(self, below_ms: int) -> int:
        return self._clock.random.randrange(max(1, below_ms))
