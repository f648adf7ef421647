"""A simulated network: many nodes of the membership protocol in one thread, driven by a list of due events.

The seed determines everything. The time jumps from one due event to the next.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from tidelog_broker.core.membership.failure_detection import Effects, Swim
from tidelog_broker.core.membership.gossip_messages import PAYLOAD_BYTES_MAX
from tidelog_broker.core.membership.member_states import Change, Event, IdentityConflict, MembershipChange
from tidelog_broker.core.membership.members import Address, Member, MemberState
from tidelog_broker.core.membership.swim_settings import SwimSettings

CLUSTER = b"c" * 16


def incarnation(boot: int, nonce: int = 7) -> int:
    return boot << 24 | nonce


def address(index: int) -> Address:
    return Address("10.0.0.1", 1000 + index)


def member(index: int = 0, *, boot: int = 1, at: int | None = None, **changes: object) -> Member:
    plain = Member(f"n{index}", incarnation(boot), f"host{index}", 7400, address(index if at is None else at))
    for name, value in changes.items():
        object.__setattr__(plain, name, value)
    return plain


@dataclass
class Running:
    """A simulated process: a paused one neither ticks nor receives and its datagrams wait; a killed one is gone."""

    swim: Swim
    paused: bool = False
    killed: bool = False
    waiting: list[tuple[bytes, Address]] = field(default_factory=list)
    events: list[tuple[int, Event]] = field(default_factory=list)
    ticks: int = 0

    def changes(self, node_id: str) -> list[Change]:
        return [
            event.change
            for _, event in self.events
            if isinstance(event, MembershipChange) and event.member.node_id == node_id
        ]

    def conflicts(self) -> list[IdentityConflict]:
        return [event for _, event in self.events if isinstance(event, IdentityConflict)]

    def when(self, node_id: str, change: Change) -> int | None:
        """Return when a change was first reported."""
        for at_ms, event in self.events:
            if isinstance(event, MembershipChange) and (event.member.node_id, event.change) == (node_id, change):
                return at_ms
        return None


class World:
    """The network and its nodes, by address."""

    def __init__(
        self, seed: int, *, loss: float = 0, duplication: float = 0, delay_ms: tuple[int, int] = (0, 2)
    ) -> None:
        self.random = random.Random(seed)
        self.now_ms = 0
        self.loss = loss
        self.duplication = duplication
        self.delay_ms = delay_ms
        self.nodes: dict[Address, Running] = {}
        self.sent = 0
        self.cut: Callable[[Address, Address], bool] = lambda _a, _b: False
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def start(
        self,
        me: Member,
        *,
        seeds: Iterable[Address] = (),
        cluster_id: bytes = CLUSTER,
        settings: SwimSettings | None = None,
    ) -> Running:
        swim = Swim(
            me,
            cluster_id=cluster_id,
            chooser=random.Random(self.random.random()),
            now_ms=self.now_ms,
            seeds=tuple(seeds),
            settings=settings,
        )
        node = self.nodes[me.gossip] = Running(swim)
        self._tick_later(node)
        return node

    def cluster(self, size: int, *, settings: SwimSettings | None = None, settle: bool = True) -> list[Running]:
        """Start nodes that all use the first one as a seed, and wait until they know each other."""
        nodes = [self.start(member(i), seeds=[address(0)], settings=settings) for i in range(size)]
        if settle:
            self.until(lambda: self.agree(nodes), within_ms=10_000)
        return nodes

    def run(self, for_ms: int) -> None:
        end_ms = self.now_ms + for_ms
        while self._due and self._due[0][0] <= end_ms:
            self._step()
        self.now_ms = end_ms

    def until(self, done: Callable[[], bool], *, within_ms: int) -> int:
        """Run until a condition holds. Return the time that took; exceeding the limit is an error."""
        began_ms = self.now_ms
        while not done():
            assert self._due[0][0] <= began_ms + within_ms, self.describe()
            self._step()
        return self.now_ms - began_ms

    def kill(self, node: Running) -> None:
        node.killed = True

    def pause(self, node: Running, for_ms: int) -> None:
        node.paused = True
        self._at(self.now_ms + for_ms, lambda: self._wake(node))

    def apply(self, node: Running, effects: Effects) -> None:
        node.events += [(self.now_ms, event) for event in effects.events]
        source = node.swim.me.gossip
        for to, payload in effects.outgoing:
            assert len(payload) <= PAYLOAD_BYTES_MAX
            self.sent += 1
            for _ in range(1 + (self.random.random() < self.duplication)):
                if self.random.random() >= self.loss and not self.cut(source, to):
                    self.deliver(to, payload, source, after_ms=self.random.randint(*self.delay_ms))
        self._tick_later(node)

    def deliver(self, to: Address, payload: bytes, source: Address, *, after_ms: int = 0) -> None:
        self._at(self.now_ms + after_ms, lambda: self._arrive(to, payload, source))

    def agree(self, nodes: Iterable[Running]) -> bool:
        """Return whether these nodes see each other alive and all others not, with equal digests."""
        chosen = list(nodes)
        ids = {node.swim.me.node_id for node in chosen}
        return all(
            {other.node_id for other in node.swim.members.live()} == ids
            and all(node.swim.members[node_id].state is MemberState.ALIVE for node_id in ids)
            and node.swim.members.digest == chosen[0].swim.members.digest
            for node in chosen
        )

    def describe(self) -> str:
        lines = [f"at {self.now_ms} ms:"]
        for node in self.nodes.values():
            known = ", ".join(f"{m.node_id} {m.state.name} {m.refutation}" for m in node.swim.members.values())
            lines.append(f"{node.swim.me.node_id}{' killed' if node.killed else ''}: {known}")
        return "\n".join(lines)

    def _at(self, at_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_ms, next(self._order), action))

    def _step(self) -> None:
        self.now_ms, _, action = heapq.heappop(self._due)
        action()

    def _tick_later(self, node: Running) -> None:
        due_ms = node.swim.next_tick_ms

        def tick() -> None:
            if node.swim.next_tick_ms == due_ms and not node.paused and not node.killed and node.ticks == ticks:
                node.ticks += 1
                self.apply(node, node.swim.tick(self.now_ms))

        ticks = node.ticks
        self._at(max(due_ms, self.now_ms), tick)

    def _arrive(self, to: Address, payload: bytes, source: Address) -> None:
        node = self.nodes.get(to)
        if node is None or node.killed:
            return
        if node.paused:
            node.waiting.append((payload, source))
            del node.waiting[:-200]  # as a socket's buffer does, but the other way round
        else:
            self.apply(node, node.swim.receive(payload, source, self.now_ms))

    def _wake(self, node: Running) -> None:
        """Run the overdue timers first and then deliver waiting datagrams, which is the worse order."""
        node.paused = False
        self.apply(node, node.swim.tick(self.now_ms))
        waiting, node.waiting = node.waiting, []
        for payload, source in waiting:
            self.apply(node, node.swim.receive(payload, source, self.now_ms))
